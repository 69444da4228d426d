"""Summaries: what a closed partition holds, and when it must be opened again even if no client asks. Pure.

The index of partitions stores a summary as a note (`storage/partition_index.py`). It names subqueues by
their numbers (`EntityDescription.subqueues`). Little endian:

    offset  size  field
         0     1  version, 1
         1     1  number of subqueues that follow; empty ones are left out
         2     1  number of times that follow
         3     1  what follows the times: 0 nothing, 1 the room that draining needs, 2 that and the memory,
                  3 the memory alone
    then for each subqueue:
         0     1  number
         1     8  messages ready for delivery
         9     8  deferred messages
        17     8  scheduled messages
        25     8  bytes
    then for each time:
         0     1  reason (`Wake`)
         1     8  wall time
    then, if there are messages or much other state, and if it is known, what draining needs
    (`drain_need.py`); earlier releases have not written it:
         0     8  lasting, in bytes
         8     8  passing
    and then, under the same conditions, what all state took in memory:
         0     8  bytes

A partition with many subqueues, or with subqueues of higher numbers, has a note of version 2:

    offset  size  field
         0     1  version, 2
         1     1  zero
         2     1  number of times
         3     1  what follows the times, as above
         4     …  the times, that room and the memory, as above
         …     …  compressed with zlib, for each subqueue: 4 bytes number, and the four counts as above

If even that is too long for the index, the note is empty. Then only the log says what the partition holds,
and it is opened at the next start.

To add *something that must happen on time* (messages to forward, for example),
add a member to `Wake` and give its earliest time in `summary_of`. Nothing else is needed:
`broker/namespace/resting.py` opens the partition at that time, and the partition's own timer does
the rest. A release that does not know a reason still opens the partition.
"""

from __future__ import annotations

import enum
import functools
import struct
import zlib
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from broker.base.clock import Clock, wall_ahead_ms
from broker.base.slices import Slices
from broker.entities.descriptions import MESSAGE_OVERHEAD_BYTES
from broker.entities.roles import SubqueueTable
from broker.operations.message_states import SubqueueCounts
from broker.partition.counting import SUBQUEUES_PER_STEP
from broker.partition.drain_need import Need, need_of_counts
from broker.partition.state import Partition
from storage.partition_index import NOTE_BYTES_MAX

VERSION = 1
_HEAD = struct.Struct("<BBBB")
_SUBQUEUE = struct.Struct("<BQQQQ")
_TIME = struct.Struct("<BQ")
_NEED = struct.Struct("<QQ")
_STATE = struct.Struct("<Q")
_FOLLOWING = (0, _NEED.size, _NEED.size + _STATE.size, _STATE.size)
"""How many bytes follow the times."""
_HAS_NEED = (False, True, True, False)
"""Whether the need is the first of what follows."""
_MANY, _SUBQUEUE_OF_MANY = 2, struct.Struct("<IQQQQ")
_MANY_BYTES_MAX = 64 * 1024 * 1024
"""No note of version 2 unpacks to more."""
_VERSION_OF_MANY = bytes([_MANY])
_ONE_SUBQUEUE, _MAIN = bytes([VERSION, 1]), b"\0"
_NOTED_BYTES_MIN = 16 * 1024
"""What a partition without messages holds is noted from this size on: message-ids, states of sessions."""
SUBQUEUES_MAX = 1 << 32
"""More than any note can name."""
SEGMENT_BYTES = 64 << 20
"""The largest segment of a log by default."""


class Wake(enum.IntEnum):
    """Why a partition must be opened at a certain time."""

    EXPIRY = 1
    """The time to live of a message ends."""
    GARBAGE = 2
    """The log is larger than it needs to be."""
    SCHEDULE = 3
    """A scheduled message becomes active."""


_Row = tuple[int, int, int, int, int]
"""The number of a subqueue, and its counts in the order of a note."""


class _CountsOfMany(Mapping[int, SubqueueCounts]):
    """The counts of a note of version 2. They become objects only when they are asked for: those of a topic
    with a thousand subscriptions take milliseconds, and most callers want a few of them."""

    __slots__ = ("_rows",)

    def __init__(self, rows: Iterable[_Row]) -> None:
        self._rows = {row[0]: row for row in rows}

    def __getitem__(self, number: int) -> SubqueueCounts:
        _, active, deferred, scheduled, size = self._rows[number]
        return SubqueueCounts(active=active, deferred=deferred, scheduled=scheduled, bytes=size)

    def __contains__(self, number: object) -> bool:
        return number in self._rows

    def __iter__(self) -> Iterator[int]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)


class Summary(NamedTuple):
    """What a partition holds, and when it must be open next."""

    counts: Mapping[int, SubqueueCounts]
    """By subqueue number; empty subqueues may be missing."""
    wakes: Mapping[int, int]
    """The earliest time for each reason, in wall time (ms)."""
    need: Need | None = None
    """The room that draining it needs; None if that is not known."""
    held_bytes: int | None = None
    """What its state took in memory when it was closed, apart from bodies; None if that is not known."""

    @property
    def wake_at_ms(self) -> int | None:
        """When the partition must be open, in wall time; None if nothing is due."""
        return min(self.wakes.values(), default=None)

    @property
    def messages(self) -> int:
        """How many messages it holds, over all subqueues."""
        return sum(each.active + each.deferred + each.scheduled for each in self.counts.values())

    @property
    def state_bytes(self) -> int:
        """About what its state takes in memory once the partition is open."""
        return MESSAGE_OVERHEAD_BYTES * self.messages if self.held_bytes is None else self.held_bytes

    def encode(self) -> bytes:
        """Encode the summary as a note."""
        times = b"".join(_TIME.pack(reason, max(0, at_ms)) for reason, at_ms in sorted(self.wakes.items()))
        rows = [
            (number, each.active, each.deferred, each.scheduled, each.bytes)
            for number, each in sorted(self.counts.items())
            if _holds(each)
        ]
        noted = b""
        if (rows and self.need is not None) or (self.held_bytes or 0) >= _NOTED_BYTES_MIN:
            noted = b"" if self.need is None else _NEED.pack(*self.need)
            noted += b"" if self.held_bytes is None else _STATE.pack(self.held_bytes)
        following = _FOLLOWING.index(len(noted))
        if len(rows) > 255 or (rows and rows[-1][0] > 255):
            packed = zlib.compress(b"".join(_SUBQUEUE_OF_MANY.pack(*row) for row in rows))
            note = _HEAD.pack(_MANY, 0, len(self.wakes), following) + times + noted + packed
            return note if len(note) <= NOTE_BYTES_MAX else b""
        head = _HEAD.pack(VERSION, len(rows), len(self.wakes), following)
        return b"".join([head, *(_SUBQUEUE.pack(*row) for row in rows), times, noted])


def is_readable(note: bytes, end: int) -> bool:
    """Whether this release understands the note of an entity whose subqueues all have numbers below `end`. If
    not, only the log says what the partition holds."""
    if len(note) < _HEAD.size or note[3] >= len(_FOLLOWING):
        return False
    if note[0] == _MANY:
        rows = _rows_of_many(note)
        return rows is not None and all(row[0] < end for row in rows)
    if note[0] != VERSION or len(note) != _rest_at(note):
        return False
    return not note[1] or max(note[_HEAD.size : _times_at(note) : _SUBQUEUE.size]) < end


def _rows_of_many(note: bytes) -> list[_Row] | None:
    """The subqueues of a note of version 2; None if they cannot be read."""
    unpacker = zlib.decompressobj()
    try:
        rows = unpacker.decompress(note[_rest_at(note) :], _MANY_BYTES_MAX)
        return list(_SUBQUEUE_OF_MANY.iter_unpack(rows)) if unpacker.eof else None
    except (zlib.error, struct.error):
        return None


def wake_at_ms(note: bytes) -> int | None:
    """`Summary.wake_at_ms` of a readable note."""
    return min((at_ms for _, at_ms in _TIME.iter_unpack(_times_of(note))), default=None) if note[2] else None


def add_counts(total: dict[int, SubqueueCounts], note: bytes) -> None:
    """Add the counts of a readable note to `total`."""
    rows: Iterable[_Row]
    if note[0] == _MANY:
        rows = _rows_of_many(note) or ()
    else:
        rows = _SUBQUEUE.iter_unpack(note[_HEAD.size : _times_at(note)])
    for number, active, deferred, scheduled, size in rows:
        sum_ = total.get(number)
        if sum_ is None:
            sum_ = total[number] = SubqueueCounts()
        sum_.active += active
        sum_.deferred += deferred
        sum_.scheduled += scheduled
        sum_.bytes += size


def total_of(notes: Sequence[bytes], end: int) -> dict[int, SubqueueCounts]:
    """The summed counts of several notes of an entity whose subqueues all have numbers below `end`;
    unreadable notes are skipped."""
    total: dict[int, SubqueueCounts] = {}
    deque(total_in_steps(notes, end, total), maxlen=0)
    return total


def total_in_steps(notes: Sequence[bytes], end: int, total: dict[int, SubqueueCounts]) -> Iterator[None]:
    """As `total_of`, into `total`, which is empty, with a step for each note of many subqueues."""
    alike = _alike(notes, SEGMENT_BYTES)
    if alike is not None:
        total.update(alike.total)
        return
    for note in notes:
        if note != EMPTY_NOTE and is_readable(note, end):
            add_counts(total, note)
            if note[0] == _MANY:
                yield


class Survey(NamedTuple):
    """What several notes say."""

    total: dict[int, SubqueueCounts]
    """The summed counts."""
    wakes: Sequence[int | None]
    """`wake_at_ms` of each note."""
    needs: Sequence[tuple[int, int] | None]
    """The `Need` of each note, if it has one; nothing if none of them needs anything."""
    unreadable: Sequence[int]
    """The indices of unreadable notes."""


def survey(notes: Sequence[bytes], end: int, segment_bytes: int = SEGMENT_BYTES) -> Survey:
    """Read the notes of an entity whose subqueues all have numbers below `end`. `segment_bytes`: the largest
    segment of a log."""
    alike = _alike(notes, segment_bytes)
    if alike is not None:
        return alike
    unreadable = [place for place, note in enumerate(notes) if not is_readable(note, end)]
    passed_over = set(unreadable)
    return Survey(
        total_of(notes, end),
        [None if place in passed_over else wake_at_ms(note) for place, note in enumerate(notes)],
        [
            None if place in passed_over else _need_of(note, end, segment_bytes)
            for place, note in enumerate(notes)
        ],
        unreadable,
    )


def _need_of(note: bytes, end: int, segment_bytes: int) -> Need | None:
    """The need of a readable note; None if it holds nothing."""
    if _HAS_NEED[note[3]]:
        return _noted(note)[0]
    if note[0] == VERSION and not note[1]:
        return None
    summary = decode(note, end)
    assert summary is not None, "it is readable"
    return need_of_counts(summary.counts.values(), segment_bytes)


def _alike(notes: Sequence[bytes], segment_bytes: int) -> Survey | None:
    """Read notes of the same shape together: all empty, or all with only the main subqueue and equally many
    times. None for other notes.

    Most entities' notes have one of these shapes. Reading them together takes a third of the time, and a
    broker may start with 160,000 notes.
    """
    count = len(notes)
    first = notes[0] if notes else EMPTY_NOTE
    if first == EMPTY_NOTE:
        return Survey({}, [None] * count, (), ()) if notes.count(first) == count else None
    if first[:2] != _ONE_SUBQUEUE or first[2] > 1 or first[3] >= len(_FOLLOWING):
        return None
    following = first[3]
    if len(first) != _rest_at(first):
        return None
    if count > 1 and set(map(len, notes)) != {len(first)}:
        return None
    fields = _together(count, first[2], following).unpack(b"".join(notes))
    step = 5 + 2 * first[2] + _FOLLOWING[following] // _STATE.size
    if first[4:5] != _MAIN or fields[::step].count(first[: _HEAD.size + 1]) != count:
        return None
    total = SubqueueCounts(
        sum(fields[1::step]), 0, sum(fields[2::step]), sum(fields[3::step]), sum(fields[4::step])
    )
    wakes = fields[6::step] if first[2] else [None] * count
    needs: Sequence[tuple[int, int]]
    if _HAS_NEED[following]:
        at = 5 + 2 * first[2]
        needs = list(zip(fields[at::step], fields[at + 1 :: step], strict=True))
    else:
        counts = zip(*(fields[place::step] for place in range(1, 5)), strict=True)
        needs = [
            need_of_counts([SubqueueCounts(active, 0, deferred, scheduled, size)], segment_bytes)
            for active, deferred, scheduled, size in counts
        ]
    return Survey({0: total}, wakes, needs, ())


@functools.lru_cache(256)
def _together(notes: int, times: int, following: int) -> struct.Struct:
    """The layout of several notes, each with one subqueue, at most one time, and the same kinds of numbers
    after that: the head with the subqueue's number, the four counts, the time's two fields, the numbers."""
    numbers = "Q" * (_FOLLOWING[following] // _STATE.size)
    return struct.Struct("<" + (f"{_HEAD.size + 1}sQQQQ" + "BQ" * times + numbers) * notes)


def decode(note: bytes, end: int) -> Summary | None:
    """Decode a note of an entity whose subqueues all have numbers below `end`; None if it is unreadable."""
    if note[:1] == _VERSION_OF_MANY and len(note) >= _HEAD.size and note[3] < len(_FOLLOWING):
        rows = _rows_of_many(note)
        if rows is None or any(row[0] >= end for row in rows):
            return None
        return Summary(_CountsOfMany(rows), dict(_TIME.iter_unpack(_times_of(note))), *_noted(note))
    if not is_readable(note, end):
        return None
    counts: dict[int, SubqueueCounts] = {}
    add_counts(counts, note)
    return Summary(counts, dict(_TIME.iter_unpack(_times_of(note))), *_noted(note))


def _noted(note: bytes) -> tuple[Need | None, int | None]:
    """What follows the times: the need, and the memory."""
    end, size = _rest_at(note), _FOLLOWING[note[3]]
    need, memory = None, None
    if _HAS_NEED[note[3]]:
        need = Need(*_NEED.unpack_from(note, end - size))
        size -= _NEED.size
    if size:
        (memory,) = _STATE.unpack_from(note, end - size)
    return need, memory


def _rest_at(note: bytes) -> int:
    """The end of the times and what follows them."""
    start = _HEAD.size if note[0] == _MANY else _times_at(note)
    return start + note[2] * _TIME.size + _FOLLOWING[note[3]]


def _times_of(note: bytes) -> bytes:
    start = _HEAD.size if note[0] == _MANY else _times_at(note)
    return note[start : start + note[2] * _TIME.size]


def _times_at(note: bytes) -> int:
    return _HEAD.size + note[1] * _SUBQUEUE.size


def _holds(counts: SubqueueCounts | None) -> bool:
    return counts is not None and bool(counts.active or counts.deferred or counts.scheduled or counts.bytes)


def named(counts: Mapping[int, SubqueueCounts], subqueues: SubqueueTable) -> dict[str, SubqueueCounts]:
    """The same counts, by the names of the entity's subqueues, without those that were deleted."""
    return {subqueues[number].name: each for number, each in counts.items() if number in subqueues}


def summary_of(
    partition: Partition, clock: Clock, has_garbage: bool = False, need: Need | None = None
) -> Summary:
    """Summarize a partition whose log is about to be closed. Nothing is under way in it."""
    return _summary(partition, clock, has_garbage, need, partition.counting.by_number())


async def summary_in_turns(
    partition: Partition, clock: Clock, slices: Slices, has_garbage: bool = False, need: Need | None = None
) -> Summary:
    """As `summary_of`, in slices: a partition of a topic with a thousand subscriptions takes milliseconds,
    and all partitions of a topic stop or come to rest together. The partition must not change meanwhile.
    With few subqueues it takes no turn: thousands of queues would wait for each other."""
    if len(partition.messages.subqueues) <= SUBQUEUES_PER_STEP:
        return summary_of(partition, clock, has_garbage, need)
    counts: dict[int, SubqueueCounts] = {}

    def steps() -> Iterator[None]:
        nonlocal counts
        counts = yield from partition.counting.by_number_in_steps()

    await slices.run(steps())
    return _summary(partition, clock, has_garbage, need, counts)


def _summary(
    partition: Partition,
    clock: Clock,
    has_garbage: bool,
    need: Need | None,
    counts: Mapping[int, SubqueueCounts],
) -> Summary:
    due_ms = clock.monotonic_ms() if partition.has_more else partition.next_expiry_ms()
    wakes: dict[int, int] = {} if due_ms is None else {Wake.EXPIRY: due_ms + wall_ahead_ms(clock)}
    if (schedule_ms := partition.next_schedule_ms()) is not None:
        wakes[Wake.SCHEDULE] = schedule_ms
    if has_garbage:
        wakes[Wake.GARBAGE] = clock.now_ms()
    return Summary(counts, wakes, need, partition.messages.state_bytes)


EMPTY = Summary({}, {})
EMPTY_NOTE = EMPTY.encode()
