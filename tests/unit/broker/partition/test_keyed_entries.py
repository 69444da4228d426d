"""What kinds of state with an entry for each key have in common: blocks, records and ends."""

from __future__ import annotations

import struct
from collections import deque

import pytest

from broker.partition.durable_state import NewRecord, read_back
from broker.partition.keyed_entries import ENTRY_BYTES, EXPIRED_AT_ONCE, Key, KeyedEntries
from broker.partition.tables import UnreadableRecord
from storage.log import Position, Record


class Ends(KeyedEntries[int]):
    """Entries that are the times at which they end; 0 for never."""

    record_kind = 999
    name = "ends"

    def record_of(self, key: Key, entry: int | None) -> NewRecord:
        return NewRecord(
            self.record_kind, struct.pack("<Hq", key[0], -1 if entry is None else entry) + key[1]
        )

    def _read(self, body: bytes) -> tuple[Key, int | None]:
        subqueue, entry = struct.unpack_from("<Hq", body)
        return (subqueue, body[10:]), None if entry == -1 else entry

    def _ends_at_ms(self, entry: int) -> int | None:
        return entry or None


def made(*changes: tuple[bytes, int | None]) -> Ends:
    """Entries after these changes, in frames 100, 101 …"""
    state = Ends()
    for place, (name, entry) in enumerate(changes):
        state.apply(read_back(state.record_of((0, name), entry)), Position(100 + place))
    state.check()
    return state


def test_a_checkpoint_and_the_records_hold_the_same() -> None:
    state = made((b"a", 10), (b"b", 0), (b"a", 30), (b"c", 40), (b"c", None), (b"d", None))
    wanted = {(0, b"a"): 30, (0, b"b"): 0}
    assert state.entries == wanted and state.state_bytes == 2 * (ENTRY_BYTES + 11)
    blocks = {block: state.encode(block) for block in state.changed_since(None)}
    assert state.cost(None) >= sum(map(len, blocks.values()))
    copy = Ends()
    for block, data in blocks.items():
        copy.decode(block, data)
    deque(copy.decoded(dict.fromkeys(blocks, Position(200))), maxlen=0)
    copy.check()
    again = Ends()
    for record in state.as_records():
        again.apply(read_back(record), Position(1))
    assert copy.entries == again.entries == wanted and copy.ends[0][0] == 30


def test_only_changed_blocks_are_written_and_emptied_ones_are_forgotten() -> None:
    state = made((b"a", 0), (b"b", 0))
    assert state.changed_since(Position(102)) == [] and state.cost(Position(102)) == 0
    state.apply(read_back(state.record_of((0, b"a"), None)), Position(300))
    (gone,) = state.changed_since(Position(300))
    assert state.encode(gone) == b""
    state.saved([gone])
    assert len(state.changed_since(None)) == 1
    state.check()


def test_entries_end_in_the_order_of_their_ends_a_bounded_number_at_a_time() -> None:
    count = EXPIRED_AT_ONCE + 10
    state = made(*((b"%d" % number, 1 + number) for number in range(count)))
    state.expire(count, Position(9_000))
    assert len(state.entries) == 10 and state.ends[0][0] == EXPIRED_AT_ONCE + 1
    state.expire(count, Position(9_001))
    assert not state.entries and not state.ends
    state.check()


def test_the_ends_of_entries_move_along_with_the_clock() -> None:
    state = made((b"a", 10), (b"b", 0), (b"c", 50))
    state.clock_set(100)
    state.check()
    state.expire(100, Position(200))
    assert len(state.entries) == 3 and state.ends[0][0] == 110
    state.apply(read_back(state.record_of((0, b"a"), 120)), Position(201))
    state.expire(119, Position(202))
    assert len(state.entries) == 3
    state.clock_set(-100)
    state.expire(50, Position(203))
    assert state.entries == {(0, b"b"): 0}
    state.check()


def test_an_entry_that_is_set_ever_anew_keeps_few_of_its_ends() -> None:
    state = Ends()
    for number in range(5 * EXPIRED_AT_ONCE):
        state.apply(read_back(state.record_of((0, b"a"), 1 + number)), Position(1))
    assert len(state.ends) <= 2 * EXPIRED_AT_ONCE
    state.check()


def test_what_does_not_fit_is_not_read() -> None:
    state = made((b"a", 1))
    with pytest.raises(UnreadableRecord, match="version 2"):
        state.apply(Record(999, 2, 0, memoryview(b"")), Position(1))
    (block,) = state.changed_since(None)
    with pytest.raises(UnreadableRecord, match="not in it"):
        Ends().decode(block + 1, state.encode(block))
    with pytest.raises(AssertionError):
        state.undo(read_back(state.record_of((0, b"a"), 1)), Position(1))


def test_entries_are_freed_in_steps() -> None:
    state = made(*((b"%d" % number, 0) for number in range(1_000)))
    assert len(list(state.drop())) > 1 and not state.entries
