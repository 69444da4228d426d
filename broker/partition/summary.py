"""Summary: what a partition that is closed holds, and when it must be opened again although nobody asks. Pure.

It is the note that the index of partitions keeps (`storage/partition_index.py`). Little endian:

    offset  size  field
         0     1  version, 1
         1     1  how many subqueues follow; those that hold nothing are left out
         2     1  how many times follow
         3     1  zero
    then for each subqueue:
         0     1  number
         1     8  messages ready for delivery
         9     8  deferred messages
        17     8  scheduled messages
        25     8  bytes
    then for each time:
         0     1  why (`Wake`)
         1     8  when, in wall time

*Something new that must happen on time* (a schedule, an idle entity's deletion, messages to forward) adds a member to `Wake` and gives its
earliest time in `summary_of`. Nothing else is needed: `broker/resting.py` opens the partition at that time, and the partition's own
timer does the rest. A release that does not know a reason opens the partition all the same.
"""

from __future__ import annotations

import enum
import functools
import struct
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from broker.clock import Clock, wall_ahead_ms
from broker.operations import SubqueueCounts
from broker.partition.messages import SUBQUEUES
from broker.partition.state import Partition

VERSION = 1
_HEAD = struct.Struct("<BBBB")
_SUBQUEUE = struct.Struct("<BQQQQ")
_TIME = struct.Struct("<BQ")
_COUNTS = struct.Struct("<QQQQ")
_ONE_SUBQUEUE, _MAIN = bytes([VERSION, 1]), b"\0"
_ONE_BYTES = _HEAD.size + _SUBQUEUE.size


class Wake(enum.IntEnum):
    """Why a partition must be opened at a time."""

    EXPIRY = 1
    """The time to live of a message ends."""
    GARBAGE = 2
    """The log takes more room than it needs."""


class Summary(NamedTuple):
    """What a partition holds, and its next appointments."""

    counts: Mapping[str, SubqueueCounts]
    """By subqueue; one that holds nothing may be missing."""
    wakes: Mapping[int, int]
    """By reason: the earliest time, in wall time (ms)."""

    @property
    def wake_at_ms(self) -> int | None:
        """When the partition must be open; None if nothing is to happen."""
        return min(self.wakes.values(), default=None)

    def encode(self) -> bytes:
        """The note."""
        subqueues = [(number, self.counts[name]) for number, name in enumerate(SUBQUEUES) if _holds(self.counts.get(name))]
        parts = [_HEAD.pack(VERSION, len(subqueues), len(self.wakes), 0)]
        parts += [_SUBQUEUE.pack(number, each.active, each.deferred, each.scheduled, each.bytes) for number, each in subqueues]
        parts += [_TIME.pack(reason, max(0, at_ms)) for reason, at_ms in sorted(self.wakes.items())]
        return b"".join(parts)


def is_readable(note: bytes) -> bool:
    """Whether this release understands the note: if not, only the log knows."""
    if len(note) < _HEAD.size or note[0] != VERSION or len(note) != _HEAD.size + note[1] * _SUBQUEUE.size + note[2] * _TIME.size:
        return False
    return not note[1] or max(note[_HEAD.size : _times_at(note) : _SUBQUEUE.size]) < len(SUBQUEUES)


def wake_at_ms(note: bytes) -> int | None:
    """`Summary.wake_at_ms` of a readable note."""
    return min((at_ms for _, at_ms in _TIME.iter_unpack(note[_times_at(note) :])), default=None) if note[2] else None


def add_counts(total: dict[str, SubqueueCounts], note: bytes) -> None:
    """Add what a readable note says."""
    for at in range(_HEAD.size, _times_at(note), _SUBQUEUE.size):
        number, active, deferred, scheduled, size = _SUBQUEUE.unpack_from(note, at)
        sum_ = total.get(SUBQUEUES[number])
        if sum_ is None:
            sum_ = total[SUBQUEUES[number]] = SubqueueCounts()
        sum_.active += active
        sum_.deferred += deferred
        sum_.scheduled += scheduled
        sum_.bytes += size


def total_of(notes: Sequence[bytes]) -> dict[str, SubqueueCounts]:
    """What several notes say together; notes that are not readable say nothing."""
    if len(notes) > 1 and _holds_main_only(notes[0]) and len(set(map(len, notes))) == 1:
        fields = _several(len(notes), len(notes[0])).unpack(b"".join(notes))  # takes half as long as one by one
        heads = fields[::5]
        if heads.count(heads[0]) == len(notes):
            return {SUBQUEUES[0]: SubqueueCounts(sum(fields[1::5]), 0, sum(fields[2::5]), sum(fields[3::5]), sum(fields[4::5]))}
    total: dict[str, SubqueueCounts] = {}
    active = deferred = scheduled = size = 0
    for note in notes:
        if _holds_main_only(note):  # as most of them do
            of_note = _COUNTS.unpack_from(note, _HEAD.size + 1)
            active += of_note[0]
            deferred += of_note[1]
            scheduled += of_note[2]
            size += of_note[3]
        elif note != EMPTY_NOTE and is_readable(note):
            add_counts(total, note)
    if active or deferred or scheduled or size:
        main = total.setdefault(SUBQUEUES[0], SubqueueCounts())
        main.active += active
        main.deferred += deferred
        main.scheduled += scheduled
        main.bytes += size
    return total


def _holds_main_only(note: bytes) -> bool:
    """Whether it is readable, and only the main subqueue holds something."""
    return note[:2] == _ONE_SUBQUEUE and note[4:5] == _MAIN and len(note) == _ONE_BYTES + _TIME.size * note[2]


@functools.lru_cache(256)
def _several(count: int, length: int) -> struct.Struct:
    """Several notes of one length, each with one subqueue: for each its head and the subqueue's number, and the four counts."""
    return struct.Struct("<" + f"{_HEAD.size + 1}sQQQQ{length - _ONE_BYTES}x" * count)


def decode(note: bytes) -> Summary | None:
    """The inverse of `Summary.encode`; None for a note that is not readable."""
    if not is_readable(note):
        return None
    counts: dict[str, SubqueueCounts] = {}
    add_counts(counts, note)
    return Summary(counts, dict(_TIME.iter_unpack(note[_times_at(note) :])))


def _times_at(note: bytes) -> int:
    return _HEAD.size + note[1] * _SUBQUEUE.size


def _holds(counts: SubqueueCounts | None) -> bool:
    return counts is not None and bool(counts.active or counts.deferred or counts.scheduled or counts.bytes)


def summary_of(partition: Partition, clock: Clock, has_garbage: bool = False) -> Summary:
    """The note for a partition whose log is about to be closed. Nothing is under way in it."""
    # A locked message whose time to live is over expires with its lock, so the end of a lock is an appointment, too.
    due_ms = clock.monotonic_ms() if partition.has_more else partition.next_due_ms()
    wakes: dict[int, int] = {} if due_ms is None else {Wake.EXPIRY: due_ms + wall_ahead_ms(clock)}
    if has_garbage:
        wakes[Wake.GARBAGE] = clock.now_ms()
    return Summary(partition.counts(), wakes)


EMPTY = Summary({}, {})
EMPTY_NOTE = EMPTY.encode()
