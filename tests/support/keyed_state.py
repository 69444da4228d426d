"""A small durable state for tests: values by key, some with an expiry time.

    200 PUT     offset  size  field                    201 REMOVED  offset  size  field
                     0     8  ends at, 0 for never                       0     …  key
                     8     2  length k of the key
                    10     k  key
                     …     …  value

A block holds the keys with the same checksum modulo BLOCKS: for each, a 4-byte length and the body of its PUT
record.
"""

from __future__ import annotations

import heapq
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from broker.identifiers import ClientId
from broker.operations.general import Updated
from broker.partition import state_kinds
from broker.partition.blocks import ChangedBlocks
from broker.partition.durable_state import Ending, NewRecord
from broker.partition.state import Partition
from broker.partition.tables import UnreadableRecord
from storage.log import Position, Record

PUT, REMOVED = 200, 201
BLOCKS = 8
ENTRY_OVERHEAD_BYTES = 100
_HEAD = struct.Struct("<QH")
_SIZE = struct.Struct("<I")


def block_of(key: bytes) -> int:
    return zlib.crc32(key) % BLOCKS


def put(key: bytes, value: bytes, ends_at_ms: int = 0) -> NewRecord:
    return NewRecord(PUT, _HEAD.pack(ends_at_ms, len(key)) + key + value)


class KeyedState(Ending):
    """Values by key."""

    name, version, record_kinds = "keyed", 1, (PUT, REMOVED)

    def __init__(self) -> None:
        self.entries: dict[bytes, tuple[bytes, int]] = {}
        self.state_bytes = 0
        self.blocks = ChangedBlocks()
        self.ends: list[tuple[int, bytes]] = []

    # --- records ---

    def apply(self, record: Record, position: Position) -> None:
        body = bytes(record.body)
        if record.version != 1:
            raise UnreadableRecord(f"version {record.version}")
        if record.kind == REMOVED:
            self._remove(body, position)
            return
        ends_at_ms, length = _HEAD.unpack_from(body)
        key, value = body[_HEAD.size : _HEAD.size + length], body[_HEAD.size + length :]
        self._remove(key, position)
        self.blocks.touch_blocks([block_of(key)], position)
        self._add(key, value, ends_at_ms)

    def undo(self, record: Record, position: Position) -> None:
        _, length = _HEAD.unpack_from(record.body)
        self._remove(bytes(record.body[_HEAD.size : _HEAD.size + length]), position)

    def as_records(self) -> Iterator[NewRecord]:
        return (put(key, *entry) for key, entry in self.entries.items())

    def _add(self, key: bytes, value: bytes, ends_at_ms: int) -> None:
        self.entries[key] = value, ends_at_ms
        self.state_bytes += len(key) + len(value) + ENTRY_OVERHEAD_BYTES
        if ends_at_ms:
            heapq.heappush(self.ends, (ends_at_ms, key))

    def _remove(self, key: bytes, position: Position) -> None:
        if key in self.entries:
            self.blocks.touch_blocks([block_of(key)], position)
            value, _ = self.entries.pop(key)
            self.state_bytes -= len(key) + len(value) + ENTRY_OVERHEAD_BYTES

    # --- time ---

    def expire(self, wall_ms: int, position: Position) -> None:
        while self.ends and self.ends[0][0] <= wall_ms:
            ends_at_ms, key = heapq.heappop(self.ends)
            if self.entries.get(key, (b"", 0))[1] == ends_at_ms:
                self._remove(key, position)

    # --- checkpoints ---

    def changed_since(self, base: Position | None) -> Sequence[int]:
        return self.blocks.changed_since(base)

    def encode(self, block: int) -> bytes:
        records = [put(key, *entry).body for key, entry in self.entries.items() if block_of(key) == block]
        return b"".join(_SIZE.pack(len(record)) + record for record in records)

    def decode(self, block: int, data: bytes) -> None:
        at = 0
        while at < len(data):
            start = at + _SIZE.size
            at = start + _SIZE.unpack_from(data, at)[0]
            ends_at_ms, length = _HEAD.unpack_from(data, start)
            key_at = start + _HEAD.size
            self._add(data[key_at : key_at + length], data[key_at + length : at], ends_at_ms)

    def decoded(self, taken: Mapping[int, Position]) -> Iterator[None]:
        return self.blocks.adopt(taken)

    def saved(self, gone: Sequence[int]) -> None:
        self.blocks.forget(gone)

    def cost(self, base: Position | None) -> int:
        return self.state_bytes + 40 * len(self.blocks) if self.blocks.count_since(base) else 0

    def needed_from(self) -> Position | None:
        return None

    def drop(self) -> Iterator[None]:
        self.entries.clear()
        yield

    def check(self) -> None:
        self.blocks.check_blocks(set(map(block_of, self.entries)))
        assert self.state_bytes == sum(
            len(key) + len(value) + ENTRY_OVERHEAD_BYTES for key, (value, _) in self.entries.items()
        )


@dataclass(slots=True)
class Change:
    """An operation that writes some records of the state; answered with `Updated`."""

    records: Sequence[NewRecord]
    with_send: bool = False
    cookie: object = None


def register(monkeypatch: pytest.MonkeyPatch) -> None:
    """Add this state to every partition, and make partitions carry out `Change`."""
    carry_out = Partition._carry_out

    def also(self: Partition, client: ClientId, operation: Any) -> bool | None:
        if not isinstance(operation, Change):
            return carry_out(self, client, operation)
        for record in operation.records:
            self._space.record(record, with_send=operation.with_send)
        self._space.answer(client, Updated(operation.cookie))
        return None

    monkeypatch.setattr(Partition, "_carry_out", also)
    monkeypatch.setattr(state_kinds, "KINDS", (KeyedState,))
