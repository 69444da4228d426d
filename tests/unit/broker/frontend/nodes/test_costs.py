"""What requests to `$management` cost in a throttled namespace."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import Any

from broker.identifiers import PARTITION_SHIFT
from broker.operations.browsing import Peek, Peeked
from broker.operations.receiving import ReceiveDeferred
from broker.operations.scheduling import CancelScheduled
from broker.operations.settling import Complete, Settled
from tests.support.locked import locked, stored
from tests.support.management_bench import Answers, Bench, bench, shown, status

BUSY = (503, "com.microsoft:server-busy")
CANCEL = {"sequence-numbers": [number << PARTITION_SHIFT | 1 for number in range(4)]}
CANCELLED: Answers = {CancelScheduled: lambda number, each: Settled(each.cookie)}


def left(work: Bench) -> int:
    """The credits that are left."""
    assert work.stack.throttle is not None
    return work.stack.throttle.left_for_receivers()


def page(number: int, peek: Peek) -> Peeked:
    found = [1, 2, 3]
    return Peeked(found, [0] * 3, [0] * 3, [None] * 3, [stored()] * 3, [None] * 3, [0] * 3, peek.cookie)


async def test_a_request_costs_10_whatever_the_number_of_partitions_and_is_refused_without() -> None:
    work = await bench(throttle_credits=25)
    for credits in (15, 5):
        assert status(await work.ask("cancel-scheduled-message", CANCEL, CANCELLED))[0] == 200
        assert left(work) == credits
    assert status(await work.ask("cancel-scheduled-message", CANCEL, CANCELLED)) == BUSY
    assert (left(work), work.metric("throttled_requests"), work.metric("user_errors")) == (5, 1, 0)


async def test_a_peek_costs_as_much_as_the_messages_it_shows() -> None:
    work = await bench(1, throttle_credits=5)
    body: dict[str, Any] = {"from-sequence-number": 0, "message-count": 10}
    assert shown(await work.ask("peek-message", body, {Peek: page})) == [1, 2, 3]
    assert left(work) == 2
    await work.ask("peek-message", body, {Peek: page})
    assert left(work) == -1, "a debt, because only the answer says how many there are"
    assert status(await work.ask("peek-message", body)) == BUSY


async def test_deferred_messages_cost_one_each() -> None:
    work = await bench(1, throttle_credits=3)
    messages = locked(0, 2)
    body = {"sequence-numbers": messages.sequence_numbers, "receiver-settle-mode": 1}
    answers: Answers = {
        ReceiveDeferred: lambda number, each: replace(messages, deferred=True, cookie=each.cookie)
    }
    assert status(await work.ask("receive-by-sequence-number", body, answers))[0] == 200
    assert left(work) == 1
    assert status(await work.ask("receive-by-sequence-number", body)) == BUSY


async def test_settling_costs_nothing_and_is_never_refused() -> None:
    work = await bench(1, throttle_credits=1)
    assert work.stack.throttle is not None
    work.stack.throttle.charge(100)
    tokens = [uuid.UUID(bytes_le=token) for token in locked(0, 1).tokens]
    body = {"lock-tokens": tokens, "disposition-status": "completed"}
    answers: Answers = {Complete: lambda number, each: Settled(each.cookie)}
    assert status(await work.ask("update-disposition", body, answers))[0] == 200
