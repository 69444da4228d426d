"""broker/namespace/apply_file.py: the configuration file's settings, and later changes through the
administration API."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from broker.base.clock import ManualClock
from broker.base.errors import Reason, Refused
from broker.base.metrics import Metrics
from broker.entities import subscription_validation
from broker.entities.descriptions import NAMESPACE, AuthorizationRule, QueueDescription, QueueSettings
from broker.entities.documents import encode_description
from broker.entities.rules import CorrelationFilter, RuleDescription, SqlAction, SqlFilter, TrueFilter
from broker.entities.topics import (
    SubscriptionDescription,
    SubscriptionSettings,
    TopicDescription,
    TopicSettings,
)
from broker.namespace.apply_file import apply_file, check_rules, check_targets
from broker.namespace.entity import Entity, Partition
from broker.namespace.kinds import make_entity
from broker.namespace.meter import EntityMeter
from broker.namespace.namespace import Namespace
from broker.namespace.resting import Resting
from broker.settings.config_file import NamespaceFile, QueueSpec, SubscriptionSpec, TopicSpec, WrongConfigFile
from broker.settings.settings import load_settings
from storage.catalogue import Catalogue
from storage.disk import LocalDisk
from storage.file_store import FileLogStore
from storage.partition_index import PartitionIndex
from tests.support.faulty_disk import FaultyDisk

FILE = QueueSettings(
    max_delivery_count=3, authorization_rules=(AuthorizationRule("app", "one", "two", frozenset({"Send"})),)
)
FORWARDS = replace(FILE, forward_to="Target")
BY_API = QueueSettings(max_delivery_count=7)


def no_partition(queue: Entity, number: int) -> Partition:
    raise AssertionError("nobody uses a partition here")


async def start(
    folder: Path,
    *specs: QueueSpec | TopicSpec,
    then: Callable[[Namespace], Awaitable[object]] | None = None,
    disk: FaultyDisk | None = None,
) -> tuple[Namespace, list[str]]:
    """Start on a folder with these queues in the file, run `then`, and stop.

    Returns the namespace as it was at the end, and the warnings.
    """
    metrics, given = Metrics(), disk or FaultyDisk(LocalDisk())
    store = FileLogStore(folder, given, reserve_bytes=0)
    resting = Resting(PartitionIndex(folder / "catalogue", given), ManualClock())
    namespace = Namespace(
        NAMESPACE,
        catalogue=Catalogue(folder / "catalogue", given),
        store=store,
        clock=ManualClock(),
        make_entity=lambda description: make_entity(
            description, EntityMeter(metrics, description.name), no_partition, resting
        ),
        resting=resting,
        partitions_default=4,
        entities_max=10,
    )
    await namespace.load()
    with capture_logs() as lines:
        try:
            queues = tuple(spec for spec in specs if isinstance(spec, QueueSpec))
            topics = tuple(spec for spec in specs if isinstance(spec, TopicSpec))
            file = NamespaceFile(Path("config.json"), "test", queues, topics, (), load_settings())
            check_rules(file)
            check_targets(file, namespace)
            await apply_file(specs, namespace)
            if then is not None:
                await then(namespace)
        finally:
            await namespace.close()
            await store.close()
    return namespace, [
        f"{line['entity']}: {line['reason']}"
        for line in lines
        if line["event"] in ("config.not_applied", "config.target_missing")
    ]


async def change(folder: Path, settings: QueueSettings | None, name: str = "orders") -> None:
    """Change a queue as the administration API does while the broker runs: update or delete it."""

    async def act(namespace: Namespace) -> None:
        await (namespace.update_entity(name, settings) if settings else namespace.delete_entity(name))

    await start(folder, then=act)


def settings_of(namespace: Namespace, name: str = "orders") -> QueueSettings:
    description = namespace.describe(name)
    assert isinstance(description, QueueDescription)
    return description.settings


async def test_what_is_missing_is_created_and_what_the_file_does_not_name_stays(tmp_path: Path) -> None:
    await start(tmp_path, QueueSpec("orders", FILE, 7))
    namespace, warnings = await start(tmp_path, QueueSpec("Bills", FILE, None))
    assert [(queue.name, queue.partitions, queue.settings) for queue in namespace.descriptions()] == [
        ("Bills", 4, FILE),
        ("orders", 7, FILE),
    ]
    assert warnings == []


async def test_an_update_through_the_api_stays_while_the_files_entry_is_the_same(tmp_path: Path) -> None:
    for _ in range(2):
        await start(tmp_path, QueueSpec("orders", FILE, None))
    await change(tmp_path, BY_API)
    for _ in range(2):
        namespace, warnings = await start(tmp_path, QueueSpec("ORDERS", FILE, None))
        assert settings_of(namespace) == BY_API and warnings == []


async def test_a_changed_entry_of_the_file_is_applied_once_also_over_an_update_through_the_api(
    tmp_path: Path,
) -> None:
    changed = replace(FILE, lock_duration_ms=5_000)
    await start(tmp_path, QueueSpec("orders", FILE, None))
    await change(tmp_path, BY_API)
    for _ in range(2):
        namespace, _ = await start(tmp_path, QueueSpec("orders", changed, None))
        assert settings_of(namespace) == changed
    await change(tmp_path, BY_API)
    namespace, _ = await start(tmp_path, QueueSpec("orders", changed, None))
    assert settings_of(namespace) == BY_API
    namespace, _ = await start(tmp_path, QueueSpec("orders", FILE, None))
    assert settings_of(namespace) == FILE


async def test_a_queue_that_the_api_has_deleted_is_created_again_as_the_file_says(tmp_path: Path) -> None:
    await start(tmp_path, QueueSpec("orders", FILE, None))
    await change(tmp_path, BY_API)
    await change(tmp_path, None)
    namespace, _ = await start(tmp_path, QueueSpec("orders", FILE, None))
    assert settings_of(namespace) == FILE


async def test_to_a_queue_of_which_is_not_known_what_the_file_said_the_file_is_applied_once(
    tmp_path: Path,
) -> None:
    old = QueueDescription(
        "orders", "a" * 32, 4, BY_API
    )  # made through the API, or by a version that did not remember the file
    await Catalogue(tmp_path / "catalogue", LocalDisk()).put(old.generation, encode_description(old))
    namespace, _ = await start(tmp_path, QueueSpec("orders", FILE, None))
    assert settings_of(namespace) == FILE
    await change(tmp_path, BY_API)
    namespace, _ = await start(tmp_path, QueueSpec("orders", FILE, None))
    assert settings_of(namespace) == BY_API


async def test_what_the_file_says_is_remembered_also_where_the_queue_was_so_already(tmp_path: Path) -> None:
    old = QueueDescription("orders", "a" * 32, 4, FILE)
    await Catalogue(tmp_path / "catalogue", LocalDisk()).put(old.generation, encode_description(old))
    await start(tmp_path, QueueSpec("orders", FILE, None))
    await change(tmp_path, BY_API)
    namespace, _ = await start(tmp_path, QueueSpec("orders", FILE, None))
    assert settings_of(namespace) == BY_API


@pytest.mark.parametrize(
    ("settings", "partitions", "field"),
    [
        (FILE, 8, "PartitionCount is 8 in the file and 4"),
        (replace(FILE, enable_partitioning=False), None, "Partitioned is false in the file and true"),
        (replace(FILE, requires_session=True), None, "RequiresSession is true in the file and false"),
        (
            replace(FILE, requires_duplicate_detection=True),
            4,
            "RequiresDuplicateDetection is true in the file and false",
        ),
    ],
)
async def test_what_is_fixed_at_creation_is_warned_of_at_every_start_and_the_rest_is_applied(
    tmp_path: Path, settings: QueueSettings, partitions: int | None, field: str
) -> None:
    await start(tmp_path, QueueSpec("orders", FILE, None))
    changed = QueueSpec("orders", replace(settings, max_delivery_count=5), partitions)
    for _ in range(2):
        namespace, warnings = await start(tmp_path, changed)
        assert warnings == [f"orders: {field} since the entity's creation: it cannot be changed."]
        assert (
            settings_of(namespace) == replace(FILE, max_delivery_count=5)
            and namespace.descriptions()[0].partitions == 4
        )
    await change(tmp_path, BY_API)
    namespace, _ = await start(tmp_path, changed)
    assert settings_of(namespace) == BY_API


async def test_an_update_that_is_refused_is_warned_of_and_tried_at_the_next_start(tmp_path: Path) -> None:
    await start(tmp_path, QueueSpec("orders", FILE, None), QueueSpec("bills", FILE, None))
    disk, changed = FaultyDisk(LocalDisk()), replace(FILE, max_delivery_count=5)
    disk.fail("sync", path_part="catalogue", times=1_000)
    namespace, (orders, bills) = await start(
        tmp_path, QueueSpec("orders", changed, None), QueueSpec("bills", changed, None), disk=disk
    )
    assert "'orders'" in orders and "'bills'" in bills
    assert settings_of(namespace) == FILE
    namespace, warnings = await start(tmp_path, QueueSpec("orders", changed, None))
    assert (settings_of(namespace), settings_of(namespace, "bills"), warnings) == (changed, FILE, [])


async def test_a_queue_that_cannot_be_created_ends_the_start(tmp_path: Path) -> None:
    disk = FaultyDisk(LocalDisk())
    disk.fail("sync", path_part="catalogue", times=1_000)
    with pytest.raises(Refused) as refused:
        await start(tmp_path, QueueSpec("orders", FILE, None), disk=disk)
    assert refused.value.reason is Reason.PARTITION_UNAVAILABLE


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("ForwardTo", replace(FILE, forward_to="missing")),
        ("ForwardDeadLetteredMessagesTo", replace(FILE, forward_dead_lettered_to="missing")),
    ],
)
async def test_a_new_queue_cannot_forward_to_what_is_in_neither_the_file_nor_the_folder(
    tmp_path: Path, name: str, settings: QueueSettings
) -> None:
    place = rf"config\.json: UserConfig\.Namespaces\[0\]\.Queues\[1\]\.Properties\.{name}"
    with pytest.raises(WrongConfigFile, match=f"^{place}: 'orders' cannot forward to 'missing': "):
        await start(tmp_path, QueueSpec("bills", FILE, None), QueueSpec("orders", settings, None))
    namespace, _ = await start(tmp_path)
    assert namespace.descriptions() == []  # nothing was created


async def test_all_missing_targets_are_named(tmp_path: Path) -> None:
    with pytest.raises(WrongConfigFile) as wrong:
        await start(tmp_path, QueueSpec("a", FORWARDS, None), QueueSpec("b", FORWARDS, None))
    assert [line.count("cannot forward to 'Target'") for line in str(wrong.value).splitlines()] == [1, 1]


async def test_a_target_may_follow_in_the_file_or_be_in_the_folder(tmp_path: Path) -> None:
    orders = QueueSpec("orders", FORWARDS, None)
    _, warnings = await start(tmp_path, orders, QueueSpec("TARGET", FILE, None))
    assert warnings == []
    namespace, warnings = await start(tmp_path, QueueSpec("more", FORWARDS, None))
    assert warnings == [] and len(namespace.descriptions()) == 3


async def test_a_target_that_was_deleted_later_is_warned_of_while_the_file_is_the_same(
    tmp_path: Path,
) -> None:
    orders = QueueSpec("orders", FORWARDS, None)
    await start(tmp_path, QueueSpec("target", FILE, None))
    await start(tmp_path, orders)
    await change(tmp_path, None, "target")
    for _ in range(2):
        namespace, (warning,) = await start(tmp_path, orders)
        assert "orders: " in warning and "Target" in warning
        assert settings_of(namespace) == FORWARDS
    await change(tmp_path, BY_API)  # it forwards no more, but the file is still the same
    _, (warning,) = await start(tmp_path, orders)
    assert "Target" in warning
    with pytest.raises(WrongConfigFile, match="'orders' cannot forward to 'other'"):
        await start(tmp_path, QueueSpec("orders", replace(FILE, forward_to="other"), None))


def topic_spec(*rules: RuleDescription, forward_to: str | None = None) -> TopicSpec:
    settings = SubscriptionSettings(max_delivery_count=3, forward_to=forward_to)
    return TopicSpec("events", TopicSettings(), 2, (SubscriptionSpec("one", settings, rules),))


def one_of(namespace: Namespace) -> SubscriptionDescription:
    topic = namespace.describe("events")
    assert isinstance(topic, TopicDescription)
    (one,) = topic.subscriptions
    return one


async def test_a_topic_is_created_with_its_subscriptions_and_changed_with_its_entry(tmp_path: Path) -> None:
    default, red = RuleDescription("$Default"), RuleDescription("red", CorrelationFilter(label="red"))
    namespace, warnings = await start(tmp_path, topic_spec(default))
    assert [rule.name for rule in one_of(namespace).rules] == ["$Default"] and warnings == []

    async def change_rules(namespace: Namespace) -> None:
        await namespace.subscriptions.remove_rule("events", "one", "$Default")

    await start(tmp_path, then=change_rules)
    namespace, _ = await start(tmp_path, topic_spec(default))
    assert one_of(namespace).rules == (), "a change through the API stays"
    namespace, warnings = await start(tmp_path, topic_spec(red))
    assert [rule.name for rule in one_of(namespace).rules] == ["red"] and warnings == []
    namespace, warnings = await start(tmp_path)
    assert one_of(namespace).number == 1 and warnings == []


async def test_a_subscription_forwards_only_to_what_there_is(tmp_path: Path) -> None:
    default = RuleDescription("$Default")
    words = "'events/Subscriptions/one' cannot forward to 'orders'"
    with pytest.raises(WrongConfigFile, match=words) as caught:
        await start(tmp_path, topic_spec(default, forward_to="orders"))
    assert "Topics[0].Subscriptions[0].Properties.ForwardTo" in str(caught.value)
    specs = (topic_spec(default, forward_to="Orders"), QueueSpec("orders", FILE, None))
    namespace, _ = await start(tmp_path, *specs)
    assert one_of(namespace).settings.forward_to == "Orders"
    await change(tmp_path, None)
    _, (warning,) = await start(tmp_path, topic_spec(default, forward_to="Orders"))
    assert warning.startswith("events/Subscriptions/one: ")


async def test_an_action_that_sets_sessions_where_their_partition_matters_is_a_mistake_of_the_file(
    tmp_path: Path,
) -> None:
    rule = RuleDescription("moves", TrueFilter(), SqlAction("SET sys.SessionId = 'a'"))
    sessions = SubscriptionSpec("one", SubscriptionSettings(requires_session=True), (rule,))
    spec = TopicSpec("events", TopicSettings(), 2, (sessions,))
    with pytest.raises(WrongConfigFile, match=r"Topics\[0\].Subscriptions\[0\].Rules\[0\]: .*SessionId"):
        await start(tmp_path, spec)
    await start(tmp_path, replace(spec, partitions=1))


async def test_a_rule_that_cannot_be_understood_is_a_mistake_of_the_file(tmp_path: Path) -> None:
    wrong = RuleDescription("wrong", SqlFilter("color = "))
    with pytest.raises(WrongConfigFile, match=r"Topics\[0\].Subscriptions\[0\].Rules\[1\]: .*position"):
        await start(tmp_path, topic_spec(RuleDescription("$Default"), wrong))


async def test_a_topic_that_has_given_all_numbers_gets_no_subscription_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscription_validation, "SUBSCRIPTION_NUMBER_MAX", 0)
    namespace, warnings = await start(tmp_path, topic_spec(RuleDescription("$Default")))
    topic = namespace.describe("events")
    assert isinstance(topic, TopicDescription) and not topic.subscriptions
    assert len(warnings) == 1 and "0 subscriptions over time" in warnings[0]
