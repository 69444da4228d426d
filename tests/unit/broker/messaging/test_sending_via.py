"""Sending through a via entity: partitions, and what is counted. `test_via_link.py` has the rest."""

from __future__ import annotations

from functools import partial

import pytest

from broker.base.errors import Reason, Refused
from broker.entities.descriptions import DEAD_LETTER, MAIN
from broker.message.stored import store_run
from broker.messaging.sending import Collected
from broker.messaging.sending_via import SendingVia, check_destination
from broker.namespace.size_quota import SizeQuota
from broker.operations.general import Failed
from broker.operations.message_states import SubqueueCounts
from broker.operations.sending import Send
from broker.operations.transactions import Transact, Transacted
from tests.support.amqp_messages import message
from tests.support.link_stack import LinkStack

KEYS = [f"key {number}" for number in range(32)]
"""Keys of all partitions."""


class Caller:
    """A connection that sends."""

    def __init__(self, partitions: int) -> None:
        self.stack = LinkStack(partitions)
        self.under_way = 0
        self.ends: list[tuple[list[str], Reason | None]] = []
        self.passed_on: list[int] = []
        self.sending: SendingVia[str] = SendingVia(
            self.stack.queue,
            self.stack.add_queue("other", 1),
            self,
            stored=lambda receipts, count: self.ends.append(([*receipts], None)),
            refused=lambda receipts, why, count: self.ends.append(([*receipts], why.reason)),
            passed_on=lambda via, number: self.passed_on.append(number),
        )

    def took(self, size: int, messages: int) -> None:
        self.under_way += messages

    def finished_with(self, size: int, messages: int) -> None:
        self.under_way -= messages

    def fail(self) -> None:
        raise AssertionError("nothing unforeseen happens here")

    def send_each(self, *keys: str | None) -> None:
        """Send messages with these keys; their receipts are their places."""
        self.sending.send_each(collected(*keys), [str(place) for place in range(len(keys))])

    def send(self, receipt: str, *keys: str | None) -> None:
        run = store_run([message(body=[b"x"]) for _ in keys], str)
        self.sending.send(Collected(Send(run.data, None), keys), [receipt])


async def test_what_waits_is_counted_until_it_has_its_outcome() -> None:
    caller = Caller(1)
    caller.send("batch", "k", "k")
    caller.send("one", None)
    assert caller.under_way == 3 and caller.passed_on == [0, 0]
    (part,) = caller.stack.parts
    first, tell = part.take(Transact)
    second, tell_second = part.take(Transact)
    tell_second(Failed(Reason.PARTITION_UNAVAILABLE, "down", second.cookie))
    tell(Transacted(2, first.cookie))
    assert caller.under_way == 0
    assert caller.ends == [(["one"], Reason.PARTITION_UNAVAILABLE), (["batch"], None)]


async def test_a_partition_that_is_known_to_be_down_refuses_at_once() -> None:
    caller = Caller(4)
    place = caller.stack.queue.router.number_of("k")
    caller.stack.parts[place].available = False
    with pytest.raises(Refused) as why:
        caller.send("one", "k")
    assert why.value.reason is Reason.PARTITION_UNAVAILABLE and caller.passed_on == []
    caller.send("two", None)
    assert caller.passed_on and caller.passed_on != [place]


async def test_messages_without_a_key_take_turns_over_the_partitions_that_are_available() -> None:
    caller = Caller(4)
    caller.stack.parts[2].available = False
    for _ in range(6):
        caller.send("one", None)
    assert [len(part.posted) for part in caller.stack.parts] == [2, 2, 0, 2]


@pytest.mark.parametrize("reason", [Reason.PARTITION_UNAVAILABLE, Reason.QUOTA_EXCEEDED])
async def test_messages_without_a_key_go_to_another_partition_if_one_refuses(reason: Reason) -> None:
    caller = Caller(3)
    caller.send("one", None, None)
    refused = caller.stack.part_of(Transact)
    refused.answer(Transact, lambda each: Failed(reason, "no", each.cookie))
    second = caller.stack.part_of(Transact)
    assert second is not refused and caller.under_way == 2
    assert caller.passed_on == [refused.number, second.number]
    second.answer(Transact, lambda each: Transacted(2, each.cookie))
    assert caller.ends == [(["one"], None)] and caller.under_way == 0


async def test_they_are_refused_once_all_partitions_have_refused_them() -> None:
    caller = Caller(3)
    caller.send("one", None)
    for reason in (Reason.QUOTA_EXCEEDED, Reason.PARTITION_UNAVAILABLE, Reason.QUOTA_EXCEEDED):
        assert caller.ends == []
        transact, tell = caller.stack.part_of(Transact).take(Transact)
        tell(Failed(reason, "no", transact.cookie))
    assert caller.ends == [(["one"], Reason.PARTITION_UNAVAILABLE)], "one may come back with room"
    assert not any(part.posted for part in caller.stack.parts)


async def test_messages_with_a_key_stay_with_their_partition() -> None:
    caller = Caller(4)
    caller.send("one", "k")
    part = caller.stack.parts[caller.stack.queue.router.number_of("k")]
    part.answer(Transact, lambda each: Failed(Reason.QUOTA_EXCEEDED, "full", each.cookie))
    assert caller.ends == [(["one"], Reason.QUOTA_EXCEEDED)]


def collected(*keys: str | None) -> Collected:
    run = store_run([message(body=[b"x"]) for _ in keys], str)
    return Collected(Send(run.data, None), keys)


async def test_a_destination_is_full_if_the_keys_partition_is_or_all_are_for_messages_without_a_key() -> None:
    stack = LinkStack(4)
    full: set[int] = set()
    for part in stack.parts:
        part.counts = partial(held_in, full, part.number)  # type: ignore[method-assign]
    here = stack.queue.router.number_of("k")
    full.update({0, 1, 2, 3} - {here})
    check_destination(stack.queue, collected("k"))
    check_destination(stack.queue, collected(None, None))
    full.add(here)
    for keys in (("k",), (None,), (None, "k")):
        with pytest.raises(Refused) as why:
            check_destination(stack.queue, collected(*keys))
        assert why.value.reason is Reason.QUOTA_EXCEEDED and "'queue'" in why.value.description
    full -= {here}
    with pytest.raises(Refused):
        check_destination(stack.queue, collected("k", *KEYS))


def held(is_full: bool) -> dict[str, SubqueueCounts]:
    """What a partition holds: all that it may, or nothing."""
    return {MAIN: SubqueueCounts(bytes=1 << 30 if is_full else 0), DEAD_LETTER: SubqueueCounts(bytes=4)}


def held_in(full: set[int], number: int, only: str | None = None) -> dict[str, SubqueueCounts]:
    """What a partition with this number holds, if these are full."""
    return held(number in full)


async def test_nothing_is_posted_for_a_destination_that_is_full() -> None:
    caller = Caller(1)
    caller.stack.parts[0].counts = lambda only=None: held(True)  # type: ignore[method-assign]
    with pytest.raises(Refused) as why:
        caller.send("one", None)
    assert why.value.reason is Reason.QUOTA_EXCEEDED
    assert caller.under_way == 0 and not caller.stack.parts[0].posted


@pytest.mark.parametrize("full", ["queue", "other"], ids=["the via entity", "the destination"])
async def test_nothing_is_posted_if_either_entity_is_full_as_a_whole(full: str) -> None:
    caller = Caller(1)
    entities = {"queue": caller.stack.queue, "other": caller.sending._destination}
    entities[full]._quota = SizeQuota("Queue", 1_000, lambda: 990)
    for send in (partial(caller.send, "one"), caller.send_each):
        with pytest.raises(Refused) as why:
            send("k")
        assert why.value.reason is Reason.QUOTA_EXCEEDED and f"'{full}'" in why.value.description
    assert caller.under_way == 0 and not caller.stack.parts[0].posted


async def test_only_the_entity_that_keeps_the_messages_counts_them() -> None:
    caller = Caller(1)
    destination = caller.sending._destination
    destination._quota, caller.stack.queue._quota = (
        SizeQuota("Queue", 1_000, lambda: 0),
        SizeQuota("Queue", 1_000, lambda: 0),
    )
    caller.send_each(None)
    assert destination._quota.take_rest() == 1_000 > caller.stack.queue._quota.take_rest()


async def test_messages_that_come_together_go_together_to_each_partition() -> None:
    caller = Caller(2)
    one, other = (
        next(key for key in KEYS if caller.stack.queue.router.number_of(key) == at) for at in (0, 1)
    )
    caller.send_each(one, other, one, None, None)
    assert caller.under_way == 5
    asked = [part.take_all(Transact) for part in caller.stack.parts]
    counts = [[len(each.transfers.messages) for each in some if each.transfers is not None] for some in asked]
    assert counts == [[2, 1], [1, 1]]


async def test_each_of_them_has_its_own_outcome() -> None:
    caller = Caller(2)
    here = caller.stack.queue.router.number_of("k")
    caller.stack.parts[1 - here].available = False
    there = next(key for key in KEYS if caller.stack.queue.router.number_of(key) != here)
    caller.send_each("k", there, None, "k")
    assert caller.ends == [(["1"], Reason.PARTITION_UNAVAILABLE)] and caller.under_way == 3
    part = caller.stack.parts[here]
    part.answer(Transact, lambda each: Transacted(2, each.cookie))
    part.answer(Transact, lambda each: Failed(Reason.DISK_FULL, "full", each.cookie))
    assert caller.ends[1:] == [(["0", "3"], None), (["2"], Reason.DISK_FULL)] and caller.under_way == 0


async def test_without_a_partition_those_without_a_key_are_refused() -> None:
    caller = Caller(1)
    caller.stack.parts[0].available = False
    caller.send_each(None, None)
    assert caller.ends == [(["0", "1"], Reason.PARTITION_UNAVAILABLE)] and caller.under_way == 0
