"""The durable state of delays: its records, blocks and times."""

from __future__ import annotations

from collections import deque

import pytest

from broker.partition.delays import DELAYED, ENTRY_BYTES, EXPIRED_AT_ONCE, Delays, delayed
from broker.partition.durable_state import read_back
from broker.partition.tables import UnreadableRecord
from storage.log import Position, Record


def delays(*entries: tuple[int, list[int]]) -> Delays:
    state = Delays()
    for place, (until_ms, numbers) in enumerate(entries):
        state.apply(read_back(delayed(until_ms, numbers)), Position(100 + place))
    state.check()
    return state


def test_a_checkpoint_and_the_records_hold_the_same() -> None:
    state = delays((5_000, [1, 2, 5_000]), (6_000, [2]))
    wanted = {1: 5_000, 2: 6_000, 5_000: 5_000}
    assert dict(state.entries()) == wanted and state.state_bytes == 3 * ENTRY_BYTES
    copy = Delays()
    for block in state.changed_since(None):
        copy.decode(block, state.encode(block))
    deque(copy.decoded(dict.fromkeys(state.changed_since(None), Position(200))), maxlen=0)
    copy.check()
    assert dict(copy.entries()) == wanted
    again = Delays()
    for record in state.as_records():
        again.apply(read_back(record), Position(1))
    assert dict(again.entries()) == wanted


def test_only_changed_blocks_are_written() -> None:
    state = delays((5_000, [1, 5_000]))
    assert state.changed_since(Position(101)) == [] and state.cost(Position(101)) == 0
    state.expire(5_000, Position(300))
    state.check()
    gone = state.changed_since(Position(300))
    assert len(gone) == 2 and [state.encode(block) for block in gone] == [b"", b""]
    state.saved(gone)
    assert state.changed_since(None) == []


def test_entries_are_forgotten_at_their_time_some_at_once() -> None:
    state = delays((5_000, list(range(1, EXPIRED_AT_ONCE + 11))), (7_000, [3]))
    assert state.ends[0][0] == 5_000
    state.expire(4_999, Position(300))
    assert state.state_bytes == (EXPIRED_AT_ONCE + 10) * ENTRY_BYTES
    state.expire(5_000, Position(300))
    state.expire(5_000, Position(301))
    state.check()
    assert dict(state.entries()) == {3: 7_000} and state.ends[0][0] == 7_000


@pytest.mark.parametrize(("version", "body"), [(2, bytes(16)), (1, bytes(12)), (1, b"")])
def test_a_record_that_does_not_fit_is_unreadable(version: int, body: bytes) -> None:
    with pytest.raises(UnreadableRecord):
        Delays().apply(Record(DELAYED, version, 0, memoryview(body)), Position(1))
    with pytest.raises(UnreadableRecord):
        Delays().decode(0, bytes(15))


def test_dropping_frees_everything() -> None:
    state = delays((5_000, [1, 5_000]))
    deque(state.drop(), maxlen=0)
    assert list(state.entries()) == [] and not state.ends
