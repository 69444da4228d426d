"""Transactions without AMQP: what they hold, and what they refuse."""

from __future__ import annotations

from typing import Any

import pytest

from broker.base.errors import Reason, Refused
from broker.messaging.sending import Collected
from broker.messaging.settlement import COMPLETE, RELEASE, abandon
from broker.messaging.transactions import AllTransactions, Transactions
from broker.operations import Complete, Failed, Send, Transact, Transacted
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


async def test_a_transaction_that_is_not_used_ends_with_the_time_limit() -> None:
    caller = Caller(LinkStack(1, transaction_timeout_ms=100))
    txn_id = caller.declare()
    await until(lambda: caller.all.count == 0)
    assert len(caller.transactions) == 0
    with pytest.raises(Refused) as why:
        caller.commit(txn_id)
    assert why.value.reason is Reason.TRANSACTION_UNKNOWN


async def test_a_failed_transaction_ends_some_time_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.messaging.transactions.FAILED_KEPT_S", 0.1)
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
        transaction.settle(stack.queue, [token], COMPLETE)
    transaction.settle(stack.queue, tokens[3:4], abandon({}))
    transaction.settle(stack.queue, tokens[4:], abandon({"note": "n"}))
    caller.commit(txn_id)
    transact, tell = caller.part.take(Transact)
    assert [list(each.tokens) for each in transact.settlements] == [tokens[:3], tokens[3:4], tokens[4:]]
    assert isinstance(transact.settlements[0], Complete)
    tell(Transacted(0, transact.cookie))
    meter = stack.metrics.entities["queue"]
    assert (meter.completed_messages, meter.abandoned_messages) == (3, 2)


@pytest.mark.parametrize("token", [b"short", (99 << 48).to_bytes(8, "big") + bytes(8)])
async def test_a_token_that_no_partition_gave_fails_the_transaction(token: bytes) -> None:
    stack = LinkStack(2)
    caller = Caller(stack)
    txn_id = caller.declare()
    with pytest.raises(Refused) as why:
        caller.transactions.find(txn_id).settle(stack.queue, [token], COMPLETE)
    assert why.value.reason is Reason.LOCK_LOST
    with pytest.raises(Refused) as why:
        caller.commit(txn_id)
    assert why.value.reason is Reason.TRANSACTION_ROLLED_BACK


async def test_a_release_is_refused() -> None:
    stack = LinkStack(1)
    caller = Caller(stack)
    txn_id = caller.declare()
    with pytest.raises(Refused) as why:
        caller.transactions.find(txn_id).settle(stack.queue, locked(0).tokens, RELEASE)
    assert why.value.reason is Reason.NOT_ALLOWED
