"""Durable state: what receivers have stored with their message sessions. Pure.

AMQP contract 7.3.8. The state of a session is opaque bytes. It stays until a receiver clears it, with or
without messages in the session. The time of its latest change answers which sessions have changed since.

    48 SESSION_STATE   offset  size  field
                            0     8  changed at, wall time
                            8     2  subqueue
                           10     2  length k of the session-id
                           12     4  size v of the state, 2^32 - 1 if it was cleared
                           16     k  session-id, UTF-8
                            …     v  state

A block of the section "session-states" holds the sessions whose ids have the same checksum modulo BLOCKS: for
each, a 4-byte length and the body of its record. All numbers are little endian.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator
from typing import NamedTuple

from broker.partition.block_content import STEP_BYTES, Content
from broker.partition.blocks import LENGTH_BYTES, InBlocks, block_by_name, drop_steps, length_bytes, split
from broker.partition.divided_table import DividedTable
from broker.partition.durable_state import InLargeBlocks, NewRecord
from broker.partition.tables import UnreadableRecord
from storage.log import Block, Position, Record, whole

SESSION_STATE = 48
BLOCKS = 4_096
"""So many that a block holds few sessions, because a checkpoint writes changed blocks as a whole."""
ENTRY_BYTES = 512
"""The memory that a session's state takes besides its bytes, about."""
_HEAD = struct.Struct("<QHHI")
_CLEARED = 0xFFFFFFFF

Key = tuple[int, bytes]
"""The number of the subqueue, and the session-id."""


class Entry(NamedTuple):
    """The state of one session."""

    value: bytes
    changed_at_ms: int
    """In wall time."""


class SessionStates(InBlocks, InLargeBlocks):
    """The states of a partition's sessions."""

    def __init__(self) -> None:
        super().__init__()
        self.name, self.version = "session-states", 1
        self.record_kinds: Collection[int] = (SESSION_STATE,)
        self.entries: DividedTable[Key, Entry] = DividedTable()
        self.state_bytes = 0
        self._by_block: dict[int, dict[Key, None]] = {}
        self._block_bytes: dict[int, int] = {}
        """What each block takes in a checkpoint."""

    # --- records --------------------------------------------------------------------------------------------

    def apply(self, record: Record, position: Position) -> None:
        """Set or clear the state of a session. Raises UnreadableRecord."""
        if record.version != 1:
            raise UnreadableRecord(f"record kind {SESSION_STATE} has version {record.version}")
        key, entry = _read(bytes(record.body))
        block = _block_of(key)
        self._changed.touch_blocks((block,), position)
        self._remove(key, block)
        if entry is not None:
            self._add(key, entry, block)

    def undo(self, record: Record, position: Position) -> None:
        """Never called: no state belongs to a send."""
        raise AssertionError("a session's state does not belong to a send")

    def key_of(self, record: Record) -> Key:
        """The session whose state a record sets or clears. Raises UnreadableRecord."""
        return _read(bytes(record.body))[0]

    def as_records(self) -> Iterator[NewRecord]:
        """One record for each session."""
        return (set_state(*key, entry.value, entry.changed_at_ms) for key, entry in self.entries.items())

    def _add(self, key: Key, entry: Entry, block: int) -> None:
        self.entries[key] = entry
        self._by_block.setdefault(block, {})[key] = None
        self._count(key, entry, block, 1)

    def _remove(self, key: Key, block: int) -> None:
        entry = self.entries.pop(key)
        if entry is not None:
            del self._by_block[block][key]
            if not self._by_block[block]:
                del self._by_block[block]
            self._count(key, entry, block, -1)

    def _count(self, key: Key, entry: Entry, block: int, sign: int) -> None:
        size = len(key[1]) + len(entry.value)
        self.state_bytes += sign * (size + ENTRY_BYTES)
        left = self._block_bytes.get(block, 0) + sign * (size + _HEAD.size + LENGTH_BYTES)
        if left:
            self._block_bytes[block] = left
        else:
            self._block_bytes.pop(block, None)

    # --- time -----------------------------------------------------------------------------------------------

    # --- checkpoints ----------------------------------------------------------------------------------------

    def encode(self, block: int) -> Block:
        """The sessions of a block. Their states are not copied."""
        parts: list[bytes] = []
        for key in self._by_block.get(block, ()):
            value, changed_at_ms = self.entries[key]
            head = _head(*key, len(value), changed_at_ms)
            parts += length_bytes(len(head) + len(value)) + head, value
        return tuple(parts)

    def decode_steps(self, block: int, content: Content) -> Iterator[None]:
        """Add the sessions of a block. Raises UnreadableRecord."""
        size = 0
        for body in split(content, "session states"):
            key, entry = _read(body)
            if entry is None or _block_of(key) != block:
                raise UnreadableRecord("a block of session states holds a session that is not in it")
            self._add(key, entry, block)
            size += len(body)
            if size >= STEP_BYTES:
                size = 0
                yield

    def cost(self, base: Position | None) -> int:
        """See `Section`."""
        if not self._changed.count_since(base):
            return 0
        return sum(40 + self._block_bytes.get(block, 0) for block in self.changed_since(base))

    def drop(self) -> Iterator[None]:
        """Free the memory, in steps."""
        yield from drop_steps(self._by_block, self.entries)

    def check(self) -> None:
        """Assert that the blocks and the sums agree with the entries."""
        self._changed.check_blocks(self._by_block.keys())
        assert {key: _block_of(key) for key in self.entries} == {
            key: block for block, keys in self._by_block.items() for key in keys
        }
        assert self.state_bytes == sum(
            len(key[1]) + len(entry.value) + ENTRY_BYTES for key, entry in self.entries.items()
        )
        assert self._block_bytes == {block: len(whole(self.encode(block))) for block in self._by_block}


def set_state(subqueue: int, session_id: bytes, state: bytes | None, changed_at_ms: int) -> NewRecord:
    """The record that sets the state of a session; None clears it."""
    size = _CLEARED if state is None else len(state)
    return NewRecord(SESSION_STATE, _head(subqueue, session_id, size, changed_at_ms) + (state or b""))


def _head(subqueue: int, session_id: bytes, size: int, changed_at_ms: int) -> bytes:
    """What comes before the state in a record."""
    return _HEAD.pack(changed_at_ms, subqueue, len(session_id), size) + session_id


def _read(body: bytes) -> tuple[Key, Entry | None]:
    if len(body) < _HEAD.size:
        raise UnreadableRecord(f"record kind {SESSION_STATE} has {len(body)} bytes")
    changed_at_ms, subqueue, length, size = _HEAD.unpack_from(body)
    end = _HEAD.size + length
    if len(body) != end + (0 if size == _CLEARED else size):
        raise UnreadableRecord(
            f"record kind {SESSION_STATE} has {len(body)} bytes, its head speaks of others"
        )
    key = subqueue, body[_HEAD.size : end]
    return key, None if size == _CLEARED else Entry(body[end:], changed_at_ms)


def _block_of(key: Key) -> int:
    return block_by_name(key[1], BLOCKS)
