"""Topics for tests."""

from __future__ import annotations

from typing import Any

from broker.entities.rules import RuleDescription
from broker.entities.topics import SubscriptionSettings, TopicDescription, TopicSettings

FOR_ALL = (RuleDescription("$Default"),)
"""The rules of a subscription that gets every message."""


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


def number_of(description: TopicDescription, name: str) -> int:
    """The number of the main subqueue of a subscription."""
    number = description.subqueues.number_of(f"subscriptions/{name}")
    assert number is not None, "it has this subscription"
    return number
