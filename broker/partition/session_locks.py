"""Locks of message sessions: accepting, renewing and losing them, and handing out a session's messages. Pure.

AMQP contract 5.4 and 10.3. A client (a receiving link) accepts a session by name, or the one that has been
free for longest. Until it detaches or the lock ends, it alone is given the session's messages, in their
order. Several clients may hold a session only if the first one has said so and the others know the lock's
token (the non-exclusive filter of the .NET client).

Locks are volatile, like those of messages: a restart frees all sessions. When a lock ends, the session's
locked messages have had a failed delivery, and each holder is told (`SessionLost`). When a holder detaches,
its unsettled messages go back, and no delivery is counted.

A lock ends at exactly the millisecond that the client was told, whether or not its timer has fired. An
operation counts if it arrived before that (`Workspace.arrived_ms`).
"""

from __future__ import annotations

from collections.abc import Iterable

from broker.base.errors import Reason, Refused
from broker.identifiers import ClientId, decode_session_id
from broker.operations.browsing import Arrived
from broker.operations.receiving import Demand
from broker.operations.sessions import (
    AcceptSession,
    RenewSession,
    SessionAccepted,
    SessionLost,
    SessionRenewed,
    WatchSessions,
)
from broker.partition.changed_properties import laying_costs
from broker.partition.cycle import Grant
from broker.partition.delivery_count import failed_delivery, failing_together
from broker.partition.granting import close_grant, has_granted_enough, new_grant
from broker.partition.message_sessions import MessageSession
from broker.partition.references import Lease, Reference, SessionHolder, SessionLock, bytes_of
from broker.partition.subqueue import Subqueue
from broker.partition.time_to_live import TimeToLive
from broker.partition.timers import DueKeys, TimerWheel
from broker.partition.workspace import Workspace


class SessionLocks:
    """The locked sessions of one partition."""

    __slots__ = (
        "_by_client",
        "_by_key",
        "_ended",
        "_ends",
        "_has_broken_off",
        "_keys",
        "_space",
        "_subqueues",
        "_time_to_live",
        "_watches",
    )

    def __init__(self, space: Workspace, time_to_live: TimeToLive) -> None:
        self._space, self._time_to_live = space, time_to_live
        self._subqueues: dict[int, Subqueue] = {}
        """The subqueues in which a session was ever locked, by number."""
        self._keys = 0
        """How many keys were given so far."""
        self._by_key: dict[int, tuple[Subqueue, MessageSession]] = {}
        """All locked sessions."""
        self._by_client: dict[ClientId, int] = {}
        """The session that each client holds, by key. A client holds at most one."""
        self._ends = TimerWheel(space.bounds.tick_ms, self._by_key.__contains__)
        self._ended = DueKeys()
        """Keys of locks that have come due and may have ended."""
        self._has_broken_off = False
        """The cycle reached its limit before all hungry sessions were given their messages."""
        self._watches: dict[int, dict[ClientId, None]] = {}
        """Clients to tell when a session becomes free, by the subqueue's number."""

    @property
    def has_more(self) -> bool:
        """Whether work is left for the next cycle."""
        return bool(self._ended) or self._has_broken_off

    @property
    def is_idle(self) -> bool:
        """Whether no session was ever locked, and no client waits for a free one."""
        return not (self._subqueues or self._watches)

    @property
    def is_hungry(self) -> bool:
        """Whether a holder waits for messages that are available in its session."""
        return any(
            subqueue.sessions is not None and subqueue.sessions.hungry
            for subqueue in self._subqueues.values()
        )

    def is_due(self, now_ms: int) -> bool:
        """Whether `run_out` has something to do."""
        return bool(self._ended) or self._ends.is_due(now_ms)

    def next_due_ms(self) -> int | None:
        """When the next lock ends; None if no session is locked."""
        return self._ends.next_due_ms()

    def covers(self, subqueue: Subqueue) -> bool:
        """Whether the subqueue's messages are received with their sessions only."""
        return subqueue.role.has_sessions and self._space.description.delivery(subqueue.name).requires_session

    # --- accepting ------------------------------------------------------------------------------------------

    def accept(self, client: ClientId, accept: AcceptSession) -> bool:
        """Lock a session for a client; False if that must wait for the next cycle. Raises Refused:
        SESSION_NOT_FOUND if none is free, SESSION_LOCKED, NOT_ALLOWED."""
        space = self._space
        subqueue = space.messages.find(accept.subqueue)
        if not self.covers(subqueue):
            path = space.description.path_of(accept.subqueue)
            raise Refused(Reason.NOT_ALLOWED, f"The entity '{path}' does not require sessions.")
        assert client not in self._by_client, "a client holds one session"
        sessions = subqueue.start_sessions()
        if accept.session_id is None:
            session = sessions.free.first
            if session is None:
                raise Refused(Reason.SESSION_NOT_FOUND, "No session with messages is free.")
        else:
            session = sessions.find_or_make(accept.session_id)
            if session.lock is not None and session.lock.until_ms <= space.arrived_ms:
                if not self._lose(subqueue, session):
                    return False
                session = sessions.find_or_make(accept.session_id)
        lock = session.lock
        if lock is None:
            lock = session.lock = self._new_lock(subqueue, accept.is_shared)
            self._enter(subqueue, session, lock)
            self._subqueues[subqueue.number] = subqueue
        elif not (lock.is_shared and accept.is_shared and accept.token == lock.token):
            raise Refused(
                Reason.SESSION_LOCKED,
                f"The session '{decode_session_id(session.id)}' cannot be accepted. It may be locked "
                "by another receiver.",
            )
        lock.holders[client] = SessionHolder(client)
        self._by_client[client] = lock.key
        sessions.review(session)
        space.answer(
            client,
            SessionAccepted(
                space.number, subqueue.name, session.id, lock.token, lock.until_ms, accept.cookie
            ),
        )
        return True

    def _new_lock(self, subqueue: Subqueue, is_shared: bool) -> SessionLock:
        space = self._space
        token = space.messages.first_number.to_bytes(8, "big") + space.locks.new_nonce().to_bytes(8, "big")
        return SessionLock(token, space.locked_until_ms(subqueue), is_shared)

    def _enter(self, subqueue: Subqueue, session: MessageSession, lock: SessionLock) -> None:
        """Set the timer of a lock, under a new key: the timer of an earlier end may still come out."""
        self._keys += 1
        lock.key = self._keys
        self._by_key[lock.key] = subqueue, session
        self._ends.add(lock.until_ms, lock.key)
        for client in lock.holders:
            self._by_client[client] = lock.key

    def watch(self, client: ClientId, watch: WatchSessions) -> None:
        """Tell the client when a session with messages is free."""
        subqueue = self._space.messages.find(watch.subqueue)
        self._watches.setdefault(subqueue.number, {})[client] = None

    def tell_watchers(self) -> None:
        """Report free sessions. The answers leave with the cycle, so a client that then asks for one may be
        given messages that this cycle brought."""
        space = self._space
        for number in list(self._watches):
            subqueue = space.subqueues[number]
            if subqueue.sessions is not None and subqueue.sessions.free:
                for client in self._watches.pop(number):
                    space.answer(client, Arrived(space.number, subqueue.name))

    # --- holding --------------------------------------------------------------------------------------------

    def held(
        self, client: ClientId, session_id: bytes | None, subqueue: Subqueue
    ) -> tuple[MessageSession, SessionLock]:
        """The session that a client holds in a subqueue, which must have this id. Raises
        Refused(SESSION_LOCK_LOST)."""
        found = self._by_key.get(self._by_client.get(client, 0))
        if found is not None:
            home, session = found
            lock = session.lock
            if (
                home is subqueue
                and session.id == session_id
                and lock is not None
                and lock.until_ms > self._space.arrived_ms
            ):
                return session, lock
        raise session_lock_lost(session_id or b"")

    def renew(self, client: ClientId, renew: RenewSession) -> None:
        """Renew the lock of a session that `renew.holder` holds. Raises Refused(SESSION_LOCK_LOST)."""
        space = self._space
        subqueue = space.messages.find(renew.subqueue)
        session, lock = self.held(renew.holder, renew.session_id, subqueue)
        del self._by_key[lock.key]
        self._ends.cancel(lock.until_ms)
        if renew.duration_ms is None:
            lock.until_ms = space.locked_until_ms(subqueue)
        else:
            lock.until_ms = space.cycle.now_ms + renew.duration_ms
        self._enter(subqueue, session, lock)
        for lease in lock.leases:
            lease.until_ms = lock.until_ms
        space.answer(client, SessionRenewed(lock.until_ms, renew.cookie))

    def lease_by_number(self, lock: SessionLock, holder: ClientId, subqueue: Subqueue) -> Lease:
        """A lease for messages that a holder has asked for by number."""
        lease = self._space.locks.new_lease(subqueue.number, lock.until_ms, lock)
        lock.leases[lease] = holder
        return lease

    # --- the end of a lock ----------------------------------------------------------------------------------

    def run_out(self, until_ms: int) -> None:
        """End the locks that end by `until_ms`, up to the cycle's limits."""
        cycle, bounds = self._space.cycle, self._space.bounds
        self._ended.add(self._ends.expire(until_ms))
        while (
            self._ended
            and cycle.expired_locks < bounds.ended_locks_max
            and cycle.ended_leases < bounds.ended_leases_max
        ):
            cycle.ended_leases += 1
            for key in self._ended.take(1):
                found = self._by_key.get(key)
                if (
                    found is not None
                    and found[1].lock is not None
                    and found[1].lock.until_ms <= until_ms
                    and not self._lose(*found)
                ):
                    self._ended.put_back((key,))
                    return

    def _lose(self, subqueue: Subqueue, session: MessageSession) -> bool:
        """End a lock whose time is over: its messages have had a failed delivery. False if not all of them
        have, and the lock stays, because their changed properties take long to merge with a reason."""
        space, lock = self._space, session.lock
        assert lock is not None
        held = _held_by(lock.leases)
        failing = failing_together(space, subqueue, held)
        space.cycle.expired_locks += len(failing)
        if len(failing) < len(held):
            self._end_some(failing)
            failed_delivery(space, self._time_to_live, subqueue, failing, None)
            return False
        holders = list(lock.holders)
        references = self._take_back(lock, list(lock.leases))
        self._free(subqueue, session)
        if references:
            failed_delivery(space, self._time_to_live, subqueue, references, None)
        for holder in holders:
            close_grant(space, holder, subqueue.number)
            space.answer(holder, SessionLost(space.number, subqueue.name))
        return True

    def detach(self, client: ClientId) -> None:
        """A holder has gone: its unsettled messages go back, and the last one frees the session."""
        found = self._by_key.get(self._by_client.pop(client, 0))
        for number, clients in list(self._watches.items()):
            clients.pop(client, None)
            if not clients:
                del self._watches[number]
        if found is None:
            return
        subqueue, session = found
        lock = session.lock
        assert lock is not None and subqueue.sessions is not None
        references = self._take_back(lock, [lease for lease, owner in lock.leases.items() if owner == client])
        self._space.cycle.work += len(references)
        del lock.holders[client]
        if not lock.holders:
            self._free(subqueue, session)
        self._time_to_live.give_back(subqueue, references)
        if session.lock is not None:
            subqueue.sessions.review(session)

    def _take_back(self, lock: SessionLock, leases: list[Lease]) -> list[Reference]:
        """End some leases of a session; returns their messages, in order."""
        taken = _held_by(leases)
        self._end_some(taken)
        for lease in leases:
            lock.leases.pop(lease, None)
        return taken

    def _end_some(self, references: list[Reference]) -> None:
        """End the locks of some messages."""
        groups: dict[Lease, list[Reference]] = {}
        for reference in references:
            assert reference.lease is not None
            groups.setdefault(reference.lease, []).append(reference)
        for lease, some in groups.items():
            self._space.locks.take_back(lease, some)

    def _free(self, subqueue: Subqueue, session: MessageSession) -> None:
        lock = session.lock
        assert lock is not None and subqueue.sessions is not None
        for client in lock.holders:
            self._by_client.pop(client, None)
        del self._by_key[lock.key]
        self._ends.cancel(lock.until_ms)
        session.lock = None
        subqueue.sessions.review(session)

    # --- handing out ----------------------------------------------------------------------------------------

    def demand(self, client: ClientId, subqueue: Subqueue, demand: Demand) -> None:
        """Raise a holder's demand. A client that holds no session is told that it has lost it."""
        space = self._space
        found = self._by_key.get(self._by_client.get(client, 0))
        if found is None or found[0] is not subqueue:
            space.answer(client, SessionLost(space.number, subqueue.name))
            return
        self._ask(subqueue, found[1], client, demand.count, demand.bytes_max)

    def ask_again(self, grant: Grant, count: int, size: int) -> None:
        """Restore a holder's demand for messages that were taken back from it."""
        found = self._by_key.get(self._by_client.get(grant.client, 0))
        if found is None:
            return
        subqueue, session = found
        lock = session.lock
        assert lock is not None
        holder = lock.holders[grant.client]
        left = holder.bytes if holder.count else grant.bytes_left
        self._ask(subqueue, session, grant.client, count, size + left)

    def _ask(
        self, subqueue: Subqueue, session: MessageSession, client: ClientId, count: int, bytes_max: int
    ) -> None:
        lock = session.lock
        assert lock is not None and subqueue.sessions is not None
        holder = lock.holders[client]
        holder.count += count
        holder.bytes = max(bytes_max, 1)  # else handing out to it would never end
        subqueue.sessions.review(session)

    def withdraw(self, client: ClientId, subqueue: Subqueue) -> bool:
        """Meet a holder's demand as far as possible, then end it. Returns False if that must continue in the
        next cycle."""
        space = self._space
        found = self._by_key.get(self._by_client.get(client, 0))
        if found is None or found[0] is not subqueue:
            return True
        session = found[1]
        lock, sessions = session.lock, subqueue.sessions
        assert lock is not None and sessions is not None
        holder = lock.holders[client]
        if holder.count and sessions.has_next(session):
            self._hand_to(subqueue, session, holder)
            has_enough = has_granted_enough(space) and sessions.has_next(session)
            if holder.count and has_enough and (client, subqueue.number) not in space.cycle.open_grants:
                return False  # the cycle has reached its limit, and this client has been given nothing yet
        holder.count = 0
        sessions.review(session)
        close_grant(space, client, subqueue.number)
        return True

    def hand_out(self) -> None:
        """End the cycle by handing out the messages of hungry sessions."""
        cycle = self._space.cycle
        self._has_broken_off = False
        for subqueue in self._subqueues.values():
            sessions = subqueue.sessions
            assert sessions is not None, "a session was locked"
            if not sessions.hungry:
                continue
            cycle.hand_out_anew()
            for _ in range(sessions.hungry.count):
                session = sessions.hungry.first
                if session is None:
                    break
                lock = session.lock
                assert lock is not None
                for holder in list(lock.holders.values()):
                    if holder.count:
                        self._hand_to(subqueue, session, holder)
                if session in sessions.hungry:
                    sessions.hungry.leave(session)
                    sessions.hungry.join(session)
                if has_granted_enough(self._space):
                    self._has_broken_off = bool(sessions.hungry)
                    break

    def _hand_to(self, subqueue: Subqueue, session: MessageSession, holder: SessionHolder) -> None:
        """Give a holder available messages of its session, up to its demand and the cycle's limits."""
        space, lock, sessions = self._space, session.lock, subqueue.sessions
        assert lock is not None and sessions is not None
        cycle = space.cycle
        if lock.until_ms <= cycle.now_ms:
            return  # it ends with the next cycle, and nothing may begin in it
        while holder.count and sessions.has_next(session) and not has_granted_enough(space):
            grant = cycle.open_grants.get((holder.client, subqueue.number))
            lease = grant.lease if grant else space.locks.new_lease(subqueue.number, lock.until_ms, lock)
            taken, expired, looks = subqueue.take_from_session(
                session,
                holder.count,
                min(space.bounds.granted_bytes_max - cycle.granted_bytes, holder.bytes),
                lease,
                cycle.now_ms,
                space.bounds.granted_max - cycle.granted,
            )
            assert looks, "its available messages are waiting"
            cycle.granted += looks
            if subqueue.changed_bytes:
                cycle.granted_bytes += laying_costs(taken) + laying_costs(expired)
            if taken:
                if grant is None:
                    space.locks.start(lease)
                    lock.leases[lease] = holder.client
                    grant = new_grant(space, holder.client, lease)
                    cycle.open_grants[holder.client, subqueue.number] = grant
                size = bytes_of(taken)
                cycle.granted_bytes += size
                holder.count -= len(taken)
                holder.bytes -= size
                if holder.bytes <= 0 and holder.count:
                    grant.void += holder.count
                    grant.answer.voids_demand = True
                    holder.count = 0
                grant.bytes_left = holder.bytes
            self._time_to_live.expire_met(subqueue, expired)
        sessions.review(session)

    def check(self) -> None:
        """Assert that the locked sessions are known by their keys and holders."""
        locks: dict[int, SessionLock] = {}
        for key, (subqueue, session) in self._by_key.items():
            lock = session.lock
            assert lock is not None and lock.key == key and subqueue.sessions is not None
            assert subqueue.sessions.find(session.id) is session
            locks[key] = lock
        assert self._by_client == {client: key for key, lock in locks.items() for client in lock.holders}
        for lock in locks.values():
            assert set(lock.leases.values()) <= set(lock.holders)
            assert all(lease.left > 0 and lease.session is lock for lease in lock.leases)
            assert all(lease.until_ms == lock.until_ms for lease in lock.leases)
        self._ends.check(lock.until_ms for lock in locks.values())


def session_lock_lost(session_id: bytes) -> Refused:
    """The refusal of an operation that needs the lock of a session."""
    return Refused(
        Reason.SESSION_LOCK_LOST,
        f"The session lock for session '{decode_session_id(session_id)}' has expired, or another receiver "
        "has it. Accept the session again.",
    )


def _held_by(leases: Iterable[Lease]) -> list[Reference]:
    """The messages of several leases, in order."""
    held = [each for lease in leases for each in lease.references if each.lease is lease]
    held.sort(key=_number)
    return held


def _number(reference: Reference) -> int:
    return reference.sequence_number
