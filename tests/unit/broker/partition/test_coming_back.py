"""Opening and recovering a partition: attempts, pauses, and freeing the state before."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager
from itertools import pairwise
from typing import Any

import pytest

from broker.base.clock import SystemClock
from broker.base.errors import Reason
from broker.entities.descriptions import DEAD_LETTER, MAIN, MESSAGE_OVERHEAD_BYTES
from broker.operations.browsing import Peek, Peeked
from broker.operations.general import Failed, Unavailable
from broker.operations.receiving import Demand, Locked, Withdraw, Withdrawn
from broker.operations.sending import Send, Sent
from broker.operations.settling import Complete, Release
from broker.partition.health import Health
from broker.partition.messages import Messages
from broker.partition.opening_room import OPENING_BYTES, PAUSE_S, OpeningRoom
from broker.partition.openings import AT_ONCE, NoRoom, Opening, Openings, Urgency
from broker.partition.snapshot import Snapshot
from broker.partition.state import Partition
from broker.partition.task_limits import TaskLimits
from storage.errors import CommitFailed, DiskFull, StorageError
from storage.log import Frame, Position
from tests.support.partition_harness import NUMBER, Harness, Lapses, one, running
from tests.support.waiting import until


async def test_what_a_stopped_partition_held_is_forgotten() -> None:
    harness = Harness()
    await harness.send(*[b"x"] * 5_000)
    locked = one(await harness.do(1, Demand(MAIN, 10)), Locked)
    await harness.do(1, Release(locked.tokens[:5]))
    assert harness.task._partition is not None
    messages = harness.task._partition.messages
    await harness.task.stop()
    assert messages.count == 0 and not harness.task._coming_back._to_free and harness.budget.used == 0


async def test_while_a_log_cannot_be_reopened_operations_are_refused_and_attempts_get_rarer() -> None:
    harness = Harness(limits=TaskLimits(recovery_delay_ms=100, recovery_delay_ms_max=400))
    await harness.do(1, Demand(MAIN, 1))
    attempts: list[int] = []
    harness.log.fail_append(CommitFailed("no"))
    harness.log.on_acquire = lambda: attempts.append(harness.clock.monotonic_ms()) or StorageError("still no")  # type: ignore[func-returns-value]
    assert isinstance(one(await harness.do(2, Send([b"b"], None)), Failed), Failed)
    assert harness.task.health is Health.RECOVERING and not harness.task.available
    for _ in range(58):
        await harness.advance(20)
    assert [later - earlier for earlier, later in pairwise(attempts)] == [100, 200, 400, 400]
    assert isinstance(one(await harness.do(2, Send([b"c"], None)), Failed), Failed)
    assert await harness.do(3, Demand(MAIN, 1), Withdraw(DEAD_LETTER)) == [Withdrawn(NUMBER, DEAD_LETTER)]
    assert harness.take(1) == []
    harness.log.on_acquire = lambda: None
    await harness.advance(400)
    assert harness.take(1) == harness.take(3) == [Unavailable(NUMBER)]
    assert harness.task.available
    await harness.send(b"d")
    assert (await harness.peek()).messages == [b"d"]


async def test_a_log_that_cannot_be_opened_at_first_comes_up_later() -> None:
    harness = Harness()
    harness.task._meter = meter = Lapses()
    errors = [StorageError("no"), StorageError("no")]
    harness.log.on_acquire = lambda: errors.pop() if errors else None
    assert one(await harness.do(1, Send([b"a"], None)), Failed).reason is Reason.PARTITION_UNAVAILABLE
    await harness.advance(100)
    await harness.advance(200)
    assert harness.task.health is Health.HEALTHY and meter.restarts == 1
    await harness.send(b"b")


async def test_each_attempt_to_open_a_closed_partition_needs_room_in_memory() -> None:
    """Symptom: after a first attempt that failed, the next one was made without asking for room."""
    harness, asked, names = Harness(), list[int](), set[str]()
    openings = harness.task._coming_back._openings
    place = openings.place

    def watched(*given: Any, name: str) -> AbstractContextManager[Opening]:
        asked.append(given[3])
        names.add(name)
        return place(*given, name=name)

    openings.place = watched  # type: ignore[method-assign, assignment]
    errors = [StorageError("no")]
    harness.log.on_acquire = lambda: errors.pop() if errors else None
    await harness.do(1, Send([b"a"], None))
    await harness.advance(100)
    assert harness.task.health is Health.HEALTHY and asked == [OPENING_BYTES, OPENING_BYTES]
    harness.log.fail_append(CommitFailed("no"))
    await harness.do(1, Send([b"a"], None))
    assert asked[2:] == [0], "its messages are in memory"
    assert names == {harness.description.name}


async def test_a_partition_with_more_messages_than_there_is_room_for_waits_for_its_turn_again() -> None:
    """Symptom: after a crash, a partition counted with what its last note said, whatever its log held."""
    now_s = 0.0
    room = OpeningRoom(lambda: now_s)
    harness = Harness(openings=Openings(seconds=lambda: now_s, room=room))
    for _ in range(40):
        await harness.send(*[bytes(100)] * 500)
    state_bytes = harness.budget.state_bytes
    acquired: list[int] = []
    mark = 1_000 * OPENING_BYTES
    for is_stopped in (False, True):
        await harness.restart()
        room.measured(mark - OPENING_BYTES - 4_000_000, mark)
        acquired.clear()
        harness.log.on_acquire = lambda: acquired.append(room.under_way)
        async with running(harness):
            harness.post(1, Peek(MAIN, 0, 1))
            await until(lambda: bool(acquired) and not room.under_way and not harness.log.usable)
            assert harness.budget.state_bytes == 0 and harness.task.health is Health.OPENING
            assert not harness.task._coming_back._to_free and acquired == [OPENING_BYTES]
            if is_stopped:
                break
            await until(lambda: bool(harness.received[1]))
            assert one(harness.take(1), Peeked).messages == [bytes(100)]
            assert len(acquired) == 2 and room.under_way == 0
            assert 0.8 < acquired[1] / state_bytes < 1.2, "the rest is taken to be like what was read"
            assert harness.budget.state_bytes == state_bytes
    assert harness.task.health is Health.STOPPED and len(acquired) == 1


async def test_a_partition_waits_again_for_what_is_likely_and_at_least_for_what_is_certain() -> None:
    room = OpeningRoom(in_partitions=lambda: 1 << 40)
    harness = Harness(openings=Openings(room=room))
    for _ in range(40):
        await harness.send(*[bytes(100)] * 500)
    state_bytes = harness.budget.state_bytes
    await harness.restart()
    room.measured(1_000 * OPENING_BYTES, 1_001 * OPENING_BYTES)
    async with running(harness):
        harness.post(1, Peek(MAIN, 0, 1))
        coming_back = harness.task._coming_back
        await until(lambda: coming_back._opening is not None and coming_back._opening.size > OPENING_BYTES)
        again = coming_back._opening
        assert again is not None and again.is_waiting
        assert OPENING_BYTES < again.least < again.size < OPENING_BYTES + state_bytes


@pytest.mark.parametrize("error", [CommitFailed("no"), DiskFull("no room")])
async def test_a_partition_that_is_read_again_counts_with_what_it_held(error: StorageError) -> None:
    """Symptom: while its messages were read again after a commit that failed, they counted nowhere."""
    room = OpeningRoom()
    harness = Harness(openings=Openings(room=room))
    await harness.send(*[bytes(100)] * 2_000)
    locked = one(await harness.do(1, Demand(MAIN, 1)), Locked)
    state_bytes, replay, counted = harness.budget.state_bytes, harness.log.replay, list[int]()

    async def watched(since: Position) -> AsyncIterator[Frame]:
        counted.append(room.under_way)
        async for frame in replay(since):
            yield frame

    harness.log.replay = watched  # type: ignore[method-assign]
    harness.log.fail_append(error)
    one(await harness.do(2, Complete(locked.tokens)), Failed)
    assert room.under_way == 0 and counted == [OPENING_BYTES + state_bytes - MESSAGE_OVERHEAD_BYTES]
    assert harness.budget.state_bytes == state_bytes


async def test_one_opened_beyond_the_room_stays_so_when_it_is_read_again() -> None:
    room = OpeningRoom()
    harness = Harness(openings=Openings(room=room))
    await harness.send(*[bytes(100)] * 2_000)
    await harness.task.stop()
    await harness.restart(clean=False)
    room.measured(2_000, 1_000)
    async with running(harness):
        await harness.task.opened()
        before = [share for shares in room._beyond.values() for share in shares]
        harness.log.fail_append(CommitFailed("no"))
        harness.post(1, Send([b"lost"], None))
        await until(lambda: harness.healths[-2:] == [Health.RECOVERING, Health.HEALTHY])
        (share,) = [share for shares in room._beyond.values() for share in shares]
        assert [share] != before and share.state_bytes == harness.budget.state_bytes


async def test_what_has_been_read_counts_while_it_is_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Symptom: what an attempt without room had read and freed again seemed to be in use for ever: Python
    returns little of it to the system, and the broker had not counted that it came free."""
    room = OpeningRoom()
    harness = Harness(openings=Openings(room=room))
    for _ in range(40):
        await harness.send(*[bytes(100)] * 500)
    state_bytes, counted, taken = harness.budget.state_bytes, list[int](), list[int]()
    takes: Callable[[Opening, int, int, int], None] = Opening.takes

    def watched(opening: Opening, size: int, come: int, likely: int) -> None:
        counted.append(harness.budget.state_bytes)
        taken.append(come - OPENING_BYTES)
        if len(counted) == 4:
            raise NoRoom(size, size)
        takes(opening, size, come, likely)

    monkeypatch.setattr(Opening, "takes", watched)
    await harness.restart()
    harness.log.on_acquire = lambda: counted.append(harness.budget.state_bytes)
    assert (await harness.peek()).messages
    assert counted[0] == 0 and counted[1:4] == taken[:3] and taken[2] > 0
    assert counted[4] == 0, "it has been freed before the next attempt"
    assert harness.budget.state_bytes == state_bytes


async def test_what_was_read_is_freed_whenever_opening_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Symptom: if a partition was stopped just before it was open, its messages counted for ever."""
    harness = Harness()
    await harness.send(*[b"x"] * 5_000)
    await harness.restart()
    partitions = harness.budget.partitions

    def cancelled(self: Partition, wall_ahead_ms: int) -> Iterator[None]:
        yield
        raise asyncio.CancelledError

    monkeypatch.setattr(Partition, "restore", cancelled)
    with pytest.raises(asyncio.CancelledError):
        await harness.peek()
    budget, coming_back = harness.budget, harness.task._coming_back
    assert (budget.state_bytes, budget.partitions) == (0, partitions)
    messages, snapshot = coming_back._to_free
    await coming_back.free_dropped()
    assert isinstance(messages, Messages) and messages.count == 0 and isinstance(snapshot, Snapshot)


async def test_a_stopped_partition_does_not_wait_for_room_to_be_read_again() -> None:
    """Symptom: a queue was deleted while one of its partitions was read again. Reading failed, there was no
    room to try once more, and the queue was being deleted for ever."""
    room = OpeningRoom(in_partitions=lambda: 1 << 40)
    harness = Harness(openings=Openings(room=room))
    await harness.send(*[bytes(100)] * 2_000)
    reading, fails = asyncio.Event(), asyncio.Event()

    async def failing(since: Position) -> AsyncIterator[Frame]:
        reading.set()
        await fails.wait()
        room.measured(1_000, 1_000)
        raise StorageError("no")
        yield

    async with running(harness):
        locked = await harness.receive(1)
        harness.log.replay = failing  # type: ignore[method-assign]
        harness.log.fail_append(DiskFull("no room"))
        harness.post(1, Complete(locked.tokens))
        await reading.wait()
        stopping = asyncio.create_task(harness.task.stop())
        await until(lambda: harness.task._coming_back._is_stopped)
        fails.set()
        await asyncio.wait_for(stopping, 5)
    assert harness.task.health is Health.STOPPED and room.under_way == 0


@pytest.mark.parametrize("is_deleted", [False, True])
@pytest.mark.parametrize("has_failed", [False, True])
@pytest.mark.parametrize("is_read", [False, True])
async def test_a_partition_that_is_stopped_waits_for_no_room(
    *, is_read: bool, has_failed: bool, is_deleted: bool
) -> None:
    """Symptom: a queue was deleted while one of its closed partitions was read. There turned out to be no
    room for it, it waited for that, and the queue was being deleted for ever."""
    room = OpeningRoom(in_partitions=lambda: 1 << 40)
    harness = Harness(openings=Openings(room=room))
    await harness.send(*[bytes(100)] * 2_000)
    await harness.restart()
    coming_back, replay = harness.task._coming_back, harness.log.replay
    reading, goes_on = asyncio.Event(), asyncio.Event()

    async def slow(since: Position) -> AsyncIterator[Frame]:
        reading.set()
        await goes_on.wait()
        async for frame in replay(since):
            yield frame

    harness.log.replay = slow  # type: ignore[method-assign]
    errors = [StorageError("no")] if has_failed else []
    harness.log.on_acquire = lambda: errors.pop() if errors else None
    async with running(harness):
        harness.post(1, Peek(MAIN, 0, 1))
        if has_failed:
            await until(lambda: coming_back.has_failed)
        if not is_read:
            room.measured(1_000, 1_000)
        harness.clock.advance(harness.limits.recovery_delay_ms)
        harness.task.wake()
        if is_read:
            await reading.wait()
            room.measured(1_000, 1_000)
        else:
            await until(lambda: coming_back._opening is not None and coming_back._opening.is_waiting)
        stopping = asyncio.create_task(harness.task.stop(is_deleted=is_deleted))
        await until(lambda: coming_back._is_stopped)
        goes_on.set()
        await asyncio.wait_for(stopping, 5)
    assert harness.task.health is Health.STOPPED and not coming_back._to_free
    assert room.under_way == harness.budget.state_bytes == 0


async def test_a_closed_partition_that_is_stopped_is_opened_at_once_or_not_at_all() -> None:
    """Symptom: it waited for room to carry out what was in its mailbox, and the queue was being stopped for
    ever."""
    room = OpeningRoom()
    harness = Harness(openings=Openings(room=room))
    await harness.restart(clean=True)
    room.measured(1_000, 1_000)
    async with running(harness):
        await until(lambda: harness.task._sleeps)
        harness.post(1, Send([b"b"], None))
        await asyncio.wait_for(harness.task.stop(), 5)
    assert one(harness.take(1), Failed).reason is Reason.PARTITION_UNAVAILABLE


@pytest.mark.parametrize("is_waiting", [False, True])
async def test_a_partition_stopped_before_it_is_read_again_discards_the_commit_that_failed(
    *, is_waiting: bool
) -> None:
    """Symptom: it was stopped while it waited for its turn. Its client was told that nothing was stored,
    while the commit could still be on the disk."""
    openings = Openings(at_once=1)
    harness = Harness(openings=openings)
    await harness.send(b"a")
    acquired: list[bool] = []
    harness.log.on_acquire = lambda: acquired.append(bool(harness.received[1]))
    harness.log.fail_append(CommitFailed("no"))
    gate = harness.log.gate = asyncio.Event()
    coming_back = harness.task._coming_back
    with openings.place("other", Urgency.ANSWER, lambda: None):
        async with running(harness):
            harness.post(1, Send([b"lost"], None))
            if is_waiting:
                gate.set()
                await until(lambda: coming_back._opening is not None and coming_back._opening.is_waiting)
            stopping = asyncio.create_task(harness.task.stop())
            await until(lambda: coming_back._is_stopped)
            gate.set()
            await asyncio.wait_for(stopping, 5)
    one(harness.take(1), Failed)
    assert harness.task.health is Health.STOPPED and acquired == [False], "before the answer"
    await harness.restart()
    assert (await harness.peek()).messages == [b"a"]


async def test_a_stopped_partition_is_read_again_if_its_turn_comes_at_once() -> None:
    room = OpeningRoom()
    harness = Harness(openings=Openings(room=room))
    await harness.send(b"a")
    harness.log.fail_append(CommitFailed("no"))
    gate = harness.log.gate = asyncio.Event()
    room.measured(1_000, 1_000)
    async with running(harness):
        harness.post(1, Send([b"lost"], None))
        stopping = asyncio.create_task(harness.task.stop())
        await until(lambda: harness.task._coming_back._is_stopped)
        gate.set()
        await asyncio.wait_for(stopping, 5)
    assert harness.healths[-3:] == [Health.RECOVERING, Health.HEALTHY, Health.STOPPED]
    assert room.under_way == 0, "it needs no room"


async def test_a_partition_that_is_stopped_carries_out_what_it_was_closed_with() -> None:
    harness = Harness()
    await harness.send(b"a")
    await harness.restart(clean=True)
    async with running(harness):
        await until(lambda: harness.task._sleeps)
        harness.post(1, Send([b"b"], None))
        await harness.task.stop()
    one(harness.take(1), Sent)


async def test_a_partition_that_could_not_be_read_again_is_expected_to_hold_what_it_held() -> None:
    """Symptom: it was expected to hold what was noted when it was last closed, however long ago."""
    room, acquired = OpeningRoom(), list[int]()
    harness = Harness(openings=Openings(room=room))
    await harness.send(*[bytes(100)] * 2_000)
    state_bytes, replay, errors = harness.budget.state_bytes, harness.log.replay, [StorageError("no")]

    async def failing(since: Position) -> AsyncIterator[Frame]:
        if errors:
            raise errors.pop()
        async for frame in replay(since):
            yield frame

    harness.log.replay = failing  # type: ignore[method-assign]
    harness.log.fail_append(CommitFailed("no"))
    harness.log.on_acquire = lambda: acquired.append(room.under_way)
    await harness.do(1, Send([b"lost"], None))
    assert harness.task.health is Health.RECOVERING and room.under_way == 0
    await harness.advance(harness.limits.recovery_delay_ms)
    assert harness.healths[-2:] == [Health.RECOVERING, Health.HEALTHY]
    assert room.under_way == 0
    assert acquired == [0, OPENING_BYTES + state_bytes + MESSAGE_OVERHEAD_BYTES], "with the one that was lost"


async def test_partitions_whose_disk_hangs_keep_no_other_waiting() -> None:
    """Symptom: each of them counted as a folder of its own. While memory was short, the first partition of a
    folder that was well waited for a turn of each."""
    now_s, has_turn, count = 0.0, list[int](), 3 * AT_ONCE
    mark = 8 * count * OPENING_BYTES
    room = OpeningRoom(lambda: now_s, lambda: mark)
    sick, well = [Openings(seconds=lambda: now_s, room=room) for _ in range(2)]
    room.measured(mark, mark)

    async def hang(number: int, *, was_open: bool) -> None:
        async def load() -> None:
            has_turn.append(number)
            await asyncio.Event().wait()

        coming_back = Harness(openings=sick, number=number).task._coming_back
        why = {"is_wanted": True, "was_open": was_open, "is_hung": True}
        await coming_back.in_turn(load, lambda urgency: urgency, 0, **why)

    hung = [asyncio.create_task(hang(number, was_open=number % 2 == 0)) for number in range(2 * count)]
    with well.place("well", Urgency.MESSAGES, lambda: None, 1) as opening:
        await until(lambda: len(has_turn) == count)
        assert not any(number % 2 for number in has_turn), "those that were open need no room"
        for looks in range(1, 2 * count + 1):
            now_s += PAUSE_S
            sick.when_hung._look()
            well._look()
            await until(lambda looks=looks: len(has_turn) + (not opening.is_waiting) == count + looks)  # type: ignore[misc]
            if not opening.is_waiting:
                break
        assert looks == 2 and room.under_way == OPENING_BYTES + 1, "the folders take turns"
    room.measured(0, mark)
    with sick.place("sick", Urgency.MESSAGES, lambda: None) as opening:
        assert not opening.is_waiting
    for task in hung:
        task.cancel()
    await asyncio.gather(*hung, return_exceptions=True)
    assert room.under_way == 0


async def test_one_whose_disk_is_known_to_hang_waits_for_no_other_and_makes_none_late() -> None:
    openings, has_turn, late = Openings(at_once=1), asyncio.Event(), list[str]()

    async def load() -> None:
        has_turn.set()
        await asyncio.Event().wait()

    with (
        openings.place("first", Urgency.MESSAGES, lambda: None),
        openings.place("second", Urgency.MESSAGES, lambda: late.append("second")) as second,
    ):
        coming_back = Harness(openings=openings).task._coming_back
        why = {"is_wanted": True, "was_open": True, "is_hung": True}
        hung = asyncio.create_task(coming_back.in_turn(load, lambda urgency: urgency, 0, **why))
        await asyncio.wait_for(has_turn.wait(), 5)
        await asyncio.sleep(0)
        assert second.is_waiting and not late
        hung.cancel()
        await asyncio.gather(hung, return_exceptions=True)


async def test_what_a_checkpoint_holds_says_nothing_about_the_records_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Symptom: checkpoints hold no bodies, so large records after one were expected to hold as much state for
    each of their bytes, and there was no room for that."""
    harness = Harness()
    await harness.send(*[b""] * 5_000)
    await harness.task.stop()
    await harness.restart()
    for _ in range(40):
        await harness.send(bytes(50_000))
    state_bytes, likely = harness.budget.state_bytes, list[int]()
    takes: Callable[[Opening, int, int, int], None] = Opening.takes

    def watched(opening: Opening, size: int, come: int, expected: int) -> None:
        likely.append(expected)
        takes(opening, size, come, expected)

    monkeypatch.setattr(Opening, "takes", watched)
    await harness.restart()
    await harness.peek()
    assert harness.budget.state_bytes == state_bytes and len(likely) > 3
    assert max(likely) <= OPENING_BYTES + 1.1 * state_bytes


async def test_recovery_comes_by_itself_in_the_running_task() -> None:
    harness = Harness(limits=TaskLimits(recovery_delay_ms=5))
    harness.clock = SystemClock()  # type: ignore[assignment]
    await harness.restart()
    errors = [StorageError("no")] * 3
    async with running(harness):
        await harness.task.opened()
        harness.log.fail_append(CommitFailed("no"))
        harness.log.on_acquire = lambda: errors.pop() if errors else None
        harness.post(1, Send([b"a"], None))
        await until(lambda: harness.received[1])
        await until(lambda: harness.task.health is Health.HEALTHY and not errors)
