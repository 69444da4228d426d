"""The emulator's configuration file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from broker.entities.rules import (
    CorrelationFilter,
    RuleDescription,
    RuleValue,
    SqlAction,
    SqlFilter,
    TrueFilter,
    ValueType,
)
from broker.settings.config_file import ConfigFile, WrongConfigFile, load_config_file, without_comments
from broker.settings.settings import load_settings

RULE: dict[str, Any] = {
    "Name": "r",
    "Properties": {"FilterType": "Sql", "SqlFilter": {"SqlExpression": "1=1"}},
}
SAMPLE = Path(__file__).parents[4] / "docker" / "config.json"


def load(tmp_path: Path, content: str | dict[str, Any], **settings: object) -> ConfigFile:
    path = tmp_path / "config.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return load_config_file(path, load_settings(**settings))


def queues(*entities: object, **namespace: object) -> dict[str, Any]:
    return {
        "UserConfig": {
            "Namespaces": [{"Name": "sbemulatorns", "Queues": entities, "Topics": [], **namespace}],
            "Logging": {"Type": "Console"},
        }
    }


def test_the_sample_is_accepted_with_its_topic() -> None:
    config = load_config_file(SAMPLE, load_settings())
    assert [
        (queue.name, queue.partitions, queue.settings.enable_partitioning) for queue in config.first.queues
    ] == [
        ("queue.1", 16, True),
        ("queue.plain", None, False),
    ]
    assert config.first.namespace == "sbemulatorns" and config.warnings == ()
    (topic,) = config.first.topics
    assert [subscription.name for subscription in topic.subscriptions] == [
        "subscription.1",
        "subscription.2",
        "subscription.3",
        "subscription.4",
    ]


def test_a_topic_has_subscriptions_with_the_emulators_defaults_and_rules(tmp_path: Path) -> None:
    rules = [
        {
            "Name": "by-properties",
            "Properties": {
                "FilterType": "Correlation",
                "CorrelationFilter": {
                    "Label": "red",
                    "Properties": {"text": "x", "number": 7, "flag": True, "half": 0.5},
                },
            },
        },
        {
            "Name": "$Default",
            "Properties": {
                "FilterType": "Sql",
                "SqlFilter": {"SqlExpression": "color = 'red'"},
                "Action": {"SqlExpression": "SET a = 1"},
            },
        },
    ]
    subscriptions = [
        {"Name": "plain"},
        {"Name": "ruled", "Properties": {"MaxDeliveryCount": 7}, "Rules": rules},
    ]
    topic = {
        "Name": "t",
        "Properties": {"PartitionCount": 3, "RequiresDuplicateDetection": True},
        "Subscriptions": subscriptions,
    }
    (spec,) = load(tmp_path, queues(Topics=[topic])).first.topics
    assert (spec.name, spec.partitions, spec.settings.requires_duplicate_detection) == ("t", 3, True)
    assert spec.settings.duplicate_detection_window_ms == 20_000
    plain, ruled = spec.subscriptions
    assert (plain.settings.max_delivery_count, plain.settings.default_time_to_live_ms) == (3, 3_600_000)
    assert plain.rules == (RuleDescription("$Default", TrueFilter()),)
    assert ruled.settings.max_delivery_count == 7
    values = (
        ("text", RuleValue(ValueType.STRING, "x")),
        ("number", RuleValue(ValueType.LONG, 7)),
        ("flag", RuleValue(ValueType.BOOLEAN, True)),
        ("half", RuleValue(ValueType.DOUBLE, 0.5)),
    )
    assert ruled.rules == (
        RuleDescription("by-properties", CorrelationFilter(label="red", properties=values)),
        RuleDescription("$Default", SqlFilter("color = 'red'"), SqlAction("SET a = 1")),
    )


@pytest.mark.parametrize(
    ("subscriptions", "message"),
    [
        ([{"Name": "a"}, {"Name": "A"}], r"Subscriptions\[1\].Name: 'A' is the name of another subscription"),
        ([{"Name": "a/b"}], r"Subscriptions\[0\].Name: 'a/b' is not the name of a subscription"),
        (
            [{"Name": "a", "Properties": {"LockDuration": "PT6M"}}],
            r"Subscriptions\[0\].Properties.LockDuration: The supplied lock time",
        ),
        (
            [{"Name": "a", "Rules": [RULE, RULE]}],
            r"Subscriptions\[0\].Rules: Two rules have the name 'r'",
        ),
    ],
)
def test_a_wrong_subscription_is_refused_with_its_place(
    tmp_path: Path, subscriptions: object, message: str
) -> None:
    with pytest.raises(WrongConfigFile, match=message):
        load(tmp_path, queues(Topics=[{"Name": "t", "Subscriptions": subscriptions}]))


def test_a_queue_without_properties_has_the_emulators_defaults_not_the_services(tmp_path: Path) -> None:
    (queue,) = load(tmp_path, queues({"Name": "q"})).first.queues
    settings = queue.settings
    assert (settings.max_delivery_count, settings.default_time_to_live_ms) == (3, 3_600_000)
    assert (settings.duplicate_detection_window_ms, settings.lock_duration_ms) == (20_000, 60_000)
    assert (settings.forward_to, settings.enable_partitioning, queue.partitions) == (None, True, None)


def test_whether_a_queue_is_partitioned_follows_its_own_fields_then_the_brokers_setting(
    tmp_path: Path,
) -> None:
    content = queues(
        {"Name": "default"},
        {"Name": "counted", "Properties": {"PartitionCount": 4}},
        {"Name": "one", "Properties": {"PartitionCount": 1}},
        {"Name": "said", "Properties": {"Partitioned": True}},
        {"Name": "plain", "Properties": {"Partitioned": False}},
    )
    found = load(tmp_path, content, partitioned_by_default=False).first.queues
    assert [(queue.settings.enable_partitioning, queue.partitions) for queue in found] == [
        (False, None),
        (True, 4),
        (False, 1),
        (True, None),
        (False, None),
    ]


def test_values_beyond_the_emulators_are_allowed(tmp_path: Path) -> None:
    content = queues(
        {
            "Name": "a~b",
            "Properties": {
                "DefaultMessageTimeToLive": "P10675199DT2H48M5.4775807S",
                "MaxDeliveryCount": 2_000_000,
                "MaxSizeInMegabytes": 80,
            },
        }
    )
    (queue,) = load(tmp_path, content).first.queues
    assert (
        queue.settings.default_time_to_live_ms,
        queue.settings.max_delivery_count,
        queue.settings.max_size_mb,
    ) == (None, 2_000_000, 80)


def test_our_additions_stand_beside_the_emulators_fields(tmp_path: Path) -> None:
    rule = {"KeyName": "app", "PrimaryKey": "k", "Rights": ["Send", "Listen"]}
    content = queues(
        {
            "Name": "q",
            "Properties": {
                "MaxMessageSizeInKilobytes": 64,
                "Status": "SendDisabled",
                "UserMetadata": "hello",
                "AutoDeleteOnIdle": "P1D",
                "EnableBatchedOperations": False,
                "AuthorizationRules": [rule],
            },
        },
        AuthorizationRules=[rule],
    )
    config = load(tmp_path, content)
    settings = config.first.queues[0].settings
    assert (settings.max_message_size_kb, settings.status.value, settings.user_metadata) == (
        64,
        "SendDisabled",
        "hello",
    )
    assert (settings.auto_delete_on_idle_ms, settings.enable_batched_operations) == (86_400_000, False)
    assert settings.authorization_rules == config.first.authorization_rules
    assert config.first.authorization_rules[0].rights == frozenset({"Send", "Listen"})


def test_what_has_no_effect_yet_is_kept_and_named(tmp_path: Path) -> None:
    content = queues(
        {"Name": "s", "Properties": {"RequiresSession": True, "RequiresDuplicateDetection": True}},
        {"Name": "f", "Properties": {"ForwardTo": "s", "EnableExpress": True}},
    )
    config = load(tmp_path, content)
    assert (
        config.first.queues[0].settings.requires_session and config.first.queues[1].settings.forward_to == "s"
    )
    assert config.warnings == ("f: kept, without effect in this version: EnableExpress",)


def test_a_queue_that_forwards_loses_its_auto_delete_on_idle_with_a_warning(tmp_path: Path) -> None:
    content = queues(
        {"Name": "t", "Properties": {"AutoDeleteOnIdle": "PT10M", "ForwardDeadLetteredMessagesTo": "f"}},
        {"Name": "f", "Properties": {"AutoDeleteOnIdle": "PT10M", "ForwardTo": "t"}},
        {
            "Name": "g",
            "Properties": {"AutoDeleteOnIdle": "P10675199DT2H48M5.4775807S", "ForwardTo": "t"},
        },
    )
    config = load(tmp_path, content)
    assert [queue.settings.auto_delete_on_idle_ms for queue in config.first.queues] == [600_000, None, None]
    assert config.warnings == (
        "queue f: AutoDeleteOnIdle is dropped, because forwarding counts as use and the queue has ForwardTo",
    )


def test_comments_trailing_commas_and_a_byte_order_mark_are_accepted(tmp_path: Path) -> None:
    content = """\ufeff// first
    { "UserConfig": { /* several
         lines */ "Namespaces": [ { "Name": "n//x", "Queues": [ { "Name": "q" }, ], // after a comma
    }, ], "Logging": { "Type": "File,Console", }, }, }"""
    assert load(tmp_path, content).first.namespace == "n//x"


def test_removing_comments_moves_nothing() -> None:
    text = '{ // a\n "k": "// no /* comment, ] \\" }", /* b\n c */ "l": [1,] }'
    cleaned = without_comments(text)
    assert len(cleaned) == len(text)
    assert [line.find('"l"') for line in cleaned.splitlines()] == [
        line.find('"l"') for line in text.splitlines()
    ]
    assert json.loads(cleaned) == {"k": '// no /* comment, ] " }', "l": [1]}


@pytest.mark.parametrize(
    ("entity", "message"),
    [
        (
            {"Name": "q", "Properties": {"LockDuration": "PT6M"}},
            "Queues[0].Properties.LockDuration: The supplied lock time exceeds",
        ),
        (
            {"Name": "q", "Properties": {"LockDuration": "soon"}},
            "Queues[0].Properties.LockDuration: 'soon' is not an ISO 8601 duration",
        ),
        (
            {"Name": "q", "Properties": {"LockDuration": 60}},
            "Queues[0].Properties.LockDuration: a duration is text",
        ),
        (
            {"Name": "q", "Properties": {"LockDuration": "P10675199D"}},
            "Queues[0].Properties.LockDuration: cannot be without limit",
        ),
        (
            {"Name": "q", "Properties": {"MaxDelivery": 1}},
            "Queues[0].Properties.MaxDelivery: there is no such field",
        ),
        (
            {"Name": "q", "Properties": {"MaxDeliveryCount": 0}},
            "Queues[0].Properties.MaxDeliveryCount: The specified value 0 is invalid",
        ),
        (
            {"Name": "q", "Properties": {"PartitionCount": 257}},
            "Queues[0].Properties.PartitionCount: Input should be less than or equal to 256",
        ),
        (
            {"Name": "q", "Properties": {"PartitionCount": 2, "EnablePartitioning": False}},
            "Queues[0].Properties: PartitionCount is 2, but EnablePartitioning is",
        ),
        (
            {"Name": "q", "Properties": {"Partitioned": True, "EnablePartitioning": False}},
            "Queues[0].Properties: Partitioned is true, but EnablePartitioning, its other name, is false",
        ),
        (
            {"Name": "q", "Properties": {"PartitionCount": 2, "Partitioned": False}},
            "Queues[0].Properties: PartitionCount is 2, but Partitioned is",
        ),
        (
            {"Name": "q", "Properties": {"ForwardTo": "q"}},
            "Queues[0].Properties.ForwardTo: 'q' cannot forward to itself",
        ),
        (
            {
                "Name": "q",
                "Properties": {"AuthorizationRules": [{"KeyName": "a", "PrimaryKey": "k", "Rights": []}]},
            },
            "AuthorizationRules[0].Rights: at",
        ),
        (
            {"Name": "q", "Properties": {"MaxDeliveryCount": True}},
            "Queues[0].Properties.MaxDeliveryCount: Input should be a valid integer",
        ),
        (
            {"Name": "q", "Properties": {"MaxDeliveryCount": "3"}},
            "Queues[0].Properties.MaxDeliveryCount: Input should be a valid integer",
        ),
        (
            {"Name": "q", "Properties": {"MaxDeliveryCount": 3.5}},
            "Queues[0].Properties.MaxDeliveryCount: Input should be a valid integer",
        ),
        (
            {"Name": "q", "Properties": {"RequiresSession": "yes"}},
            "Queues[0].Properties.RequiresSession: Input should be a valid boolean",
        ),
        (
            {"Name": "q", "Properties": {"RequiresSession": 1}},
            "Queues[0].Properties.RequiresSession: Input should be a valid boolean",
        ),
        (
            {"Name": "q", "Properties": {"Partitioned": "true"}},
            "Queues[0].Properties.Partitioned: Input should be a valid boolean",
        ),
        (
            {"Name": "q", "Properties": {"PartitionCount": "4"}},
            "Queues[0].Properties.PartitionCount: Input should be a valid integer",
        ),
        (
            {"Name": "q", "Properties": {"MaxMessageSizeInKilobytes": True}},
            "Queues[0].Properties.MaxMessageSizeInKilobytes: Input should be a valid integer",
        ),
        (
            {"Name": "q", "Properties": {"MaxMessageSizeInKilobytes": 0}},
            "Queues[0].Properties.MaxMessageSizeInKilobytes: The specified value 0 is invalid",
        ),
        ({"Name": "a b"}, "Queues[0].Name: 'a b' contains character(s)"),
        ({}, "Queues[0].Name: is required"),
    ],
)
def test_a_wrong_queue_is_refused_with_file_field_and_reason(
    tmp_path: Path, entity: object, message: str
) -> None:
    with pytest.raises(WrongConfigFile) as caught:
        load(tmp_path, queues(entity))
    assert str(caught.value).startswith(f"{tmp_path / 'config.json'}: UserConfig.Namespaces[0].Queues[0]")
    assert message in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ({"FilterType": "Sqll"}, "FilterType: Input should be 'Correlation' or 'Sql'"),
        ({"FilterType": "Sql"}, "Properties: FilterType is Sql, but there is no SqlFilter"),
        (
            {**RULE["Properties"], "CorrelationFilter": {"Label": "a"}},
            "Properties: FilterType is Sql, so the rule cannot have a CorrelationFilter",
        ),
        (
            {**RULE["Properties"], "FilterType": "Correlation", "CorrelationFilter": {"Label": "a"}},
            "Properties: FilterType is Correlation, so the rule cannot have a SqlFilter",
        ),
        (
            {"FilterType": "Correlation", "CorrelationFilter": {"Label": "", "To": "x"}},
            "CorrelationFilter.Label: cannot be empty: leave it out, or match an empty text with a SqlFilter",
        ),
        (
            {"FilterType": "Correlation", "CorrelationFilter": {}},
            "CorrelationFilter: a correlation filter needs at least one property",
        ),
        (
            {"FilterType": "Correlation", "CorrelationFilter": {"Properties": {}}},
            "CorrelationFilter.Properties: ",
        ),
    ],
)
def test_a_wrong_rule_is_refused(tmp_path: Path, rule: object, message: str) -> None:
    topic = {"Name": "t", "Subscriptions": [{"Name": "s", "Rules": [{"Name": "r", "Properties": rule}]}]}
    with pytest.raises(WrongConfigFile) as caught:
        load(tmp_path, queues(Topics=[topic]))
    assert "UserConfig.Namespaces[0].Topics[0].Subscriptions[0].Rules[0].Properties" in str(caught.value)
    assert message in str(caught.value)


def test_no_rules_are_an_empty_list_or_none_and_null_is_refused(tmp_path: Path) -> None:
    for subscription in ({"Name": "s"}, {"Name": "s", "Rules": []}):
        config = load(tmp_path, queues(Topics=[{"Name": "t", "Subscriptions": [subscription]}]))
        assert config.first.topics[0].subscriptions[0].rules == (RuleDescription("$Default"),)
    with pytest.raises(WrongConfigFile) as caught:
        load(tmp_path, queues(Topics=[{"Name": "t", "Subscriptions": [{"Name": "s", "Rules": None}]}]))
    assert str(caught.value).endswith(
        "Subscriptions[0].Rules: null is no list of rules: "
        "leave the field out, or write [], for the rule $Default"
    )


def test_a_filter_that_is_larger_than_the_properties_of_a_message_is_refused(tmp_path: Path) -> None:
    properties = {"FilterType": "Correlation", "CorrelationFilter": {"Properties": {"x" * 60_000: 1}}}
    subscription = {"Name": "s", "Rules": [{"Name": "r", "Properties": properties}]}
    with pytest.raises(WrongConfigFile, match="'r' takes 60000 bytes; the limit is 32768") as caught:
        load(tmp_path, queues(Topics=[{"Name": "t", "Subscriptions": [subscription]}]))
    assert "UserConfig.Namespaces[0].Topics[0].Subscriptions[0].Rules" in str(caught.value)


def test_two_entities_of_one_name_are_refused_in_whatever_case(tmp_path: Path) -> None:
    with pytest.raises(
        WrongConfigFile,
        match=r"Topics\[0\].Name: 'ORDERS' is the name of UserConfig.Namespaces\[0\].Queues\[0\] too",
    ):
        load(tmp_path, queues({"Name": "orders"}, Topics=[{"Name": "ORDERS"}]))


@pytest.mark.parametrize("blank", ["KeyName", "PrimaryKey", "SecondaryKey"])
def test_a_blank_name_or_key_is_refused(tmp_path: Path, blank: str) -> None:
    rule = {"KeyName": "a", "PrimaryKey": "hidden", "Rights": ["Send"]} | {blank: "  "}
    with pytest.raises(WrongConfigFile, match=rf"AuthorizationRules\[0\].{blank}: .*blank") as caught:
        load(tmp_path, queues(AuthorizationRules=[rule]))
    assert "hidden" not in str(caught.value)


@pytest.mark.parametrize(
    ("rules", "problem"),
    [
        ([("a", ["Manage"])], "The authorization rule 'a': Manage requires Send and Listen"),
        ([("a", ["Send"]), ("A", ["Listen"])], "Two authorization rules have the same KeyName 'a'"),
        (
            [(str(number), ["Send"]) for number in range(13)],
            "There are 13 authorization rules; the limit is 12",
        ),
    ],
)
def test_the_keys_of_a_namespace_are_checked_as_those_of_entities(
    tmp_path: Path, rules: list[tuple[str, list[str]]], problem: str
) -> None:
    given = [{"KeyName": name, "PrimaryKey": "key", "Rights": rights} for name, rights in rules]
    with pytest.raises(WrongConfigFile) as caught:
        load(tmp_path, queues(AuthorizationRules=given))
    assert f"config.json: UserConfig.Namespaces[0].AuthorizationRules: {problem}" in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{ "UserConfig": \n oops }', "line 2, column 2: not JSON"),
        ('{ "a": 1, "a": 2 }', "the field a stands twice in the same object"),
        ("[]", "the file: Input should be"),
        ("[" * 200_000, "lists and objects stand too deep in one another"),
        ('{"UserConfig": ' * 5_000 + "1" + "}" * 5_000, "lists and objects stand too deep in one another"),
        (
            '{"UserConfig": {"Namespaces": ' + "[" * 400 + "]" * 400 + "}}",
            "UserConfig.Namespaces[0]: Input should be",
        ),
        (
            '{"UserConfig": {"Namespaces": []}}',
            "UserConfig.Namespaces: there are 0 namespaces; there must be 1 to 100",
        ),
        (
            '{"UserConfig": {"Namespaces": [{"Name": "n"}], "Logging": {"Type": "Disk"}}}',
            "UserConfig.Logging.Type: Input should be 'File', 'Console'",
        ),
        ("{}", "UserConfig: is required"),
    ],
)
def test_a_file_that_is_none_is_refused_with_the_place(tmp_path: Path, content: str, message: str) -> None:
    with pytest.raises(WrongConfigFile) as caught:
        load(tmp_path, content)
    assert str(caught.value).startswith(f"{tmp_path / 'config.json'}: {message}")


def test_a_missing_file_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(WrongConfigFile, match=r"nowhere\.json: cannot be read: No such file or directory$"):
        load_config_file(tmp_path / "nowhere.json", load_settings())
