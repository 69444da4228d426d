"""broker/namespace/topic.py: what a topic holds itself, and what clients may do with it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from broker.base.errors import Reason, Refused
from broker.entities.topics import TopicSettings
from broker.operations import SubqueueCounts
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


async def test_messages_do_not_pass_through_a_topic_yet(stack: HttpStack) -> None:
    await stack.namespace.create_entity("events", TopicSettings())
    for check in (stack.queue("events").check_can_send, stack.queue("events").check_can_receive):
        with pytest.raises(Refused) as caught:
            check("")
        assert caught.value.reason is Reason.NOT_IMPLEMENTED
