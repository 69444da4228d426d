"""The durable state of what was handed over: its records and blocks."""

from __future__ import annotations

from collections import deque

import pytest

from broker.partition.durable_state import read_back
from broker.partition.origins import ENTRY_BYTES, HANDED_OVER, NUMBER_BYTES, Origins, handed_over
from broker.partition.tables import UnreadableRecord
from storage.log import Position, Record


def origins(*changes: tuple[bytes, tuple[int, ...]]) -> Origins:
    """The state after these changes, in frames 100, 101 …"""
    made = Origins()
    for place, (source, numbers) in enumerate(changes):
        made.apply(read_back(handed_over(source, numbers, 0)), Position(100 + place))
        made.check()
    return made


def test_a_checkpoint_and_the_records_hold_the_same() -> None:
    state = origins((b"a", (1, 2)), (b"b", (3,)), (b"a", (2, 5, 6)), (b"c", (4,)), (b"c", ()))
    wanted = {b"a": (2, 5, 6), b"b": (3,), b"c": ()}
    blocks = {block: state.encode(block) for block in state.changed_since(None)}
    assert state.cost(None) >= sum(map(len, blocks.values()))
    copy = Origins()
    for block, data in blocks.items():
        copy.decode(block, data)
    deque(copy.decoded(dict.fromkeys(blocks, Position(200))), maxlen=0)
    again = Origins()
    for record in state.as_records():
        again.apply(read_back(record), Position(1))
    for each in (state, copy, again):
        each.check()
        assert {source: tuple(each.of(source)) for source in wanted} == wanted
        assert each.state_bytes == 2 * ENTRY_BYTES + 4 * NUMBER_BYTES


def test_undoing_forgets_only_what_the_commit_has_enqueued() -> None:
    state = origins((b"a", (1, 2)))
    first, second = handed_over(b"a", (2, 7, 8), 2), handed_over(b"a", (7, 8, 9), 1)
    state.apply(read_back(first), Position(200))
    state.apply(read_back(second), Position(200))
    state.undo(read_back(second), Position(200))
    assert state.of(b"a") == (7, 8)
    state.undo(read_back(first), Position(200))
    state.check()
    assert state.of(b"a") == () and state.state_bytes == 0


def test_only_changed_blocks_are_written_and_emptied_ones_are_forgotten() -> None:
    state = origins((b"a", (1,)), (b"b", (2,)))
    assert state.changed_since(Position(102)) == [] and state.cost(Position(102)) == 0
    state.apply(read_back(handed_over(b"a", (), 0)), Position(300))
    (gone,) = state.changed_since(Position(300))
    assert state.encode(gone) == b""
    state.saved([gone])
    assert len(state.changed_since(None)) == 1
    state.check()


@pytest.mark.parametrize(
    "body", [b"", handed_over(b"a", (1,), 0).body + b"x", handed_over(b"a", (1,), 2).body], ids=len
)
def test_a_record_that_does_not_fit_is_not_read(body: bytes) -> None:
    with pytest.raises(UnreadableRecord):
        Origins().apply(Record(HANDED_OVER, 1, 0, memoryview(body)), Position(1))
    with pytest.raises(UnreadableRecord):
        Origins().apply(Record(HANDED_OVER, 2, 0, memoryview(body)), Position(1))


@pytest.mark.parametrize("data", [b"\x01", b"\x08\0\0\0" + bytes(8)], ids=["short", "without numbers"])
def test_a_block_that_does_not_fit_is_not_read(data: bytes) -> None:
    with pytest.raises(UnreadableRecord):
        Origins().decode(7, data)


def test_sources_are_freed_in_steps() -> None:
    state = origins(*((b"%d" % number, (1,)) for number in range(1_000)))
    assert len(list(state.drop())) > 1 and not state.of(b"7")
