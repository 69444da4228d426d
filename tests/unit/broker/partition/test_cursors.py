"""The durable state of cursors: its records, its blocks and its end."""

from __future__ import annotations

import pytest

from broker.partition.cursors import CURSOR, Cursor, Cursors
from broker.partition.durable_state import read_back
from broker.partition.tables import UnreadableRecord
from storage.log import Position, Record

KEY = (3, "größe".encode())
SET = Cursor(7 << 48 | 5, 10, 20, b"owner", 30, 0)


def test_a_record_holds_a_cursor_or_says_that_it_is_gone() -> None:
    state = Cursors()
    state.apply(read_back(state.record_of(KEY, SET)), Position(1))
    assert state.entries == {KEY: SET}
    state.apply(read_back(state.record_of(KEY, None)), Position(2))
    assert state.entries == {}
    state.check()


def test_a_cursor_expires_after_its_latest_use() -> None:
    state = Cursors()
    state.apply(read_back(state.record_of(KEY, SET._replace(expires_after_ms=100))), Position(1))
    state.apply(read_back(state.record_of((4, b"stays"), SET)), Position(1))
    assert state.ends[0][0] == 130
    state.apply(
        read_back(state.record_of(KEY, SET._replace(expires_after_ms=100, used_at_ms=50))), Position(2)
    )
    state.expire(130, Position(3))
    assert KEY in state.entries and state.ends[0][0] == 150
    state.expire(150, Position(4))
    assert list(state.entries) == [(4, b"stays")] and not state.ends
    state.check()


@pytest.mark.parametrize("body", [b"", bytes(43), Cursors().record_of(KEY, SET).body + b"x"], ids=len)
def test_a_record_that_does_not_fit_is_not_read(body: bytes) -> None:
    with pytest.raises(UnreadableRecord):
        Cursors().apply(Record(CURSOR, 1, 0, memoryview(body)), Position(1))
