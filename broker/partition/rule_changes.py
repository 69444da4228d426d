"""Durable state: changes of rules that transactions have made, until the topic's description has them. Pure.

The description of a topic is not in its partition's log, so a transaction that changes rules notes them in
its own frame (AMQP contract 8.2). `broker/messaging/rule_transactions.py` then changes the description and
has them forgotten. What a crash has left says what is still to be done.

    88 RULE_CHANGES   offset  size  field
                           0     8  number: changes with higher numbers were made later
                           8     2  length k of the id
                          10     1  1 if they are forgotten, and nothing but the id follows
                          11     k  id of the transaction's changes
                           …     …  the changes, as the front end encodes them

A block of the section "rule-changes" holds the changes whose ids have the same checksum modulo BLOCKS: for
each, a 4-byte length and the body of its record. All numbers are little endian.
"""

from __future__ import annotations

import struct
from operator import itemgetter
from typing import NamedTuple

from broker.partition.durable_state import NewRecord
from broker.partition.keyed_entries import Key, KeyedEntries
from broker.partition.tables import UnreadableRecord
from storage.log import Position, Record

RULE_CHANGES = 88
_HEAD = struct.Struct("<QHB")


class Pending(NamedTuple):
    """What one transaction has changed."""

    number: int
    changes: bytes


class RuleChanges(KeyedEntries[Pending]):
    """The changes that one partition has noted, by their ids."""

    record_kind = RULE_CHANGES
    name = "rule-changes"

    def noted(self, change_id: bytes, changes: bytes) -> NewRecord:
        """The record that notes changes."""
        number = max((each.number for each in self.entries.values()), default=0) + 1
        return self.record_of((0, change_id), Pending(number, changes))

    def in_order(self) -> list[tuple[bytes, bytes]]:
        """All changes with their ids, oldest first."""
        found = sorted((each.number, key[1], each.changes) for key, each in self.entries.items())
        return list(map(itemgetter(1, 2), found))

    def record_of(self, key: Key, entry: Pending | None) -> NewRecord:
        """The record that notes changes; None forgets them."""
        if entry is None:
            return NewRecord(RULE_CHANGES, _HEAD.pack(0, len(key[1]), 1) + key[1])
        return NewRecord(RULE_CHANGES, _HEAD.pack(entry.number, len(key[1]), 0) + key[1] + entry.changes)

    def undo(self, record: Record, position: Position) -> None:
        """The messages of the transaction were refused after all."""
        key, _ = self._read(bytes(record.body))
        self._set(key, None)

    def _read(self, body: bytes) -> tuple[Key, Pending | None]:
        if len(body) >= _HEAD.size:
            number, length, is_forgotten = _HEAD.unpack_from(body)
            end = _HEAD.size + length
            if len(body) >= end and not (is_forgotten and len(body) > end):
                key = 0, body[_HEAD.size : end]
                return key, None if is_forgotten else Pending(number, body[end:])
        raise UnreadableRecord(f"record kind {RULE_CHANGES} has {len(body)} bytes, which do not fit its head")

    def _ends_at_ms(self, entry: Pending) -> int | None:
        return None
