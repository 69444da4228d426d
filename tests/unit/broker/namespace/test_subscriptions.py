"""broker/namespace/subscriptions.py: what changes of subscriptions and rules do to a topic's description."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from broker.base.errors import Reason, Refused
from broker.entities.descriptions import EntityDescription, QueueDescription, key_of
from broker.entities.rules import CorrelationFilter, RuleDescription, SqlAction, TrueFilter
from broker.entities.subscription_validation import TopicLimits
from broker.entities.topics import (
    SUBSCRIPTION_NUMBER_MAX,
    SubscriptionSettings,
    TopicDescription,
    TopicSettings,
)
from broker.namespace.subscriptions import Subscriptions

DEFAULT = RuleDescription("$Default", TrueFilter(), None, 7)
RED = RuleDescription("red", CorrelationFilter(label="red"), None, 7)
SETTINGS = SubscriptionSettings()


class Entities:
    """A namespace with one topic and one queue, whose changes happen at once."""

    def __init__(self) -> None:
        self.all: dict[str, EntityDescription] = {
            "events": TopicDescription("Events", "a" * 32, 4, TopicSettings()),
            "orders": QueueDescription("orders", "b" * 32, 4),
        }
        self.changes = 0

    def describe(self, name: str) -> EntityDescription | None:
        return self.all.get(key_of(name))

    def missing(self, name: str) -> Refused:
        return Refused(Reason.ENTITY_NOT_FOUND, name)

    async def change_entity(
        self,
        name: str,
        change: Callable[[EntityDescription, int], EntityDescription],
        first: Callable[[], Awaitable[None]] | None = None,
    ) -> EntityDescription:
        before = self.describe(name)
        if before is None:
            raise self.missing(name)
        after = change(before, 7)
        if first is not None:
            await first()
        self.all[key_of(name)] = after
        self.changes += 1
        return after


@pytest.fixture
def entities() -> Entities:
    return Entities()


@pytest.fixture
def subscriptions(entities: Entities) -> Subscriptions:
    return Subscriptions(entities, TopicLimits(subscriptions=2, rules=2))


async def refused(reason: Reason, doing: Awaitable[object]) -> str:
    with pytest.raises(Refused) as caught:
        await doing
    assert caught.value.reason is reason
    return caught.value.description


async def test_a_subscription_is_created_changed_and_deleted(
    entities: Entities, subscriptions: Subscriptions
) -> None:
    made = await subscriptions.create("EVENTS", "One", SETTINGS, [DEFAULT])
    assert (made.name, made.number, made.rules, made.created_at_ms) == ("One", 1, (DEFAULT,), 7)
    found = subscriptions.find("events", "ONE")
    assert found == made
    longer = SubscriptionSettings(lock_duration_ms=90_000)
    changed = await subscriptions.update("events", "one", longer)
    assert changed.settings == longer and changed.rules == made.rules and changed.name == "One"
    await subscriptions.delete("events", "ONE")
    assert await refused(Reason.ENTITY_NOT_FOUND, subscriptions.delete("events", "one"))
    assert entities.changes == 3


async def test_rules_are_added_replaced_and_removed_in_any_case(subscriptions: Subscriptions) -> None:
    await subscriptions.create("events", "one", SETTINGS, [DEFAULT])
    assert (await subscriptions.add_rule("events", "one", RED)).rules == (DEFAULT, RED)
    assert (await subscriptions.remove_rule("events", "one", "$DEFAULT")).rules == (RED,)
    blue = RuleDescription("RED", CorrelationFilter(label="blue"), None, 9)
    (rule,) = (await subscriptions.replace_rule("events", "one", blue)).rules
    assert rule == RuleDescription("red", blue.filter, None, 7)
    assert (await subscriptions.remove_rule("events", "one", "Red")).rules == ()


async def test_what_there_is_already_is_a_conflict(subscriptions: Subscriptions) -> None:
    await subscriptions.create("events", "one", SETTINGS, [RED])
    text = await refused(Reason.ENTITY_EXISTS, subscriptions.create("events", "ONE", SETTINGS, [RED]))
    assert "Events/Subscriptions/ONE" in text
    await refused(Reason.ENTITY_EXISTS, subscriptions.add_rule("events", "one", RuleDescription("Red")))


async def test_what_there_is_not_is_not_found(entities: Entities, subscriptions: Subscriptions) -> None:
    await subscriptions.create("events", "one", SETTINGS, [RED])
    for doing in (
        subscriptions.create("nothing", "one", SETTINGS, [RED]),
        subscriptions.create("orders", "one", SETTINGS, [RED]),  # a queue
        subscriptions.update("events", "two", SETTINGS),
        subscriptions.add_rule("events", "two", RED),
        subscriptions.remove_rule("events", "one", "blue"),
        subscriptions.replace_rule("events", "one", RuleDescription("blue")),
    ):
        await refused(Reason.ENTITY_NOT_FOUND, doing)
    assert entities.changes == 1


async def test_what_is_wrong_or_too_much_changes_nothing(
    entities: Entities, subscriptions: Subscriptions
) -> None:
    wrong = SubscriptionSettings(lock_duration_ms=0)
    await refused(Reason.ARGUMENT, subscriptions.create("events", "one", wrong, [RED]))
    await refused(Reason.ARGUMENT, subscriptions.create("events", "one", SETTINGS, [RED, RED]))
    await subscriptions.create("events", "one", SETTINGS, [DEFAULT])
    sessions = SubscriptionSettings(requires_session=True)
    await refused(Reason.ARGUMENT, subscriptions.update("events", "one", sessions))
    nothing = RuleDescription("none", CorrelationFilter())
    await refused(Reason.ARGUMENT, subscriptions.add_rule("events", "one", nothing))
    await subscriptions.add_rule("events", "one", RED)
    blue = RuleDescription("blue", CorrelationFilter(label="blue"))
    await refused(Reason.QUOTA_EXCEEDED, subscriptions.add_rule("events", "one", blue))
    await subscriptions.create("events", "two", SETTINGS, [])
    await refused(Reason.QUOTA_EXCEEDED, subscriptions.create("events", "three", SETTINGS, []))
    assert entities.changes == 3


@pytest.mark.parametrize(("partitions", "requires_session"), [(4, True), (4, False), (1, True)])
async def test_no_action_puts_a_copy_into_a_session_of_another_partition(
    entities: Entities, subscriptions: Subscriptions, partitions: int, requires_session: bool
) -> None:
    entities.all["events"] = TopicDescription("Events", "a" * 32, partitions, TopicSettings())
    settings = SubscriptionSettings(requires_session=requires_session)
    harmless = RuleDescription(
        "harmless", TrueFilter(), SqlAction("SET SessionId = 'a'; REMOVE sys.SessionId")
    )
    await subscriptions.create("events", "one", settings, [harmless])
    setting = RuleDescription("harmless", TrueFilter(), SqlAction("SET a = 1; SET sys.SESSIONID = 'a'"))
    added = replace(setting, name="added")
    changes: list[Callable[[], Awaitable[object]]] = [
        lambda: subscriptions.create("events", "two", settings, [setting]),
        lambda: subscriptions.replace_rule("events", "one", setting),
        lambda: subscriptions.add_rule("events", "one", added),
    ]
    for change in changes:
        if partitions > 1 and requires_session:
            assert "SessionId" in await refused(Reason.ARGUMENT, change())
        else:
            await change()


async def test_a_topic_that_has_given_all_numbers_gets_no_more_subscriptions(
    entities: Entities, subscriptions: Subscriptions
) -> None:
    topic = TopicDescription(
        "Events", "a" * 32, 4, TopicSettings(), last_subscription=SUBSCRIPTION_NUMBER_MAX
    )
    entities.all["events"] = topic
    text = await refused(Reason.QUOTA_EXCEEDED, subscriptions.create("events", "one", SETTINGS, []))
    assert "'Events'" in text and entities.all["events"] is topic
