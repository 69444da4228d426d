"""The durable state of sessions: its records and blocks."""

from __future__ import annotations

from collections import deque
from itertools import count, islice, pairwise

import pytest

from broker.partition.block_content import STEP_BYTES, content_of
from broker.partition.blocks import block_by_name
from broker.partition.durable_state import read_back
from broker.partition.session_states import (
    BLOCKS,
    ENTRY_BYTES,
    SESSION_STATE,
    Entry,
    SessionStates,
    set_state,
)
from broker.partition.tables import UnreadableRecord
from storage.log import Position, Record, whole


def states(*changes: tuple[bytes, bytes | None, int]) -> SessionStates:
    """States after these changes, in frames 100, 101 …"""
    made = SessionStates()
    for place, (session, value, at_ms) in enumerate(changes):
        made.apply(read_back(set_state(0, session, value, at_ms)), Position(100 + place))
    made.check()
    return made


def test_a_checkpoint_and_the_records_hold_the_same() -> None:
    state = states((b"a", b"1", 10), (b"b", b"", 20), (b"a", b"22", 30), (b"c", b"3", 40), (b"c", None, 50))
    wanted = {(0, b"a"): Entry(b"22", 30), (0, b"b"): Entry(b"", 20)}
    assert dict(state.entries.items()) == wanted and state.state_bytes == 2 * ENTRY_BYTES + 4
    blocks = {block: whole(state.encode(block)) for block in state.changed_since(None)}
    assert state.cost(None) >= sum(map(len, blocks.values()))
    copy = SessionStates()
    for block, data in blocks.items():
        copy.decode(block, data)
    deque(copy.decoded(dict.fromkeys(blocks, Position(200))), maxlen=0)
    copy.check()
    again = SessionStates()
    for record in state.as_records():
        again.apply(read_back(record), Position(1))
    assert dict(copy.entries.items()) == dict(again.entries.items()) == wanted


def test_only_changed_blocks_are_written_and_emptied_ones_are_forgotten() -> None:
    state = states((b"a", b"1", 10), (b"b", b"2", 20))
    assert state.changed_since(Position(102)) == [] and state.cost(Position(102)) == 0
    state.apply(read_back(set_state(0, b"a", None, 30)), Position(300))
    (gone,) = state.changed_since(Position(300))
    assert not state.encode(gone)
    state.saved([gone])
    assert len(state.changed_since(None)) == 1
    state.check()


@pytest.mark.parametrize("body", [b"", set_state(0, b"a", b"1", 1).body + b"x", bytes(15)], ids=len)
def test_a_record_that_does_not_fit_is_not_read(body: bytes) -> None:
    with pytest.raises(UnreadableRecord):
        SessionStates().apply(Record(SESSION_STATE, 1, 0, memoryview(body)), Position(1))
    with pytest.raises(UnreadableRecord):
        SessionStates().apply(Record(SESSION_STATE, 2, 0, memoryview(body)), Position(1))


@pytest.mark.parametrize("data", [b"\x01", b"\x10\0\0\0" + bytes(16)], ids=["short", "in the wrong block"])
def test_a_block_that_does_not_fit_is_not_read(data: bytes) -> None:
    with pytest.raises(UnreadableRecord):
        SessionStates().decode(7, data)


def test_a_block_with_many_bytes_of_states_is_decoded_in_steps() -> None:
    """Whoever wants to can choose session-ids that are all in one block."""
    ids = islice((name for number in count() if block_by_name(name := b"%d" % number, BLOCKS) == 7), 10)
    state = states(*[(each, each * 50_000, 10) for each in ids])
    copy = SessionStates()
    steps = copy.decode_steps(7, content_of(state.encode(7)))
    held = [0, *[copy.state_bytes for _ in steps], copy.state_bytes]
    assert len(held) > 3 and max(after - before for before, after in pairwise(held)) < 2 * STEP_BYTES
    assert dict(copy.entries.items()) == dict(state.entries.items())


def test_states_are_freed_in_steps() -> None:
    state = states(*((b"%d" % number, b"x", 1) for number in range(1_000)))
    assert len(list(state.drop())) > 1 and not state.entries
