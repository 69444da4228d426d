"""Messages for other entities in one partition: they are in the transfer subqueue with the commit of their
transaction, or nowhere, and nobody is given them on the way."""

from __future__ import annotations

import pytest

from broker.base.errors import Reason
from broker.entities.descriptions import MAIN, TRANSFER, TRANSFER_DEAD_LETTER, QueueSettings
from broker.operations.browsing import Peek, Peeked
from broker.operations.columns import DESTINATION, SESSION_ID, ColumnLists
from broker.operations.general import Failed
from broker.operations.receiving import Demand, Locked, LockExactly, Unmet, Withdraw
from broker.operations.redriving import FindDeadLetters, Found, Redrive, Redriven
from broker.operations.sending import Send, Sent
from broker.operations.sessions import AcceptSession, SessionAccepted
from broker.operations.settling import Complete, Settled
from broker.operations.transactions import Transact, Transacted
from broker.operations.transfers import FailTransfer, LockNext
from storage.errors import CommitFailed
from tests.support.partition_harness import NUMBER, Harness, one

MINUTE_MS = 60_000


def transfers(*bodies: bytes, to: bytes = b"other") -> Send:
    return Send(list(bodies), None, columns={DESTINATION: [to] * len(bodies)})


async def bodies(harness: Harness, subqueue: str) -> list[bytes]:
    return (await harness.peek(subqueue)).messages


async def lock_next(harness: Harness, count: int = 10) -> Locked:
    return one(await harness.do(9, LockNext(TRANSFER, count, 1 << 20, MINUTE_MS, "next")), Locked)


@pytest.mark.parametrize("restarts", [None, "crash", "clean", "no checkpoint"])
async def test_they_are_kept_with_the_rest_of_the_transaction(restarts: str | None) -> None:
    harness = Harness(QueueSettings(default_time_to_live_ms=1_000))
    await harness.send(b"old")
    tokens = (await harness.receive(1)).tokens
    await harness.do(2, Demand(MAIN, 5))
    asked = Transact(
        Send([b"here"], None), [Complete(tokens)], "mine", transfers=transfers(b"there", b"too", to=b"b")
    )
    assert (await harness.do(1, asked))[-1] == Transacted(3, "mine")
    assert one(harness.take(2), Locked).messages == [b"here"], "the others are for nobody here"
    if restarts:
        if restarts == "no checkpoint":
            harness.log.disk.checkpoint = None
        await harness.restart(clean=restarts == "clean")
    await harness.advance(2_000)
    locked = await lock_next(harness)
    assert (locked.messages, locked.columns[DESTINATION]) == ([b"there", b"too"], [b"b", b"b"])
    counts = harness.task.counts()
    assert counts[TRANSFER].active == 2
    await harness.do(9, Complete(locked.tokens[:1]))
    failed = FailTransfer(locked.tokens[1:])
    assert one(await harness.do(9, failed), Settled).failures == {}
    assert await bodies(harness, TRANSFER) == []
    assert await bodies(harness, TRANSFER_DEAD_LETTER) == [b"too"]


async def test_plain_messages_are_received_as_before_beside_them() -> None:
    """Columns must not make an index of sessions for messages that have none."""
    harness = Harness()
    await harness.send(b"a", b"b")
    locked = await harness.receive(1, 2)
    await harness.do(1, Transact(Send([], None), [], transfers=transfers(b"x")))
    await harness.do(1, Withdraw(MAIN))
    await harness.restart()
    found = await harness.receive(1, 2)
    assert found.messages == [b"a", b"b"] and locked.messages == found.messages
    assert one(await harness.do(1, Complete(found.tokens[1:])), Settled).failures == {}
    partition = harness.task._partition
    assert partition is not None and partition.messages.main.sessions is None


async def test_a_queue_with_sessions_can_pass_messages_on() -> None:
    harness = Harness(QueueSettings(requires_session=True))
    send = Send([b"1"], None, columns={SESSION_ID: [b"s"]})
    one(await harness.do(1, send), Sent)
    one(await harness.do(1, AcceptSession(MAIN, b"s")), SessionAccepted)
    locked = one(await harness.do(1, Demand(MAIN, 1)), Locked)
    again = Send([b"2"], None, columns={SESSION_ID: [b"s"]})
    asked = Transact(again, [Complete(locked.tokens)], transfers=transfers(b"x"))
    assert await harness.do(1, asked) == [Transacted(2, None)]
    await harness.restart()
    assert await bodies(harness, MAIN) == [b"2"] and (await lock_next(harness)).messages == [b"x"]
    one(await harness.do(2, AcceptSession(MAIN, b"s")), SessionAccepted)
    assert one(await harness.do(2, Demand(MAIN, 1)), Locked).messages == [b"2"]


async def test_a_full_disk_leaves_nothing_of_them_and_every_lock_as_it_was() -> None:
    harness = Harness()
    await harness.send(b"old")
    tokens = (await harness.receive(1)).tokens
    asked = Transact(Send([b"here"], None), [Complete(tokens)], transfers=transfers(b"there"))
    harness.log.fill_disk()
    assert one(await harness.do(1, asked), Failed).reason is Reason.DISK_FULL
    harness.log.empty_disk()
    assert await bodies(harness, TRANSFER) == [] and await bodies(harness, MAIN) == [b"old"]
    assert await harness.do(1, asked) == [Transacted(2, None)]
    assert await bodies(harness, MAIN) == [b"here"]


async def test_a_commit_that_fails_leaves_nothing() -> None:
    harness = Harness()
    harness.log.fail_append(CommitFailed("no"))
    await harness.do(1, Transact(Send([], None), [], transfers=transfers(b"there")))
    harness.clock.advance(20_000)
    await harness.until_quiet()
    assert await bodies(harness, TRANSFER) == []


async def test_they_count_towards_the_quota() -> None:
    harness = Harness(QueueSettings(max_size_mb=1))
    large = Transact(Send([b"x"], None), [], transfers=transfers(bytes(1 << 20)))
    assert one(await harness.do(1, large), Failed).reason is Reason.QUOTA_EXCEEDED
    assert await bodies(harness, MAIN) == []


async def test_many_transactions_share_a_commit() -> None:
    harness = Harness()
    asked = [
        Transact(Send([], None), [], number, transfers=transfers(b"%d" % number)) for number in range(20)
    ]
    harness.post(3, Send([b"here"], None))
    for each in asked:
        harness.post(1, each)
    harness.post(3, Send([b"too"], None))
    harness.post(2, Demand(MAIN, 5))
    await harness.task.step()
    assert harness.take(1) == [Transacted(1, number) for number in range(20)]
    await harness.until_quiet()
    assert one(harness.take(2), Locked).messages == [b"here", b"too"]
    await harness.restart()
    assert (await lock_next(harness, 50)).messages == [b"%d" % number for number in range(20)]
    assert await bodies(harness, MAIN) == [b"here", b"too"]


async def test_a_full_disk_undoes_all_transactions_of_a_commit() -> None:
    harness = Harness()
    await harness.send(b"old", b"older")
    first, second = (await harness.receive(1, 2)).tokens
    harness.log.fill_disk()
    for token in (first, second):
        harness.post(1, Transact(Send([], None), [Complete([token])], transfers=transfers(b"there")))
    await harness.until_quiet()
    reasons = [answer.reason for answer in harness.take(1) if isinstance(answer, Failed)]
    assert reasons == [Reason.DISK_FULL] * 2
    harness.log.empty_disk()
    assert await bodies(harness, TRANSFER) == []
    assert one(await harness.do(1, Complete([first, second])), Settled).failures == {}


async def test_an_operation_that_looks_at_messages_does_not_see_them() -> None:
    harness = Harness(QueueSettings(requires_session=True))
    harness.post(1, Transact(Send([], None), [], transfers=transfers(b"there")))
    harness.post(2, Peek(MAIN, 0, 10))
    harness.post(3, AcceptSession(MAIN, None))
    await harness.until_quiet()
    assert one(harness.take(2), Peeked).messages == []
    assert one(harness.take(3), Failed).reason is Reason.SESSION_NOT_FOUND


@pytest.mark.parametrize("session", [None, b"s"], ids=["plain", "session"])
async def test_receivers_are_served_while_one_transaction_follows_the_other(session: bytes | None) -> None:
    harness = Harness(QueueSettings(requires_session=session is not None))
    columns: ColumnLists = {} if session is None else {SESSION_ID: [session] * 3}
    one(await harness.do(1, Send([b"a", b"b", b"c"], None, columns=columns)), Sent)
    if session is not None:
        one(await harness.do(2, AcceptSession(MAIN, session)), SessionAccepted)
    harness.post(2, Demand(MAIN, 3))
    received: list[bytes] = []
    for step in range(6):
        harness.post(1, Transact(Send([], None), [], step, transfers=transfers(b"there")))
        await harness.task.step()
        received += [
            each for answer in harness.take(2) if isinstance(answer, Locked) for each in answer.messages
        ]
        if step == 1:
            assert received == [b"a", b"b", b"c"]
    await harness.until_quiet()
    assert harness.take(1) == [Transacted(1, step) for step in range(6)]
    assert harness.task.counts()[TRANSFER].active == 6


async def test_a_client_is_told_that_its_demand_is_unmet_after_the_commit() -> None:
    harness = Harness()
    harness.post(2, Demand(MAIN, 1, tell_unmet=True))
    await harness.do(1, Transact(Send([], None), [], transfers=transfers(b"there")))
    assert harness.take(2) == [Unmet(NUMBER, MAIN)]


@pytest.mark.parametrize("requires_session", [False, True])
async def test_a_failed_transfer_is_redriven_only_if_somebody_can_receive_it_then(
    requires_session: bool,
) -> None:
    harness = Harness(QueueSettings(requires_session=requires_session))
    await harness.do(1, Transact(Send([], None), [], transfers=transfers(b"there")))
    await harness.do(9, FailTransfer((await lock_next(harness)).tokens))
    find = FindDeadLetters(TRANSFER_DEAD_LETTER, 10, 1 << 60)
    numbers = one(await harness.do(1, find), Found).sequence_numbers
    assert len(numbers) == (not requires_session)
    (number,) = (await harness.peek(TRANSFER_DEAD_LETTER)).sequence_numbers
    locked = one(await harness.do(1, LockExactly(TRANSFER_DEAD_LETTER, [number])), Locked)
    (answer,) = await harness.do(1, Redrive(locked.tokens, [b"there"], None, columns=locked.columns))
    if requires_session:
        assert isinstance(answer, Failed) and answer.reason is Reason.NOT_ALLOWED
        assert await bodies(harness, TRANSFER_DEAD_LETTER) == [b"there"]
    else:
        assert isinstance(answer, Redriven) and await bodies(harness, MAIN) == [b"there"]
        (again,) = (await harness.peek()).sequence_numbers
        locked = one(await harness.do(1, LockExactly(MAIN, [again])), Locked)
        assert locked.columns.get(DESTINATION, [None]) == [None]
