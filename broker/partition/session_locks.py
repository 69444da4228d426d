"""Locks of message sessions: accepting, renewing and losing them, and handing out a session's messages. Pure.

AMQP contract 5.4 and 10.3. A client (a receiving link) accepts a session by name, or the one that has been
free for longest. Until it detaches or the lock ends, it alone is given the session's messages, in their
order. Several clients may hold a session only if the first one has said so and the others know the lock's
token (the non-exclusive filter of the .NET client).

Locks are volatile, like those of messages: a restart frees all sessions. When a lock ends, the session's
locked messages have had a failed delivery, and each holder is told (`SessionLost`). When a holder detaches,
its unsettled messages go back, and no delivery is counted. In both cases they may come back over several
cycles (`giving_back.py`). Meanwhile the lock stays, without holders if it has ended. While nobody holds it, a
client that accepts the session by name waits until all is back.

A lock ends at exactly the millisecond that the client was told, whether or not its timer has fired. An
operation counts if it arrived before that (`Workspace.arrived_ms`).
"""

from __future__ import annotations

from broker.base.errors import Reason, Refused
from broker.identifiers import ClientId, decode_session_id
from broker.operations.browsing import Arrived
from broker.operations.general import Failed
from broker.operations.receiving import Demand, Withdrawn
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
from broker.partition.giving_back import GivingBack
from broker.partition.granting import close_grant, has_granted_enough, new_grant
from broker.partition.message_sessions import MessageSession
from broker.partition.references import SessionHolder, SessionLock, bytes_of
from broker.partition.subqueue import Subqueue
from broker.partition.time_to_live import TimeToLive
from broker.partition.timers import DueKeys, TimerWheel
from broker.partition.waiting_clients import WaitingClients
from broker.partition.workspace import Workspace

SHARED_BY_MAX = 100
"""How many clients may hold a session together: each is looked at whenever one joins, asks or renews."""


class SessionLocks:
    """The locked sessions of one partition."""

    __slots__ = (
        "_accepting",
        "_by_client",
        "_by_key",
        "_draining",
        "_ended",
        "_ends",
        "_giving_back",
        "_has_broken_off",
        "_keys",
        "_requests",
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
        """All sessions that somebody holds."""
        self._by_client: dict[ClientId, int] = {}
        """The session that each client holds, by key. A client holds at most one."""
        self._accepting: dict[ClientId, MessageSession] = {}
        """Clients that will be answered once all messages of a session that had a lock are back."""
        self._requests: dict[MessageSession, dict[ClientId, AcceptSession]] = {}
        """What these clients have asked for, the one that has waited longest first."""
        self._draining: dict[ClientId, None] = {}
        """Holders that have withdrawn and may still be given something: the cycle had no room, or others are
        giving messages back."""
        self._giving_back = GivingBack(space, time_to_live)
        self._ends = TimerWheel(space.bounds.tick_ms, self._by_key.__contains__)
        self._ended = DueKeys()
        """Keys of locks that have come due and may have ended."""
        self._has_broken_off = False
        """The cycle reached its limit before all hungry sessions were given their messages."""
        self._watches = WaitingClients()
        """Clients to tell when a session becomes free."""

    @property
    def has_more(self) -> bool:
        """Whether work is left for the next cycle."""
        return bool(self._ended or self._giving_back) or self._has_broken_off

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
        return bool(self._ended or self._giving_back) or self._ends.is_due(now_ms)

    def next_due_ms(self) -> int | None:
        """When the next lock ends; None if no session is locked."""
        return self._ends.next_due_ms()

    def covers(self, subqueue: Subqueue) -> bool:
        """Whether the subqueue's messages are received with their sessions only."""
        return subqueue.role.has_sessions and self._space.description.delivery(subqueue.name).requires_session

    # --- accepting ------------------------------------------------------------------------------------------

    def accept(self, client: ClientId, accept: AcceptSession) -> None:
        """Lock a session for a client, or do so as soon as all that an earlier holder had is back. Raises
        Refused: SESSION_NOT_FOUND if none is free, SESSION_LOCKED, NOT_ALLOWED, or QUOTA_EXCEEDED if too many
        share it. A token says nothing if the session has no lock: a client may send an empty one."""
        space = self._space
        subqueue = space.messages.find(accept.subqueue)
        if not self.covers(subqueue):
            path = space.description.path_of(accept.subqueue)
            raise Refused(Reason.NOT_ALLOWED, f"The entity '{path}' does not require sessions.")
        is_new = client not in self._by_client and client not in self._accepting
        assert is_new, "a client holds one session"
        sessions = subqueue.start_sessions()
        if accept.session_id is None:
            session = sessions.free.first
            if session is None:
                raise Refused(Reason.SESSION_NOT_FOUND, "No session with messages is free.")
        else:
            session = sessions.find_or_make(accept.session_id)
            lock = session.lock
            if lock is not None and lock.holders and lock.until_ms <= space.arrived_ms:
                self._lose(subqueue, session)
                self._give_back()
                session = sessions.find_or_make(accept.session_id)
        lock = session.lock
        if lock is not None and not lock.holders:
            self._accepting[client] = session
            self._requests.setdefault(session, {})[client] = accept
            return
        if lock is None:
            lock = session.lock = self._new_lock(subqueue, accept.is_shared)
            self._enter(subqueue, session, lock)
            self._subqueues[subqueue.number] = subqueue
        elif not (lock.is_shared and accept.is_shared and accept.token == lock.token):
            raise _session_locked(session.id)
        elif len(lock.holders) >= SHARED_BY_MAX:
            text = (
                f"The session '{decode_session_id(session.id)}' is shared by {SHARED_BY_MAX} receivers, and "
                "no more may share one. Close one of them, or receive with fewer."
            )
            raise Refused(Reason.QUOTA_EXCEEDED, text)
        lock.holders[client] = SessionHolder(client, lock.until_ms)
        self._by_client[client] = lock.key
        sessions.review(session)
        space.answer(
            client,
            SessionAccepted(
                space.number, subqueue.name, session.id, lock.token, lock.until_ms, accept.cookie
            ),
        )

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
        self._watches.add(client, subqueue.number)

    def tell_watchers(self) -> None:
        """Report free sessions. The answers leave with the cycle, so a client that then asks for one may be
        given messages that this cycle brought."""
        space = self._space
        for number in list(self._watches.numbers):
            subqueue = space.subqueues[number]
            if subqueue.sessions is not None and subqueue.sessions.free:
                for client in self._watches.take(number):
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
        for holder in lock.holders.values():
            holder.until_ms = lock.until_ms
        space.cycle.work += len(lock.holders)
        space.answer(client, SessionRenewed(lock.until_ms, renew.cookie))

    # --- the end of a lock ----------------------------------------------------------------------------------

    def run_out(self, until_ms: int) -> None:
        """End the locks that end by `until_ms`, and give back what their holders had, up to the cycle's
        limits."""
        cycle, bounds = self._space.cycle, self._space.bounds
        self._ended.add(self._ends.expire(until_ms))
        while self._ended and cycle.ended_leases < bounds.ended_leases_max:
            cycle.ended_leases += 1
            for key in self._ended.take(1):
                found = self._by_key.get(key)
                if found is not None and found[1].lock is not None and found[1].lock.until_ms <= until_ms:
                    self._lose(*found)
        self._give_back()

    def _lose(self, subqueue: Subqueue, session: MessageSession) -> None:
        """End a lock whose time is over: its messages have had a failed delivery."""
        space, lock = self._space, session.lock
        assert lock is not None
        for client, holder in lock.holders.items():
            close_grant(space, client, subqueue.number)
            if client in self._draining:
                self._withdrawn(client, subqueue)
            space.answer(client, SessionLost(space.number, subqueue.name))
            del self._by_client[client]
            self._giving_back.begin(subqueue, session, holder, has_failed=True)
        lock.holders.clear()
        self._end(subqueue, session)

    def detach(self, client: ClientId) -> None:
        """A holder has gone: its unsettled messages go back, and the last one frees the session."""
        found = self._by_key.get(self._by_client.pop(client, 0))
        if client in self._accepting:
            session = self._accepting.pop(client)
            accept = self._requests[session].pop(client)
            if not self._requests[session]:
                del self._requests[session]
            self._refuse(client, accept, _session_locked(session.id))
        self._draining.pop(client, None)
        self._watches.forget(client)
        if found is None:
            return
        subqueue, session = found
        lock = session.lock
        assert lock is not None and subqueue.sessions is not None
        holder = lock.holders.pop(client)
        self._giving_back.begin(subqueue, session, holder, has_failed=False)
        if lock.holders:
            subqueue.sessions.review(session)
        else:
            self._end(subqueue, session)
        self._space.cycle.work += self._give_back()

    def _end(self, subqueue: Subqueue, session: MessageSession) -> None:
        """Nobody holds the session any more. Its lock goes once all its messages are back."""
        lock = session.lock
        assert lock is not None and subqueue.sessions is not None
        del self._by_key[lock.key]
        self._ends.cancel(lock.until_ms)
        subqueue.sessions.review(session)
        if not lock.leaving:
            self._free(subqueue, session)

    def _give_back(self) -> int:
        """Give back what holders have left, as much as the cycle allows. Returns how many messages that
        were."""
        cycle = self._space.cycle
        ended = cycle.ended_locks
        for subqueue, session in self._giving_back.go_on():
            assert session.lock is not None and subqueue.sessions is not None
            if session.lock.holders:
                subqueue.sessions.review(session)
            else:
                self._free(subqueue, session)
        return cycle.ended_locks - ended

    def _free(self, subqueue: Subqueue, session: MessageSession) -> None:
        """The session has no lock any more. The client that has waited longest gets it, and the others are
        refused."""
        assert subqueue.sessions is not None
        session.lock = None
        subqueue.sessions.review(session)
        for client, accept in self._requests.pop(session, {}).items():
            del self._accepting[client]
            try:
                self.accept(client, accept)
            except Refused as refused:
                self._refuse(client, accept, refused)

    def _refuse(self, client: ClientId, accept: AcceptSession, refused: Refused) -> None:
        self._space.answer(client, Failed(refused.reason, refused.description, accept.cookie))

    # --- handing out ----------------------------------------------------------------------------------------

    def demand(self, client: ClientId, subqueue: Subqueue, demand: Demand) -> None:
        """Raise a holder's demand. A client that holds no session is told that it has lost it."""
        space = self._space
        found = self._by_key.get(self._by_client.get(client, 0))
        if found is None or found[0] is not subqueue:
            space.answer(client, SessionLost(space.number, subqueue.name))
            return
        if client in self._draining:
            self._end_demand(client, *found)
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

    def withdraw(self, client: ClientId, subqueue: Subqueue) -> None:
        """Meet a holder's demand as far as possible, then end it; in later cycles if this one may not give it
        anything yet."""
        found = self._by_key.get(self._by_client.get(client, 0))
        if found is None or found[0] is not subqueue:
            self._withdrawn(client, subqueue)
            return
        session = found[1]
        lock = session.lock
        assert lock is not None
        holder = lock.holders[client]
        self._hand_to(subqueue, session, holder)
        if self._is_owed(subqueue, session, holder):
            self._draining[client] = None
        else:
            self._end_demand(client, subqueue, session)

    def _is_owed(self, subqueue: Subqueue, session: MessageSession, holder: SessionHolder) -> bool:
        """Whether a holder has been given nothing in this cycle, and may be in the next one: the cycle has
        reached its limit, or others are still giving messages of the session back."""
        lock, sessions = session.lock, subqueue.sessions
        assert lock is not None and sessions is not None
        if not holder.count or (holder.client, subqueue.number) in self._space.cycle.open_grants:
            return False
        return bool(lock.leaving) or sessions.has_next(session)

    def _end_demand(self, client: ClientId, subqueue: Subqueue, session: MessageSession) -> None:
        assert session.lock is not None and subqueue.sessions is not None
        session.lock.holders[client].count = 0
        subqueue.sessions.review(session)
        self._withdrawn(client, subqueue)

    def _withdrawn(self, client: ClientId, subqueue: Subqueue) -> None:
        """A client has no demand any more."""
        self._draining.pop(client, None)
        close_grant(self._space, client, subqueue.number)
        self._space.answer(client, Withdrawn(self._space.number, subqueue.name))

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
            cycle.granted_leases = 0
            for _ in range(sessions.hungry.count):
                session = sessions.hungry.first
                if session is None:
                    break
                lock = session.lock
                assert lock is not None
                for client, holder in list(lock.holders.items()):
                    if has_granted_enough(self._space) or session not in sessions.hungry:
                        break
                    if holder.count:
                        self._hand_to(subqueue, session, holder)
                        lock.holders[client] = lock.holders.pop(client)  # others are first the next time
                if session in sessions.hungry:
                    sessions.hungry.leave(session)
                    sessions.hungry.join(session)
                if has_granted_enough(self._space):
                    self._has_broken_off |= bool(sessions.hungry)
                    break
        for client in list(self._draining):
            subqueue, session = self._by_key[self._by_client[client]]
            lock = session.lock
            assert lock is not None
            if not self._is_owed(subqueue, session, lock.holders[client]):
                self._end_demand(client, subqueue, session)

    def _hand_to(self, subqueue: Subqueue, session: MessageSession, holder: SessionHolder) -> None:
        """Give a holder available messages of its session, up to its demand and the cycle's limits."""
        space, lock, sessions = self._space, session.lock, subqueue.sessions
        assert lock is not None and sessions is not None
        cycle = space.cycle
        if lock.until_ms <= cycle.now_ms or lock.leaving:
            return  # it ends with the next cycle, and nothing may begin in it; or others give messages back
        while holder.count and sessions.has_next(session) and not has_granted_enough(space):
            grant = cycle.open_grants.get((holder.client, subqueue.number))
            lease = grant.lease if grant else space.locks.new_lease(subqueue.number, lock.until_ms, holder)
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
        """Assert that the locked sessions are known by their keys and holders, and what is to be given back
        by those that have left."""
        locks: dict[int, SessionLock] = {}
        for key, (subqueue, session) in self._by_key.items():
            lock = session.lock
            assert lock is not None and lock.key == key and subqueue.sessions is not None
            assert subqueue.sessions.find(session.id) is session
            locks[key] = lock
        assert self._by_client == {client: key for key, lock in locks.items() for client in lock.holders}
        for lock in locks.values():
            assert lock.holders
            for client, holder in lock.holders.items():
                assert holder.client == client and not holder.has_gone and holder.until_ms == lock.until_ms
                assert all(lease.left > 0 and lease.session is holder for lease in holder.leases)
        assert self._draining.keys() <= self._by_client.keys()
        assert all(session.lock is not None for session in self._requests)
        waiting = {client: session for session, requests in self._requests.items() for client in requests}
        assert waiting == self._accepting
        self._giving_back.check()
        self._ends.check(lock.until_ms for lock in locks.values())


def session_lock_lost(session_id: bytes) -> Refused:
    """The refusal of an operation that needs the lock of a session."""
    return Refused(
        Reason.SESSION_LOCK_LOST,
        f"The session lock for session '{decode_session_id(session_id)}' has expired, or another receiver "
        "has it. Accept the session again.",
    )


def _session_locked(session_id: bytes) -> Refused:
    return Refused(
        Reason.SESSION_LOCKED,
        f"The session '{decode_session_id(session_id)}' cannot be accepted. It may be locked by another "
        "receiver.",
    )
