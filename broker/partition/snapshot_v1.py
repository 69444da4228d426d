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
from collections.abc import Generator, Iterator
from itertools import chain
from operator import attrgetter

from broker.partition._untracked import untrack
from broker.partition.block_content import STEP_BYTES
from broker.partition.columns import NO_COLUMNS, give
from broker.partition.gradual_sort import AT_ONCE
from broker.partition.messages import Messages
from broker.partition.references import Reference, StoredFrame
from broker.partition.replaying import state_of
from broker.partition.subqueue import Subqueue
from broker.partition.tables import UnreadableRecord, check_places, read_table
from storage.log import Position

_MAGIC = b"PbS1"
_HEAD = struct.Struct("<4sIQQII")
_SUBQUEUE = struct.Struct("<II")
_WIDTHS = {"Q": 8, "I": 4, "H": 2}
_ROW_CODES = "QQQIIIIH"
"""The array types of a subqueue's tables, from the sequence numbers to the states."""


class _Table:
    """A table of the state, which is read in parts."""

    __slots__ = ("_begin", "_code", "_view", "count", "end")

    def __init__(self, code: str, view: memoryview, begin: int, count: int) -> None:
        """Raises UnreadableRecord if it does not fit."""
        self._code, self._view, self._begin, self.count = code, view, begin, count
        self.end = begin + count * _WIDTHS[code]
        if self.end > len(view):
            raise UnreadableRecord(f"a table of {count} numbers ends at byte {self.end} of {len(view)}")

    def part(self, start: int) -> array[int]:
        """The next AT_ONCE numbers from this place on."""
        count = min(AT_ONCE, self.count - start)
        return read_table(self._code, self._view, self._begin + start * _WIDTHS[self._code], count)[0]

    def each(self) -> Iterator[int]:
        """All numbers."""
        return chain.from_iterable(map(self.part, range(0, self.count, AT_ONCE)))


class _Rows:
    """The tables of a subqueue's messages."""

    __slots__ = ("_tables", "end")

    def __init__(self, view: memoryview, begin: int, count: int) -> None:
        self._tables: list[_Table] = []
        self.end = begin
        for code in _ROW_CODES:
            self._tables.append(_Table(code, view, self.end, count))
            self.end = self._tables[-1].end

    def part(self, start: int) -> list[array[int]]:
        """The part of each table that begins at this place."""
        return [each.part(start) for each in self._tables]


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
    rows = _Rows(view, end + _SUBQUEUE.size, count)
    changed_places = _Table("I", view, rows.end, changed_count)
    changed_sizes = _Table("I", view, changed_places.end, changed_count)
    end = changed_sizes.end
    numbers: list[array[int]] = []
    for start in range(0, count, AT_ONCE):
        part = rows.part(start)
        numbers.append(part[0])
        _bring_back(subqueue, frames, *part)
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


def _bring_back(
    subqueue: Subqueue,
    frames: list[StoredFrame],
    numbers: array[int],
    enqueued: array[int],
    expiries: array[int],
    places: array[int],
    offsets: array[int],
    sizes: array[int],
    deliveries: array[int],
    states: array[int],
) -> None:
    """Add these messages to their subqueue."""
    check_places(places, len(frames), "frame")
    # Let equal times and sizes share one object each; reading a table creates one per message.
    shared: dict[int, int] = {}
    share = shared.setdefault
    references = list(
        map(
            Reference,
            numbers,
            map(frames.__getitem__, places),
            offsets,
            map(share, sizes, sizes),
            map(share, enqueued, enqueued),
            [share(each, each) or None for each in expiries],
        )
    )
    untrack(references)
    give(references, NO_COLUMNS)
    for reference, delivery_count, state in zip(references, deliveries, states, strict=True):
        reference.frame.live += 1
        if delivery_count:
            reference.delivery_count = delivery_count
        if state:
            reference.state = state_of(state)
    subqueue.bring_back(sorted(references, key=attrgetter("sequence_number")))
