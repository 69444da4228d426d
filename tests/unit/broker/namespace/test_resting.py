"""broker/namespace/resting.py and what it keeps of each partition: which partitions are opened
when, and what is known while they are closed."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pytest import MonkeyPatch
from structlog.testing import capture_logs

from broker.base.clock import ManualClock
from broker.entities.descriptions import MESSAGE_OVERHEAD_BYTES, QUEUE_SUBQUEUES
from broker.namespace.resting import FOLDER_OPENING_MAX, PASSES_ON_S, UNKNOWN_BYTES, Resting
from broker.operations.message_states import SubqueueCounts
from broker.partition.drain_need import Need, need_of_counts
from broker.partition.summary import (
    EMPTY,
    EMPTY_NOTE,
    SEGMENT_BYTES,
    Summary,
    Wake,
    decode,
    survey,
    total_of,
    wake_at_ms,
)
from storage.errors import DiskFailed
from storage.index_witness import Says, Witness
from storage.log import LogStore
from storage.partition_index import PartitionIndex
from tests.support.recording_disk import RecordingDisk
from tests.support.waiting import until

ROOT = Path("/catalogue")
COUNT = QUEUE_SUBQUEUES.end
"""The subqueues of a queue: number 0 for receivers, number 1 for its dead letters."""


class Queue:
    """Opens its partitions when a test lets it."""

    subqueues_end = COUNT

    def __init__(self) -> None:
        self.woken: list[int] = []
        self.go_on = asyncio.Event()

    async def wake(self, number: int) -> None:
        self.woken.append(number)
        await self.go_on.wait()

    def folder_of(self, number: int) -> int:
        return number % 2


class Store:
    """Knows which logs exist, except for entities whose folder cannot be read."""

    def __init__(self, **logs: list[int] | None) -> None:
        self.logs = logs
        self.listed: list[str] = []
        """The entities whose folders were listed."""
        self.kept: dict[tuple[int, str], dict[int, tuple[int, int]]] = {}
        """What room was asked for, by folder and entity."""

    async def partitions(self, entity: str) -> list[int]:
        self.listed.append(entity)
        found = self.logs.get(entity, [])
        if found is None:
            raise DiskFailed("broken")
        return found

    def keep_room(self, entity: str, needs: Mapping[int, tuple[int, int]], folder: int) -> None:
        assert needs
        self.kept.setdefault((folder, entity), {}).update(needs)


class World:
    def __init__(
        self,
        disk: RecordingDisk | None = None,
        witnesses: Sequence[Witness] = (),
        passes_on_s: float = PASSES_ON_S,
    ) -> None:
        self.disk, self.clock = disk or RecordingDisk(), ManualClock()
        self.index = PartitionIndex(ROOT, self.disk, write_delay_ms=1, witnesses=witnesses)
        self.resting = Resting(self.index, self.clock, look_s=0.001, passes_on_s=passes_on_s)
        self.queues: dict[str, Queue] = {}

    async def start(self, generations: dict[str, int], store: Store | None = None) -> World:
        for generation in generations:
            self.queues[generation] = Queue()
            self.resting.enter(generation, self.queues[generation])
        store = store or Store()
        await self.resting.load(generations, cast(LogStore, store), store.logs)
        self.resting.start()
        return self

    async def stop(self) -> RecordingDisk:
        await self.resting.stop()
        await self.resting.close()
        return self.disk


def counted(world: World, generation: str, leave_out: Collection[int]) -> dict[int, SubqueueCounts]:
    """What an entity's closed partitions hold, except some."""
    total: dict[int, SubqueueCounts] = {}
    deque(world.resting.count_in_steps(generation, leave_out, total), maxlen=0)
    return total


def holding(active: int, wake_at_ms: int | None = None) -> Summary:
    return Summary(
        {0: SubqueueCounts(active=active, bytes=10 * active)},
        {} if wake_at_ms is None else {Wake.EXPIRY: wake_at_ms},
    )


NOTHING = SubqueueCounts()
NEED = Need(70_000, 30_000)
NOTES = st.one_of(
    st.sampled_from(
        [EMPTY_NOTE, b"", b"\2 of a later release", EMPTY_NOTE[:1] + b"\1\0\0" + b"\1" + bytes(32)]
    ),
    st.builds(
        lambda active, at_ms, need, held: (
            holding(active, at_ms)._replace(need=need, held_bytes=held).encode()
        ),
        st.integers(1, 1 << 40),
        st.sampled_from([None, 1, 1 << 41]),
        st.sampled_from([None, NEED, Need(5, 1 << 40)]),
        st.sampled_from([None, 256, 1 << 40]),
    ),
    st.just(Summary({}, {}, NEED, 1 << 20).encode()),
    st.builds(
        lambda number: Summary({number: SubqueueCounts(active=5, bytes=7)}, {}).encode(),
        st.sampled_from([0, 1]),
    ),
    st.just(Summary({0: SubqueueCounts(active=1)}, {Wake.EXPIRY: 9, Wake.GARBAGE: 4}).encode()),
)


@pytest.mark.parametrize(("need", "held_bytes"), [(None, None), (NEED, None), (NEED, 0), (NEED, 1 << 40)])
def test_a_summary_comes_back_as_it_was_and_what_is_not_understood_gives_none(
    need: Need | None, held_bytes: int | None
) -> None:
    summary = Summary(
        {
            0: SubqueueCounts(active=3, deferred=1, scheduled=2, bytes=99),
            1: SubqueueCounts(active=1, bytes=5),
        },
        {Wake.EXPIRY: 1_700_000_000_000, 77: 1_600_000_000_000},
        need,
        held_bytes,
    )
    assert summary.state_bytes == (7 * MESSAGE_OVERHEAD_BYTES if held_bytes is None else held_bytes)
    assert decode(summary.encode(), COUNT) == summary and summary.wake_at_ms == 1_600_000_000_000
    assert decode(EMPTY_NOTE, COUNT) == EMPTY and EMPTY.wake_at_ms is None
    assert Summary({0: SubqueueCounts(locked=0)}, {}, NEED).encode() == EMPTY_NOTE, "nothing to drain"
    assert Summary({}, {}, NEED, 9_999).encode() == EMPTY_NOTE, "hardly any message-ids"
    assert decode(Summary({}, {}, None, 1 << 20).encode(), COUNT) == Summary({}, {}, None, 1 << 20)
    note = summary.encode()
    assert [
        decode(each, COUNT)
        for each in (
            b"",
            note[:-1],
            note + b"\0",
            b"\3" + note[1:],
            note[:3] + b"\4" + note[4:],
            note[:4] + b"\x09" + note[5:],
        )
    ] == [None] * 6


@pytest.mark.parametrize("first", [0, 300, 16_000])
def test_a_summary_of_many_subqueues_comes_back_as_it_was(first: int) -> None:
    counts = {number: SubqueueCounts(active=1, bytes=number) for number in range(first, first + 300)}
    summary = Summary(counts, {Wake.EXPIRY: 1_700_000_000_000}, NEED, 1 << 33)
    note = summary.encode()
    assert decode(note, first + 300) == summary and wake_at_ms(note) == 1_700_000_000_000
    assert decode(note, first + 299) is None, "a number that the entity never gave"
    assert all(decode(broken, first + 300) is None for broken in (note[:-1], note[:40] + b"x" + note[41:]))
    assert total_of([note, note], first + 300)[first + 1].active == 2


def test_a_summary_that_no_note_can_hold_leaves_the_content_unknown() -> None:
    counts = {number: SubqueueCounts(active=number**4 + 1, bytes=number**4 * 7) for number in range(15_000)}
    assert decode(Summary(counts, {}).encode(), 15_000) is None


def test_the_total_of_many_notes_is_the_sum_of_what_each_says() -> None:
    notes = [
        holding(3, 99).encode(),
        holding(4).encode(),
        EMPTY_NOTE,
        Summary({1: SubqueueCounts(active=5, bytes=50)}, {}).encode(),
        Summary(
            {
                0: SubqueueCounts(deferred=1, scheduled=2, bytes=3),
                1: SubqueueCounts(active=1, bytes=1),
            },
            {},
        ).encode(),
        b"\2 of a later release",
    ]
    assert total_of(notes, COUNT) == {
        0: SubqueueCounts(active=7, deferred=1, scheduled=2, bytes=73),
        1: SubqueueCounts(active=6, bytes=51),
    }
    assert total_of([EMPTY_NOTE, b""], COUNT) == {}


@given(st.lists(NOTES, max_size=4), st.integers(0, 3))
def test_notes_that_are_read_together_say_what_each_says_alone(some: list[bytes], times: int) -> None:
    notes = some + some[-1:] * times
    total, wakes, needs, unreadable = survey(notes, COUNT)
    assert [place for place, note in enumerate(notes) if decode(note, COUNT) is None] == list(unreadable)
    summaries = [decode(note, COUNT) or EMPTY for note in notes]
    assert list(wakes) == [summary.wake_at_ms for summary in summaries]
    assert list(needs) == [
        each.need or (need_of_counts(each.counts.values(), SEGMENT_BYTES) if each.counts else None)
        for each in summaries
    ] or (not needs and all(note == EMPTY_NOTE for note in notes))
    assert {
        number: sum(each.counts.get(number, NOTHING).active for each in summaries) for number in total
    } == {number: counts.active for number, counts in total.items()}
    assert total == total_of(notes, COUNT) and sum(counts.bytes for counts in total.values()) == sum(
        counts.bytes for each in summaries for counts in each.counts.values()
    )


async def test_each_partition_with_many_subqueues_is_counted_in_a_step_of_its_own() -> None:
    """Symptom: once one partition of a topic had started, those of the others that were at rest were counted
    in one turn of the event loop: 30 to 50 ms with 1,000 subscriptions and 16 partitions."""
    world = await World().start({"a": 4})
    world.queues["a"].subqueues_end = 300
    many = Summary({number: SubqueueCounts(active=1, bytes=9) for number in range(300)}, {})
    for number in range(4):
        await world.resting.opening("a", number)
        world.resting.closed("a", number, many)
    total: dict[int, SubqueueCounts] = {}
    steps = world.resting.count_in_steps("a", (0,), total)
    held = []
    for _ in steps:
        held.append(total[299].active)
        world.resting.closed("a", 1, holding(7))  # what happens meanwhile does not count
    assert held == [1, 2, 3] and total[0].active == 3


async def test_what_was_added_up_at_the_start_is_not_told_once_a_partition_was_opened_or_closed() -> None:
    world = await World().start({"a": 3})
    for number in range(3):
        await world.resting.opening("a", number)
        world.resting.closed("a", number, holding(1))
    world = await World(await world.stop()).start({"a": 3})
    assert counted(world, "a", ())[0].active == 3 and counted(world, "a", (1,))[0].active == 2
    world = await World(await world.stop()).start({"a": 3})
    await world.resting.opening("a", 0)
    assert counted(world, "a", ())[0].active == 2
    world.resting.closed("a", 0, holding(5))
    assert counted(world, "a", ())[0].active == 7
    await world.stop()


async def test_what_falls_due_is_opened_then_and_not_before_and_what_was_opened_since_is_left_alone() -> None:
    world = await World().start({"a": 4})
    now_ms = world.clock.now_ms()
    for number, due_ms in enumerate((now_ms + 5_000, now_ms + 1_000, now_ms + 1_000, None)):
        await world.resting.opening("a", number)
        world.resting.closed("a", number, holding(1, due_ms))
    await world.resting.opening("a", 2)
    queue = world.queues["a"]
    queue.go_on.set()
    await asyncio.sleep(0.02)
    assert queue.woken == []
    world.clock.advance(1_000)
    await until(lambda: queue.woken == [1])
    world.clock.step(4_000)
    await until(lambda: queue.woken == [1, 0])
    await world.stop()


async def test_an_appointment_outlives_a_restart_whatever_its_reason() -> None:
    world = await World().start({"a": 2})
    await world.resting.opening("a", 1)
    world.resting.closed("a", 1, Summary({}, {200: world.clock.now_ms() + 1_000}))
    world = await World(await world.stop()).start({"a": 2})
    assert await world.resting.all_known(0) and world.resting.summary("a", 1) is not None
    world.clock.advance(1_000)
    await until(lambda: world.queues["a"].woken == [1])
    await world.stop()


async def test_a_start_that_opens_partitions_because_something_is_due_says_so() -> None:
    world = await World().start({"a": 3})
    for number, due_ms in enumerate((world.clock.now_ms(), world.clock.now_ms() + 1_000, None)):
        await world.resting.opening("a", number)
        world.resting.closed("a", number, holding(1, due_ms))
    with capture_logs() as lines:
        again = await World(await world.stop()).start({"a": 3})
    assert [line["partitions"] for line in lines if line["event"] == "partitions.due"] == [1]
    await again.stop()


async def test_what_was_open_is_opened_a_few_at_a_time_the_most_urgent_first_and_only_then_all_is_known() -> (
    None
):
    world = await World().start({"a": 20, "b": 1})
    now_ms = world.clock.now_ms()
    for number in range(20):
        await world.resting.opening("a", number)
        world.resting.closed("a", number, holding(1, now_ms + 1_000_000 - number))
        await world.resting.opening("a", number)
    await world.resting.opening("b", 0)
    world.resting.closed("b", 0, holding(7))
    disk = world.disk.after_power_cut()
    await world.stop()

    again = await World(disk).start({"a": 20, "b": 1})
    queue = again.queues["a"]
    await until(lambda: len(queue.woken) == FOLDER_OPENING_MAX)
    assert queue.woken == [19, 18, 17, 16] and again.resting.unknown_count == len(
        again.resting.unknown("a")
    ) + len(again.resting.unknown("b"))
    assert not await again.resting.all_known(0.001)
    queue.go_on.set()
    again.queues["b"].go_on.set()
    assert await again.resting.all_known(20)
    assert queue.woken == list(range(19, -1, -1)) and again.resting.unknown_count == 0
    await again.stop()


async def test_nobody_waits_for_what_has_long_stayed_unknown() -> None:
    """Symptom: while memory had no room for what was in use at a crash, each scrape took eight seconds."""
    world = await World().start({"a": 1, "b": 1})
    for queue in "ab":
        await world.resting.opening(queue, 0)
    disk = world.disk.after_power_cut()
    await world.stop()

    again = await World(disk).start({"a": 1, "b": 1})
    again.clock.advance(1_999)
    waiting = asyncio.create_task(again.resting.all_known(2.0))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    waiting.cancel()
    again.clock.advance(1)
    assert not await asyncio.wait_for(again.resting.all_known(2.0), 1.0)
    again.queues["a"].go_on.set()
    await until(lambda: again.resting.unknown_count == 1)
    waiting = asyncio.create_task(again.resting.all_known(2.0))
    await asyncio.sleep(0.01)
    assert not waiting.done(), "the other one may follow soon"
    again.queues["b"].go_on.set()
    assert await waiting
    await again.stop()


async def test_what_an_unknown_partition_once_held_does_not_count_when_it_has_its_turn() -> None:
    """Symptom: a partition that had been drained before a crash stayed closed, because there was no room for
    what it had held when it last came to rest."""
    world = await World().start({"a": 3})
    for number in range(2):
        await world.resting.opening("a", number)
        world.resting.closed("a", number, holding(1_000))
    await world.resting.opening("a", 1)
    await world.resting.opening("a", 2)
    disk = world.disk.after_power_cut()
    await world.stop()

    again = await World(disk).start({"a": 4})
    expected = [again.resting.register("a", number).expected_bytes() for number in range(4)]
    known = 1_000 * MESSAGE_OVERHEAD_BYTES
    assert expected == [known, UNKNOWN_BYTES, UNKNOWN_BYTES, 0]
    again.queues["a"].go_on.set()
    assert await again.resting.all_known(20)
    await again.stop()


async def test_while_memory_is_scarce_due_and_unknown_partitions_are_opened_one_by_one() -> None:
    """Symptoms: the kernel had ended the broker for lack of memory, and ended it again at each start. Later,
    96 of 128 partitions stayed unknown while memory was scarce."""
    world = await World().start({"a": 6})
    for number in range(6):
        await world.resting.opening("a", number)
        world.resting.closed("a", number, holding(1_000, world.clock.now_ms() if number < 3 else None))
        if number >= 3:
            await world.resting.opening("a", number)
    disk = world.disk.after_power_cut()
    await world.stop()

    again = World(disk)
    again.resting.is_memory_scarce = True
    queue = (await again.start({"a": 6})).queues["a"]
    for opened in range(6):
        await until(lambda: len(queue.woken) > opened)  # noqa: B023 - is awaited at once
        await again.resting.all_known(0.01)
        assert len(queue.woken) == opened + 1
        queue.go_on.set()
        await asyncio.sleep(0)
        queue.go_on.clear()
    assert sorted(queue.woken[:3]) == [0, 1, 2], "what is due comes first"
    assert await again.resting.all_known(20) and sorted(queue.woken) == list(range(6))
    await again.stop()


async def test_a_partition_for_which_there_is_no_memory_keeps_no_other_one_waiting() -> None:
    """Symptom: one that was due and too large stayed the only one, so nothing else expired."""
    world = await World().start({"a": 6})
    for number in range(6):
        await world.resting.opening("a", number)
        world.resting.closed("a", number, holding(1_000, world.clock.now_ms()))
    disk = world.disk.after_power_cut()
    await world.stop()

    again = World(disk, passes_on_s=0.01)
    again.resting.is_memory_scarce = True
    queue = (await again.start({"a": 6})).queues["a"]
    await until(lambda: len(queue.woken) == 6)
    queue.go_on.set()
    await again.stop()


async def test_only_as_many_unknown_partitions_are_opened_at_once_as_memory_has_room_for() -> None:
    world = await World().start({"a": 3})
    for number in range(3):
        await world.resting.opening("a", number)
        world.resting.closed("a", number, holding(10_000))
        await world.resting.opening("a", number)
    disk = world.disk.after_power_cut()
    await world.stop()

    again, asked = World(disk), list[int]()

    def has_room(size: int) -> bool:
        asked.append(size)
        return False

    again.resting.has_room = has_room
    queue = (await again.start({"a": 3})).queues["a"]
    await until(lambda: len(queue.woken) == 1)
    await again.resting.all_known(0.01)
    assert len(queue.woken) == 1 and min(asked) >= 10_000 * MESSAGE_OVERHEAD_BYTES
    queue.go_on.set()
    assert await again.resting.all_known(20), "one after the other"
    await again.stop()


async def test_a_lost_index_is_made_anew_from_the_logs_counting_what_the_disk_does_not_tell() -> None:
    store = Store(a=[2, 5], b=None)
    world = await World().start({"a": 8, "b": 3, "c": 2}, store)
    assert store.listed == ["a", "b"], "there may be thousands that have no logs"
    for queue in world.queues.values():
        queue.go_on.set()
    assert await world.resting.all_known(20)
    assert [sorted(queue.woken) for queue in world.queues.values()] == [[2, 5], [0, 1, 2], []]
    await world.stop()


async def test_a_folder_that_hangs_keeps_no_partition_of_another_folder_from_being_opened() -> None:
    folders = Folders()
    world = await World(folders.disk, folders.witnesses()).start({"hangs": 40, "a": 40})
    world.queues["a"].go_on.set()
    now_ms = world.clock.now_ms()
    for number in range(1, 40, 2):  # in the second folder, and due before all others
        await world.resting.opening("hangs", number)
        world.resting.closed("hangs", number, holding(1, now_ms + 1_000))
    for number in range(0, 40, 2):
        await world.resting.opening("a", number)
        world.resting.closed("a", number, holding(1, now_ms + 2_000))
    world.clock.advance(2_000)
    await until(lambda: sorted(world.queues["a"].woken) == list(range(0, 40, 2)))
    assert len(world.queues["hangs"].woken) == FOLDER_OPENING_MAX
    world.queues["hangs"].go_on.set()
    await until(lambda: sorted(world.queues["hangs"].woken) == list(range(1, 40, 2)))
    await world.stop()


async def test_an_entity_that_is_deleted_is_waited_for_no_more_and_forgotten() -> None:
    world = World()
    await world.start({"a": 2, "b": 1}, Store(a=[0, 1], b=[0]))
    await until(lambda: len(world.queues["a"].woken) == 2)
    world.queues["b"].go_on.set()
    world.resting.leave("a", world.queues["a"])
    world.resting.forget("a")
    assert await world.resting.all_known(20), "partitions of a queue that is gone keep nobody waiting"
    again = await World(await world.stop()).start({"b": 1})
    assert list(again.index.entities()) == ["b"]
    await again.stop()


async def test_a_partition_that_is_closed_after_its_queue_was_deleted_has_no_appointment() -> None:
    world = await World().start({"a": 1})
    await world.resting.opening("a", 0)
    world.resting.leave("a", world.queues["a"])
    world.resting.closed("a", 0, holding(1, world.clock.now_ms() + 1_000_000))
    world.resting.forget("a")
    assert not world.resting._due
    await world.stop()


class Folders:
    """Two data folders: the first has the even partitions, the second the odd ones. Tests can make the second
    unavailable."""

    def __init__(self) -> None:
        self.disk = RecordingDisk()
        self.roots = Path("/first"), Path("/second")
        for root in self.roots:
            self.disk.make_directory(root)
        self.is_there = True

    def _admit(self) -> None:
        if not self.is_there:
            raise DiskFailed("the data folder is missing")

    def witnesses(self) -> list[Witness]:
        return [Witness(self.roots[0], self.disk), Witness(self.roots[1], self.disk, admit=self._admit)]

    async def used(self) -> None:
        """Close four partitions in an orderly way."""
        world = await World(self.disk, self.witnesses()).start({"a": 4})
        for number in range(4):
            await world.resting.opening("a", number)
            world.resting.closed("a", number, holding(1))
        await world.stop()


async def test_an_index_out_of_date_is_not_believed_and_all_of_its_folder_is_opened() -> None:
    folders = Folders()
    await folders.used()
    await folders.witnesses()[1].make_void()
    world = await World(folders.disk, folders.witnesses()).start({"a": 6}, Store(a=[0, 1, 2, 3, 5]))
    assert sorted(world.resting.unknown("a")) == [1, 3, 5] and counted(world, "a", ()) == {
        0: SubqueueCounts(active=2, bytes=20)
    }
    await until(lambda: sorted(world.queues["a"].woken) == [1, 3, 5])
    await world.stop()


async def test_a_folder_that_was_missing_at_the_start_is_asked_when_it_is_back(
    monkeypatch: MonkeyPatch,
) -> None:
    monkeypatch.setattr("broker.namespace.resting.ASKED_AGAIN_S", 0.001)
    folders = Folders()
    await folders.used()
    await folders.witnesses()[1].make_void()
    folders.is_there = False
    world = await World(folders.disk, folders.witnesses()).start({"a": 4}, Store(a=[0, 1, 2, 3]))
    assert await world.resting.all_known(0), "nobody can tell, and its partitions cannot be opened either"
    folders.is_there = True
    await until(lambda: sorted(world.queues["a"].woken) == [1, 3])
    assert counted(world, "a", ()) == {0: SubqueueCounts(active=2, bytes=20)}
    await until(lambda: world.index.witnesses[1].says is Says.VALID)
    await world.stop()


async def test_room_is_kept_at_the_start_for_all_that_partitions_hold() -> None:
    """Those that hold nothing need none. What an open one needs that a crash has left is not known, but about
    what it needed before. An entity that is not in service may come back."""
    world = await World().start({"a": 6, "gone": 1})
    for number in range(6):
        await world.resting.opening("a", number)
        held = {} if number == 5 else {0: SubqueueCounts(active=9, bytes=900)}
        world.resting.closed("a", number, Summary(held, {}, Need(number * 1_000, 400)))
    await world.resting.opening("gone", 0)
    world.resting.closed("gone", 0, Summary({0: SubqueueCounts(active=1)}, {}, NEED))
    world.resting.closed("a", 4, Summary({0: SubqueueCounts(active=9, bytes=900)}, {}))
    await world.resting.opening("a", 2)
    disk = await world.stop()
    store = Store()
    again = World(disk)
    again.queues["a"] = Queue()
    again.resting.enter("a", again.queues["a"])
    await again.resting.load({"a": 6, "gone": 1}, cast(LogStore, store), store.logs)
    again.resting.start()
    estimate = need_of_counts([SubqueueCounts(active=9, bytes=900)], SEGMENT_BYTES)
    of_a = {number: (number * 1_000, 400) for number in range(4)} | {4: estimate}
    assert store.kept == {(0, "a"): of_a, (0, "gone"): {0: NEED}}
    store.kept.clear()
    again.resting.enter("gone", Queue())
    assert store.kept == {(0, "gone"): {0: NEED}}
    await again.stop()


async def test_room_is_kept_in_the_folder_of_each_partition() -> None:
    folders, store = Folders(), Store()
    world = World(folders.disk, folders.witnesses())
    world.resting.enter("a", Queue())
    await world.resting.load({"a": 3}, cast(LogStore, store), store.logs)
    for number in range(3):
        world.resting.closed("a", number, Summary({0: SubqueueCounts(active=1)}, {}, NEED))
    world.resting.start()
    assert store.kept == {(0, "a"): {0: NEED, 2: NEED}, (1, "a"): {1: NEED}}
    await world.stop()
