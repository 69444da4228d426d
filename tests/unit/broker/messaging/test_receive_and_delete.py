"""Receive-and-delete: messages leave the broker only after they were durably removed."""

from __future__ import annotations

import asyncio

import pytest

from broker.base.errors import Reason, Refused
from broker.messaging.receive_and_delete import Removals, remove, removed
from broker.operations.general import Failed
from broker.operations.settling import Complete, GiveBack, Settled
from tests.support.link_stack import LinkStack, turn
from tests.support.locked import locked


def test_removals_are_counted_until_they_are_answered() -> None:
    removals, messages = Removals(), locked(0, 3)
    assert removals.begin(messages, 7) == Complete(messages.tokens, 7) and removals.count == 3
    assert removals.end(8) is None
    assert removals.end(7) is messages and removals.count == 0


def test_what_could_not_be_removed_is_left_out() -> None:
    messages = locked(0, 3)
    assert removed(messages, {}) is messages
    assert removed(messages, {1: Reason.LOCK_LOST}).tokens == [messages.tokens[0], messages.tokens[2]]


async def test_messages_are_released_if_their_partition_goes_down() -> None:
    stack, messages = LinkStack(1), locked(0, 2)
    (part,) = stack.parts
    work = asyncio.ensure_future(remove(part, messages))
    await turn()
    part.answer(Complete, lambda each: Failed(Reason.LOCK_ENDED, "down", each.cookie))
    await turn()
    operation = part.answer(GiveBack, lambda each: Failed(Reason.PARTITION_UNAVAILABLE, "down", each.cookie))
    assert isinstance(operation, GiveBack) and operation.tokens == messages.tokens
    with pytest.raises(Refused):
        await work


async def test_a_request_fails_if_nothing_was_removed() -> None:
    stack, messages = LinkStack(1), locked(0, 2)
    (part,) = stack.parts
    work = asyncio.ensure_future(remove(part, messages))
    await turn()
    part.answer(Complete, lambda each: Settled(each.cookie, dict.fromkeys(range(2), Reason.LOCK_LOST)))
    with pytest.raises(Refused) as refused:
        await work
    assert refused.value.reason is Reason.LOCK_LOST
