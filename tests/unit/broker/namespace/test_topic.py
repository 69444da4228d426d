"""broker/namespace/topic.py: what a topic holds itself, and what clients may do with it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from broker.base.errors import Reason, Refused
from broker.entities.descriptions import EntityStatus
from broker.entities.topics import SubscriptionSettings, TopicSettings
from broker.namespace.topic import Topic
from broker.operations.message_states import SubqueueCounts
from tests.support.http_stack import HttpStack, http_stack


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[HttpStack]:
    async with http_stack(tmp_path) as running:
        yield running


async def test_a_topic_counts_its_own_messages_and_the_size_of_everything(stack: HttpStack) -> None:
    await stack.namespace.create_entity("events", TopicSettings())
    topic = stack.queue("events")
    topic.partition(0)
    stack.partition.held = {
        "": SubqueueCounts(active=1, scheduled=2, bytes=30),
        "subscriptions/one": SubqueueCounts(active=4, bytes=50),
    }
    runtime = topic.runtime()
    assert (runtime.active, runtime.scheduled, runtime.size_bytes) == (0, 2, 80)


def with_one(stack: HttpStack, **settings: Any) -> Topic:
    """The topic "events" with the subscription "One"."""
    topic = stack.queue("events")
    assert isinstance(topic, Topic)
    topic.description = topic.description.with_new("One", SubscriptionSettings(**settings), (), 0)
    return topic


@pytest.mark.parametrize(
    ("settings", "subqueue", "reason"),
    [
        ({}, "", Reason.NOT_ALLOWED),
        ({}, "subscriptions/two", Reason.ENTITY_NOT_FOUND),
        ({"forward_to": "q"}, "subscriptions/one", Reason.NOT_ALLOWED),
        ({"status": EntityStatus.RECEIVE_DISABLED}, "subscriptions/one", Reason.ENTITY_DISABLED),
        ({"forward_to": "q"}, "subscriptions/one/$deadletterqueue", None),
        ({}, "subscriptions/one", None),
        ({}, "$transfer/$deadletterqueue", None),
    ],
)
async def test_clients_receive_from_subscriptions_that_permit_it(
    stack: HttpStack, settings: dict[str, Any], subqueue: str, reason: Reason | None
) -> None:
    await stack.namespace.create_entity("events", TopicSettings())
    topic = with_one(stack, **settings)
    if reason is None:
        topic.check_can_receive(subqueue)
        return
    with pytest.raises(Refused) as caught:
        topic.check_can_receive(subqueue)
    assert caught.value.reason is reason


@pytest.mark.parametrize("status", [EntityStatus.DISABLED, EntityStatus.SEND_DISABLED])
async def test_a_disabled_topic_takes_nothing_and_its_subscriptions_still_give(
    stack: HttpStack, status: EntityStatus
) -> None:
    await stack.namespace.create_entity("events", TopicSettings(status=status))
    topic = with_one(stack)
    topic.check_can_receive("subscriptions/one")
    with pytest.raises(Refused) as caught:
        topic.check_can_send("")
    assert caught.value.reason is Reason.ENTITY_DISABLED


async def test_clients_send_to_the_topic_alone(stack: HttpStack) -> None:
    await stack.namespace.create_entity("events", TopicSettings())
    topic = with_one(stack)
    topic.check_can_send("")
    with pytest.raises(Refused):
        topic.check_can_send("subscriptions/one")


async def test_sessions_are_kept_if_a_subscription_requires_them(stack: HttpStack) -> None:
    await stack.namespace.create_entity("events", TopicSettings())
    assert not stack.queue("events").keeps_sessions
    topic = with_one(stack, requires_session=True)
    assert topic.keeps_sessions and topic.requires_session("subscriptions/one")
    assert not topic.requires_session("") and not topic.requires_session("subscriptions/one/$deadletterqueue")
    assert topic.path_of("subscriptions/one/$deadletterqueue") == "events/Subscriptions/One"
    assert topic.path_of("") == "events"


async def test_what_clients_do_with_a_subscription_is_noted_apart_from_the_topic(stack: HttpStack) -> None:
    await stack.namespace.create_entity("events", TopicSettings())
    topic = with_one(stack)
    topic.note_access("subscriptions/one/$deadletterqueue", 5)
    assert (topic.accessed_by(1), topic.accessed_by(None), topic.accessed_at_ms) == (5, None, None)
    topic.note_access("", 6)
    assert (topic.accessed_by(1), topic.accessed_by(None)) == (5, 6)
    (one,) = topic.description.subscriptions
    topic.partition(0)
    stack.partition.held = {
        "subscriptions/one": SubqueueCounts(active=1, bytes=3),
        "subscriptions/one/$deadletterqueue": SubqueueCounts(active=2, bytes=4),
        "subscriptions/two": SubqueueCounts(active=9, bytes=90),
    }
    runtime = topic.subscription_runtime(one, topic.counts())
    assert (runtime.active, runtime.dead_letter, runtime.size_bytes, runtime.accessed_at_ms) == (1, 2, 7, 5)
