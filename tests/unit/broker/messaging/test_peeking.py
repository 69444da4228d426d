"""Peeking at one partition: a partition that is down is passed over and logged once per outage."""

from __future__ import annotations

import asyncio

import pytest
from structlog.testing import capture_logs

from broker.base.errors import Reason, Refused
from broker.entities.descriptions import MAIN
from broker.messaging.peeking import peek_partition
from broker.operations.browsing import Peek, Peeked
from broker.operations.general import Failed
from broker.operations.interface import Answer
from tests.support.link_stack import LinkStack, turn

NOTHING = Peeked([], [], [], [], [], [], [], None)


async def peeked(stack: LinkStack, answer: Answer | None) -> Peeked | None:
    """Peek at partition 1, which gives this answer if it is asked."""
    asked = asyncio.create_task(peek_partition(stack.queue, 1, Peek(MAIN, 0, 1)))
    await turn()
    assert stack.parts[1].has(Peek) == (answer is not None)
    if answer is not None:
        stack.parts[1].answer(Peek, lambda _: answer)
    return await asked


@pytest.mark.parametrize("reason", [Reason.PARTITION_UNAVAILABLE, Reason.DISK_FULL])
async def test_an_outage_is_logged_once_until_the_partition_has_answered_again(reason: Reason) -> None:
    stack = LinkStack()
    with capture_logs() as lines:
        assert await peeked(stack, Failed(reason, "down", None)) is None
        stack.parts[1].available = False
        assert await peeked(stack, None) is None, "nobody asks a partition that is known to be down"
        assert [(line["event"], line["partition"]) for line in lines] == [("peek.partition_unseen", 1)]
        stack.parts[1].available = True
        assert await peeked(stack, NOTHING) is NOTHING
        assert await peeked(stack, Failed(reason, "down", None)) is None
    assert len(lines) == 2


async def test_a_partition_that_was_stopped_is_not_reported_as_down() -> None:
    stack = LinkStack()
    stack.parts[1].available, stack.parts[1].health = False, "stopped"
    with capture_logs() as lines:
        assert await peeked(stack, None) is None
    assert lines == []


async def test_any_other_refusal_is_the_clients() -> None:
    with pytest.raises(Refused) as refused:
        await peeked(LinkStack(), Failed(Reason.ENTITY_NOT_FOUND, "no such subqueue", None))
    assert refused.value.reason is Reason.ENTITY_NOT_FOUND
