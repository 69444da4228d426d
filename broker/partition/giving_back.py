"""Gives back the messages of clients that no longer hold their session, a bounded number per cycle. Pure.

A holder goes, or its session's lock ends (`session_locks.py`). It may hold tens of thousands of messages, so
they come back over several cycles, within the limits that all locks share (`cycle_bounds.py`). From the first
moment, the holder can settle none of them, and until all are back, the session's messages are given to
nobody, so clients notice only the time that it takes.

After a crash in between, the messages that were not given back yet are as free as after any other crash, and
no delivery is counted for them.
"""

from __future__ import annotations

from collections import deque
from operator import attrgetter

from broker.partition.delivery_count import failed_delivery, failing_together
from broker.partition.message_sessions import MessageSession
from broker.partition.references import Lease, Reference, SessionHolder
from broker.partition.subqueue import Subqueue
from broker.partition.time_to_live import TimeToLive
from broker.partition.workspace import Workspace

LOCKS_EACH = 2
"""What the end of one message's lock counts as if it came with a session: it takes almost twice as long."""
GONE_MS = -1
"""When the locks of a holder that has gone end: before every operation."""
_NUMBER = attrgetter("sequence_number")


class _Leaving:
    """A holder whose messages are being given back."""

    __slots__ = ("has_failed", "holder", "leases", "lock", "session", "subqueue")

    def __init__(
        self, subqueue: Subqueue, session: MessageSession, holder: SessionHolder, has_failed: bool
    ) -> None:
        assert session.lock is not None, "somebody holds it"
        self.subqueue, self.session, self.lock, self.holder = subqueue, session, session.lock, holder
        self.has_failed = has_failed
        """The deliveries of its messages have failed."""
        self.leases = list(holder.leases)
        """Those still to be given back; the next one is last."""
        self.leases.reverse()


class GivingBack:
    """Gives messages back in one partition. Owned by `SessionLocks`."""

    __slots__ = ("_leaving", "_space", "_time_to_live")

    def __init__(self, space: Workspace, time_to_live: TimeToLive) -> None:
        self._space, self._time_to_live = space, time_to_live
        self._leaving: deque[_Leaving] = deque()

    def __bool__(self) -> bool:
        """Whether there is anything to give back."""
        return bool(self._leaving)

    def begin(
        self, subqueue: Subqueue, session: MessageSession, holder: SessionHolder, *, has_failed: bool
    ) -> None:
        """A holder has gone, or, if `has_failed`, its lock has ended: its locks are void. `go_on` gives its
        messages back."""
        assert session.lock is not None, "somebody holds it"
        holder.has_gone, holder.until_ms = True, GONE_MS
        if holder.leases:
            session.lock.leaving.add(holder)
            self._leaving.append(_Leaving(subqueue, session, holder, has_failed))

    def go_on(self) -> list[tuple[Subqueue, MessageSession]]:
        """Give back as much as the cycle allows. Returns the sessions whose messages are all back.
        Holders take turns, so that nobody waits for one that had very much."""
        done: list[tuple[Subqueue, MessageSession]] = []
        while self._leaving and self._has_room:
            leaving = self._leaving.popleft()
            if not self._give_some(leaving):
                self._leaving.append(leaving)
                break
            leaving.lock.leaving.remove(leaving.holder)
            if not leaving.lock.leaving:
                done.append((leaving.subqueue, leaving.session))
        return done

    def _give_some(self, leaving: _Leaving) -> bool:
        """Give back some messages of a holder. Returns whether it has none left."""
        space, subqueue = self._space, leaving.subqueue
        cycle = space.cycle
        while leaving.leases:
            if not self._has_room:
                return False
            leases, fitting = self._next(leaving.leases)
            held = [each for lease in leases for each in lease.references if each.lease is lease]
            some = sorted(held[:fitting], key=_NUMBER)
            if leaving.has_failed:
                some = failing_together(space, subqueue, some)
            cycle.ended_locks += len(some) * LOCKS_EACH
            self._end(some)
            if leaving.has_failed:
                cycle.expired_locks += len(some)
                failed_delivery(space, self._time_to_live, subqueue, some, None)
            else:
                self._time_to_live.give_back(subqueue, some)
            if len(some) < len(held):
                leaving.leases += [lease for lease in reversed(leases) if lease.left]
                return False
        return True

    @property
    def _has_room(self) -> bool:
        """Whether the cycle may end more locks."""
        cycle, bounds = self._space.cycle, self._space.bounds
        return cycle.ended_locks < bounds.ended_locks_max and cycle.ended_leases < bounds.ended_leases_max

    def _next(self, leases: list[Lease]) -> tuple[list[Lease], int]:
        """Take as many leases from the end as the cycle allows. Returns them, and how many of their messages
        it allows."""
        cycle, bounds = self._space.cycle, self._space.bounds
        fitting = -(-(bounds.ended_locks_max - cycle.ended_locks) // LOCKS_EACH)
        taken: list[Lease] = []
        left = fitting
        while leases and left > 0 and cycle.ended_leases < bounds.ended_leases_max:
            cycle.ended_leases += 1
            lease = leases.pop()
            left -= lease.left
            taken.append(lease)
        return taken, fitting

    def _end(self, references: list[Reference]) -> None:
        """End the locks of some messages."""
        groups: dict[Lease, list[Reference]] = {}
        for reference in references:
            assert reference.lease is not None
            groups.setdefault(reference.lease, []).append(reference)
        for lease, some in groups.items():
            self._space.locks.take_back(lease, some)

    def check(self) -> None:
        """Assert that exactly what those who have left their sessions have is to be given back."""
        for each in self._leaving:
            assert each.lock.leaving == {other.holder for other in self._leaving if other.lock is each.lock}
            assert each.holder.has_gone and each.holder.leases.keys() <= set(each.leases)
            assert each.session.lock is each.lock and each.leases
