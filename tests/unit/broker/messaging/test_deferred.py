"""Deferred messages of several partitions: all that are named, or none."""

from __future__ import annotations

import asyncio
from functools import partial
from itertools import chain
from typing import Any

import pytest

from broker.base.errors import Reason, Refused
from broker.identifiers import PARTITION_SHIFT
from broker.message.changes import encode_changes
from broker.messaging.deferred import (
    LAID_BYTES,
    LAID_PROPERTIES,
    PREPARED_AT_ONCE,
    RECEIVED_BYTES_MAX,
    Held,
    portions_of,
    receive_deferred,
    release_later,
    remove_all,
)
from broker.operations.general import Failed
from broker.operations.interface import Answer
from broker.operations.receiving import ReceiveDeferred
from broker.operations.settling import Complete, GiveBack, Release, Settled
from tests.support.link_stack import LinkStack
from tests.support.locked import locked

NUMBERS = [(2 << PARTITION_SHIFT) + 5, 7, (2 << PARTITION_SHIFT) + 6]


async def turn() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def asked(stack: LinkStack) -> asyncio.Future[Held]:
    task = asyncio.ensure_future(receive_deferred(stack.queue, "", NUMBERS))
    await turn()
    return task


def give(operation: Any) -> Answer:
    number = operation.sequence_numbers[0] >> PARTITION_SHIFT
    answer = locked(number, len(operation.sequence_numbers))
    answer.sequence_numbers = list(operation.sequence_numbers)
    return answer


def settled(is_lost: bool, operation: Any) -> Answer:
    return Settled(operation.cookie, {0: Reason.LOCK_LOST} if is_lost else {})


async def test_each_partition_is_asked_once_for_what_fits_beside_the_messages_before() -> None:
    stack = LinkStack(4)
    task = await asked(stack)
    assert not any(part.posted for part in (stack.parts[0], stack.parts[1]))
    operation = stack.parts[2].answer(ReceiveDeferred, give)
    assert isinstance(operation, ReceiveDeferred)
    assert (operation.sequence_numbers, operation.bytes_max) == (
        [NUMBERS[0], NUMBERS[2]],
        RECEIVED_BYTES_MAX,
    )
    await turn()
    operation = stack.parts[0].answer(ReceiveDeferred, give)
    assert isinstance(operation, ReceiveDeferred)
    held = await task
    taken = sum(map(len, held[0][1].messages))
    assert operation.bytes_max == RECEIVED_BYTES_MAX - taken < RECEIVED_BYTES_MAX
    assert [each.sequence_numbers for _, each in held] == [[NUMBERS[0], NUMBERS[2]], [7]]


async def test_a_single_message_may_be_larger_than_an_answer() -> None:
    stack = LinkStack(4)
    task = asyncio.ensure_future(receive_deferred(stack.queue, "", [7, 7]))
    await turn()
    operation = stack.parts[0].answer(ReceiveDeferred, give)
    assert isinstance(operation, ReceiveDeferred) and operation.bytes_max is None
    await task


@pytest.mark.parametrize("reason", [Reason.MESSAGE_NOT_FOUND, Reason.ARGUMENT, Reason.PARTITION_UNAVAILABLE])
async def test_if_one_partition_refuses_the_messages_of_others_are_released(reason: Reason) -> None:
    stack = LinkStack(4)
    task = await asked(stack)
    stack.parts[2].answer(ReceiveDeferred, give)
    await turn()
    stack.parts[0].answer(ReceiveDeferred, lambda each: Failed(reason, "7", None))
    await turn()
    assert not task.done()  # the client is told once they are not locked any more
    operation = stack.parts[2].answer(GiveBack, lambda each: Settled(each.cookie))
    assert isinstance(operation, GiveBack) and len(operation.tokens) == 2
    with pytest.raises(Refused) as refused:
        await task
    assert refused.value.reason is reason


async def test_a_request_that_is_cancelled_releases_what_was_locked_before_and_after() -> None:
    stack = LinkStack(4)
    task = await asked(stack)
    stack.parts[2].answer(ReceiveDeferred, give)
    await turn()
    task.cancel()
    await turn()
    stack.parts[0].answer(ReceiveDeferred, give)
    assert [len(part.take_all(Release)) for part in stack.parts] == [1, 0, 1, 0]
    assert task.cancelled()


async def test_a_number_that_no_partition_gives_is_not_found_and_nothing_is_asked() -> None:
    stack = LinkStack(2)
    with pytest.raises(Refused) as refused:
        await receive_deferred(stack.queue, "", NUMBERS)
    assert refused.value.reason is Reason.MESSAGE_NOT_FOUND
    assert not any(part.posted for part in stack.parts)


@pytest.mark.parametrize("fails", [1, 2])
async def test_what_was_removed_is_returned_and_an_error_only_if_nothing_was(fails: int) -> None:
    stack = LinkStack(2)
    held = [(stack.parts[number], locked(number)) for number in range(2)]
    task = asyncio.ensure_future(remove_all(held))  # type: ignore[arg-type]
    await turn()
    for part in stack.parts:
        part.answer(Complete, partial(settled, part.number < fails))
    if fails == 2:
        with pytest.raises(Refused):
            await task
    else:
        assert [each.partition for _, each in await task] == [1]


def test_few_messages_with_many_changed_properties_are_prepared_at_once() -> None:
    messages = locked(1, 9)
    assert list(portions_of(messages)) == [messages], "as they mostly are"
    many = encode_changes({f"{number:05}": None for number in range(PREPARED_AT_ONCE // 2)})
    for changed, sizes in (
        ([None] * 5 + [many] * 4, [7, 2]),
        ([many] * 9, [2, 2, 2, 2, 1]),
        ([many] * 2 + [None] * 7, [2, 7]),
    ):
        messages.changed, messages.columns = changed, {"session_id": list[Any](range(9))}
        portions = list(portions_of(messages))
        assert [len(each.tokens) for each in portions] == sizes
        for name in (
            "tokens",
            "sequence_numbers",
            "enqueued_at_ms",
            "delivery_counts",
            "expires_at_ms",
            "messages",
            "changed",
        ):
            joined = list(chain.from_iterable(getattr(each, name) for each in portions))
            assert joined == getattr(messages, name)
        columns = chain.from_iterable(each.columns["session_id"] for each in portions)
        assert list(columns) == list(range(9))
    assert list(portions_of(locked(1, 0))) == [locked(1, 0)]


@pytest.mark.parametrize(
    ("size", "most"),
    [(64, PREPARED_AT_ONCE // LAID_PROPERTIES), (60_000, PREPARED_AT_ONCE * LAID_BYTES // 60_000 + 1)],
)
def test_large_messages_or_many_are_prepared_a_few_at_a_time_if_one_property_was_changed(
    size: int, most: int
) -> None:
    """Symptom: 69 messages of 60 KB, each with one changed property and 10,000 of its own, held the event
    loop for 23 ms."""
    messages = locked(1, 1_000, size=size)
    messages.changed = [encode_changes({"a": 1})] * 1_000
    portions = list(portions_of(messages))
    assert max(len(each.tokens) for each in portions) <= most
    assert list(chain.from_iterable(each.tokens for each in portions)) == messages.tokens


async def test_what_may_be_given_back_later_goes_back_to_each_partition() -> None:
    stack = LinkStack(4)
    held = [(stack.queue.router.of_sequence_number(n << PARTITION_SHIFT), locked(n, 2)) for n in (0, 2)]
    give_all_back = release_later(held)
    assert not stack.parts[0].posted and not stack.parts[2].posted
    give_all_back()
    for number, messages in ((0, held[0][1]), (2, held[1][1])):
        (posted,) = stack.parts[number].posted
        assert isinstance(posted[0], Release) and posted[0].tokens == messages.tokens
