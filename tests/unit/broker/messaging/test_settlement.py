"""Settlements in the form that any protocol may request: the operation for each, and the counters."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from broker.base.errors import Reason, Refused
from broker.entities.descriptions import DEAD_LETTER
from broker.message.changes import encode_changes
from broker.messaging.settlement import (
    COMPLETE,
    DELAY,
    DELAY_MS_MAX,
    RELEASE,
    Settlement,
    abandon,
    dead_letter,
    defer,
    settle,
)
from broker.operations.general import Failed
from broker.operations.settling import Abandon, Complete, DeadLetter, Defer, Release, Settled
from protocol.codec import Symbol
from tests.support.link_stack import LinkStack, turn

TOKENS = [bytes(16)]
REASON = {"DeadLetterReason": "late"}


@pytest.mark.parametrize(
    ("settlement", "operation"),
    [
        (COMPLETE, Complete(TOKENS, 7)),
        (abandon({}), Abandon(TOKENS, None, 7)),
        (abandon({"a": None}), Abandon(TOKENS, encode_changes({"a": None}), 7)),
        (defer({"a": 1}), Defer(TOKENS, encode_changes({"a": 1}), 7)),
        (dead_letter({}), DeadLetter(TOKENS, None, 7)),
        (dead_letter({"a": None}, "late"), DeadLetter(TOKENS, encode_changes(REASON), 7)),
        (
            dead_letter({"DeadLetterReason": "mine"}, "late", ""),
            DeadLetter(TOKENS, encode_changes(REASON), 7),
        ),
        (RELEASE, Release(TOKENS)),
    ],
    ids=str,
)
def test_each_settlement_asks_one_thing_of_the_partition(settlement: Settlement, operation: object) -> None:
    assert settlement.operation(TOKENS, 7) == operation
    assert settlement.is_answered is not isinstance(operation, Release)


@pytest.mark.parametrize("make", [abandon, defer, dead_letter])
def test_properties_that_cannot_be_set_are_refused(make: Any) -> None:
    with pytest.raises(Refused):
        make({1: "no text"})


@pytest.mark.parametrize("delay", [5_000, 5_000.0])
def test_an_abandon_may_be_delayed_and_the_delay_is_no_property(delay: Any) -> None:
    plain = abandon({DELAY: delay}).operation(TOKENS, 7)
    assert plain == Abandon(TOKENS, None, 7, delay_ms=5_000)
    changed = abandon({DELAY: delay, "a": 1}).operation(TOKENS, 7)
    assert changed == Abandon(TOKENS, encode_changes({"a": 1}), 7, delay_ms=5_000)
    assert abandon({DELAY: 0}).operation(TOKENS, 7) == Abandon(TOKENS, None, 7)


@pytest.mark.parametrize("delay", [-1, DELAY_MS_MAX + 1, 0.5, True, "5", None])
def test_a_delay_that_makes_no_sense_is_refused(delay: Any) -> None:
    with pytest.raises(Refused) as refused:
        abandon({DELAY: delay})
    assert refused.value.reason is Reason.ARGUMENT


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (abandon, "partibus:dealy"),
        (abandon, Symbol("partibus:")),
        (defer, DELAY),
        (dead_letter, DELAY),
        (dead_letter, Symbol("partibus:reason")),
    ],
)
def test_a_property_of_ours_that_a_settlement_does_not_have_is_refused_by_name(make: Any, name: str) -> None:
    with pytest.raises(Refused, match=f"'{name}'") as refused:
        make({"a": 1, name: 5_000})
    assert refused.value.reason is Reason.ARGUMENT


async def test_messages_of_several_partitions_are_settled_and_what_fails_is_said() -> None:
    stack = LinkStack(4)
    tokens = [bytes([0, number]) + bytes(14) for number in (0, 1, 1, 2)] + [b"\xff" * 16]
    asked = asyncio.ensure_future(settle(stack.queue, DEAD_LETTER, tokens, COMPLETE))
    await turn()
    asked_for = stack.parts[0].answer(Complete, lambda each: Settled(each.cookie))
    assert asked_for == Complete(tokens[:1], subqueue=DEAD_LETTER)
    stack.parts[1].answer(Complete, lambda each: Settled(each.cookie, {1: Reason.LOCK_LOST}))
    stack.parts[2].answer(Complete, lambda each: Failed(Reason.DISK_FULL, "full", each.cookie))
    settled, refusals = await asked
    assert settled == tokens[:2]
    assert [why.reason for why in refusals] == [Reason.LOCK_LOST, Reason.DISK_FULL, Reason.LOCK_LOST]
    assert stack.queue.meter.completed_messages == 2
