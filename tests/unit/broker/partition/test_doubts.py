"""Which states and messages may be older after a salvage, as far as the log tells."""

from __future__ import annotations

from broker.operations.columns import SESSION_ID
from broker.partition import records
from broker.partition.cursors import Cursor, Cursors
from broker.partition.delays import delayed
from broker.partition.doubts import Older, OlderEntry
from broker.partition.durable_state import NewRecord
from broker.partition.salvage import Range
from broker.partition.session_states import set_state
from broker.partition.sink_ledger import Committed, SinkLedger
from storage.log import Commit, Frame, Position
from tests.support.partition_messages import frame_of
from tests.unit.broker.partition.test_salvage import FIRST, enqueued, gap, salvaged


def stated(position: int, *entries: NewRecord) -> Frame:
    commit = Commit(Position(position))
    for entry in entries:
        commit.add(entry.kind, [entry.body], entry.version)
    return frame_of(commit)


def state_of(session: str, value: bytes | None) -> NewRecord:
    return set_state(0, session.encode(), value, 1_000)


def test_states_that_were_set_before_a_gap_and_not_since_may_be_older() -> None:
    cursor = Cursors().record_of((0, b"reader"), Cursor(FIRST, 1, 1, b"", 1, 0))
    batch = SinkLedger().record_of((0, b"sink"), Committed(7, None, 1_000))
    salvage = salvaged(
        enqueued(0, 1, 3),
        stated(1_000, *(state_of(session, b"old") for session in ("a", "b", "c")), cursor, batch),
        stated(2_000, delayed(1_000_000, [FIRST])),
        gap(3_000, 4_000),
        stated(4_000, state_of("b", b"new"), state_of("c", None), batch),
        enqueued(5_000, 6, 2),
    )
    assert salvage.older is not None
    assert salvage.older.entries == [
        OlderEntry("session-state", "", "a"),
        OlderEntry("cursor", "", "reader"),
    ]
    assert salvage.older.kinds == ["delayed"]
    assert (salvage.older.before, salvage.older.messages) == (FIRST + 5, 3)
    assert salvage.gone == [Range(FIRST + 3, FIRST + 4)]


def test_sessions_with_messages_may_have_had_a_state_that_is_gone() -> None:
    commit = Commit(Position(0))
    sessions = {SESSION_ID: [b"a", b"b"]}
    records.add_enqueued(commit, FIRST, 1_000, [1, 1], None, [b"x"] * 2, sessions)
    salvage = salvaged(frame_of(commit), gap(1_000, 2_000), stated(2_000, state_of("b", b"new")))
    assert salvage.older is not None
    assert salvage.older.entries == [OlderEntry("session-state", "", "a")]
    assert salvage.older.before is None, "nothing says which number came next"
    assert salvage.older.messages == 2


def test_nothing_is_older_without_a_gap_or_behind_the_last_one() -> None:
    assert salvaged(enqueued(0, 1, 3), stated(1_000, state_of("a", b"old"))).older is None
    older = salvaged(gap(0, 1_000), enqueued(1_000, 3, 1), stated(2_000, state_of("a", b"new"))).older
    assert older == Older(FIRST + 2, 0)
