"""The index of message sessions: which are free, which are hungry, and the order of each."""

from __future__ import annotations

import gc

import pytest

from broker.identifiers import ClientId
from broker.partition.chunked_table import ChunkedTable
from broker.partition.divided_table import FEW
from broker.partition.message_sessions import (
    SESSION_BYTES,
    MessageSession,
    MessageSessions,
    SessionLine,
)
from broker.partition.references import (
    ACTIVE,
    DEFERRED,
    ColumnedReference,
    Lease,
    Reference,
    SessionHolder,
    SessionLock,
    StoredFrame,
)
from storage.log import Position

FRAME = StoredFrame(Position(0))


def message(number: int, session: str | None) -> Reference:
    reference = ColumnedReference(number, FRAME, 0, 1, 0, None)
    reference.session_id = session.encode() if session is not None else None
    return reference


def index_of(*sessions: str | None) -> tuple[MessageSessions, ChunkedTable[Reference]]:
    """An index of messages 1, 2, 3 … of these sessions."""
    references: ChunkedTable[Reference] = ChunkedTable()
    for number, session in enumerate(sessions, 1):
        references[number] = message(number, session)
    sessions_ = MessageSessions(references, lambda more: None)
    sessions_.add(references.values())
    sessions_.check()
    return sessions_, references


def ids(line: SessionLine) -> list[bytes]:
    return [session.id for session in line]


def lock(index: MessageSessions, session: str, wants: int = 0) -> SessionLock:
    """Lock a session for a client that wants some messages."""
    found = index.find_or_make(session.encode())
    found.lock = SessionLock(bytes(16), 0, False)
    found.lock.holders[ClientId(1)] = SessionHolder(ClientId(1), 0)
    found.lock.holders[ClientId(1)].count = wants
    index.review(found)
    return found.lock


def test_sessions_are_free_in_the_order_in_which_they_became_so() -> None:
    index, references = index_of("b", "a", None, "b")
    assert ids(index.free) == [b"b", b"a"] and [*index.walk()] == [b"b", b"a"]
    lock(index, "b")
    assert ids(index.free) == [b"a"]
    session = index.find(b"b")
    assert session is not None
    session.lock = None
    index.review(session)
    assert ids(index.free) == [b"a", b"b"]
    assert index.size_bytes == 2 * SESSION_BYTES and len(references) == 4


def test_a_locked_session_is_hungry_while_it_has_messages_and_a_holder_wants_some() -> None:
    index, references = index_of("a")
    held = lock(index, "a", wants=2)
    assert ids(index.hungry) == [b"a"]
    index.remove([references.pop(1)])
    assert not index.hungry
    references[2] = message(2, "a")
    index.add([references[2]])
    assert ids(index.hungry) == [b"a"]
    held.holders[ClientId(1)].count = 0
    session = index.find(b"a")
    assert session is not None
    index.review(session)
    assert not index.hungry
    index.check()


def test_a_session_is_forgotten_with_its_last_message_unless_it_is_locked() -> None:
    index, references = index_of("a", "b")
    lock(index, "b")
    index.remove([references.pop(1), references.pop(2)])
    assert index.find(b"a") is None and index.find(b"b") is not None
    index.check()


def test_what_is_given_back_comes_before_what_came_later() -> None:
    index, references = index_of("a", "a", "a")
    session = index.find(b"a")
    assert session is not None
    first = index.next_in(session)
    assert first is references[1]
    index.lost_available(session, 1)
    index.unlock([first])
    index.give_back([first])
    assert [index.next_in(session) for _ in range(3)] == [references[1], references[2], references[3]]


def test_messages_that_were_set_aside_removed_or_given_a_new_number_are_passed_over() -> None:
    index, references = index_of("a", "a", "a")
    session = index.find(b"a")
    assert session is not None
    index.take_out([references[1]])
    references[1].state = DEFERRED
    index.remove([references[2]])
    references[2] = message(2, "b")  # the number was given again
    index.add([references[2]])
    found = [index.next_in(session) for _ in range(3)]
    assert found == [None, None, references[3]] and references[3].state is ACTIVE


def test_the_index_is_freed_in_steps() -> None:
    index, _ = index_of(*map(str, range(2_000)))
    assert sum(index.drop()) == 2_000 and not index.free and index.size_bytes == 0


@pytest.mark.parametrize("how", ["removed", "locked"])
def test_a_session_is_not_free_once_nothing_stands_before_its_delayed_message(how: str) -> None:
    index, references = index_of("a", "a", "a")
    session, delayed = index.find(b"a"), references[2]
    assert session is not None
    index.lost_available(session, 1)
    delayed.lease = Lease(1, 0, 0, None, 1)
    delayed.lease.is_delay = True
    index.delay([delayed])
    assert ids(index.free) == [b"a"]
    if how == "removed":
        index.remove([references.pop(1)])
    else:
        assert index.next_in(session) is references[1]
        references[1].lease = Lease(2, 0, 0, None, 1)
        index.lost_available(session, 1)
    assert not index.free
    index.check()


def test_sessions_keep_their_order_in_a_line_whichever_leaves() -> None:
    line, other = SessionLine(), SessionLine()
    a, b, c, d = sessions = [MessageSession(id) for id in (b"a", b"b", b"c", b"d")]
    for session in sessions:
        line.join(session)
        line.check()
    line.join(a)  # keeps its place
    other.leave(b)  # is not there
    assert ids(line) == [b"a", b"b", b"c", b"d"] and line.first is a
    for leaving, left in ((b, b"acd"), (d, b"ac"), (a, b"c"), (c, b"")):
        line.leave(leaving)
        line.check()
        assert b"".join(ids(line)) == left and leaving not in line
    other.join(b)
    line.join(d)
    line.join(a)
    assert ids(line) == [b"d", b"a"] and ids(other) == [b"b"] and b in other


def test_no_table_of_sessions_grows_all_at_once_and_the_garbage_collector_sees_none_of_them() -> None:
    gc.collect()
    before = len(gc.get_objects())
    index, _ = index_of(*map(str, range(2 * FEW)))
    for session in index.free:
        assert session.waiting.first == int(session.id) + 1
    gc.collect()
    assert index.free.count == 2 * FEW and len(gc.get_objects()) - before < 2 * FEW + 50, (
        "nothing but the messages themselves"
    )
    assert max(map(len, index._by_id._parts)) < FEW // 16
