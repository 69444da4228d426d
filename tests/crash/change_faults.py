"""Changes of a partition during which something fails: what they do if nothing does, and what is left after
each failure.

The disk fails at places in each record of a change, its sync fails, and the process dies there. What a new
process then finds is the state before the change, or the state after it if the change was acknowledged.
`PARTIBUS_CRASH_ROUNDS` above 10 (`make crash`) tries every byte, otherwise a few of them.
"""

from __future__ import annotations

import errno
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

import pytest

from broker.base.clock import ManualClock
from broker.entities.descriptions import MAIN, EntityDescription
from broker.operations.browsing import Peek
from broker.operations.general import Failed
from broker.operations.interface import Operation
from broker.partition.cursors import Cursors
from broker.partition.delays import Delays
from broker.partition.rule_changes import RuleChanges
from broker.partition.session_states import SessionStates
from broker.partition.sink_ledger import SinkLedger
from broker.partition.task import PartitionTask
from storage.disk import Disk
from storage.log import FRAME_HEADER_BYTES, Log, Position
from tests.crash.rounds import ROUNDS
from tests.support.dying_process import Snapshots, partition_on
from tests.support.faulty_disk import FaultyDisk
from tests.support.partition_asking import ask
from tests.support.recording_disk import RecordingDisk

State = tuple[object, ...]
Prepare = Callable[[PartitionTask, ManualClock], Awaitable[Operation]]
"""Does what comes before a change, and gives the operation that makes it."""
Test = Callable[..., Awaitable[None]]
ERRORS = [errno.EIO, errno.ENOSPC]


async def state(task: PartitionTask) -> State:
    """Everything durable that a partition knows, once it is open and has done what is due."""
    for _ in range(2):  # a scheduled message whose bytes have to be read is published behind the first one
        await ask(task, Peek(MAIN, 0, 1))
    return state_now(task)


def state_now(task: PartitionTask) -> State:
    task.check()
    assert task._partition is not None
    messages = task._partition.messages
    states = messages.states
    return (
        {
            (subqueue.name, number): (
                each.state,
                each.delivery_count,
                each.changed,
                each.size,
                each.enqueued_at_ms,
                each.session_id,
            )
            for subqueue in messages.subqueues
            for number, each in subqueue.references.items()
        },
        dict(states.of(SessionStates).entries.items()),
        dict(states.of(Delays).entries()),
        dict(states.of(RuleChanges).entries),
        dict(states.of(Cursors).entries),
        dict(states.of(SinkLedger).entries),
        {each for slot in states.duplicates.slots.values() for each in slot.identities},
        messages.next_number,
    )


@dataclass
class Story:
    """What a change does if nothing fails."""

    before: State
    after: State
    places: list[int]
    """Offsets in its frame at which something may fail, up to its end."""


class Changes:
    """Changes of one partition of an entity."""

    def __init__(self, description: EntityDescription, segment_bytes_max: int, *repeated: Prepare) -> None:
        """`repeated` are changes that the partition makes again by itself after a failure."""
        self._description, self._segment_bytes_max = description, segment_bytes_max
        self._repeated = repeated

    def partition(
        self, disk: Disk, clock: ManualClock
    ) -> AbstractAsyncContextManager[tuple[PartitionTask, Log]]:
        """A partition that ends as in a crash."""
        return partition_on(disk, self._description, clock, segment_bytes_max=self._segment_bytes_max)

    async def state_on(self, disk: Disk) -> State:
        """What a new process finds, before anything comes due."""
        async with self.partition(disk, ManualClock()) as (task, _):
            return await state(task)

    def tests(self, changes: Sequence[Prepare]) -> tuple[Test, Test, Test]:
        """What to test of each of these changes: that the process dies, that the disk fails or is full, and
        that the sync fails."""
        each = pytest.mark.parametrize("prepare", changes, ids=lambda prepare: prepare.__name__)
        error = pytest.mark.parametrize("error", ERRORS, ids=["fails", "is full"])

        @each
        async def deaths(prepare: Prepare) -> None:
            await self.check_deaths(prepare)

        @each
        @error
        async def failures(prepare: Prepare, error: int) -> None:
            await self.check_failures(prepare, error)

        @each
        async def failing_sync(prepare: Prepare) -> None:
            await self.check_failing_sync(prepare)

        return deaths, failures, failing_sync

    async def story_of(self, prepare: Prepare) -> Story:
        """Let a change be made without a failure."""
        clock = ManualClock()
        async with self.partition(RecordingDisk(), clock) as (task, log):
            operation = await prepare(task, clock)
            before, start = state_now(task), log.end
            assert not isinstance(await ask(task, operation), Failed)
            after = state_now(task)
            assert before != after
            (frame,) = await log.fetch([Position(start)])
            size = log.end - start
            assert frame.size == size
            # Behind the end of the log there are zeros: a frame that lacks only zeros is whole.
            whole = frame.start + len(frame.data.rstrip(bytes(1)))
            if ROUNDS > 10:
                return Story(before, after, [*range(1, whole), size])
            records = frame.records()
            places = {1, FRAME_HEADER_BYTES, *(each.offset for each in records)}
            places |= {each.offset + len(each.body) // 2 for each in records}
            return Story(before, after, [*sorted(each for each in places if each < whole), size])

    async def check_deaths(self, prepare: Prepare) -> None:
        """The process dies while it writes the change: all of it is left, or nothing."""
        story = await self.story_of(prepare)
        for place in story.places:
            inner, clock = Snapshots(), ManualClock()
            disk = FaultyDisk(inner)
            async with self.partition(disk, clock) as (task, _):
                operation = await prepare(task, clock)
                inner.after_write = None
                disk.shorten(place)
                disk.fail("write", times=-1)
                answer = await ask(task, operation)
                disk.heal()
            is_whole = place == story.places[-1]
            assert is_whole or isinstance(answer, Failed)
            assert inner.after_write is not None
            left = await self.state_on(inner.after_write)
            assert left == (story.after if is_whole else story.before), place

    async def check_failures(self, prepare: Prepare, error: int) -> None:
        """The disk fails within the change, or is full: nothing is left of it."""
        story = await self.story_of(prepare)
        places = story.places[:-1] if ROUNDS > 10 else story.places[1:-1:2]
        for place in places:
            inner, clock = RecordingDisk(), ManualClock()
            disk = FaultyDisk(inner)
            async with self.partition(disk, clock) as (task, _):
                operation = await prepare(task, clock)
                disk.shorten(place)
                disk.fail("write", error, times=1 if error == errno.EIO else -1)
                answer = await ask(task, operation)
                on_disk = inner.after_power_cut()
                disk.heal()
                assert isinstance(answer, Failed)
                assert await self.state_on(on_disk) == story.before, place
                left = await state(task)
                assert left == (story.after if prepare in self._repeated else story.before), place
            assert await self.state_on(inner.after_power_cut()) == left

    async def check_failing_sync(self, prepare: Prepare) -> None:
        """The sync of the change fails: nothing is left of it."""
        story = await self.story_of(prepare)
        inner, clock = RecordingDisk(), ManualClock()
        disk = FaultyDisk(inner)
        async with self.partition(disk, clock) as (task, _):
            operation = await prepare(task, clock)
            disk.fail("sync")
            assert isinstance(await ask(task, operation), Failed)
            left = await state(task)
            assert left == (story.after if prepare in self._repeated else story.before)
        assert await self.state_on(inner.after_power_cut()) == left
