"""No piece of work in a partition grows with the number of waiting messages. Work is counted in messages per
step and per batch, never in time."""

from __future__ import annotations

import asyncio
import gc
from collections import deque
from collections.abc import Iterable
from typing import Any

import pytest

from broker.entities.descriptions import MAIN, QueueSettings
from broker.operations import (
    Complete,
    Defer,
    Demand,
    Locked,
    Peeked,
    Release,
    Send,
    Sent,
    Settled,
    Watch,
    Withdraw,
    Withdrawn,
)
from broker.partition import messages as messages_module
from broker.partition.batch_bounds import Bounds
from broker.partition.clock_settings import ClockSettings
from broker.partition.messages import DROPPED_AT_ONCE, RELOCATED_AT_ONCE, REPLAYED_AT_ONCE, Messages
from broker.partition.order import CHUNK, Order
from broker.partition.payloads import PayloadBudget
from broker.partition.references import Lease, Reference, StoredFrame
from broker.partition.roles import QUEUE
from broker.partition.subqueue import REBUILT_AT_ONCE, Subqueue, Work
from broker.partition.task import TaskLimits
from storage.log import Position
from tests.support.partition_harness import NUMBER, Harness, one
from tests.support.ticker import Ticker

MANY = 20_000
SOME = 3_000
"""For tests in which each step checks the whole state."""


class Counting(dict[int, Reference]):
    """References that count look-ups."""

    looks = 0

    def get(self, number: int, default: Any = None) -> Any:
        self.looks += 1
        return super().get(number, default)


class Lapses:
    """A meter that keeps what expired in each batch."""

    def __init__(self) -> None:
        self.locks: list[int] = []
        self.messages: list[int] = []

    def committed(self, records: int, size: int, seconds: float) -> None: ...

    def commit_failed(self) -> None: ...

    def restarted(self) -> None: ...

    def lapsed(self, dead_lettered: int, expired_messages: int, expired_locks: int) -> None:
        self.locks.append(expired_locks)
        self.messages.append(expired_messages)


def filled(count: int) -> tuple[Subqueue, Counting]:
    subqueue, references = Subqueue(0, QUEUE[0], Work()), Counting()
    frame = StoredFrame(Position(0))
    references.update((number, Reference(number, frame, 0, 1, 0, None)) for number in range(1, count + 1))
    subqueue.references = references
    assert max(subqueue.rebuild(ClockSettings())) == REBUILT_AT_ONCE
    references.looks = 0
    return subqueue, references


# --- by index -----------------------------------------------------------------------------------------------


def test_a_browse_from_the_middle_does_not_visit_earlier_messages() -> None:
    subqueue, references = filled(MANY)
    page = subqueue.browse(15_000)
    assert [next(page).sequence_number for _ in range(250)] == list(range(15_000, 15_250))
    assert references.looks == 250


def test_reading_ahead_does_not_visit_messages_that_were_handed_out() -> None:
    subqueue, references = filled(MANY)
    lease = Lease(1, 1, subqueue.number, None, 1)
    subqueue.take(15_000, 1 << 40, lease, 0)
    references.looks = 0
    assert next(iter(subqueue.upcoming())).sequence_number == 15_001
    assert references.looks == 1


def test_messages_that_have_gone_are_passed_over_cheaply_although_an_older_one_stays() -> None:
    subqueue, references = filled(MANY)
    for start in range(2, 18_000, 100):
        subqueue.remove(list(range(start, start + 100)))
    references.looks = 0
    page = subqueue.browse(0)
    assert [next(page).sequence_number for _ in range(2)] == [1, 18_002]
    assert references.looks <= 2 * CHUNK
    subqueue.check()


def test_removing_a_few_messages_sifts_a_chunk_at_most() -> None:
    sifted = 0

    class Present(set[int]):
        def __contains__(self, number: object) -> bool:
            nonlocal sifted
            sifted += 1
            return super().__contains__(number)

    present = Present(range(MANY))
    order = Order(present, list(range(MANY)))
    most = 0
    for start in range(0, MANY, 7):
        numbers = list(range(start, min(start + 5, MANY)))
        present.difference_update(numbers)
        before = sifted
        order.left(numbers)
        most = max(most, sifted - before)
    assert 0 < most <= 2 * CHUNK
    order.check()
    assert [number for number in order.numbers(0) if set.__contains__(present, number)] == sorted(present)


def test_numbers_that_come_out_of_order_keep_the_order() -> None:
    present = set(range(0, 3 * CHUNK, 3))
    order = Order(present, sorted(present))
    for number in range(3 * CHUNK, 0, -1):
        if number not in present:
            present.add(number)
            order.insert(number)
    order.check()
    assert list(order.numbers(0)) == sorted(present)
    assert list(order.numbers(5_000)) == [number for number in sorted(present) if number >= 5_000]


def test_a_number_that_has_left_may_come_back_and_what_is_cut_off_may_be_used_again() -> None:
    present = {1, 2, 3}
    order = Order(present, [1, 2, 3])
    present.remove(2)
    order.left([2])
    present.add(2)
    order.insert(2)
    order.check()
    present.difference_update((2, 3))
    order.left([2, 3])
    order.cut(2)
    present.update((2, 3))
    order.extend([2, 3])
    order.check()
    assert list(order.numbers(0)) == [1, 2, 3]


# --- in slices ----------------------------------------------------------------------------------------------


async def test_a_log_is_replayed_in_steps_of_bounded_size_and_to_the_same_state() -> None:
    harness = Harness(limits=TaskLimits(bounds=Bounds(work_max=1 << 40, granted_max=1 << 40)))
    await harness.send(*[b"x%d" % index for index in range(MANY)])
    locked = await harness.receive(1, 5_000)
    await harness.do(1, Complete(locked.tokens[:3_000]), Defer(locked.tokens[3_000:]))
    messages = Messages(NUMBER, PayloadBudget(0, 0), 20)
    steps = list(messages.replay_steps([frame async for frame in harness.log.replay(harness.log.start)]))
    assert max(steps) <= REPLAYED_AT_ONCE and len(steps) > MANY // REPLAYED_AT_ONCE
    assert max(messages.finish_steps(0)) <= REBUILT_AT_ONCE
    messages.check()
    assert messages.count == MANY - 3_000 and messages.main.deferred == 2_000
    assert max(messages.drop()) <= DROPPED_AT_ONCE
    assert messages.count == 0 and not messages.live_frames()
    await harness.restart()
    assert (await harness.receive(1, 1)).messages == [b"x5000"]


async def test_a_relocated_frame_is_replayed_in_steps_of_bounded_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    harness = Harness()
    monkeypatch.setattr(messages_module, "RELOCATED_AT_ONCE", SOME)
    await harness.send(*[b"%d" % index for index in range(SOME)])
    (position,) = [position for position, data in harness.log.disk.frames.items() if len(data) > SOME]
    (frame,) = await harness.log.fetch([Position(position)])
    messages = Messages(NUMBER, PayloadBudget(0, 0), 20)
    messages.replay(frame)
    commit = harness.log.begin()
    assert messages.relocate(deque(messages.living_in(frame)), commit, 1 << 30) is not None
    await harness.log.append(commit)
    (moved,) = await harness.log.fetch([commit.start])
    again = Messages(NUMBER, PayloadBudget(0, 0), 20)
    again.next_number = messages.next_number
    assert max(again.replay_steps([moved])) <= REPLAYED_AT_ONCE
    again.finish_replay(0)
    again.check()
    for index in (0, 1, REPLAYED_AT_ONCE - 1, REPLAYED_AT_ONCE, SOME - 1):
        reference = again.main.references[NUMBER << 48 | index + 1]
        assert moved.data[reference.offset : reference.offset + reference.size] == b"%d" % index


async def test_locks_that_end_at_once_end_in_batches_of_bounded_size() -> None:
    bounds = Bounds(ended_locks_max=500, granted_max=100)
    harness, lapses = Harness(QueueSettings(max_delivery_count=5), limits=TaskLimits(bounds=bounds)), Lapses()
    harness.task._meter = lapses
    await harness.send(*[b"x"] * SOME)
    await harness.do(1, Demand(MAIN, SOME))
    harness.clock.advance(QueueSettings().lock_duration_ms + 20)
    await harness.settle()
    assert sum(lapses.locks) == SOME
    assert max(lapses.locks) <= bounds.ended_locks_max + bounds.granted_max


async def test_messages_that_expire_at_once_leave_in_batches_of_bounded_size() -> None:
    harness, lapses = Harness(limits=TaskLimits(bounds=Bounds(expired_max=1_000))), Lapses()
    harness.task._meter = lapses
    await harness.send(*[b"x"] * SOME, ttl=[1_000] * SOME)
    harness.clock.advance(1_020)
    await harness.settle()
    assert sum(lapses.messages) == SOME and max(lapses.messages) == 1_000


async def test_messages_that_expired_in_a_long_pause_leave_in_batches_of_bounded_size() -> None:
    harness, lapses = Harness(limits=TaskLimits(bounds=Bounds(expired_max=100))), Lapses()
    harness.task._meter = lapses
    await harness.send(*[b"x"] * 1_000, ttl=list(range(20, 20_020, 20)))
    harness.clock.advance(1_000_000)
    partition = harness.task._partition
    assert partition is not None
    await harness.task.step()
    ticks = partition.messages.main.expiry._ticks  # type: ignore[union-attr]
    assert len(ticks) == 900, "one batch goes through all the ticks of the pause"
    while (due_ms := partition.next_due_ms()) is not None:
        assert due_ms <= harness.clock.monotonic_ms(), "the timer fires at once"
        await harness.settle()
    assert sum(lapses.messages) == 1_000 and max(lapses.messages) == 100


async def test_messages_are_handed_out_in_batches_of_bounded_size() -> None:
    harness = Harness(limits=TaskLimits(bounds=Bounds(granted_max=400)))
    await harness.send(*[b"x"] * SOME)
    answers = await harness.do(1, Demand(MAIN, SOME))
    counts = [len(answer.tokens) for answer in answers if isinstance(answer, Locked)]
    assert sum(counts) == SOME and max(counts) == 400


async def test_a_batch_ends_with_the_operation_that_has_done_enough_and_the_others_come_in_order() -> None:
    harness = Harness(limits=TaskLimits(bounds=Bounds(work_max=450)))
    await harness.send(b"x")
    before = harness.log.appends
    answers = await harness.do(1, *[Send([b"%d" % index] * 100, None, index) for index in range(20)])
    assert [answer.cookie for answer in answers if isinstance(answer, Sent)] == list(range(20))
    assert harness.log.appends - before == 4  # five operations of 100 messages each reach 450
    locked = [await harness.receive(1, 100) for _ in range(20)]
    before = harness.log.appends
    settled = await harness.do(1, *[Complete(each.tokens, place) for place, each in enumerate(locked)])
    assert [answer.cookie for answer in settled if isinstance(answer, Settled)] == list(range(20))
    assert harness.log.appends - before == 4


async def test_who_asks_and_withdraws_past_many_expired_messages_gets_what_is_behind_them() -> None:
    harness = Harness(limits=TaskLimits(bounds=Bounds(granted_max=10, expired_max=10)))
    await harness.send(*[b"old"] * 500, ttl=[1_000] * 500)
    await harness.send(b"new")
    harness.clock.advance(2_000)
    answers = await harness.do(1, Demand(MAIN, 5), Withdraw(MAIN))
    assert [answer.messages for answer in answers if isinstance(answer, Locked)] == [[b"new"]]
    assert isinstance(answers[-1], Withdrawn)


@pytest.mark.parametrize("looks_max", [7, 4096])
async def test_a_peek_past_many_expired_messages_goes_on_in_the_next_batch(looks_max: int) -> None:
    bounds = Bounds(looks_max=looks_max, expired_max=1)
    harness = Harness(limits=TaskLimits(bounds=bounds))
    await harness.send(*[b"old"] * 300, ttl=[1_000] * 300)
    number = await harness.send(b"new")
    harness.clock.advance(2_000)
    assert (await harness.peek()).sequence_numbers == [number]
    assert await harness.do(1, Watch(MAIN, number + 1)) == []


async def test_a_peek_that_has_found_something_says_that_there_is_more_where_it_had_to_stop() -> None:
    harness = Harness(limits=TaskLimits(bounds=Bounds(looks_max=5, expired_max=1)))
    first = await harness.send(b"first")
    await harness.send(*[b"old"] * 50, ttl=[1_000] * 50)
    last = await harness.send(b"last")
    harness.clock.advance(2_000)
    page = await harness.peek()
    assert isinstance(page, Peeked) and page.sequence_numbers == [first] and page.more
    page = await harness.peek(start=first + 1)
    assert page.sequence_numbers == [last] and not page.more


async def test_while_batch_follows_batch_others_have_their_turns() -> None:
    """Batches that await no commit (here: handing out, giving back) let the event loop run other tasks in
    between."""
    harness = Harness(limits=TaskLimits(bounds=Bounds(granted_max=100)))
    await harness.send(*[b"x"] * 5_000)
    running = asyncio.create_task(harness.task.run())
    try:
        async with Ticker() as ticker, asyncio.timeout(30):
            harness.post(1, Demand(MAIN, 5_000))
            while sum(len(each.tokens) for each in harness.received[1] if isinstance(each, Locked)) < 5_000:  # noqa: ASYNC110
                await asyncio.sleep(0)
        assert ticker.turns >= 50
    finally:
        await asyncio.wait_for(harness.task.stop(), 30)
        await asyncio.wait_for(running, 30)


async def test_what_a_stopped_partition_held_is_forgotten() -> None:
    harness = Harness()
    await harness.send(*[b"x"] * 5_000)
    locked = one(await harness.do(1, Demand(MAIN, 10)), Locked)
    await harness.do(1, Release(locked.tokens[:5]))
    assert harness.task._partition is not None
    messages = harness.task._partition.messages
    await harness.task.stop()
    assert messages.count == 0 and not harness.task._coming_back.dropped and harness.budget.used == 0


def _tracked(objects: Iterable[object]) -> set[int]:
    """The identities of the objects that the garbage collector tracks. (`gc.is_tracked` only looks at the
    type.)"""
    return set(map(id, objects)) & set(map(id, gc.get_objects()))


async def test_a_collection_takes_no_longer_because_messages_wait() -> None:
    harness = Harness()
    await harness.send(b"x")
    assert harness.task._partition is not None
    messages = harness.task._partition.messages
    gc.collect()
    before = len(gc.get_objects())
    for number in range(400):
        await harness.send(b"x", b"y", ttl=[60_000 + 50 * number, None])
    gc.collect()
    assert messages.count == 801 and len(gc.get_objects()) - before < 200, (
        "nothing for each message, frame or expiry"
    )
    assert messages.main.expiry is not None
    assert not _tracked([messages.main.references, messages._frames, messages.main.expiry._buckets])


async def test_a_partition_that_is_deleted_writes_no_checkpoint_and_forgets_expiries_in_steps() -> None:
    for is_deleted in (False, True):
        harness = Harness()
        for number in range(10):
            await harness.send(b"x", b"y", ttl=[60_000 + 50 * number, None])
        assert harness.task._partition is not None
        wheel = harness.task._partition.messages.main.expiry
        await harness.task.stop(is_deleted=is_deleted)
        assert wheel is not None and wheel.next_due_ms() is None and not harness.task._coming_back.dropped
        assert len(harness.log.checkpoints) == (0 if is_deleted else 1)


async def test_the_garbage_collector_does_not_look_at_waiting_messages_and_nothing_of_them_is_left() -> None:
    harness = Harness(QueueSettings(max_delivery_count=1))
    await harness.send(*[b"x"] * 200, ttl=[None, 60_000] * 100)
    locked = await harness.receive(1, 150)
    await harness.do(1, Complete(locked.tokens[:50]), Defer(locked.tokens[50:100]))
    assert harness.task._partition is not None
    before = list(harness.task._partition.messages.main.references.values())
    assert not _tracked([*before, *(each.frame for each in before)])
    await harness.restart(clean=True)  # locks are still held: they end with the state
    assert all(each.lease is None for each in before)
    await harness.receive(1, 10)
    assert harness.task._partition is not None
    after = list(harness.task._partition.messages.main.references.values())
    assert len(after) == 150 and not _tracked(after)
    await harness.task.stop()
    assert all(each.lease is None for each in after)


async def test_dead_frames_behind_a_live_one_are_looked_at_once() -> None:
    harness = Harness()
    for _ in range(300):
        harness.post(1000, Send([b"x"], None))
        await harness.task.step()
    kept = await harness.receive(1, 1)
    gone = await harness.receive(1, 250)
    await harness.do(1, Complete(gone.tokens))
    assert harness.task._partition is not None
    messages = harness.task._partition.messages
    before = len(messages._frames)
    oldest = messages.oldest_frames(2, 1 << 30, harness.log.end)
    assert len(oldest) == 2 and oldest == sorted(oldest)
    assert len(messages._frames) <= before - 250
    assert messages.oldest_frames(2, 1 << 30, harness.log.end) == oldest
    assert messages.first_live() == oldest[0]
    harness.task.check()
    await harness.do(1, Complete(kept.tokens))
    assert messages.oldest_frames(1, 1 << 30, harness.log.end) == oldest[1:]


async def test_a_compaction_moves_a_bounded_number_of_messages_with_each_commit() -> None:
    harness = Harness()
    await harness.send(*[b"x"] * SOME)
    assert harness.task._partition is not None
    messages = harness.task._partition.messages
    frames = [frame async for frame in harness.log.replay(harness.log.start)]
    steps = list(messages.living_steps(frames))
    assert max(map(len, steps)) <= REPLAYED_AT_ONCE
    candidates = deque(each for step in steps for each in step)
    moved = []
    while candidates:
        commit = harness.log.begin()
        relocated = messages.relocate(candidates, commit, 1 << 30)
        assert relocated is not None
        await harness.log.append(commit)
        messages.apply_relocated(commit.start, relocated)
        moved.append(len(relocated.sizes))
    assert moved == [RELOCATED_AT_ONCE, SOME - RELOCATED_AT_ONCE]
    harness.task.check()
