"""Durable state: the highest batch that each sink has committed in a partition (AMQP contract 7.6.7). Pure.

A sink writes numbered batches, and may write the latest one again after a crash. The record belongs to the
messages of its commit, if there are any: on a full disk it is undone with them.

    80 SINK_BATCH   offset  size  field
                         0     8  highest batch
                         8     8  highest batch before, 2^64 - 1 if there was none
                        16     8  committed at, wall time
                        24     n  the sink's name, UTF-8

A sink that has not committed for KEPT_MS is forgotten. `keyed_entries.py` has the form of the section
"sinks". All numbers are little endian.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from broker.partition.durable_state import NewRecord
from broker.partition.keyed_entries import Key, KeyedEntries
from broker.partition.tables import UnreadableRecord
from storage.log import Position, Record

SINK_BATCH = 80
KEPT_MS = 90 * 24 * 3600 * 1000
_HEAD = struct.Struct("<QQQ")
_NONE = (1 << 64) - 1


class Committed(NamedTuple):
    """What a sink has committed."""

    batch: int
    before: int | None
    """The highest batch before."""
    at_ms: int
    """In wall time."""


class SinkLedger(KeyedEntries[Committed]):
    """The ledger of one partition, by sink."""

    record_kind = SINK_BATCH
    name = "sinks"

    def record_of(self, key: Key, entry: Committed | None) -> NewRecord:
        """The record that sets what a sink has committed."""
        assert entry is not None, "a sink is forgotten by time alone"
        before = _NONE if entry.before is None else entry.before
        return NewRecord(SINK_BATCH, _HEAD.pack(entry.batch, before, entry.at_ms) + key[1])

    def undo(self, record: Record, position: Position) -> None:
        """The messages of the batch were refused after all."""
        key, entry = self._read(bytes(record.body))
        self._set(key, None if entry.before is None else Committed(entry.before, None, entry.at_ms))

    def _read(self, body: bytes) -> tuple[Key, Committed]:
        if len(body) <= _HEAD.size:
            raise UnreadableRecord(f"record kind {SINK_BATCH} has {len(body)} bytes")
        batch, before, at_ms = _HEAD.unpack_from(body)
        return key_of(body[_HEAD.size :]), Committed(batch, None if before == _NONE else before, at_ms)

    def _ends_at_ms(self, entry: Committed) -> int:
        return entry.at_ms + KEPT_MS


def key_of(sink: bytes) -> Key:
    """The key of a sink's entry. Sinks write to the subqueue that takes what is sent."""
    return 0, sink
