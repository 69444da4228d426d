"""The message sessions of one subqueue: which messages each has, in order, and which sessions are free. Pure.

A subqueue tells this index of each change to a message with a session-id. For each session, `waiting` is a
heap of the sequence numbers of its available messages. It may hold stale or duplicate numbers, so each
message is checked before it is used (`next_in`). Nothing scans: finding the next free session, and the next
message of a session, takes the same time however many there are.

*Free* sessions have available messages and no lock, in the order in which they became so. *Hungry* ones are
locked and have both available messages and a holder that wants some. Both stand in a line: each session knows
its neighbours there. `session_locks.py` locks sessions and gives their holders messages.

A session is known while it has messages, in whatever state, or is locked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from broker.base.sifted_heap import SiftedHeap
from broker.operations.columns import SESSION_ID
from broker.partition._untracked import keep_untracked, untrack
from broker.partition.chunked_table import ChunkedTable
from broker.partition.divided_table import DividedTable
from broker.partition.references import ACTIVE, Reference, SessionLock

SESSION_BYTES = 512
"""The memory that a session takes besides its messages, about. Counts towards the quota of the entity."""
DROPPED_AT_ONCE = 512
"""Sessions that one step of `drop` frees: less than a millisecond."""
_NONE_DELAYED: set[int] = set()
"""Shared by all sessions without delayed messages. It stays empty."""


@keep_untracked
class MessageSession:
    """One session."""

    __slots__ = ("after", "available", "before", "count", "delayed", "id", "line", "lock", "waiting")

    def __init__(self, id: bytes) -> None:
        self.id = id
        """The session-id as UTF-8. All its messages' references share this object."""
        self.count = 0
        """Messages in any state."""
        self.available = 0
        """Messages that are ACTIVE and not locked."""
        self.delayed: set[int] = _NONE_DELAYED
        """Messages that were abandoned with a delay. Those behind them wait for them."""
        self.waiting: SiftedHeap[int] = SiftedHeap(untrack)
        self.lock: SessionLock | None = None
        self.line: SessionLine | None = None
        """The line in which it stands. This and its neighbours there are set by the line."""
        self.before: MessageSession | None = None
        self.after: MessageSession | None = None


class SessionLine:
    """Sessions in the order in which they have joined. A session stands in one line at most."""

    __slots__ = ("_last", "count", "first")

    def __init__(self) -> None:
        self.count = 0
        self.first: MessageSession | None = None
        self._last: MessageSession | None = None

    def __bool__(self) -> bool:
        return self.count > 0

    def __iter__(self) -> Iterator[MessageSession]:
        """Yield all sessions, in order. None may join or leave during the iteration."""
        session = self.first
        while session is not None:
            yield session
            session = session.after

    def __contains__(self, session: MessageSession) -> bool:
        return session.line is self

    def join(self, session: MessageSession) -> None:
        """Add a session at the end; one that is already there keeps its place."""
        if session.line is self:
            return
        assert session.line is None, "a session stands in one line at most"
        session.line, session.before = self, self._last
        if self._last is None:
            self.first = session
        else:
            self._last.after = session
        self._last = session
        self.count += 1

    def leave(self, session: MessageSession) -> None:
        """Remove a session if it is there."""
        if session.line is not self:
            return
        before, after = session.before, session.after
        session.line = session.before = session.after = None
        if before is None:
            self.first = after
        else:
            before.after = after
        if after is None:
            self._last = before
        else:
            after.before = before
        self.count -= 1

    def check(self) -> None:
        """Assert that the sessions agree about their neighbours."""
        before: MessageSession | None = None
        count = 0
        for session in self:
            assert session.line is self and session.before is before
            before, count = session, count + 1
        assert self._last is before and self.count == count


class MessageSessions:
    """The sessions of one subqueue. Owned by it."""

    __slots__ = ("_by_id", "_count", "_references", "free", "hungry")

    def __init__(self, references: ChunkedTable[Reference], count: Callable[[int], None]) -> None:
        """`references` are the subqueue's. `count` is told how many sessions come or, as a negative number,
        how many go."""
        self._references, self._count = references, count
        self._by_id: DividedTable[bytes, MessageSession] = DividedTable()
        self.free = SessionLine()
        """The longest free first."""
        self.hungry = SessionLine()
        """The longest hungry first."""

    @property
    def size_bytes(self) -> int:
        """The memory that the index takes, about."""
        return SESSION_BYTES * self._by_id.count

    def find(self, id: bytes) -> MessageSession | None:
        """The session with this id; None if it has no messages and no lock."""
        return self._by_id.get(id)

    def find_or_make(self, id: bytes) -> MessageSession:
        """The session with this id. The caller must lock one that has no messages."""
        session = self._by_id.get(id)
        if session is None:
            session = self._by_id[id] = MessageSession(id)
            self._count(1)
            untrack([session])
        return session

    def walk(self) -> Iterator[bytes]:
        """Yield the ids of all sessions that have messages or a lock. See `DividedTable.walk`."""
        return self._by_id.walk()

    def review(self, session: MessageSession) -> None:
        """Enter the session as free or hungry, or forget it. Call this after each change to it."""
        lock = session.lock
        if lock is None:
            self.hungry.leave(session)
            if self.has_next(session):
                self.free.join(session)
            else:
                self.free.leave(session)
                if not session.count:
                    self._by_id.pop(session.id)
                    self._count(-1)
        else:
            self.free.leave(session)
            is_wanted = not lock.leaving and any(holder.count for holder in lock.holders.values())
            if is_wanted and self.has_next(session):
                self.hungry.join(session)
            else:
                self.hungry.leave(session)

    def has_next(self, session: MessageSession) -> bool:
        """Whether the session has a message to give out, and does not wait for a delayed one."""
        if not session.available or not session.delayed:
            return session.available > 0
        waiting, delayed = session.waiting, min(session.delayed)
        while waiting and waiting.first < delayed:
            if self._standing(session, waiting.first) is not None:
                return True
            waiting.pop()
        return False

    # --- what happens to messages ---------------------------------------------------------------------------

    def add(self, references: Iterable[Reference]) -> None:
        """Enter messages that were added to the subqueue; none is locked."""
        for reference in references:
            id = reference.session_id
            if id is None:
                continue
            session = self.find_or_make(id)
            setattr(reference, SESSION_ID, session.id)
            session.count += 1
            if reference.state is ACTIVE:
                session.waiting.push(reference.sequence_number)
                session.available += 1
                if session.available == 1 or session.delayed:
                    self.review(session)

    def remove(self, references: Iterable[Reference]) -> None:
        """Drop messages that were removed from the subqueue; none is locked."""
        for reference in references:
            session = self._of(reference)
            if session is None:
                continue
            session.count -= 1
            if reference.state is ACTIVE:
                session.available -= 1
            if not session.available or session.delayed:
                self.review(session)
            session.waiting.tidy(self._references, session.available)

    def lost_available(self, session: MessageSession, count: int) -> None:
        """Messages of a session were locked or deferred."""
        session.available -= count
        if not session.available or session.delayed:
            self.review(session)

    def unlock(self, references: Iterable[Reference]) -> None:
        """The locks of messages have ended. `give_back`, `remove` or `take_out` follows."""
        for reference in references:
            session = self._of(reference)
            if session is not None and reference.state is ACTIVE:
                session.available += 1
                if session.delayed:
                    session.delayed.discard(reference.sequence_number)
                if session.available == 1:
                    self.review(session)

    def give_back(self, references: Iterable[Reference]) -> None:
        """Put unlocked messages back at their places in their sessions."""
        for reference in references:
            session = self._of(reference)
            if session is not None and reference.state is ACTIVE:
                session.waiting.push(reference.sequence_number)
                session.waiting.tidy(self._references, session.available)
                self.review(session)

    def delay(self, references: Iterable[Reference]) -> None:
        """Messages are locked until their delay ends. Deferred ones are in nobody's way."""
        for reference in references:
            session = self._of(reference)
            if session is not None and reference.state is ACTIVE:
                if session.delayed is _NONE_DELAYED:
                    session.delayed = set()
                session.delayed.add(reference.sequence_number)
                self.review(session)

    def take_out(self, references: Iterable[Reference]) -> None:
        """Unlocked messages are about to be deferred, scheduled or locked by their numbers."""
        for reference in references:
            session = self._of(reference)
            if session is not None and reference.state is ACTIVE:
                self.lost_available(session, 1)

    def next_in(self, session: MessageSession) -> Reference | None:
        """Take the next number out of a session's order; returns its message if it is available."""
        return self._standing(session, session.waiting.pop())

    def _standing(self, session: MessageSession, number: int) -> Reference | None:
        """The message with this number, if it is an available one of the session."""
        reference = self._references.get(number)
        if (
            reference is None
            or reference.session_id is not session.id  # its number was given again after a full disk
            or reference.state is not ACTIVE
            or reference.lease is not None
        ):
            return None
        return reference

    def _of(self, reference: Reference) -> MessageSession | None:
        return None if reference.session_id is None else self._by_id.get(reference.session_id)

    # --- the end --------------------------------------------------------------------------------------------

    def drop(self) -> Iterator[int]:
        """Free the index, in steps. It is no longer used."""
        while sessions := self._by_id.pop_some(DROPPED_AT_ONCE):
            for session in sessions:
                session.lock = None
                self.free.leave(session)
                self.hungry.leave(session)
            yield len(sessions)

    def check(self) -> None:
        """Assert that the index agrees with the subqueue's messages."""
        messages: dict[bytes, list[Reference]] = {}
        for reference in self._references.values():
            if reference.session_id is not None:
                messages.setdefault(reference.session_id, []).append(reference)
        held = {id for id, session in self._by_id.items() if session.lock is not None}
        self._by_id.check()
        self.free.check()
        self.hungry.check()
        assert set(self._by_id) == messages.keys() | held
        for id, session in self._by_id.items():
            own: Sequence[Reference] = messages.get(id, ())
            available = {each.sequence_number for each in own if each.state is ACTIVE and each.lease is None}
            assert session.id == id and all(each.session_id is session.id for each in own)
            assert session.count == len(own) and session.available == len(available)
            assert available <= set(session.waiting), "a message that its session does not reach"
            lock = session.lock
            assert session.delayed <= {
                each.sequence_number for each in own if each.lease is not None and each.lease.is_delay
            }
            can_be_given = any(not session.delayed or each < min(session.delayed) for each in available)
            assert (session in self.free) == (lock is None and can_be_given)
            wanted = (
                lock is not None
                and not lock.leaving
                and any(holder.count for holder in lock.holders.values())
            )
            assert (session in self.hungry) == (wanted and can_be_given)
            assert lock is None or lock.holders or lock.leaving, "a session is locked for somebody"
            holders = {each.lease.session for each in own if each.lease is not None}
            holders -= {None} if lock is None else {None, *lock.holders.values(), *lock.leaving}
            assert not holders, "a message is locked with its session, or by its number"
