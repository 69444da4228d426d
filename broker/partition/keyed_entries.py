"""What kinds of durable state have in common that keep an entry for each key, such as a cursor for each name.
Pure.

A record sets the entry of a key, or removes it. A block of the section holds the entries whose keys have the
same checksum modulo BLOCKS: for each, a 4-byte length and the body of its record. An entry may last for a
certain time; it is then forgotten without a record. Records have its end in wall time. While the process
runs, setting the clock ends no entry early and keeps none longer.
"""

from __future__ import annotations

import heapq
from abc import abstractmethod
from collections.abc import Collection, Iterator
from typing import Generic, TypeVar

from broker.partition.blocks import LENGTH_BYTES, InBlocks, block_by_name, drop_steps, joined, split
from broker.partition.durable_state import Ending, NewRecord
from broker.partition.tables import UnreadableRecord
from storage.log import Position, Record

BLOCKS = 256
ENTRY_BYTES = 768
"""The memory that an entry takes besides the bytes of its record, about."""
EXPIRED_AT_ONCE = 1_024
"""Entries that one call forgets: less than a millisecond. The others stay due."""

Key = tuple[int, bytes]
"""The number of a subqueue, and a name."""
E = TypeVar("E")


class KeyedEntries(InBlocks, Ending, Generic[E]):
    """The entries of one kind, in one partition."""

    name: str
    record_kind: int
    version = 1

    def __init__(self) -> None:
        super().__init__()
        self.record_kinds: Collection[int] = (self.record_kind,)
        self.entries: dict[Key, E] = {}
        self.state_bytes = 0
        self._by_block: dict[int, dict[Key, int]] = {}
        """The keys of each block, with the sizes of their records."""
        self._due: dict[Key, int] = {}
        """When entries end, in the wall time of now: as their records say, and as the clock was set since."""
        self.ends: list[tuple[int, Key]] = []
        """A heap of these times, with those of entries replaced since."""

    @abstractmethod
    def record_of(self, key: Key, entry: E | None) -> NewRecord:
        """The record that sets an entry; None removes it."""

    @abstractmethod
    def _read(self, body: bytes) -> tuple[Key, E | None]:
        """Read the body of a record. Raises UnreadableRecord."""

    @abstractmethod
    def _ends_at_ms(self, entry: E) -> int | None:
        """When an entry that is set now is forgotten, in wall time; None if it is not."""

    # --- records --------------------------------------------------------------------------------------------

    def apply(self, record: Record, position: Position) -> None:
        """Set or remove an entry. Raises UnreadableRecord."""
        if record.version != 1:
            raise UnreadableRecord(f"record kind {record.kind} has version {record.version}")
        key, entry = self._read(bytes(record.body))
        self._changed.touch_blocks((_block_of(key),), position)
        self._set(key, entry)

    def undo(self, record: Record, position: Position) -> None:
        """Never called, unless entries belong to sends."""
        raise AssertionError(f"a record of kind {record.kind} does not belong to a send")

    def key_of(self, record: Record) -> Key:
        """The key whose entry a record sets or removes. Raises UnreadableRecord."""
        return self._read(bytes(record.body))[0]

    def as_records(self) -> Iterator[NewRecord]:
        """One record for each entry."""
        return (self.record_of(key, entry) for key, entry in self.entries.items())

    def _set(self, key: Key, entry: E | None) -> None:
        block = _block_of(key)
        keys = self._by_block.setdefault(block, {})
        if key in self.entries:
            del self.entries[key]
            self._due.pop(key, None)
            self.state_bytes -= ENTRY_BYTES + keys.pop(key)
        if entry is not None:
            self.entries[key] = entry
            keys[key] = size = len(self.record_of(key, entry).body)
            self.state_bytes += ENTRY_BYTES + size
            ends_at_ms = self._ends_at_ms(entry)
            if ends_at_ms is not None:
                self._due[key] = ends_at_ms
                heapq.heappush(self.ends, (ends_at_ms, key))
                if len(self.ends) > 2 * len(self.entries) + EXPIRED_AT_ONCE:
                    self._sift()
        if not keys:
            del self._by_block[block]

    # --- time -----------------------------------------------------------------------------------------------

    def expire(self, wall_ms: int, position: Position) -> None:
        """Forget entries that have ended, some at a time."""
        for _ in range(EXPIRED_AT_ONCE):
            if not self.ends or self.ends[0][0] > wall_ms:
                return
            ends_at_ms, key = heapq.heappop(self.ends)
            if self._due.get(key) == ends_at_ms:
                self._changed.touch_blocks((_block_of(key),), position)
                self._set(key, None)

    def clock_set(self, by_ms: int) -> None:
        """See `Ending`. There are hundreds of entries, thousands at most."""
        self._due = {key: at_ms + by_ms for key, at_ms in self._due.items()}
        self._sift()

    def _sift(self) -> None:
        """Drop the ends of entries that were replaced."""
        self.ends = [(at_ms, key) for key, at_ms in self._due.items()]
        heapq.heapify(self.ends)

    # --- checkpoints ----------------------------------------------------------------------------------------

    def encode(self, block: int) -> bytes:
        """The entries of a block."""
        keys = self._by_block.get(block, ())
        return joined(self.record_of(key, self.entries[key]).body for key in keys)

    def decode(self, block: int, data: bytes) -> None:
        """Add the entries of a block. Raises UnreadableRecord."""
        for body in split(data, self.name):
            key, entry = self._read(body)
            if entry is None or _block_of(key) != block:
                raise UnreadableRecord(f"a block of {self.name} holds an entry that is not in it")
            self._set(key, entry)

    def cost(self, base: Position | None) -> int:
        """See `Section`."""
        if not self._changed.count_since(base):
            return 0
        return sum(
            40 + sum(LENGTH_BYTES + size for size in self._by_block.get(block, {}).values())
            for block in self.changed_since(base)
        )

    def drop(self) -> Iterator[None]:
        """Free the memory, in steps."""
        self.ends.clear()
        self._due.clear()
        yield from drop_steps(self._by_block, self.entries)

    def check(self) -> None:
        """Assert that the blocks, the sums and the ends agree with the entries."""
        self._changed.check_blocks(self._by_block.keys())
        sizes = {key: len(self.record_of(key, entry).body) for key, entry in self.entries.items()}
        assert sizes == {key: size for keys in self._by_block.values() for key, size in keys.items()}
        assert all(_block_of(key) == block for block, keys in self._by_block.items() for key in keys)
        assert self.state_bytes == sum(ENTRY_BYTES + size for size in sizes.values())
        assert self._due.keys() == {
            key for key, entry in self.entries.items() if self._ends_at_ms(entry) is not None
        }
        assert {(at_ms, key) for key, at_ms in self._due.items()} <= set(self.ends)


def _block_of(key: Key) -> int:
    return block_by_name(key[1], BLOCKS)
