"""Topics for tests, and what their partitions hold."""

from __future__ import annotations

from typing import Any

from broker.entities.rules import CorrelationFilter, RuleDescription, SqlAction, SqlFilter, TrueFilter
from broker.entities.topics import SubscriptionSettings, TopicDescription, TopicSettings
from tests.support.partition_harness import Harness
from tests.support.rule_messages import stored_with

FOR_ALL = (RuleDescription("$Default"),)
"""The rules of a subscription that gets every message."""

A, B, C = "subscriptions/a", "subscriptions/b", "subscriptions/c"
DEAD = "/$deadletterqueue"
RED, BLUE = stored_with(subject="red"), stored_with(subject="blue")
ONLY_RED = RuleDescription("red", CorrelationFilter(label="red"))
FAILING = RuleDescription("bad", SqlFilter("sys.Label / 0 = 1"))
CHANGING = RuleDescription("copy", CorrelationFilter(label="red"), SqlAction("SET sys.Label = 'changed'"))


def topic(*subscriptions: str, partitions: int = 16, **settings: Any) -> TopicDescription:
    """A topic with these subscriptions, each of which gets every message."""
    description = TopicDescription("orders", "0" * 32, partitions, TopicSettings(**settings))
    for name in subscriptions:
        description = with_subscription(description, name)
    return description


def with_subscription(
    description: TopicDescription, name: str, *rules: RuleDescription, **settings: Any
) -> TopicDescription:
    """The topic with one more subscription."""
    return description.with_new(name, SubscriptionSettings(**settings), rules or FOR_ALL, 0)


def copying(name: str, *subscriptions: str, partitions: int = 1) -> TopicDescription:
    """A topic whose subscriptions each get a changed copy of every message."""
    rule = RuleDescription("copy", TrueFilter(), SqlAction("SET sys.Label = 'changed'"))
    description = TopicDescription(name, name.rjust(32, "0"), partitions)
    for each in subscriptions:
        description = with_subscription(description, each, rule)
    return description


def number_of(description: TopicDescription, name: str) -> int:
    """The number of the main subqueue of a subscription."""
    number = description.subqueues.number_of(f"subscriptions/{name}")
    assert number is not None, "it has this subscription"
    return number


async def bodies(harness: Harness, subqueue: str) -> list[bytes]:
    """The messages in a subqueue."""
    return (await harness.peek(subqueue)).messages


async def check_restart(harness: Harness, *subqueues: str) -> None:
    """A replay gives the same messages."""
    before = [await harness.peek(each) for each in subqueues]
    await harness.restart()
    assert [await harness.peek(each) for each in subqueues] == before
