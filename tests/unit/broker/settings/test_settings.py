"""Settings: defaults, environment, refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from broker.frontend.nodes.management import ManagementNode
from broker.settings.key_files import WrongKeyFile, namespace_rules
from broker.settings.setting_types import variable_of
from broker.settings.settings import Settings, WrongSettings, load_settings, unknown_variables


def test_every_setting_has_a_default_so_that_the_broker_starts_with_none_given() -> None:
    settings = load_settings()
    assert (settings.host, settings.amqp_port, settings.amqps_port, settings.http_port) == (
        "127.0.0.1",
        5672,
        5671,
        5300,
    )
    assert (settings.fsync, settings.partitions_default, settings.namespace) == ("always", 16, "sbemulatorns")


def test_the_environment_sets_what_is_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARTIBUS_AMQP_PORT", "15672")
    monkeypatch.setenv("PARTIBUS_HOST", "0.0.0.0")
    monkeypatch.setenv("PARTIBUS_AMQPS_PORT", "none")
    settings = load_settings(host="127.0.0.2")
    assert (settings.host, settings.amqp_port, settings.amqps_port) == ("127.0.0.2", 15672, None)


def test_a_session_state_fits_into_a_management_request() -> None:
    largest = load_settings(session_state_kb_max=4_000).session_state_kb_max
    assert largest * 1024 < ManagementNode.request_bytes_max
    with pytest.raises(WrongSettings, match="PARTIBUS_SESSION_STATE_KB_MAX"):
        load_settings(session_state_kb_max=4_001)


def test_an_empty_variable_counts_as_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARTIBUS_HTTP_PORT", "")
    assert load_settings().http_port == 5300


def test_a_wrong_value_is_refused_with_its_variable_the_value_and_the_reason() -> None:
    with pytest.raises(WrongSettings) as caught:
        load_settings(amqp_port=70_000, fsync="sometimes")
    lines = str(caught.value).splitlines()
    assert lines[0].startswith("PARTIBUS_AMQP_PORT: ") and lines[0].endswith("(got 70000)")
    assert lines[1].startswith("PARTIBUS_FSYNC: ") and "'always', 'interval' or 'never'" in lines[1]


def test_a_setting_that_does_not_exist_is_refused() -> None:
    with pytest.raises(WrongSettings, match="PARTIBUS_AMPQ_PORT"):
        load_settings(ampq_port=1)


def test_more_keys_come_as_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(
        "PARTIBUS_SAS_RULES", '[{"key_name": "reader", "primary_key": "k", "rights": ["Listen"]}]'
    )
    root, reader = namespace_rules(load_settings())
    assert (root.key_name, root.primary_key, root.rights) == (
        "RootManageSharedAccessKey",
        "SAS_KEY_VALUE",
        frozenset({"Manage", "Send", "Listen"}),
    )
    assert (reader.key_name, reader.primary_key, reader.rights) == ("reader", "k", frozenset({"Listen"}))


@pytest.mark.parametrize(
    "value",
    [
        '[{"key_name": "reader", "primary_key": "hidden-key"',
        '[{"key_name": "a", "primary_key": "hidden-key", "rights": ["Manage"]}]',
        '[{"key_name": "a", "primary_key": "hidden-key", "primary_key": "hidden-key", "rights": ["Send"]}]',
        "hidden-key",
    ],
)
def test_wrong_keys_are_refused_and_never_shown(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("PARTIBUS_SAS_RULES", value)
    with pytest.raises(WrongSettings) as caught:
        load_settings()
    assert "hidden-key" not in str(caught.value)
    assert "sas_rules" in str(caught.value).lower()


def test_a_field_of_a_policy_that_stands_twice_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    twice = '[{"key_name": "a", "primary_key": "b", "primary_key": "c", "rights": ["Send"]}]'
    monkeypatch.setenv("PARTIBUS_SAS_RULES", twice)
    why = "^PARTIBUS_SAS_RULES: the field primary_key stands twice in the same object$"
    with pytest.raises(WrongSettings, match=why):
        load_settings()


@pytest.mark.parametrize(
    ("rights", "why"),
    [
        (
            '["send"]',
            r"PARTIBUS_SAS_RULES\.0\.rights\.0: Input should be 'Manage', .* \(got 'send'\)",
        ),
        ("[]", r"PARTIBUS_SAS_RULES\.0\.rights: at least one of Manage, Send and Listen is needed"),
    ],
)
def test_a_wrong_right_is_one_mistake(monkeypatch: pytest.MonkeyPatch, rights: str, why: str) -> None:
    given = f'[{{"key_name": "a", "primary_key": "b", "rights": {rights}}}]'
    monkeypatch.setenv("PARTIBUS_SAS_RULES", given)
    with pytest.raises(WrongSettings, match=f"^{why}$"):
        load_settings()


def test_keys_do_not_show_when_settings_are_printed() -> None:
    assert "SAS_KEY_VALUE" not in repr(load_settings())


def test_a_certificate_needs_its_key() -> None:
    with pytest.raises(WrongSettings, match="PARTIBUS_TLS_CERTIFICATE and PARTIBUS_TLS_KEY are given"):
        load_settings(tls_key="key.pem")


def test_names_for_the_generated_certificate_are_refused_beside_a_given_one() -> None:
    given = {"tls_certificate": "server.pem", "tls_key": "key.pem"}
    assert load_settings(**given).certificate_names == ()
    with pytest.raises(
        WrongSettings, match=r"PARTIBUS_CERTIFICATE_NAMES .* has no effect .* PARTIBUS_HOSTNAMES"
    ):
        load_settings(**given, certificate_names="bus")


def test_settings_cannot_be_changed() -> None:
    settings = load_settings()
    with pytest.raises(ValueError, match="frozen"):
        settings.host = "0.0.0.0"  # type: ignore[misc]


def test_a_misspelt_variable_is_found_and_the_known_ones_are_not() -> None:
    environment = [
        "PATH",
        variable_of("host"),
        "PARTIBUS_CONFIG",
        "PARTIBUS_AMPQ_PORT",
        "PARTIBUS_SERVICE_HOST",
    ]
    assert unknown_variables(environment) == ["PARTIBUS_AMPQ_PORT", "PARTIBUS_SERVICE_HOST"]


def test_variables_in_small_letters_set_and_are_warned_of_as_those_in_capitals_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("partibus_http_port", "5399")
    assert load_settings().http_port == 5399
    environment = ["partibus_http_port", "partibus_htpp_port", "Partibus_Host", "partibus_config", "home"]
    assert unknown_variables(environment) == ["partibus_config", "partibus_htpp_port"]


def test_several_data_folders_are_separated_by_colons_or_follow_the_first_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    a, b, c = Path("/disk1"), Path("/disk2"), Path("/disk3")
    assert load_settings().data_dirs == (Path("data"),)
    assert load_settings(data_dir=a, more_data_dirs=(b, c)).data_dirs == (a, b, c)
    monkeypatch.setenv("PARTIBUS_DATA_DIR", "/disk1:/disk2")
    assert load_settings().data_dirs == (a, b)
    monkeypatch.setenv("PARTIBUS_MORE_DATA_DIRS", '["/disk3"]')
    assert load_settings().data_dirs == (a, b, c)
    assert load_settings(data_dir=[b, a]).data_dirs == (b, a, c)
    with pytest.raises(WrongSettings, match="named twice"):
        load_settings(data_dir=c)
    monkeypatch.setenv("PARTIBUS_MORE_DATA_DIRS", "/disk3")
    with pytest.raises(
        WrongSettings, match=r"^PARTIBUS_MORE_DATA_DIRS: a JSON value is expected \(got '/disk3'\)$"
    ):
        load_settings()


def test_an_empty_variable_counts_as_not_set_and_an_empty_name_of_a_folder_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PARTIBUS_DATA_DIR", "")
    assert load_settings().data_dirs == (Path("data"),)
    for wrong in (" ", ":", "/disk1::/disk2", "/disk1:/disk2:", ":/disk1", "/disk1: :/disk2"):
        monkeypatch.setenv("PARTIBUS_DATA_DIR", wrong)
        with pytest.raises(WrongSettings) as caught:
            load_settings()
        assert f"a folder in PARTIBUS_DATA_DIR is blank (got {wrong!r}); perhaps a" in str(caught.value)
    monkeypatch.setenv("PARTIBUS_DATA_DIR", "/disk1")
    monkeypatch.setenv("PARTIBUS_MORE_DATA_DIRS", '["/disk2", ""]')
    with pytest.raises(WrongSettings, match="a folder in PARTIBUS_MORE_DATA_DIRS is blank"):
        load_settings()


FILES = ("tls_certificate", "tls_key", "sas_key_file", "sas_secondary_key_file", "sas_rules_file")


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("blank", [" ", "\t", " \n"])
def test_a_blank_name_of_a_file_is_refused_and_an_empty_variable_counts_as_not_set(
    monkeypatch: pytest.MonkeyPatch, name: str, blank: str
) -> None:
    """Symptom: the broker looked for a file named " "."""
    monkeypatch.setenv(variable_of(name), blank)
    with pytest.raises(WrongSettings) as caught:
        load_settings()
    expected = f"is blank (got {blank!r}); perhaps a shell variable is not set"
    assert str(caught.value) == f"{variable_of(name)}: {expected}"
    with pytest.raises(WrongSettings, match="is blank"):
        load_settings(**{name: ""})
    monkeypatch.undo()
    monkeypatch.setenv(variable_of(name), "")
    assert getattr(load_settings(), name) is None


@pytest.mark.parametrize("name", ["namespace", "host", "sas_key_name", "sas_key", "sas_secondary_key"])
def test_a_blank_name_or_key_is_refused(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Symptoms: the namespace was called " ", so no client could name it; the key " " gave all rights,
    without a warning."""
    monkeypatch.setenv(variable_of(name), " ")
    with pytest.raises(WrongSettings) as caught:
        load_settings()
    value = "" if name in ("sas_key", "sas_secondary_key") else " (got ' ')"
    assert str(caught.value) == f"{variable_of(name)}: is blank{value}; perhaps a shell variable is not set"
    if name != "sas_secondary_key":
        with pytest.raises(WrongSettings, match=f"{variable_of(name)}: is blank"):
            load_settings(**{name: ""})


@pytest.mark.parametrize("blank", ["key_name", "primary_key", "secondary_key"])
def test_a_blank_name_or_key_of_a_rule_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, blank: str
) -> None:
    """Symptom: the key " " of a rule gave its rights, without a warning."""
    rule = {"key_name": "deploy", "primary_key": "hidden", "secondary_key": "", "rights": ["Send"]}
    rules = json.dumps([rule | {blank: " "}])
    monkeypatch.setenv("PARTIBUS_SAS_RULES", rules)
    with pytest.raises(WrongSettings) as caught:
        load_settings()
    value = " (got ' ')" if blank == "key_name" else ""
    expected = f"is blank{value}; perhaps a shell variable is not set"
    assert str(caught.value) == f"PARTIBUS_SAS_RULES.0.{blank}: {expected}"
    monkeypatch.delenv("PARTIBUS_SAS_RULES")
    (tmp_path / "rules").write_text(rules)
    with pytest.raises(WrongKeyFile, match=rf"rules: 0.{blank}: is blank$"):
        namespace_rules(load_settings(sas_rules_file=tmp_path / "rules"))


@pytest.mark.parametrize("name", ["hostnames", "origins", "certificate_names"])
@pytest.mark.parametrize("blank", [" ", ",", " , "])
def test_a_blank_list_is_refused_and_none_is_the_empty_one(
    monkeypatch: pytest.MonkeyPatch, name: str, blank: str
) -> None:
    """Symptom: a shell variable that was not set turned off the default host names, without a word."""
    monkeypatch.setenv(variable_of(name), blank)
    with pytest.raises(WrongSettings) as caught:
        load_settings()
    expected = (
        f"is blank (got {blank!r}); perhaps a shell variable is not set. Give `none` for the empty list"
    )
    assert str(caught.value) == f"{variable_of(name)}: {expected}"
    monkeypatch.setenv(variable_of(name), "none")
    assert getattr(load_settings(), name) == ()


def test_no_other_setting_names_a_file_or_folder() -> None:
    paths = {name for name, field in Settings.model_fields.items() if "Path" in str(field.annotation)}
    assert paths == {*FILES, "data_dir", "more_data_dirs"}


@pytest.mark.parametrize("inner", ["data/second", "data/a/b/c"])
def test_a_data_folder_inside_another_one_is_refused(inner: str) -> None:
    for folders in (["data", inner], [inner, "data"], ["elsewhere", "data", inner]):
        with pytest.raises(WrongSettings, match=r"inside another one: .*/data/.* in .*/data. Each needs"):
            load_settings(data_dir=folders)
    beside = load_settings(data_dir=["data", "data2", "disk/data"]).data_dirs
    assert len(beside) == 3, "a name that only begins like the other one's is no folder inside it"


def test_an_interval_is_refused_where_it_has_no_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_settings(fsync="interval", fsync_interval_ms=20).fsync_interval_ms == 20
    for policy in ("always", "never"):
        with pytest.raises(
            WrongSettings, match=r"no effect while PARTIBUS_FSYNC is .* leave the interval out"
        ):
            load_settings(fsync=policy, fsync_interval_ms=20)
    monkeypatch.setenv("PARTIBUS_FSYNC_INTERVAL_MS", "20")
    with pytest.raises(WrongSettings, match="PARTIBUS_FSYNC_INTERVAL_MS is 20, which has no effect"):
        load_settings()
    monkeypatch.setenv("PARTIBUS_FSYNC", "interval")
    assert load_settings().fsync_interval_ms == 20


def test_the_tier_says_how_many_credits_there_are_unless_a_number_is_given() -> None:
    tiers = ("basic", "standard", "premium", "unlimited")
    assert [load_settings(tier=tier).credits_per_second for tier in tiers] == [1_000, 1_000, 0, 0]
    assert load_settings(tier="standard", throttle_credits=0).credits_per_second == 0
    assert load_settings(throttle_credits=50).credits_per_second == 50


@pytest.mark.parametrize(
    ("part", "whole"),
    [("property_kb_max", "properties_kb_max"), ("partitioned_entities_max", "entities_max")],
)
def test_no_part_is_larger_than_the_whole(part: str, whole: str) -> None:
    """It would be accepted without effect."""
    for value in (4, 5):
        assert getattr(load_settings(**{part: value, whole: 5}), part) == value
    with pytest.raises(
        WrongSettings, match=f"PARTIBUS_{part.upper()} is 6, .* PARTIBUS_{whole.upper()} is 5"
    ):
        load_settings(**{part: 6, whole: 5})
    assert getattr(load_settings(**{whole: 5}), whole) == 5, "a default need not fit"


@pytest.mark.parametrize(("name", "largest"), [("properties_kb_max", 64), ("property_kb_max", 32)])
def test_properties_are_no_larger_than_at_the_service(name: str, largest: int) -> None:
    assert getattr(load_settings(), name) == getattr(load_settings(**{name: largest}), name) == largest
    for wrong in (0, largest + 1):
        with pytest.raises(WrongSettings, match=variable_of(name)):
            load_settings(**{name: wrong})


def test_messages_are_as_large_as_in_the_tier_unless_a_number_is_given() -> None:
    tiers = ("basic", "standard", "premium", "unlimited")
    assert [load_settings(tier=tier).message_kb_max for tier in tiers] == [256, 256, 1_024, 1_024]
    assert load_settings(tier="standard", message_kb_max=1_024).message_kb_max == 1_024


@pytest.mark.parametrize(
    ("tier", "page_kb", "clients"),
    [
        ("basic", 256, 5_000),
        ("standard", 256, 5_000),
        ("premium", 1_024, 5_000),
        ("unlimited", 1_024, 10_000),
    ],
)
def test_quotas_are_those_of_the_tier_unless_they_are_given(tier: str, page_kb: int, clients: int) -> None:
    settings = load_settings(tier=tier)
    assert settings.peek_kb_max == page_kb
    assert (settings.connections_max, settings.receivers_per_entity_max) == (clients, clients)
    assert load_settings(tier=tier, peek_kb_max=7).peek_kb_max == 7
