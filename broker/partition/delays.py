"""Durable state: when messages that were abandoned with a delay are offered again. Pure.

`delaying.py` holds the messages until then. An entry is forgotten when its time (wall time) has come.

    40 DELAYED   offset  size  field
                      0     8  offered again at, wall time; 0 if the delay has ended
                      8    8n  sequence numbers; of messages in a subscription of a topic, the upper 16
                               bits are 32,768 plus the number of the subscription

A block of the section "delayed" holds pairs of a sequence number (8 bytes) and the time (8 bytes), for the
sequence numbers of one block of messages (`blocks.py`). All numbers are little endian.
"""

from __future__ import annotations

import heapq
import struct
from collections.abc import Collection, Iterator, Sequence

from broker.partition.blocks import InBlocks, block_of
from broker.partition.durable_state import Ending, NewRecord
from broker.partition.tables import UnreadableRecord, read_table, table
from storage.log import Position, Record

DELAYED = 40
ENTRY_BYTES = 256
"""The memory that one delayed message takes here."""
EXPIRED_AT_ONCE = 1_024
"""Entries that one call forgets: less than a millisecond. The others stay due."""
_TIME, _PAIR = struct.Struct("<Q"), struct.Struct("<QQ")


class Delays(InBlocks, Ending):
    """When each delayed message of a partition is offered again."""

    def __init__(self) -> None:
        super().__init__()
        self.name, self.version = "delayed", 1
        self.record_kinds: Collection[int] = (DELAYED,)
        self._by_block: dict[int, dict[int, int]] = {}
        """Times by sequence number, by block."""
        self._count = 0
        self.ends: list[tuple[int, int]] = []
        """A heap of times and sequence numbers, with entries that were replaced since."""

    @property
    def state_bytes(self) -> int:
        """Memory used."""
        return self._count * ENTRY_BYTES

    def entries(self) -> Iterator[tuple[int, int]]:
        """All sequence numbers and their times. Nothing may change meanwhile."""
        for block in self._by_block.values():
            yield from block.items()

    def lasts(self, number: int, wall_ms: int) -> bool:
        """Whether a message is noted as delayed beyond this time."""
        return self._by_block.get(block_of(0, number), {}).get(number, 0) > wall_ms

    # --- records --------------------------------------------------------------------------------------------

    def apply(self, record: Record, position: Position) -> None:
        """Add messages that are delayed. Raises UnreadableRecord."""
        count, rest = divmod(len(record.body) - _TIME.size, 8)
        if record.version != 1 or rest or count < 0:
            raise UnreadableRecord(
                f"record kind {DELAYED} has version {record.version} and {len(record.body)} bytes"
            )
        (until_ms,) = _TIME.unpack_from(record.body)
        numbers, _ = read_table("Q", record.body, _TIME.size, count)
        self._changed.touch_blocks(dict.fromkeys(block_of(0, number) for number in numbers), position)
        for number in numbers:
            self._add(number, until_ms)

    def undo(self, record: Record, position: Position) -> None:
        """Never called: no delay belongs to a send."""
        raise AssertionError("a delay does not belong to a send")

    def as_records(self) -> Iterator[NewRecord]:
        """One record for each entry."""
        return (delayed(until_ms, [number]) for number, until_ms in self.entries())

    def _add(self, number: int, until_ms: int) -> None:
        block = self._by_block.setdefault(block_of(0, number), {})
        self._count += number not in block
        block[number] = until_ms
        heapq.heappush(self.ends, (until_ms, number))

    # --- time -----------------------------------------------------------------------------------------------

    def expire(self, wall_ms: int, position: Position) -> None:
        """Forget delays that have ended, some at a time."""
        for _ in range(EXPIRED_AT_ONCE):
            if not self.ends or self.ends[0][0] > wall_ms:
                return
            until_ms, number = heapq.heappop(self.ends)
            place = block_of(0, number)
            block = self._by_block.get(place)
            if block is not None and block.get(number) == until_ms:
                self._changed.touch_blocks((place,), position)
                del block[number]
                self._count -= 1
                if not block:
                    del self._by_block[place]

    # --- checkpoints ----------------------------------------------------------------------------------------

    def encode(self, block: int) -> bytes:
        """The entries of a block."""
        return b"".join(_PAIR.pack(*entry) for entry in self._by_block.get(block, {}).items())

    def decode(self, block: int, data: bytes) -> None:
        """Add the entries of a block. Raises UnreadableRecord."""
        if len(data) % _PAIR.size:
            raise UnreadableRecord(f"a block of delays has {len(data)} bytes")
        for number, until_ms in _PAIR.iter_unpack(data):
            self._add(number, until_ms)

    def cost(self, base: Position | None) -> int:
        """See `Section`."""
        changed = self._changed.count_since(base)
        return changed * 40 + _PAIR.size * self._count if changed else 0

    def drop(self) -> Iterator[None]:
        """Free the memory, in steps."""
        while self._by_block:
            self._by_block.popitem()
            yield
        while self.ends:
            del self.ends[-EXPIRED_AT_ONCE:]
            yield

    def check(self) -> None:
        """Assert that the count, the blocks and the heap agree."""
        self._changed.check_blocks(self._by_block.keys())
        assert self._count == sum(map(len, self._by_block.values()))
        ends = set(self.ends)
        assert all(block for block in self._by_block.values())
        assert all((until_ms, number) in ends for number, until_ms in self.entries())


def delayed(until_ms: int, numbers: Sequence[int]) -> NewRecord:
    """The record that says that messages are delayed; with time 0, that they are not any more."""
    return NewRecord(DELAYED, _TIME.pack(until_ms) + table("Q", numbers))
