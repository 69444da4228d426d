"""Transactions without AMQP: what they hold, and what they refuse."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from broker.base.errors import Reason, Refused
from broker.entities.descriptions import DEAD_LETTER, MAIN
from broker.identifiers import PARTITION_SHIFT
from broker.messaging.sending import Collected
from broker.messaging.settlement import COMPLETE, RELEASE, abandon
from broker.messaging.transactions import AllTransactions, Transactions
from broker.operations.general import Failed
from broker.operations.scheduling import BreakPromise, Promised, PromiseNumbers
from broker.operations.sending import Send
from broker.operations.settling import Complete
from broker.operations.transactions import Transact, Transacted
from tests.support.link_stack import LinkStack, Part, until
from tests.support.locked import locked

MIB = 1 << 20


class Caller:
    """A connection that has transactions, by something other than AMQP."""

    def __init__(self, stack: LinkStack, everybody: AllTransactions | None = None) -> None:
        self.stack = stack
        self.all = everybody or stack.services.transactions
        self.ends: list[Reason | None] = []
        self.bytes = 0
        self.transactions = Transactions(self.all, self)

    def took(self, size: int, messages: int) -> None:
        self.bytes += size

    def finished_with(self, size: int, messages: int) -> None:
        self.bytes -= size

    def fail(self) -> None:
        raise AssertionError("nothing unforeseen happens here")

    def declare(self) -> bytes:
        return self.transactions.declare(self)

    def send(self, txn_id: bytes, *messages: bytes, key: str | None = "k", **given: Any) -> None:
        collected = Collected(Send(list(messages), None, **given), [key] * len(messages))
        self.transactions.find(txn_id).send(self.stack.queue, lambda: collected)

    def commit(self, txn_id: bytes) -> None:
        self.transactions.commit(txn_id, lambda why: self.ends.append(why.reason if why else None))

    @property
    def part(self) -> Part:
        return self.stack.part_of(Transact)


def collected(*messages: bytes) -> Collected:
    return Collected(Send(list(messages), None), ["k"] * len(messages))


async def test_commits_that_overlap_end_each_with_their_own_outcome() -> None:
    caller = Caller(LinkStack(1))
    for text in (b"one", b"two"):
        txn_id = caller.declare()
        caller.send(txn_id, text)
        caller.commit(txn_id)
    one, tell_one = caller.part.take(Transact)
    two, tell_two = caller.part.take(Transact)
    assert (one.send.messages, two.send.messages) == ([b"one"], [b"two"])
    tell_two(Transacted(1, two.cookie))
    tell_one(Failed(Reason.QUOTA_EXCEEDED, "full", one.cookie))
    assert caller.ends == [None, Reason.TRANSACTION_ROLLED_BACK]
    assert (caller.bytes, caller.all.bytes, caller.all.count) == (0, 0, 0)


async def test_an_empty_transaction_commits_at_once() -> None:
    caller = Caller(LinkStack())
    caller.commit(caller.declare())
    assert caller.ends == [None]


async def test_what_all_connections_hold_is_bounded() -> None:
    stack = LinkStack(1, transactions_max=3)
    everybody = AllTransactions(stack.settings, 100_000, stack.metrics)
    one, other = Caller(stack, everybody), Caller(stack, everybody)
    first = one.declare()
    one.send(first, bytes(70_000))
    second = other.declare()
    with pytest.raises(Refused) as why:
        other.send(second, bytes(70_000))
    assert why.value.reason is Reason.QUOTA_EXCEEDED and "100000" in why.value.description
    other.declare()
    with pytest.raises(Refused) as why:
        one.declare()
    assert why.value.reason is Reason.QUOTA_EXCEEDED
    one.transactions.roll_back(first)
    third = one.declare()
    one.send(third, bytes(70_000))
    one.transactions.give_up(one)
    assert everybody.bytes == 0


async def test_a_connection_gets_its_share_of_transactions_from_the_one_that_has_most() -> None:
    stack = LinkStack(1, transactions_max=10)
    everybody = AllTransactions(stack.settings, 1_000_000, stack.metrics)
    many, few, late = (Caller(stack, everybody) for _ in range(3))
    used, *unused = [many.declare() for _ in range(8)]
    many.send(used, b"one")
    kept = [few.declare() for _ in range(2)]
    found = [late.declare() for _ in range(3)]
    assert [len(each.transactions) for each in (many, few, late)] == [5, 2, 3]
    for txn_id in unused[:3]:
        with pytest.raises(Refused) as why:
            many.transactions.find(txn_id)
        assert why.value.reason is Reason.TRANSACTION_UNKNOWN
    late.declare()
    assert [len(each.transactions) for each in (many, few, late)] == [4, 2, 4]
    for caller in (many, late):
        with pytest.raises(Refused) as why:
            caller.declare()
        assert why.value.reason is Reason.QUOTA_EXCEEDED and "limit is 10" in why.value.description
    for caller, txn_ids in ((many, [used]), (few, kept), (late, found)):
        for txn_id in txn_ids:
            caller.transactions.find(txn_id)
    few.declare()
    assert everybody.count == 10 and many.transactions.find(used).messages == 1
    for caller in (many, few, late):
        caller.transactions.give_up(caller)
    assert (everybody.count, everybody.connections, everybody.bytes) == (0, {}, 0)


async def test_a_connection_gets_its_share_of_bytes_from_the_one_that_holds_most() -> None:
    stack = LinkStack(1)
    everybody = AllTransactions(stack.settings, 100_000, stack.metrics)
    heavy, light = Caller(stack, everybody), Caller(stack, everybody)
    large, small = heavy.declare(), heavy.declare()
    heavy.send(large, bytes(60_000))
    heavy.send(small, bytes(30_000))
    mine = light.declare()
    light.send(mine, bytes(30_000))
    assert heavy.transactions.find(small).messages == 1
    with pytest.raises(Refused) as why:
        heavy.send(large, b"more")
    assert why.value.reason is Reason.TRANSACTION_ROLLED_BACK and "others" in why.value.description
    with pytest.raises(Refused):
        light.send(light.declare(), bytes(60_000))
    assert light.transactions.find(mine).messages == 1


async def test_a_transaction_that_is_not_used_ends_with_the_time_limit() -> None:
    caller = Caller(LinkStack(1, transaction_timeout_ms=100))
    txn_id = caller.declare()
    await until(lambda: caller.all.count == 0)
    assert len(caller.transactions) == 0
    with pytest.raises(Refused) as why:
        caller.commit(txn_id)
    assert why.value.reason is Reason.TRANSACTION_UNKNOWN


async def test_a_failed_transaction_ends_some_time_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.messaging.transaction.FAILED_KEPT_S", 0.1)
    caller = Caller(LinkStack(1, transaction_timeout_ms=100))
    refused, late = caller.declare(), caller.declare()
    caller.transactions.fail(refused, Refused(Reason.LOCK_LOST, "lost"))
    caller.send(late, b"one")
    await until(lambda: caller.all.count == 0)
    assert (len(caller.transactions), caller.all.bytes) == (0, 0)


async def test_clients_without_a_token_have_a_share_until_they_use_their_transactions() -> None:
    stack = LinkStack(1, transactions_max=20)
    callers = [Caller(stack) for _ in range(4)]
    used, _ = [caller.transactions.declare(caller, is_claimed=False) for caller in callers[:2]]
    callers[0].send(used, b"one")
    newer = [caller.transactions.declare(caller, is_claimed=False) for caller in callers[2:]]
    assert [len(caller.transactions) for caller in callers] == [1, 0, 1, 1]
    for caller, txn_id in zip(callers[2:], newer, strict=True):
        caller.transactions.roll_back(txn_id)
    callers[0].commit(used)
    callers[0].part.take(Transact)
    assert (callers[0].all.count, callers[0].all.unclaimed) == (0, {})


async def test_settlements_of_one_kind_become_one_operation() -> None:
    stack = LinkStack(1)
    caller = Caller(stack)
    txn_id = caller.declare()
    tokens = locked(0, 5).tokens
    transaction = caller.transactions.find(txn_id)
    for token in tokens[:3]:
        transaction.settle(stack.queue, MAIN, [token], COMPLETE)
    transaction.settle(stack.queue, MAIN, tokens[3:4], abandon({}))
    transaction.settle(stack.queue, MAIN, tokens[4:], abandon({"note": "n"}))
    caller.commit(txn_id)
    transact, tell = caller.part.take(Transact)
    assert [list(each.tokens) for each in transact.settlements] == [tokens[:3], tokens[3:4], tokens[4:]]
    assert isinstance(transact.settlements[0], Complete)
    tell(Transacted(0, transact.cookie))
    meter = stack.metrics.entities["queue"]
    assert (meter.completed_messages, meter.abandoned_messages) == (3, 2)


async def test_settlements_name_the_subqueue_that_their_client_has_addressed() -> None:
    stack = LinkStack(1)
    caller = Caller(stack)
    txn_id = caller.declare()
    tokens = locked(0, 2).tokens
    transaction = caller.transactions.find(txn_id)
    transaction.settle(stack.queue, MAIN, tokens[:1], COMPLETE)
    transaction.settle(stack.queue, DEAD_LETTER, tokens[1:], COMPLETE)
    caller.commit(txn_id)
    transact, _ = caller.part.take(Transact)
    assert transact.settlements == [
        Complete(tokens[:1], subqueue=MAIN),
        Complete(tokens[1:], subqueue=DEAD_LETTER),
    ]


@pytest.mark.parametrize("token", [b"short", (99 << 48).to_bytes(8, "big") + bytes(8)])
async def test_a_token_that_no_partition_gave_fails_the_transaction(token: bytes) -> None:
    stack = LinkStack(2)
    caller = Caller(stack)
    txn_id = caller.declare()
    with pytest.raises(Refused) as why:
        caller.transactions.find(txn_id).settle(stack.queue, MAIN, [token], COMPLETE)
    assert why.value.reason is Reason.LOCK_LOST
    with pytest.raises(Refused) as why:
        caller.commit(txn_id)
    assert why.value.reason is Reason.TRANSACTION_ROLLED_BACK


async def test_a_release_is_refused() -> None:
    stack = LinkStack(1)
    caller = Caller(stack)
    txn_id = caller.declare()
    with pytest.raises(Refused) as why:
        caller.transactions.find(txn_id).settle(stack.queue, MAIN, locked(0).tokens, RELEASE)
    assert why.value.reason is Reason.NOT_ALLOWED


async def test_scheduled_messages_have_promised_numbers_and_go_with_the_commit() -> None:
    caller = Caller(LinkStack(4))
    txn_id = caller.declare()
    transaction = caller.transactions.find(txn_id)
    number = caller.stack.queue.router.number_of("k")
    part = caller.stack.parts[number]
    asked = [
        asyncio.create_task(transaction.schedule(caller.stack.queue, collected(text)))
        for text in (b"a", b"b")
    ]
    for first in (7, 9):
        await until(lambda: part.has(PromiseNumbers))
        promise, tell = part.take(PromiseNumbers)
        tell(Promised(first, promise.cookie))
    assert [await each for each in asked] == [[7], [9]]
    cancelled = [number << PARTITION_SHIFT | 5] * 2
    transaction.cancel(caller.stack.queue, cancelled)
    caller.commit(txn_id)
    transact, tell = part.take(Transact)
    assert transact.scheduled is not None and transact.scheduled.messages == [b"a", b"b"]
    assert (transact.promised, transact.cancelled) == ([7, 9], cancelled[:1])
    tell(Transacted(2, transact.cookie))
    assert caller.ends == [None] and not part.has(BreakPromise)
    assert caller.stack.metrics.entities["queue"].incoming_messages == 2


async def test_promises_are_broken_when_their_transaction_ends_otherwise() -> None:
    caller = Caller(LinkStack(1))
    (part,) = caller.stack.parts
    for is_failure in (False, True):
        txn_id = caller.declare()
        work = caller.transactions.find(txn_id).schedule(caller.stack.queue, collected(b"a"))
        asked = asyncio.create_task(work)
        await until(lambda: part.has(PromiseNumbers))
        promise, tell = part.take(PromiseNumbers)
        tell(Promised(7, promise.cookie))
        await asked
        if is_failure:
            caller.transactions.fail(txn_id, Refused(Reason.LOCK_LOST, "lost"))
        else:
            caller.transactions.roll_back(txn_id)
        assert part.take(BreakPromise)[0].first == 7
    assert caller.all.bytes == 0


@pytest.mark.parametrize("how", ["commit", "roll back"])
async def test_a_transaction_that_ends_before_a_request_is_answered_keeps_nothing_of_it(how: str) -> None:
    caller = Caller(LinkStack(1))
    (part,) = caller.stack.parts
    txn_id = caller.declare()
    work = caller.transactions.find(txn_id).schedule(caller.stack.queue, collected(b"a"))
    asked = asyncio.create_task(work)
    await until(lambda: part.has(PromiseNumbers))
    if how == "commit":
        with pytest.raises(Refused) as why:
            caller.commit(txn_id)
        assert "before all of its requests were answered" in why.value.description
    else:
        caller.transactions.roll_back(txn_id)
    promise, tell = part.take(PromiseNumbers)
    tell(Promised(7, promise.cookie))
    with pytest.raises(Refused) as why:
        await asked
    assert why.value.reason is Reason.TRANSACTION_ROLLED_BACK
    assert part.take(BreakPromise)[0].first == 7
    assert (caller.all.bytes, caller.all.count) == (0, 0) and not part.has(Transact)


async def test_cancelling_is_refused_in_two_partitions_and_for_numbers_that_nobody_has() -> None:
    caller = Caller(LinkStack(4))
    for numbers, reason in (
        ([1 << PARTITION_SHIFT | 5, 2 << PARTITION_SHIFT | 5], Reason.NOT_ALLOWED),
        ([9 << PARTITION_SHIFT], Reason.MESSAGE_NOT_FOUND),
    ):
        txn_id = caller.declare()
        with pytest.raises(Refused) as why:
            caller.transactions.find(txn_id).cancel(caller.stack.queue, numbers)
        assert why.value.reason is reason
        with pytest.raises(Refused):
            caller.commit(txn_id)
