"""Durable state: which messages of other entities were handed over to this partition, so that none is stored
twice. Pure.

`operations/transfers.py` explains sources and numbers. For each source, the state holds the numbers whose
removal there is not known to be durable. A record holds all of them, as they are from then on:

    56 HANDED_OVER   offset  size  field
                          0     2  length s of the source
                          2     2  zero
                          4     4  how many numbers the same commit has enqueued; they are the last ones
                          8     s  source
                          …    8n  numbers

A block of the section "origins" holds the sources whose names have the same checksum modulo BLOCKS: for each,
a 4-byte length and the body of its record. All numbers are little endian.

On a full disk, the numbers that a commit has enqueued are forgotten again. Those that it has stopped keeping
stay forgotten, because they are not needed whatever becomes of the commit.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator, Sequence

from broker.partition.blocks import LENGTH_BYTES, InBlocks, block_by_name, drop_steps, joined, split
from broker.partition.durable_state import NewRecord
from broker.partition.tables import UnreadableRecord, read_table, table
from storage.log import Position, Record

HANDED_OVER = 56
BLOCKS = 1_024
ENTRY_BYTES = 512
"""About the memory that a source takes, without its numbers."""
NUMBER_BYTES = 40
"""The memory that a number takes."""
_HEAD = struct.Struct("<HHI")


class Origins(InBlocks):
    """The numbers of the messages that were handed over to one partition, by source."""

    def __init__(self) -> None:
        super().__init__()
        self.name, self.version = "origins", 1
        self.record_kinds: Collection[int] = (HANDED_OVER,)
        self._numbers: dict[bytes, tuple[int, ...]] = {}
        self.state_bytes = 0
        self._by_block: dict[int, dict[bytes, None]] = {}

    def of(self, source: bytes) -> Sequence[int]:
        """The numbers that are kept of a source."""
        return self._numbers.get(source, ())

    @property
    def sources(self) -> list[bytes]:
        """All sources of which numbers are kept."""
        return list(self._numbers)

    # --- records --------------------------------------------------------------------------------------------

    def apply(self, record: Record, position: Position) -> None:
        """Set the numbers of a source. Raises UnreadableRecord."""
        if record.version != 1:
            raise UnreadableRecord(f"record kind {HANDED_OVER} has version {record.version}")
        source, numbers, _ = _read(bytes(record.body))
        self._changed.touch_blocks((_block_of(source),), position)
        self._set(source, numbers)

    def undo(self, record: Record, position: Position) -> None:
        """Forget the numbers of messages that were refused after all."""
        source, numbers, new = _read(bytes(record.body))
        refused = set(numbers[len(numbers) - new :])
        self._set(source, tuple(each for each in self.of(source) if each not in refused))

    def as_records(self) -> Iterator[NewRecord]:
        """One record for each source."""
        return (handed_over(source, numbers, 0) for source, numbers in self._numbers.items())

    def _set(self, source: bytes, numbers: tuple[int, ...]) -> None:
        before = self._numbers.pop(source, ())
        block = _block_of(source)
        if before:
            self.state_bytes -= ENTRY_BYTES + NUMBER_BYTES * len(before)
        if numbers:
            self._numbers[source] = numbers
            self.state_bytes += ENTRY_BYTES + NUMBER_BYTES * len(numbers)
            self._by_block.setdefault(block, {})[source] = None
        elif before:
            del self._by_block[block][source]
            if not self._by_block[block]:
                del self._by_block[block]

    # --- time -----------------------------------------------------------------------------------------------

    # --- checkpoints ----------------------------------------------------------------------------------------

    def encode(self, block: int) -> bytes:
        """The sources of a block."""
        sources = self._by_block.get(block, ())
        return joined(handed_over(source, self._numbers[source], 0).body for source in sources)

    def decode(self, block: int, data: bytes) -> None:
        """Add the sources of a block. Raises UnreadableRecord."""
        for body in split(data, "origins"):
            source, numbers, _ = _read(body)
            if not numbers or _block_of(source) != block:
                raise UnreadableRecord("a block of origins holds a source that is not in it")
            self._set(source, numbers)

    def cost(self, base: Position | None) -> int:
        """See `Section`."""
        if not self._changed.count_since(base):
            return 0
        return sum(40 + self._size_of(block) for block in self.changed_since(base))

    def _size_of(self, block: int) -> int:
        return sum(
            LENGTH_BYTES + _HEAD.size + len(source) + 8 * len(self._numbers[source])
            for source in self._by_block.get(block, ())
        )

    def drop(self) -> Iterator[None]:
        """Free the memory, in steps."""
        yield from drop_steps(self._by_block, self._numbers)

    def check(self) -> None:
        """Assert that the blocks and the sum agree with the numbers."""
        self._changed.check_blocks(self._by_block.keys())
        assert all(self._numbers.values()), "a source without numbers is not kept"
        assert {source: _block_of(source) for source in self._numbers} == {
            source: block for block, sources in self._by_block.items() for source in sources
        }
        assert self.state_bytes == sum(
            ENTRY_BYTES + NUMBER_BYTES * len(numbers) for numbers in self._numbers.values()
        )
        assert all(self._size_of(block) == len(self.encode(block)) for block in self._by_block)


def handed_over(source: bytes, numbers: Sequence[int], new: int) -> NewRecord:
    """The record that sets the numbers of a source; the last `new` of them belong to messages that the same
    commit enqueues."""
    return NewRecord(HANDED_OVER, _HEAD.pack(len(source), 0, new) + source + table("Q", numbers))


def _read(body: bytes) -> tuple[bytes, tuple[int, ...], int]:
    if len(body) >= _HEAD.size:
        length, _, new = _HEAD.unpack_from(body)
        begin = _HEAD.size + length
        count, rest = divmod(len(body) - begin, 8)
        if count >= new and not rest:
            numbers, _ = read_table("Q", memoryview(body), begin, count)
            return body[_HEAD.size : begin], tuple(numbers), new
    raise UnreadableRecord(f"record kind {HANDED_OVER} has {len(body)} bytes, which do not fit its head")


def _block_of(source: bytes) -> int:
    return block_by_name(source, BLOCKS)
