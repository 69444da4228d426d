"""Durable state: the cursors of a partition's subqueues (AMQP contract 7.6.4). Pure.

`moving_cursors.py` says what they mean and who may move them.

    72 CURSOR   offset  size  field
                     0     8  position: the sequence number that is read next
                     8     8  born: wall time of the cursor's creation
                    16     8  owned since: wall time at which its owner got it
                    24     8  used at, wall time
                    32     8  expires after, in ms; 0 if never, 2^64 - 1 if the cursor was deleted
                    40     2  subqueue
                    42     1  length n of the name
                    43     1  length o of the owner's token
                    44     n  name, UTF-8
                     …     o  owner's token, UTF-8

`keyed_entries.py` has the form of the section "cursors". All numbers are little endian.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from broker.partition.durable_state import NewRecord
from broker.partition.keyed_entries import Key, KeyedEntries
from broker.partition.tables import UnreadableRecord

CURSOR = 72
_HEAD = struct.Struct("<QQQQQHBB")
_DELETED = (1 << 64) - 1


class Cursor(NamedTuple):
    """A cursor, as far as one partition is concerned."""

    position: int
    born_ms: int
    """When it was created, in wall time. A cursor of the same name that was born earlier is another one."""
    owned_since_ms: int
    owner: bytes
    used_at_ms: int
    expires_after_ms: int
    """0 if it does not expire."""


class Cursors(KeyedEntries[Cursor]):
    """The cursors of one partition, by subqueue and name."""

    record_kind = CURSOR
    name = "cursors"

    def record_of(self, key: Key, entry: Cursor | None) -> NewRecord:
        """The record that sets a cursor; None deletes it."""
        subqueue, name = key
        if entry is None:
            return NewRecord(CURSOR, _HEAD.pack(0, 0, 0, 0, _DELETED, subqueue, len(name), 0) + name)
        position, born_ms, since_ms, owner, used_at_ms, expires_after_ms = entry
        head = _HEAD.pack(
            position, born_ms, since_ms, used_at_ms, expires_after_ms, subqueue, len(name), len(owner)
        )
        return NewRecord(CURSOR, head + name + owner)

    def _read(self, body: bytes) -> tuple[Key, Cursor | None]:
        if len(body) >= _HEAD.size:
            position, born_ms, since_ms, used_at_ms, expires_ms, subqueue, name_size, owner_size = (
                _HEAD.unpack_from(body)
            )
            end = _HEAD.size + name_size
            if len(body) == end + owner_size:
                key = subqueue, body[_HEAD.size : end]
                if expires_ms == _DELETED:
                    return key, None
                return key, Cursor(position, born_ms, since_ms, body[end:], used_at_ms, expires_ms)
        raise UnreadableRecord(f"record kind {CURSOR} has {len(body)} bytes, which do not fit its head")

    def _ends_at_ms(self, entry: Cursor) -> int | None:
        return entry.used_at_ms + entry.expires_after_ms if entry.expires_after_ms else None
