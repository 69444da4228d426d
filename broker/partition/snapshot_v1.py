"""Checkpoint format version 1: all references of a partition in one piece. Decodes only; pure.

Releases before blocks (`snapshot.py`) wrote this format, and it is still read so that their data folders can
be opened. Tables are as in `records.py`, little endian.

    offset  size  field
         0     4  magic "PbS1"
         4     4  frames f
         8     8  next sequence number
        16     8  latest enqueued time
        24     4  subqueues
        28     4  zero
        32    8f  positions of the frames that hold messages, ascending
    then for each subqueue:
         0     4  messages n
         4     4  messages with changed properties c
         8    8n  sequence numbers, ascending
         …    8n  enqueued at
         …    8n  expiries, 0 for never
         …    4n  frames, by index in the table above
         …    4n  offsets in the frame
         …    4n  sizes
         …    4n  delivery counts
         …    2n  states
         …    4c  indices of the messages with changed properties
         …    4c  sizes of the changed properties
         …     …  changed properties, concatenated
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Generator, Iterator, Sequence
from itertools import chain
from operator import attrgetter

from broker.partition._untracked import untrack
from broker.partition.block_content import STEP_BYTES
from broker.partition.gradual_sort import AT_ONCE
from broker.partition.messages import Messages
from broker.partition.reference_rows import Rows, references_of
from broker.partition.references import StoredFrame
from broker.partition.subqueue import Subqueue
from broker.partition.tables import UnreadableRecord, check_places, end_of_table, read_table
from storage.log import Position

_MAGIC = b"PbS1"
_HEAD = struct.Struct("<4sIQQII")
_SUBQUEUE = struct.Struct("<II")
_ROW_CODES = "QQQIIIIH"
"""The array types of a subqueue's tables, from the sequence numbers to the states."""


class _Table:
    """A table of the state, which is read in parts."""

    __slots__ = ("_begin", "_code", "_view", "_width", "count", "end")

    def __init__(self, code: str, view: memoryview, begin: int, count: int) -> None:
        """Raises UnreadableRecord if it does not fit."""
        self._code, self._view, self._begin, self.count = code, view, begin, count
        self._width = array(code).itemsize
        self.end = end_of_table(self._width, view, begin, count)

    def part(self, start: int) -> array[int]:
        """The next AT_ONCE numbers from this place on."""
        count = min(AT_ONCE, self.count - start)
        return read_table(self._code, self._view, self._begin + start * self._width, count)[0]

    def each(self) -> Iterator[int]:
        """All numbers."""
        return chain.from_iterable(map(self.part, range(0, self.count, AT_ONCE)))


class _SubqueueTables:
    """The tables of a subqueue's messages, whose places are those of all frames of the checkpoint."""

    __slots__ = ("_tables", "end")

    def __init__(self, view: memoryview, begin: int, count: int) -> None:
        self._tables: list[_Table] = []
        self.end = begin
        for code in _ROW_CODES:
            self._tables.append(_Table(code, view, self.end, count))
            self.end = self._tables[-1].end

    def part(self, start: int) -> Rows:
        """The rows from this place on."""
        return Rows(*[each.part(start) for each in self._tables])


def load(messages: Messages, state: bytes) -> Iterator[None]:
    """Restore the durable state into new `Messages`, in steps. The caller must then run `finish_steps`.
    Raises UnreadableRecord."""
    view = memoryview(state)
    if len(view) < _HEAD.size or view[:4] != _MAGIC:
        raise UnreadableRecord("a checkpoint does not begin as one of this release")
    _, frame_count, messages.next_number, messages.latest_enqueued_ms, subqueue_count, _ = _HEAD.unpack_from(
        view
    )
    positions = _Table("Q", view, _HEAD.size, frame_count)
    frames: list[StoredFrame] = []
    for start in range(0, frame_count, AT_ONCE):
        part = [StoredFrame(Position(position)) for position in positions.part(start)]
        untrack(part)
        frames += part
        yield
    end = positions.end
    for subqueue in map(messages.subqueues.__getitem__, range(subqueue_count)):
        end = yield from _load_subqueue(subqueue, frames, view, end)
    if end != len(view):
        raise UnreadableRecord(f"a checkpoint has {len(view)} bytes, but its tables need {end}")
    for start in range(0, frame_count, AT_ONCE):
        messages.adopt_frames(frames[start : start + AT_ONCE])
        yield


def _load_subqueue(
    subqueue: Subqueue, frames: list[StoredFrame], view: memoryview, end: int
) -> Generator[None, None, int]:
    if end + _SUBQUEUE.size > len(view):
        raise UnreadableRecord(
            f"a checkpoint ends at byte {len(view)}, before its subqueue {subqueue.number}"
        )
    count, changed_count = _SUBQUEUE.unpack_from(view, end)
    tables = _SubqueueTables(view, end + _SUBQUEUE.size, count)
    changed_places = _Table("I", view, tables.end, changed_count)
    changed_sizes = _Table("I", view, changed_places.end, changed_count)
    end = changed_sizes.end
    numbers: list[Sequence[int]] = []
    for start in range(0, count, AT_ONCE):
        rows = tables.part(start)
        numbers.append(rows.numbers)
        check_places(rows.places, len(frames), "frame")
        subqueue.bring_back(sorted(references_of(rows, frames), key=attrgetter("sequence_number")))
        yield
    given = given_bytes = 0
    for place, size in zip(changed_places.each(), changed_sizes.each(), strict=True):
        check_places((place,), count, "message")
        number = numbers[place // AT_ONCE][place % AT_ONCE]
        subqueue.replace_changed(subqueue.references[number], bytes(view[end : end + size]))
        end += size
        given, given_bytes = given + 1, given_bytes + size
        if given == AT_ONCE or given_bytes >= STEP_BYTES:
            given = given_bytes = 0
            yield
    return end
