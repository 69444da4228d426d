"""The contents of a partition's checkpoints: sections, each divided into blocks. Encodes and decodes; pure.

A *section* is one kind of durable state: the counters, the messages, and those that `durable_state.py` lists.
It knows which of its blocks have changed since a position in the log (`changed_since`), encodes and decodes
blocks, and says from which position on it needs the log even with a checkpoint (`needed_from`). The log is
trimmed up to the lowest of these positions, but never above the older of two checkpoints. So the records
behind a block may be trimmed once two checkpoints hold it.

    section      blocks                                               needs the log from
    "counters"   one: next sequence number, latest enqueued time      nowhere
    "messages"   the messages of each subqueue, by runs of 1,024      the oldest frame that holds a message,
                 sequence numbers (`blocks.py`)                       because bodies are in the log

Tables are as in `records.py`, little endian.

    counters, version 1                          messages, version 1
    offset  size  field                          offset  size  field
         0     8  next sequence number                0     2  messages n
         8     8  latest enqueued time                2     2  flags: 1 = expiries, 2 = delivery counts,
                                                               4 = states, 8 = a column part,
                                                               16 = renumbered messages follow,
                                                               32 = packed,
                                                               64 = changed properties at the end
                                                      4     2  frames f
                                                      6     2  messages with changed properties c
                                                      8    8f  positions of the frames that hold the messages
                                                      …    8n  enqueued at
                                                      …    8n  expiries, 0 for never
                                                      …    4n  offsets in the frame
                                                      …    4n  sizes
                                                      …    4n  delivery counts
                                                      …    4c  sizes of the changed properties
                                                               (without flag 64)
                                                      …    2n  sequence numbers, relative to the block,
                                                               ascending
                                                      …    2n  frames, by index in the table above
                                                      …    2n  states
                                                      …    2c  indices of the messages with changed
                                                               properties
                                                      …     …  changed properties, concatenated
                                                               (without flag 64)
                                                      …     …  column part (`columns.py`)
                                                      …     2  renumbered messages r (`renumbered.py`)
                                                      …    2r  their indices

With flag 64, messages with the same changed properties share them; blocks with changed properties are always
written with it now. Directly after these first 8 bytes come 4 bytes with the size of all tables; if they are
packed, their packed size. The last tables are: 2 bytes with the number of different changed properties d, for
each message that has some the index of its own among them (2c), and the sizes of the different ones (4d).
These themselves follow the tables, concatenated, and are never packed.

In the blocks of a topic's subscriptions, the tables (without flag 64, everything after these first 8 bytes)
are packed (zlib), and those of 8-byte numbers, of offsets, of sequence numbers and of frames hold
differences: each number less the one before it. Every subscription lists the same messages, so unpacked the
checkpoints of a topic with dozens of subscriptions would take several times the space of its messages. Most
differences are equal, and a message takes less than a byte instead of 20.
"""

from __future__ import annotations

import struct
import zlib
from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, islice, pairwise
from operator import attrgetter
from typing import NamedTuple

from broker.entities.roles import OWN_END
from broker.partition import columns, snapshot_v1
from broker.partition._untracked import untrack
from broker.partition.block_content import STEP_BYTES, Content, content_of, unpacked
from broker.partition.blocks import BLOCK_MESSAGES, Blocks, place_of
from broker.partition.chunked_table import ChunkedTable
from broker.partition.columns import NO_COLUMNS
from broker.partition.durable_state import InLargeBlocks, Section
from broker.partition.gradual_sort import sort_gradually
from broker.partition.messages import Messages
from broker.partition.records import read_columns
from broker.partition.reference_rows import Rows, references_of
from broker.partition.references import Reference, StoredFrame
from broker.partition.subqueue import Subqueue
from broker.partition.tables import UnreadableRecord, check_places, read_table, table
from storage.log import Block, Checkpoint, Position, whole
from storage.log import Section as StoredSection

_COUNTERS = struct.Struct("<QQ")
_MESSAGES = struct.Struct("<HHHH")
_HAS_EXPIRIES, _HAS_DELIVERY_COUNTS, _HAS_STATES, _HAS_COLUMNS, _HAS_RENUMBERED = 1, 2, 4, 8, 16
_IS_PACKED, _HAS_SHARED = 32, 64
_PACKING_LEVEL = 1
_PACKED_BYTES_AT_FIRST = 4
"""What a message of a packed block is taken to need before any was packed."""
_MEASURED_MAX = 64 * BLOCK_MESSAGES
"""With as many messages measured, the older half of them counts half."""
_COUNT_BYTES = 2
"""The count before the renumbered messages, and before the different changed properties."""
_TABLES_BYTES = struct.Struct("<I")
_ROW_BYTES_MAX = 3 * 8 + 4 * 4 + 5 * 2 + columns.MESSAGE_BYTES
"""The most that a message takes: a row of each table, and a frame of its own."""
_TABLE_ROW_BYTES = 40
"""What a block takes in the table of all blocks."""


def _differences(code: str, values: Sequence[int]) -> bytes:
    """Encode numbers as a table of differences: each number less the one before it, modulo the table's
    width."""
    mask = (1 << 8 * array(code).itemsize) - 1
    return table(code, [each - before & mask for before, each in pairwise((0, *values))])


def _read_differences(code: str, view: memoryview, offset: int, count: int) -> tuple[array[int], int]:
    """Decode what `_differences` has encoded; also returns the offset after it. Raises UnreadableRecord."""
    numbers, end = read_table(code, view, offset, count)
    mask = (1 << 8 * numbers.itemsize) - 1
    return array(code, accumulate(numbers, lambda total, each: total + each & mask)), end


class _Tables(NamedTuple):
    """The tables at the front of a block."""

    rows: Rows
    """Their numbers are relative to the block."""
    positions: Sequence[int]
    """Of the frames."""
    changed_sizes: Sequence[int]
    changed_places: Sequence[int]
    """Of the messages with changed properties, among the rows."""


def _read_tables(content: Content, flags: int, count: int, frames: int, changed: int) -> _Tables:
    """Read the tables at the front of a block. Raises UnreadableRecord."""
    expiries = count if flags & _HAS_EXPIRIES else 0
    deliveries = count if flags & _HAS_DELIVERY_COUNTS else 0
    states = count if flags & _HAS_STATES else 0
    own_sizes = 0 if flags & _HAS_SHARED else changed
    read_ascending = _read_differences if flags & _IS_PACKED else read_table
    size = 8 * (frames + count + expiries) + 4 * (2 * count + deliveries + own_sizes)
    view = memoryview(content.take(size + 2 * (2 * count + states + changed)))
    positions, end = read_ascending("Q", view, 0, frames)
    enqueued, end = read_ascending("Q", view, end, count)
    ends, end = read_ascending("Q", view, end, expiries)
    offsets, end = read_ascending("I", view, end, count)
    sizes, end = read_table("I", view, end, count)
    delivery_counts, end = read_table("I", view, end, deliveries)
    changed_sizes, end = read_table("I", view, end, own_sizes)
    numbers, end = read_ascending("H", view, end, count)
    places, end = read_ascending("H", view, end, count)
    state_numbers, end = read_table("H", view, end, states)
    changed_places, end = read_table("H", view, end, changed)
    assert end == len(view), "the tables have the sizes that were taken"
    check_places(places, frames, "frame")
    check_places(changed_places, count, "message")
    rows = Rows(numbers, enqueued, ends, places, offsets, sizes, delivery_counts, state_numbers)
    return _Tables(rows, positions, changed_sizes, changed_places)


def _read_shared(view: memoryview, offset: int, messages: int) -> tuple[Sequence[int], Sequence[int], int]:
    """Which of the different changed properties each of these messages has, and the sizes of the different
    ones; also returns the offset after the tables. Raises UnreadableRecord."""
    (count,), end = read_table("H", view, offset, 1)
    places, end = read_table("H", view, end, messages)
    sizes, end = read_table("I", view, end, count)
    check_places(places, count, "set of changed properties")
    return places, sizes, end


class Taking:
    """A snapshot being taken, one block at a time. No record may be applied to the state until it is
    finished."""

    def __init__(
        self, changed: Sequence[tuple[Section, Sequence[int]]], earlier: Taking | None = None
    ) -> None:
        """`changed` lists the blocks to take. `earlier` is a finished snapshot of this same state; its blocks
        are not encoded again."""
        self._changed = changed
        self._blocks: list[dict[int, Block]] = [{} for _ in changed]
        self._earlier = [{} for _ in changed] if earlier is None else earlier._blocks

    def steps(self) -> Iterator[None]:
        """Take the snapshot. A step takes about half a millisecond."""
        for (section, numbers), blocks, encoded in zip(
            self._changed, self._blocks, self._earlier, strict=True
        ):
            for number in numbers:
                data = encoded.get(number)
                if data is None:
                    data = section.encode(number)
                    yield
                blocks[number] = data

    def checkpoint(self, position: Position) -> Checkpoint:
        """The snapshot as a checkpoint at `position`, the log's end."""
        taken = zip(self._changed, self._blocks, strict=True)
        return Checkpoint(
            position,
            tuple(StoredSection(section.name, section.version, blocks) for (section, _), blocks in taken),
        )


class Snapshot:
    """All sections of one partition, and operations on all of them."""

    def __init__(self, messages: Messages) -> None:
        self._messages = messages
        counters, self._stored_messages = _CountersSection(messages), _MessagesSection(messages)
        self._sections: tuple[Section, ...] = counters, self._stored_messages, *messages.states.all

    def take(self, base: Position | None, earlier: Taking | None = None) -> Taking:
        """Begin a snapshot of everything that has changed since `base`; of everything if None. `earlier` is a
        finished one, if no record was applied to the state since it began."""
        return Taking([(section, section.changed_since(base)) for section in self._sections], earlier)

    def saved(self, checkpoint: Checkpoint) -> None:
        """This checkpoint is durable. The state may have changed since it was taken."""
        for section, stored in zip(self._sections, checkpoint.sections, strict=True):
            gone = {block for block, data in stored.blocks.items() if not data}
            section.saved(list(gone.difference(section.changed_since(checkpoint.position)) if gone else ()))

    def cost(self, base: Position | None) -> int:
        """Estimate how many bytes a checkpoint that builds on `base` takes; never too low, except that the
        messages of subscriptions count as they were measured lately, because their blocks are packed."""
        return sum(section.cost(base) for section in self._sections)

    def size(self) -> int:
        """Estimate how many bytes a checkpoint of everything takes, from what messages took lately."""
        return self._stored_messages.size() + sum(
            [each.cost(None) for each in self._sections if each is not self._stored_messages]
        )

    def needed_from(self) -> Position | None:
        """The lowest log position that any section needs even with checkpoints; None if the log may be
        trimmed to its end."""
        return min(
            (needed for section in self._sections if (needed := section.needed_from()) is not None),
            default=None,
        )

    def load_steps(self, checkpoint: Checkpoint) -> Iterator[None]:
        """Restore the state, or one part of it, into new `Messages`, one block at most per step, and less of
        a large one. Once all parts are loaded, the caller must run `loaded_steps`, and then
        `Messages.finish_steps`.

        Raises UnreadableRecord.
        """
        if [section.name for section in checkpoint.sections] == [""]:
            yield from self._load_v1(checkpoint)
            return
        own = {section.name: section for section in self._sections}
        for stored in checkpoint.sections:
            section = own.get(stored.name)
            if section is None or section.version != stored.version:
                raise UnreadableRecord(
                    f"a checkpoint holds '{stored.name}' in version {stored.version}, which is unknown "
                    "to this release"
                )
            for block in sorted(stored.blocks):
                data = stored.blocks[block]
                if isinstance(section, InLargeBlocks):
                    yield from section.decode_steps(block, content_of(data))
                else:
                    section.decode(block, whole(data))
                yield

    def loaded_steps(self, checkpoint: Checkpoint) -> Iterator[None]:
        """Finish loading a checkpoint, once all parts of it were loaded."""
        own = {section.name: section for section in self._sections}
        for stored in checkpoint.sections:
            if stored.name:
                yield from own[stored.name].decoded(stored.taken)

    def drop(self) -> Iterator[None]:
        """Free what was kept of a checkpoint that was not read to its end, in steps. This object is no longer
        used."""
        return self._stored_messages.drop_frames()

    def _load_v1(self, checkpoint: Checkpoint) -> Iterator[None]:
        messages = self._messages
        yield from snapshot_v1.load(messages, whole(checkpoint.sections[0].blocks[0]))
        for subqueue in messages.subqueues:
            numbers = iter(subqueue.references)
            while part := list(islice(numbers, BLOCK_MESSAGES)):
                messages.blocks.touch(subqueue.number, part, Position(0))
                yield


class _CountersSection:
    """The partition's counters, written with every checkpoint."""

    name = "counters"
    version = 1

    def __init__(self, messages: Messages) -> None:
        self._messages = messages

    def changed_since(self, base: Position | None) -> Sequence[int]:
        return (0,)

    def encode(self, block: int) -> bytes:
        return _COUNTERS.pack(self._messages.next_number, self._messages.latest_enqueued_ms)

    def decode(self, block: int, data: bytes) -> None:
        if block or len(data) != _COUNTERS.size:
            raise UnreadableRecord(f"a checkpoint's counters have {len(data)} bytes in block {block}")
        self._messages.next_number, self._messages.latest_enqueued_ms = _COUNTERS.unpack(data)

    def decoded(self, taken: Mapping[int, Position]) -> Iterator[None]:
        return iter(())

    def saved(self, gone: Sequence[int]) -> None:
        pass

    def cost(self, base: Position | None) -> int:
        return _COUNTERS.size + _TABLE_ROW_BYTES

    def needed_from(self) -> Position | None:
        return None


class _MessagesSection(InLargeBlocks):
    """The references of all subqueues."""

    name = "messages"
    version = 1

    def __init__(self, messages: Messages) -> None:
        self._messages = messages
        self._blocks: Blocks = messages.blocks
        self._frames: ChunkedTable[StoredFrame] = ChunkedTable()
        """Frames by position, while blocks are being read. There may be one for each message."""
        self._packed = _Measured(_PACKED_BYTES_AT_FIRST)
        self._unpacked = _Measured(_ROW_BYTES_MAX)
        """What the messages of either kind of block took lately."""

    def changed_since(self, base: Position | None) -> Sequence[int]:
        return self._blocks.changed_since(base)

    def encode(self, block: int) -> Block:
        subqueue, first = place_of(block)
        first |= self._messages.first_number
        known = self._messages.subqueues[subqueue].references
        references = list(filter(None, known.get_each(range(first, first + BLOCK_MESSAGES))))
        if not references:
            return b""
        places = {
            frame: place for place, frame in enumerate(dict.fromkeys([each.frame for each in references]))
        }
        changed = [(place, each.changed) for place, each in enumerate(references) if each.changed is not None]
        different = {value: place for place, value in enumerate(dict.fromkeys([each for _, each in changed]))}
        expiries = [each.expires_at_ms or 0 for each in references]
        deliveries = [each.delivery_count for each in references]
        states = [each.state for each in references]
        column_part = columns.encode(columns.of_references(references))
        renumbered = self._messages.renumbered
        places_of_renumbered = (
            [place for place, each in enumerate(references) if renumbered.has(each)] if renumbered else []
        )
        flags = (
            (any(expiries) and _HAS_EXPIRIES)
            | (any(deliveries) and _HAS_DELIVERY_COUNTS)
            | (any(states) and _HAS_STATES)
            | (_HAS_COLUMNS if column_part else 0)
            | (_HAS_RENUMBERED if places_of_renumbered else 0)
            | (_IS_PACKED if subqueue >= OWN_END else 0)
            | (_HAS_SHARED if changed else 0)
        )
        ascending = _differences if flags & _IS_PACKED else table
        head = _MESSAGES.pack(len(references), flags, len(places), len(changed))
        tables = b"".join(
            [
                ascending("Q", [frame.position for frame in places]),
                ascending("Q", [each.enqueued_at_ms for each in references]),
                ascending("Q", expiries) if flags & _HAS_EXPIRIES else b"",
                ascending("I", [each.offset for each in references]),
                table("I", [each.size for each in references]),
                table("I", deliveries) if flags & _HAS_DELIVERY_COUNTS else b"",
                ascending("H", [each.sequence_number - first for each in references]),
                ascending("H", [places[each.frame] for each in references]),
                table("H", states) if flags & _HAS_STATES else b"",
                table("H", [place for place, _ in changed]),
                column_part,
                table("H", [len(places_of_renumbered)] if places_of_renumbered else ()),
                table("H", places_of_renumbered),
                table("H", [len(different)] if changed else ()),
                table("H", [different[each] for _, each in changed]),
                table("I", map(len, different)),
            ]
        )
        if flags & _IS_PACKED:
            tables = zlib.compress(tables, _PACKING_LEVEL)
        measured = self._packed if flags & _IS_PACKED else self._unpacked
        measured.add(len(head) + len(tables), len(references))
        if changed:  # which are not copied: there may be 64 MiB of them in a block
            return head + _TABLES_BYTES.pack(len(tables)) + tables, *different
        return head + tables

    def decode_steps(self, block: int, content: Content) -> Iterator[None]:
        """See `InLargeBlocks`."""
        number, first = place_of(block)
        count, flags, frame_count, changed_count = _MESSAGES.unpack(content.take(_MESSAGES.size))
        inner = content
        if flags & _HAS_SHARED:
            inner = content_of(content.take(*_TABLES_BYTES.unpack(content.take(_TABLES_BYTES.size))))
        if flags & _IS_PACKED:
            inner = unpacked(inner)
        tables = _read_tables(inner, flags, count, frame_count, changed_count)
        own: deque[bytes] = deque()
        size = 0
        for each in tables.changed_sizes:
            own.append(inner.take(each))
            size += each
            if size >= STEP_BYTES:
                size = 0
                yield
        view, at = memoryview(b"".join(inner.rest())), 0
        column_lists = NO_COLUMNS
        if flags & _HAS_COLUMNS:
            column_lists, at = read_columns(view, at, count)
        renumbered: Sequence[int] = ()
        if flags & _HAS_RENUMBERED:
            (renumbered_count,), at = read_table("H", view, at, 1)
            renumbered, at = read_table("H", view, at, renumbered_count)
            check_places(renumbered, count, "message")
        which: Sequence[int] = range(changed_count)
        values: Iterator[bytes] = iter(own.popleft, None)
        if flags & _HAS_SHARED:
            which, sizes, at = _read_shared(view, at, changed_count)
            values = map(content.take, sizes)
        if at != len(view):
            raise UnreadableRecord(f"{len(view) - at} bytes follow the tables of a checkpoint's block")
        frames = [self._frame(position) for position in tables.positions]
        untrack(frames)
        first |= self._messages.first_number
        references = references_of(tables.rows, frames, first, column_lists)
        for place in renumbered:
            self._messages.renumbered.add(references[place])
        changed = zip(tables.changed_places, which, strict=True)
        yield from _bring_back(self._messages.subqueues[number], references, changed, values)
        if not content.is_at_end():
            raise UnreadableRecord("bytes follow the changed properties of a checkpoint's block")
        if number >= OWN_END:
            self._messages.bodies.found(references)

    def _frame(self, position: int) -> StoredFrame:
        frame = self._frames.get(position)
        if frame is None:
            frame = self._frames[position] = StoredFrame(Position(position))
        return frame

    def decoded(self, taken: Mapping[int, Position]) -> Iterator[None]:
        for part in sort_gradually(self._frames.values(), attrgetter("position")):
            self._messages.adopt_frames(part)
            yield
        yield from self.drop_frames()
        yield from self._blocks.adopt(taken)

    def drop_frames(self) -> Iterator[None]:
        """Forget the frames that were read, in steps."""
        while self._frames.pop_some(BLOCK_MESSAGES):
            yield

    def saved(self, gone: Sequence[int]) -> None:
        self._blocks.forget(gone)

    def cost(self, base: Position | None) -> int:
        blocks, changed = len(self._blocks), self._blocks.count_since(base)
        heads = changed * (_MESSAGES.size + columns.PART_BYTES + _COUNT_BYTES)
        count, own = self._messages.count, self._messages.own_count
        rows = min(changed * BLOCK_MESSAGES, own) * _ROW_BYTES_MAX + heads
        if count > own:
            rows += self._packed.size_of(min(changed * BLOCK_MESSAGES, count - own))
        properties = self._properties_in(changed) + (self._messages.work.column_bytes if changed else 0)
        return rows + properties + blocks * _TABLE_ROW_BYTES

    def size(self) -> int:
        """What all blocks take, about."""
        messages = self._messages
        rows = self._unpacked.size_of(messages.own_count)
        rows += self._packed.size_of(messages.count - messages.own_count)
        return rows + self._properties_in(len(self._blocks)) + len(self._blocks) * _TABLE_ROW_BYTES

    def _properties_in(self, blocks: int) -> int:
        """The most that changed properties take in some blocks: each of them once in every block."""
        work = self._messages.work
        return min(work.changed_bytes, work.properties.memory_bytes * blocks)

    def needed_from(self) -> Position | None:
        return self._messages.first_live()


def _bring_back(
    subqueue: Subqueue,
    references: Sequence[Reference],
    changed: Iterable[tuple[int, int]],
    values: Iterator[bytes],
) -> Iterator[None]:
    """Add the messages of a block to a subqueue, in steps. `changed` has the place of each message with
    changed properties, ascending, and which of the values these are."""
    begin, size = 0, 0
    known: list[bytes] = []
    for place, which in changed:
        if place < begin:
            raise UnreadableRecord("a block of a checkpoint has changed properties out of order")
        while len(known) <= which:
            known.append(next(values))
            size += len(known[-1])
        references[place].changed = known[which]
        if size >= STEP_BYTES:
            subqueue.bring_back(references[begin : place + 1])
            begin, size = place + 1, 0
            yield
    subqueue.bring_back(references[begin:])


class _Measured:
    """What messages have taken lately."""

    __slots__ = ("_bytes", "_count")

    def __init__(self, at_first: int) -> None:
        """`at_first` is what one is taken to need before any was measured."""
        self._bytes, self._count = at_first, 1

    def add(self, size: int, count: int) -> None:
        """So many messages took this many bytes."""
        self._bytes, self._count = self._bytes + size, self._count + count
        if self._count > _MEASURED_MAX:
            self._bytes, self._count = self._bytes // 2, self._count // 2

    def size_of(self, count: int) -> int:
        """What so many messages take, about."""
        return count * self._bytes // self._count
