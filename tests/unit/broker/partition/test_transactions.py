"""A transaction in one partition: all of it in one commit, or nothing, also on a full disk and after a
crash."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from broker.base.errors import Reason
from broker.entities.descriptions import DEAD_LETTER, MAIN, QueueSettings
from broker.message.changes import encode_changes
from broker.operations.browsing import Watch
from broker.operations.columns import DESTINATION
from broker.operations.general import Failed, Update, Updated
from broker.operations.interface import Operation
from broker.operations.message_states import MessageState
from broker.operations.receiving import Demand, Locked, Withdraw, Withdrawn
from broker.operations.sending import Send, Sent
from broker.operations.sessions import AcceptSession
from broker.operations.settling import Abandon, Complete, DeadLetter, Defer, Settled
from broker.operations.transactions import Transact, Transacted
from broker.partition.cycle_bounds import Bounds
from broker.partition.task_limits import TaskLimits
from storage.errors import CommitFailed, DiskFull
from tests.support.partition_harness import Harness, one

MIB = 1 << 20
NOTHING = Send([], None)
NOTE = encode_changes({"note": "n"})


async def locked(harness: Harness, count: int, client: int = 1) -> list[bytes]:
    """The tokens of new messages, locked."""
    await harness.send(*[b"old %d" % number for number in range(count)])
    return (await harness.receive(client, count)).tokens


async def contents(harness: Harness) -> dict[str, list[tuple[bytes, int, int, bytes | None]]]:
    """Body, delivery count, state and changed properties of every message, by subqueue."""
    found = {}
    for subqueue in (MAIN, DEAD_LETTER):
        seen = await harness.peek(subqueue)
        found[subqueue] = list(
            zip(seen.messages, seen.delivery_counts, seen.states, seen.changed, strict=True)
        )
    return found


def everything(tokens: list[bytes]) -> Transact:
    """A transaction that sends two messages and settles five in every way."""
    return Transact(
        Send([b"new 0", b"new 1"], None),
        [
            Complete(tokens[:2]),
            Abandon(tokens[2:3], NOTE),
            Defer(tokens[3:4]),
            DeadLetter(tokens[4:5], NOTE),
        ],
        "mine",
    )


ACTIVE, DEFERRED = MessageState.ACTIVE, MessageState.DEFERRED
BEFORE = {MAIN: [(b"old %d" % number, 0, ACTIVE, None) for number in range(5)], DEAD_LETTER: []}
AFTER: dict[str, list[tuple[bytes, int, int, bytes | None]]] = {
    MAIN: [
        (b"old 2", 1, ACTIVE, NOTE),
        (b"old 3", 1, DEFERRED, None),
        (b"new 0", 0, ACTIVE, None),
        (b"new 1", 0, ACTIVE, None),
    ],
    DEAD_LETTER: [(b"old 4", 0, ACTIVE, NOTE)],
}


async def test_a_transaction_is_one_commit_and_does_what_its_parts_do() -> None:
    harness = Harness()
    tokens = await locked(harness, 5)
    frames = len(harness.log.disk.frames)
    assert await harness.do(1, everything(tokens)) == [Transacted(2, "mine")]
    assert len(harness.log.disk.frames) == frames + 1
    assert await contents(harness) == AFTER
    await harness.restart()
    assert await contents(harness) == AFTER


async def test_what_a_transaction_makes_available_is_handed_out() -> None:
    harness = Harness()
    tokens = await locked(harness, 5)
    waiting: list[Operation] = [Demand(MAIN, 4), Demand(DEAD_LETTER, 1), Watch(DEAD_LETTER, 0)]
    for client, operation in enumerate(waiting, 10):
        await harness.do(client, operation)
    await harness.do(1, everything(tokens))
    given = [message for answer in harness.take(10) for message in answer.messages]  # type: ignore[union-attr]
    assert sorted(given) == [b"new 0", b"new 1", b"old 2"]
    assert one(harness.take(11), Locked).messages == [b"old 4"]
    assert len(harness.take(12)) == 1


async def test_a_message_given_back_is_handed_out_before_those_sent_with_it() -> None:
    harness = Harness()
    tokens = await locked(harness, 1)
    await harness.do(10, Demand(MAIN, 1))
    await harness.do(1, Transact(Send([b"new"], None), [Abandon(tokens)]))
    assert one(harness.take(10), Locked).messages == [b"old 0"]


async def test_a_drain_behind_a_transaction_gets_what_the_transaction_gives_back() -> None:
    harness = Harness()
    tokens = await locked(harness, 1)
    await harness.do(10, Demand(MAIN, 2))
    harness.post(1, Transact(Send([b"new"], None), [Abandon(tokens)]))
    harness.post(10, Withdraw(MAIN))
    await harness.until_quiet()
    given, withdrawn = harness.take(10)
    assert isinstance(given, Locked) and given.messages == [b"old 0", b"new"]
    assert isinstance(withdrawn, Withdrawn)


@pytest.mark.parametrize("sends", [True, False], ids=["with a send", "settlements alone"])
async def test_settled_locks_are_gone(sends: bool) -> None:
    harness = Harness()
    tokens = await locked(harness, 5)
    transaction = everything(tokens)
    if not sends:
        transaction.send = NOTHING
    harness.post(1, transaction)
    harness.post(2, Complete(tokens, "late"))
    harness.post(3, Transact(NOTHING, [Complete(tokens[:1])], "late"))
    await harness.until_quiet()
    one(harness.take(1), Transacted)
    assert one(harness.take(2), Settled).failures == dict.fromkeys(range(5), Reason.LOCK_LOST)
    assert one(harness.take(3), Failed).reason is Reason.LOCK_LOST


@pytest.mark.parametrize(
    ("settlements", "reason"),
    [
        (lambda tokens: [Complete(tokens), Complete([bytes(16)])], Reason.LOCK_LOST),
        (lambda tokens: [Complete(tokens), Abandon(tokens[:1])], Reason.LOCK_LOST),
        (lambda tokens: [Complete(tokens), Complete([b"short"])], Reason.LOCK_LOST),
        (lambda tokens: [Complete([tokens[0], tokens[0]])], Reason.LOCK_LOST),
    ],
    ids=["unknown token", "settled twice", "malformed token", "named twice"],
)
async def test_a_part_that_cannot_be_carried_out_leaves_everything_as_it_was(
    settlements: Any, reason: Reason
) -> None:
    harness = Harness(QueueSettings(max_size_mb=1))
    tokens = await locked(harness, 5)
    frames = len(harness.log.disk.frames)
    failed = one(await harness.do(1, Transact(Send([b"new"], None), settlements(tokens), "mine")), Failed)
    assert (failed.reason, failed.cookie) == (reason, "mine")
    assert await contents(harness) == BEFORE and len(harness.log.disk.frames) == frames
    assert one(await harness.do(1, Complete(tokens)), Settled).failures == {}


async def test_properties_that_are_too_many_together_leave_everything_as_it_was() -> None:
    harness = Harness(QueueSettings(max_size_mb=1))
    tokens = await locked(harness, 40)
    change = encode_changes({"note": "n" * 30_000})
    deferrals = [Defer([token], change) for token in tokens]
    failed = one(await harness.do(1, Transact(Send([b"new"], None), deferrals)), Failed)
    assert failed.reason is Reason.QUOTA_EXCEEDED
    assert one(await harness.do(1, Complete(tokens)), Settled).failures == {}
    await harness.do(1, Transact(NOTHING, []))


@pytest.mark.parametrize("is_last", [False, True])
async def test_a_transaction_merges_a_bounded_amount_of_properties(is_last: bool) -> None:
    """Symptom: one over 100 messages with thousands of changed properties each held up all other clients for
    54 ms, because it cannot be divided. So did one that abandoned them for the last time, with nothing but
    the broker's own reason to merge."""
    harness = Harness(QueueSettings(max_delivery_count=2 if is_last else 100))
    change = None if is_last else NOTE
    tokens = await locked(harness, 50)
    for number, token in enumerate(tokens):
        changed = encode_changes({f"{number}-{each}": None for each in range(5_000)})
        await harness.do(1, Abandon([token], changed))
    received = await harness.do(1, Demand(MAIN, 50))
    tokens = [token for each in received if isinstance(each, Locked) for token in each.tokens]
    assert len(tokens) == 50
    refused = one(
        await harness.do(1, Transact(NOTHING, [Abandon([each], change) for each in tokens])), Failed
    )
    assert refused.reason is Reason.QUOTA_EXCEEDED and "fewer" in refused.description
    for part in (tokens[:25], tokens[25:]):
        one(await harness.do(1, Transact(NOTHING, [Abandon([each], change) for each in part])), Transacted)


async def test_a_send_beyond_the_quota_leaves_the_settlements_undone() -> None:
    harness = Harness(QueueSettings(max_size_mb=1))
    tokens = await locked(harness, 5)
    failed = one(await harness.do(1, Transact(Send([b"x" * MIB], None), [Complete(tokens)])), Failed)
    assert failed.reason is Reason.QUOTA_EXCEEDED and await contents(harness) == BEFORE


LARGE = b"x" * (MIB // 4 - 1_000)


async def full(count: int) -> tuple[Harness, list[bytes]]:
    """A queue that has no room for another large message, and the tokens of some of its four."""
    harness = Harness(QueueSettings(max_size_mb=1))
    await harness.send(*[LARGE] * 4)
    tokens = (await harness.receive(1, count)).tokens
    assert one(await harness.do(1, Send([LARGE], None)), Failed).reason is Reason.QUOTA_EXCEEDED
    return harness, tokens


@pytest.mark.parametrize("is_transfer", [False, True], ids=["to itself", "to another entity"])
async def test_transactions_drain_a_full_queue_although_they_send(is_transfer: bool) -> None:
    """What each one completes makes room for what it sends, also if several share a commit."""
    harness, tokens = await full(4)
    frames = len(harness.log.disk.frames)
    send = Send([LARGE], None)
    there = replace(send, columns={DESTINATION: [b"other"]})
    transactions = [
        Transact(NOTHING, [Complete([token])], transfers=there)
        if is_transfer
        else Transact(send, [Complete([token])])
        for token in tokens[:3]
    ]
    assert await harness.do(1, *transactions) == [Transacted(1, None)] * 3
    assert len(harness.log.disk.frames) == frames + 1
    transaction = Transact(Send([LARGE, LARGE], None), [Complete(tokens[3:])])
    assert one(await harness.do(1, transaction), Failed).reason is Reason.QUOTA_EXCEEDED
    assert one(await harness.do(1, Send([LARGE], None)), Failed).reason is Reason.QUOTA_EXCEEDED
    assert one(await harness.do(1, Complete(tokens[3:])), Settled).failures == {}
    assert one(await harness.do(1, Send([LARGE], None)), Sent)


async def test_a_full_entity_takes_what_the_transaction_makes_room_for() -> None:
    harness = Harness()
    await harness.send(b"x" * 1_000, b"x" * 1_000)
    tokens = (await harness.receive(1, 2)).tokens
    completed = [Complete(tokens[:1])]
    refused = Transact(Send([b"y" * 1_011], None), completed, full="it is full", room=10)
    assert await harness.do(1, refused) == [Failed(Reason.QUOTA_EXCEEDED, "it is full", None)]
    fits = Transact(Send([b"y" * 1_010], None), completed, full="it is full", room=10)
    assert await harness.do(1, fits) == [Transacted(1, None)]


async def test_what_stays_in_the_queue_makes_no_room_for_what_its_transaction_sends() -> None:
    harness, tokens = await full(3)
    settlements: list[Abandon | Defer | DeadLetter] = [
        Abandon(tokens[:1]),
        Defer(tokens[1:2]),
        DeadLetter(tokens[2:]),
    ]
    failed = one(await harness.do(1, Transact(Send([LARGE], None), settlements)), Failed)
    assert failed.reason is Reason.QUOTA_EXCEEDED


async def test_a_scheduled_message_that_is_cancelled_makes_room_for_another_one() -> None:
    harness = Harness(QueueSettings(max_size_mb=1))
    later_ms = harness.clock.now_ms() + 60_000
    await harness.do(1, Send([LARGE] * 4, None, scheduled_ms=[later_ms] * 4))
    numbers = (await harness.peek()).sequence_numbers
    assert await harness.do(1, Transact(Send([LARGE], None), [], cancelled=numbers[:1])) == [
        Transacted(1, None)
    ]


async def test_a_queue_above_a_lowered_quota_is_drained_by_transactions_too() -> None:
    harness = Harness(QueueSettings(max_size_mb=2))
    await harness.send(*[LARGE] * 6)
    tokens = (await harness.receive(1, 6)).tokens
    harness.change(max_size_mb=1)
    one(await harness.do(1, Update(harness.description)), Updated)
    assert await harness.do(1, Transact(Send([LARGE], None), [Complete(tokens[:1])])) == [Transacted(1, None)]


async def test_room_that_a_refused_transaction_would_have_made_is_not_there() -> None:
    harness, tokens = await full(1)
    harness.log.fill_disk()
    failed = one(await harness.do(1, Transact(Send([LARGE], None), [Complete(tokens)])), Failed)
    assert failed.reason is Reason.DISK_FULL
    harness.log.empty_disk()
    assert one(await harness.do(1, Send([LARGE], None)), Failed).reason is Reason.QUOTA_EXCEEDED


async def test_a_dead_letter_cannot_be_dead_lettered_in_a_transaction() -> None:
    harness = Harness()
    tokens = await locked(harness, 2)
    await harness.do(1, DeadLetter(tokens[:1]))
    dead = (await harness.receive(1, 1, DEAD_LETTER)).tokens
    transaction = Transact(NOTHING, [Complete(tokens[1:]), DeadLetter(dead)])
    assert one(await harness.do(1, transaction), Failed).reason is Reason.NOT_ALLOWED
    assert one(await harness.do(1, Complete([*tokens[1:], *dead])), Settled).failures == {}


async def test_a_lock_that_ends_before_the_commit_fails_the_transaction() -> None:
    harness = Harness(QueueSettings(lock_duration_ms=5_000))
    tokens = await locked(harness, 5)
    await harness.advance(5_001)
    failed = one(await harness.do(1, everything(tokens)), Failed)
    assert (
        failed.reason is Reason.LOCK_LOST and str(int.from_bytes(tokens[0][:8], "big")) in failed.description
    )


async def test_a_lock_counts_that_had_not_ended_when_the_commit_was_asked_for() -> None:
    harness = Harness(QueueSettings(lock_duration_ms=5_000))
    tokens = await locked(harness, 5)
    harness.clock.advance(4_999)
    harness.post(1, everything(tokens))
    harness.clock.advance(2)
    await harness.until_quiet()
    one(harness.take(1), Transacted)
    assert await contents(harness) == AFTER


async def test_the_last_delivery_of_a_message_dead_letters_it_in_a_transaction_too() -> None:
    harness = Harness(QueueSettings(max_delivery_count=1))
    tokens = await locked(harness, 1)
    await harness.do(1, Transact(Send([b"new"], None), [Abandon(tokens)]))
    found = await contents(harness)
    assert [each[0] for each in found[MAIN]] == [b"new"] and found[DEAD_LETTER][0][:2] == (b"old 0", 1)


async def test_a_message_given_back_after_its_time_to_live_expires() -> None:
    harness = Harness(QueueSettings(lock_duration_ms=60_000, dead_lettering_on_expiration=True))
    await harness.send(b"old", ttl=[1_000])
    tokens = (await harness.receive(1)).tokens
    await harness.advance(2_000)
    await harness.do(1, Transact(Send([b"new"], None), [Abandon(tokens)]))
    found = await contents(harness)
    assert [each[0] for each in found[MAIN]] == [b"new"] and [each[0] for each in found[DEAD_LETTER]] == [
        b"old"
    ]
    await harness.restart()
    assert await contents(harness) == found


# --- disks that fail ----------------------------------------------------------------------------------------


async def test_a_full_disk_refuses_settlements_with_their_sends_and_their_locks_go_on() -> None:
    harness = Harness(QueueSettings(lock_duration_ms=60_000))
    tokens = await locked(harness, 5)
    harness.log.fill_disk()
    harness.post(1, everything(tokens))
    harness.post(2, Send([b"another"], None))
    await harness.until_quiet()
    failed = one(harness.take(1), Failed)
    assert (failed.reason, failed.cookie) == (Reason.DISK_FULL, "mine")
    assert one(harness.take(2), Failed).reason is Reason.DISK_FULL
    assert await contents(harness) == BEFORE
    await harness.advance(30_000)
    harness.log.empty_disk()
    assert await harness.do(1, everything(tokens)) == [Transacted(2, "mine")]
    assert await contents(harness) == AFTER


async def test_locks_restored_on_a_full_disk_end_when_they_would_have_ended() -> None:
    harness = Harness(QueueSettings(lock_duration_ms=60_000))
    tokens = await locked(harness, 5)
    await harness.advance(40_000)
    harness.log.fill_disk()
    one(await harness.do(1, everything(tokens)), Failed)
    await harness.advance(20_001)
    assert {each[1] for each in (await contents(harness))[MAIN]} == {1}
    assert one(await harness.do(1, Complete(tokens)), Settled).failures.keys() == set(range(5))


async def test_a_full_disk_still_takes_a_transaction_of_settlements() -> None:
    harness = Harness()
    tokens = await locked(harness, 5)
    harness.log.fill_disk()
    harness.post(2, Send([b"another"], None))
    harness.post(1, Transact(NOTHING, everything(tokens).settlements, "mine"))
    await harness.until_quiet()
    assert harness.take(1) == [Transacted(0, "mine")]
    one(harness.take(2), Failed)
    settled = {MAIN: AFTER[MAIN][:2], DEAD_LETTER: AFTER[DEAD_LETTER]}
    assert await contents(harness) == settled
    await harness.restart()
    assert await contents(harness) == settled


async def test_other_settlements_of_the_cycle_are_kept_on_a_full_disk() -> None:
    harness = Harness()
    tokens = await locked(harness, 6)
    harness.log.fill_disk()
    harness.post(1, everything(tokens))
    harness.post(2, Complete(tokens[5:]))
    await harness.until_quiet()
    one(harness.take(1), Failed)
    assert one(harness.take(2), Settled).failures == {}
    assert await contents(harness) == BEFORE
    await harness.restart()
    assert await contents(harness) == BEFORE


@pytest.mark.parametrize("error", [CommitFailed("torn"), DiskFull("no room at all")], ids=["failed", "full"])
async def test_a_failed_commit_leaves_nothing_of_a_transaction(error: Exception) -> None:
    harness = Harness()
    tokens = await locked(harness, 5)
    harness.log.on_append = lambda commit, urgent: error
    harness.post(1, everything(tokens))
    harness.post(1, Complete(tokens[:1], "other"))
    await harness.task.step()
    harness.log.empty_disk()
    await harness.until_quiet()
    assert any(isinstance(answer, Failed) and answer.cookie == "mine" for answer in harness.take(1))
    assert await contents(harness) == BEFORE


async def test_two_transactions_of_one_cycle_share_its_commit() -> None:
    harness = Harness()
    tokens = await locked(harness, 2)
    frames = len(harness.log.disk.frames)
    for client, token in enumerate(tokens):
        harness.post(client, Transact(Send([b"new %d" % client], None), [Complete([token])], client))
    harness.post(7, Send([b"plain"], None))
    await harness.until_quiet()
    assert [harness.take(client) for client in range(2)] == [[Transacted(1, 0)], [Transacted(1, 1)]]
    one(harness.take(7), Sent)
    assert len(harness.log.disk.frames) == frames + 1
    assert [each[0] for each in (await contents(harness))[MAIN]] == [b"new 0", b"new 1", b"plain"]


async def test_a_long_send_of_a_transaction_is_in_the_same_commit() -> None:
    harness = Harness(limits=TaskLimits(bounds=Bounds(work_max=4)))
    tokens = await locked(harness, 3)
    frames = len(harness.log.disk.frames)
    sent = [b"new %d" % number for number in range(10)]
    await harness.do(1, Transact(Send(sent, None), [Complete(tokens)]))
    assert len(harness.log.disk.frames) == frames + 1
    assert [each[0] for each in (await contents(harness))[MAIN]] == sent


# --- message sessions ---------------------------------------------------------------------------------------


async def in_session(harness: Harness, *bodies: bytes) -> list[bytes]:
    """The tokens of new messages of the session that client 1 has accepted."""
    await harness.do(1000, of_session(*bodies))
    return one(await harness.do(1, Demand(MAIN, len(bodies))), Locked).tokens


def of_session(*bodies: bytes) -> Send:
    return Send(list(bodies), None, columns={"session_id": [b"s"] * len(bodies)})


async def test_messages_of_a_session_are_settled_in_a_transaction_and_stay_in_order() -> None:
    harness = Harness(QueueSettings(requires_session=True))
    await harness.do(1, AcceptSession(MAIN, b"s"))
    tokens = await in_session(harness, b"old 0", b"old 1", b"old 2")
    await harness.do(1, Demand(MAIN, 1))
    transaction = Transact(of_session(b"new"), [Complete(tokens[:1]), Abandon(tokens[1:2])], "mine")
    answers = await harness.do(1, transaction)
    assert Transacted(1, "mine") in answers
    assert [each.messages for each in answers if isinstance(each, Locked)] == [[b"old 1"]]
    await harness.restart()
    assert [each[0] for each in (await contents(harness))[MAIN]] == [b"old 1", b"old 2", b"new"]


async def test_a_full_disk_gives_a_session_its_locks_back() -> None:
    harness = Harness(QueueSettings(requires_session=True))
    await harness.do(1, AcceptSession(MAIN, b"s"))
    tokens = await in_session(harness, b"old 0", b"old 1")
    harness.log.fill_disk()
    transaction = Transact(of_session(b"new"), [Complete(tokens[:1]), Abandon(tokens[1:])])
    assert one(await harness.do(1, transaction), Failed).reason is Reason.DISK_FULL
    harness.log.empty_disk()
    assert one(await harness.do(1, transaction), Transacted).sent == 1
    assert [each[0] for each in (await contents(harness))[MAIN]] == [b"old 1", b"new"]
