"""Removing messages without receiving them, and how much one fetch of deferred messages locks."""

from __future__ import annotations

from broker.entities.descriptions import DEAD_LETTER, MAIN, QueueSettings
from broker.operations.columns import SESSION_ID
from broker.operations.deleting import Delete, Deleted, DeletedExactly, DeleteExactly
from broker.operations.receiving import Demand, Locked, LockExactly, Recall, Recalled
from broker.operations.sending import Send, Sent
from broker.operations.sessions import AcceptSession, SessionAccepted
from broker.operations.settling import Complete, DeadLetter, Defer, Release, Settled
from broker.partition.cycle_bounds import Bounds
from broker.partition.task_limits import TaskLimits
from tests.support.partition_harness import Harness, one

NEVER_MS = 1 << 60


async def delete(
    harness: Harness, count: int = 100, before_ms: int = NEVER_MS, start: int = 0, subqueue: str = MAIN
) -> Deleted:
    return one(await harness.do(1, Delete(subqueue, count, before_ms, start, "mine")), Deleted)


async def delete_exactly(harness: Harness, *numbers: int, subqueue: str = MAIN) -> DeletedExactly:
    return one(await harness.do(9, DeleteExactly(subqueue, numbers)), DeletedExactly)


async def bodies(harness: Harness, subqueue: str = MAIN) -> list[bytes]:
    return (await harness.peek(subqueue)).messages


async def test_the_oldest_messages_are_removed_and_stay_so_after_a_restart() -> None:
    harness = Harness()
    first = await harness.send(b"a", b"b", b"c")
    assert await delete(harness, 2) == Deleted(2, first + 2, "mine")
    await harness.restart()
    assert await bodies(harness) == [b"c"]
    assert await delete(harness, 2) == Deleted(1, None, "mine")
    assert await delete(harness, 2) == Deleted(0, None, "mine")
    assert harness.task.counts()[MAIN].active == 0 and harness.live_bytes == 0


async def test_locked_and_deferred_messages_stay() -> None:
    harness = Harness()
    await harness.send(b"locked", b"deferred", b"free", b"locked too", b"free too")
    tokens = (await harness.receive(1, 4)).tokens
    await harness.do(1, Defer([tokens[1]]))
    await harness.do(1, Release([tokens[2]]))
    assert (await delete(harness)).count == 2
    assert await bodies(harness) == [b"locked", b"deferred", b"locked too"]
    assert one(await harness.do(1, Complete([tokens[0], tokens[3]])), Settled).failures == {}


async def test_messages_enqueued_at_the_time_or_later_stay() -> None:
    harness = Harness()
    await harness.send(b"early")
    await harness.advance(1000)
    now_ms = harness.clock.now_ms()
    await harness.send(b"late")
    assert await delete(harness, before_ms=now_ms) == Deleted(1, None, "mine")
    assert await bodies(harness) == [b"late"]
    assert (await delete(harness, before_ms=now_ms + 1)).count == 1


async def test_a_dead_letter_subqueue_is_emptied_on_its_own() -> None:
    harness = Harness()
    await harness.send(b"a", b"b", b"c")
    tokens = (await harness.receive(1, 2)).tokens
    await harness.do(1, DeadLetter([tokens[1]]))
    await harness.do(1, DeadLetter([tokens[0]]))
    assert (await delete(harness, subqueue=DEAD_LETTER)).count == 2
    assert await bodies(harness, DEAD_LETTER) == [] and await bodies(harness) == [b"c"]


async def test_one_operation_looks_at_a_bounded_number_of_messages() -> None:
    harness = Harness(limits=TaskLimits(bounds=Bounds(deleted_max=3)))
    first = await harness.send(*[b"%d" % index for index in range(8)])
    await harness.do(1, Defer((await harness.receive(1, 4)).tokens))
    assert await delete(harness, 2) == Deleted(0, first + 3, "mine")
    assert await delete(harness, 2, start=first + 3) == Deleted(2, first + 6, "mine")
    assert await delete(harness, 9, start=first + 6) == Deleted(2, None, "mine")
    assert len(await bodies(harness)) == 4


async def test_what_the_same_cycle_sends_stays_for_it_may_still_be_refused() -> None:
    harness = Harness()
    await harness.send(b"before")
    harness.post(1, Send([b"new"], None))
    harness.post(2, Delete(MAIN, 10, NEVER_MS))
    await harness.until_quiet()
    assert [type(each) for each in harness.take(1)] == [Sent]
    assert harness.take(2) == [Deleted(1, None, None)]
    assert await bodies(harness) == [b"new"]


async def test_an_overdue_message_is_not_counted_as_deleted() -> None:
    harness = Harness(QueueSettings(dead_lettering_on_expiration=True))
    await harness.do(1, Send([b"brief", b"lasting"], [1000, None]))
    harness.clock.advance(1000)
    assert (await delete(harness)).count == 1
    await harness.advance(1000)
    assert await bodies(harness, DEAD_LETTER) == [b"brief"] and await bodies(harness) == []


async def test_the_messages_of_one_session_are_removed_in_the_queue_and_among_its_dead_letters() -> None:
    harness = Harness(QueueSettings(requires_session=True))
    sessions: list[int | bytes | None] = [b"a", b"b", b"a", b"b"]
    send = Send([b"0", b"1", b"2", b"3"], None, columns={SESSION_ID: sessions})
    one(await harness.do(1, send), Sent)
    one(await harness.do(1, AcceptSession(MAIN, b"a")), SessionAccepted)
    found = one(await harness.do(1, Demand(MAIN, 1)), Locked)
    await harness.do(1, DeadLetter(found.tokens))
    for session_id, subqueue, expected in (
        (b"c", MAIN, 0),
        (b"a", MAIN, 1),
        (b"b", DEAD_LETTER, 0),
        (b"a", DEAD_LETTER, 1),
    ):
        asked = Delete(subqueue, 9, NEVER_MS, session_id=session_id)
        assert one(await harness.do(1, asked), Deleted) == Deleted(expected, None, None)
    await harness.restart()
    assert await bodies(harness) == [b"1", b"3"] and await bodies(harness, DEAD_LETTER) == []


# --- by number ----------------------------------------------------------------------------------------------


async def test_exactly_the_named_messages_are_deleted_whatever_their_state_unless_locked() -> None:
    harness = Harness()
    first = await harness.send(b"locked", b"deferred", b"free", b"kept", b"released")
    tokens = (await harness.receive(1, 2)).tokens
    await harness.do(1, Defer(tokens[1:]))
    answer = await delete_exactly(harness, first, first + 1, first + 2, first + 4, first + 2, first + 9)
    assert answer == DeletedExactly([first], [first + 9], None, recalls=True)
    assert harness.take(1) == [Recall(harness.number, MAIN)]
    await harness.restart()
    assert await bodies(harness) == [b"locked", b"kept"]
    assert (await harness.peek()).delivery_counts == [0, 0]


async def test_messages_that_a_client_holds_unseen_are_recalled_and_then_deleted() -> None:
    harness = Harness()
    first = await harness.send(b"seen", b"unseen")
    tokens = (await harness.receive(1, 2)).tokens
    assert await delete_exactly(harness, first, first + 1) == DeletedExactly(
        [first, first + 1], [], None, True
    )
    assert (await delete_exactly(harness, first + 1)).recalls, "the recall is under way"
    assert harness.take(1) == [Recall(harness.number, MAIN)]
    await harness.do(1, Recalled(MAIN, tokens[1:]))
    assert await delete_exactly(harness, first, first + 1) == DeletedExactly([first], [], None)
    assert await bodies(harness) == [b"seen"]
    assert one(await harness.do(1, Complete(tokens[:1])), Settled).failures == {}


async def test_a_dead_letter_is_deleted_in_its_own_subqueue_only() -> None:
    harness = Harness()
    await harness.send(b"dead")
    locked = await harness.receive(1)
    await harness.do(1, DeadLetter(locked.tokens, None))
    (number,) = locked.sequence_numbers
    assert (await delete_exactly(harness, number)).missing == [number]
    assert await delete_exactly(harness, number, subqueue=DEAD_LETTER) == DeletedExactly([], [], None)
    assert await bodies(harness, DEAD_LETTER) == []


async def test_a_message_sent_in_the_same_cycle_is_missing_for_it_may_still_be_refused() -> None:
    harness = Harness()
    first = await harness.send(b"before")
    harness.post(1, Send([b"new"], None))
    harness.post(2, DeleteExactly(MAIN, [first, first + 1]))
    harness.post(2, LockExactly(MAIN, [first + 1]))
    await harness.until_quiet()
    deleted, locked = harness.take(2)
    assert deleted == DeletedExactly([], [first + 1], None)
    assert isinstance(locked, Locked) and locked.tokens == []
    assert await bodies(harness) == [b"new"]
