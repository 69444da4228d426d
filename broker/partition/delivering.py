"""Handing out messages: demand, grants and recall; and fetching deferred messages. Pure.

Clients ask for messages (`Demand`). The partition locks the oldest available ones and grants them to the
clients in order (`DemandBook`), in one answer per client, subqueue and cycle. If a client waits in vain, the
partition asks other clients to return messages they have not passed on (`Recall`).
"""

from __future__ import annotations

from functools import partial
from itertools import islice

from broker.base.errors import Reason, Refused
from broker.identifiers import ClientId
from broker.operations.general import Detach
from broker.operations.receiving import (
    Demand,
    LockExactly,
    Recall,
    Recalled,
    ReceiveDeferred,
    Unmet,
    Withdrawn,
)
from broker.operations.transfers import LockNext
from broker.partition.changed_properties import WORK_COST, laying_cost, laying_costs
from broker.partition.cycle import Grant
from broker.partition.demand_and_recall import DemandBook, Waiter
from broker.partition.granting import close_grant, has_granted_enough, new_grant, write_grant
from broker.partition.references import ACTIVE, DEFERRED, Lease, Reference, SessionHolder, bytes_of
from broker.partition.session_locks import SessionLocks
from broker.partition.subqueue import Subqueue
from broker.partition.time_to_live import TimeToLive
from broker.partition.workspace import Workspace

_ANSWER_BYTES = 256
"""The least memory that a message in an answer takes besides its bytes and its changed properties."""


class Delivering:
    """Hands out the messages of one partition."""

    __slots__ = ("_asked", "_due", "_first", "_places", "_sessions", "_space", "_time_to_live", "_to_tell")

    def __init__(self, space: Workspace, time_to_live: TimeToLive, sessions: SessionLocks) -> None:
        self._space, self._time_to_live, self._sessions = space, time_to_live, sessions
        self._asked: dict[int, tuple[Subqueue, DemandBook]] = {}
        """Subqueues where a client has demand or holds messages that can be recalled. The others are
        skipped."""
        self._places: dict[ClientId, tuple[int, ...]] = {}
        """The subqueues in which each client has asked for messages: nearly always one. Thousands of clients
        may go together, and a topic has thousands of subqueues."""
        self._due: set[int] = set()
        """Of the subqueues in `_asked`, those that `finish` looks at besides the changed ones: what clients
        do may have an effect there, or the last cycle has not finished."""
        self._first = 0
        """The subqueue with which the next cycle begins, because the last one had no leases left for it."""
        self._to_tell: list[tuple[ClientId, int]] = []
        """As in `Cycle.to_tell`, of cycles that could not hand out everything: whether these demands are met
        is not known yet."""

    @property
    def has_more(self) -> bool:
        """A client waits for available messages, or for recalls, because the cycle reached its limit."""
        return bool(self._asked) and any(
            book and (subqueue.available or book.can_recall) for _, subqueue, book in self._to_look_at()
        )

    @property
    def is_idle(self) -> bool:
        """Whether no client waits for messages, or holds some that can be recalled."""
        return not (self._asked or self._to_tell)

    def is_patient(self, client: ClientId, name: str) -> bool:
        """Whether there is nothing to give a client that asks for messages of a subqueue, and nobody to
        recall any from. Sessions have no patience."""
        try:
            subqueue = self._space.messages.find(name)
        except Refused:
            return False  # the client hears of it at once
        if subqueue.available or self._sessions.covers(subqueue):
            return False
        return not self._space.books[subqueue.number].has_others(client)

    def demand(self, client: ClientId, demand: Demand) -> None:
        """Raise a client's demand. First completes the client's withdrawal if one is pending."""
        space = self._space
        subqueue = space.messages.find(demand.subqueue)
        if self._sessions.covers(subqueue):
            self._sessions.demand(client, subqueue, demand)
            return
        book = space.books[subqueue.number]
        if book.is_leaving(client):
            book.leave(client)
            space.answer(client, Withdrawn(space.number, subqueue.name))
        if demand.count > 0:
            self._look_at(subqueue, book)
            places = self._places.get(client, ())
            if subqueue.number not in places:
                self._places[client] = (*places, subqueue.number)
            book.ask(client, demand.count, demand.bytes_max)
            if demand.tell_unmet:
                space.cycle.to_tell.append((client, subqueue.number))

    def _look_at(self, subqueue: Subqueue, book: DemandBook) -> None:
        """Let `finish` look at a subqueue."""
        self._asked[subqueue.number] = subqueue, book
        self._due.add(subqueue.number)

    def withdraw(self, client: ClientId, subqueue: Subqueue) -> bool:
        """Withdraw a client's demand. A drain asks for the messages there are now, and then no more (§2.6.7),
        so first meet the demand as far as possible and recall messages for it, in later cycles if this one
        may not give the client anything yet. Returns False if none of that can begin in this cycle."""
        space = self._space
        if space.hands_out_later:
            return False  # a transaction of this cycle may give back what the client waits for
        if self._sessions.covers(subqueue):
            self._sessions.withdraw(client, subqueue)
            return True
        book = space.books[subqueue.number]
        self._hand_out(subqueue, book)
        self._recall(subqueue, book)
        if book.withdraw(client, is_owed=self._is_owed(subqueue, client)):
            space.answer(client, Withdrawn(space.number, subqueue.name))
        self._due.add(subqueue.number)
        close_grant(space, client, subqueue.number)
        return True

    def _is_owed(self, subqueue: Subqueue, client: ClientId) -> bool:
        """Whether a client that waits has been given nothing in this cycle, and messages are left that may be
        for it."""
        return bool(subqueue.available) and (client, subqueue.number) not in self._space.cycle.open_grants

    def recalled(self, client: ClientId, recalled: Recalled) -> None:
        """Handle a client's answer to a recall: grant what it returned to other clients."""
        space = self._space
        subqueue = space.messages.find(recalled.subqueue)
        book = space.books[subqueue.number]
        space.cycle.work += len(recalled.tokens)
        returned = space.locks.unlock(recalled.tokens, space.arrived_ms)
        book.recalled(client)
        self._due.add(subqueue.number)
        for other, references in returned:
            self._time_to_live.give_back(other, references)
        if returned:
            book.move_to_end(client)
            while subqueue.available and (waiter := book.latest_but(client)) is not None:
                if not self._grant(subqueue, book, waiter, waiter.count) and has_granted_enough(self._space):
                    return

    def detach(self, client: ClientId, detach: Detach) -> None:
        """Make the messages that a departing client has not seen available again."""
        space = self._space
        space.cycle.work += len(detach.unseen)
        returned = space.locks.unlock(detach.unseen, space.arrived_ms)
        for number in self._places.pop(client, ()):
            space.books[number].detach(client)
            close_grant(space, client, number)  # else a full disk would give it back its demand
            self._due.add(number)
        for subqueue, references in returned:
            self._time_to_live.give_back(subqueue, references)
        self._sessions.detach(client)

    def receive_deferred(self, client: ClientId, receive: ReceiveDeferred) -> None:
        """Lock deferred messages for a client that names them: all of them, or none. Raises Refused:
        MESSAGE_NOT_FOUND, SESSION_LOCK_LOST, or ARGUMENT if an answer cannot hold them."""
        space = self._space
        subqueue = space.messages.find(receive.subqueue)
        session_id, held = None, None
        if self._sessions.covers(subqueue):
            session, lock = self._sessions.held(receive.holder, receive.session_id, subqueue)
            session_id, held = session.id, lock.holders[receive.holder]
        found: list[Reference] = []
        for number in dict.fromkeys(receive.sequence_numbers):
            reference = subqueue.references.get(number)
            if (
                reference is None
                or reference.state is not DEFERRED
                or reference.lease is not None
                or (session_id is not None and reference.session_id != session_id)
            ):
                raise Refused(
                    Reason.MESSAGE_NOT_FOUND,
                    f"No deferred message has the sequence number {number}, or it is locked.",
                )
            found.append(reference)
        if len(found) > space.bounds.granted_max:
            raise Refused(
                Reason.ARGUMENT,
                f"The request names {len(found)} deferred messages in partition {space.number}; the limit is "
                f"{space.bounds.granted_max}.",
            )
        size = sum(map(_answer_bytes, found))
        if receive.bytes_max is not None and size > receive.bytes_max:
            raise Refused(
                Reason.ARGUMENT,
                f"The {len(found)} deferred messages in partition {space.number} take {size} bytes, and the "
                f"response has room for {receive.bytes_max}. Receive fewer messages with one request.",
            )
        self._lock(client, subqueue, found, receive.cookie, held)

    def lock_exactly(self, client: ClientId, lock: LockExactly) -> None:
        """Lock messages that a client names, in any state: the first of them, as many as one answer may hold,
        and at least one. Leaves out those that are locked or missing, or were sent in this cycle. Those that
        their holder may hold unseen are recalled."""
        space, cycle = self._space, self._space.cycle
        subqueue = space.messages.find(lock.subqueue)
        found: list[Reference] = []
        for number in dict.fromkeys(lock.sequence_numbers):
            reference = subqueue.references.get(number)
            if reference is None or (cycle.has_sent and number >= cycle.first_sent):
                continue
            if lock.only_active and reference.state is not ACTIVE:
                continue
            if reference.lease is None:
                found.append(reference)
            else:
                space.recall_from(reference.lease)
        room = space.bounds.granted_bytes_max
        for place, reference in enumerate(found):
            room -= _answer_bytes(reference) + laying_cost(reference)
            if (room < 0 and place) or place >= space.bounds.granted_max:
                del found[place:]
                break
        self._lock(client, subqueue, found, lock.cookie)

    def lock_next(self, client: ClientId, lock: LockNext) -> bool:
        """Lock the oldest available messages. Returns False if that must wait for the next cycle. Raises
        Refused(NOT_ALLOWED) in a subqueue with sessions."""
        space, cycle = self._space, self._space.cycle
        if space.hands_out_later:
            return False  # a transaction of this cycle may make older messages available
        subqueue = space.messages.find(lock.subqueue)
        if self._sessions.covers(subqueue):
            raise Refused(Reason.NOT_ALLOWED, "Messages of sessions are received with their session.")
        lease = space.locks.new_lease(subqueue.number, cycle.now_ms + lock.duration_ms)
        taken, expired, looked = subqueue.take(
            min(lock.count, space.bounds.granted_max),
            min(lock.bytes_max, space.bounds.granted_bytes_max),
            lease,
            cycle.now_ms,
            space.bounds.granted_max,
        )
        cycle.work += looked
        if subqueue.changed_bytes:
            cycle.work += (laying_costs(taken) + laying_costs(expired)) // WORK_COST
        grant = new_grant(space, client, lease, deferred=True, cookie=lock.cookie)
        cycle.unsynced.append(grant.answer)
        grant.open = False
        if taken:
            space.locks.start(lease)
        if expired:
            self._time_to_live.expire_met(subqueue, expired)
        return True

    def _lock(
        self,
        client: ClientId,
        subqueue: Subqueue,
        found: list[Reference],
        cookie: object,
        session: SessionHolder | None = None,
    ) -> None:
        """Lock messages that are not locked. `session`: who holds their session."""
        space = self._space
        space.cycle.work += len(found)
        if session is None:
            lease = self._new_lease(subqueue)
        else:
            lease = space.locks.new_lease(subqueue.number, session.until_ms, session)
        grant = new_grant(space, client, lease, deferred=True, cookie=cookie)
        grant.open = False
        if found:
            subqueue.lock_by_number(found, lease)
            space.locks.start(lease)

    def _to_look_at(self) -> list[tuple[int, Subqueue, DemandBook]]:
        """The subqueues of `_asked` in which there may be something to do, and their numbers: a topic may
        have thousands in which clients wait in vain."""
        numbers = self._asked.keys() & (self._due | self._space.messages.work.changed.since_handed_out)
        return [(number, *self._asked[number]) for number in numbers]

    def finish(self) -> None:
        """End the cycle by handing out available messages in each subqueue."""
        space, cycle = self._space, self._space.cycle
        if not space.hands_out_later:
            self._sessions.hand_out()
        cycle.granted_leases = 0  # else withdrawals and sessions could use it up in every cycle
        left_out: int | None = None
        looked_at = sorted(self._to_look_at(), key=lambda each: (each[0] < self._first, each[0]))
        if not space.hands_out_later:
            self._due.clear()
            space.messages.work.changed.since_handed_out.clear()
        for number, subqueue, book in looked_at:
            if book.is_empty:
                if not book.is_held:
                    del self._asked[number]
                continue
            cycle.hand_out_anew()
            if not space.hands_out_later:
                if left_out is None and has_granted_enough(space) and subqueue.available and book:
                    left_out = number
                self._hand_out(subqueue, book)
            self._recall(subqueue, book)
            for client in book.left(partial(self._is_owed, subqueue)):
                space.answer(client, Withdrawn(space.number, subqueue.name))
                close_grant(space, client, subqueue.number)
            if book.has_leaving or (book and (subqueue.available or book.can_recall)):
                self._due.add(number)
        self._first = left_out or 0
        self._to_tell += cycle.to_tell
        if not space.hands_out_later:  # else what is available now may be for other entities
            cycle.to_tell = self._to_tell
            self.tell_unmet()

    def tell_unmet(self) -> None:
        """Tell clients that wait that there is nothing more for them. If there may be, because the cycle has
        reached its limit, they are told after the next one."""
        space = self._space
        to_tell, self._to_tell = self._to_tell, []
        for client, number in dict.fromkeys(to_tell):
            if not space.books[number].waits(client):
                continue
            if space.subqueues[number].available:
                self._to_tell.append((client, number))
            else:
                space.answer(client, Unmet(space.number, space.subqueues[number].name))

    def write_answers(self) -> None:
        """Write the cycle's answers. They grow no further."""
        for grant in self._space.cycle.grants:
            write_grant(self._space, grant)

    def ungrant(self, grant: Grant) -> None:
        """Remove messages sent in this cycle from a lease made in this cycle, and restore the client's demand
        for them. `tell_unmet` is called once these messages are gone."""
        space, lease = self._space, grant.lease
        cycle = space.cycle
        # A client that has gone in this cycle has given its messages back: its lease has them no longer.
        undone = [
            reference
            for reference in lease.references
            if reference.sequence_number >= cycle.first_sent and reference.lease is lease
        ]
        if not undone:
            return
        lease.references = [
            reference for reference in lease.references if reference.sequence_number < cycle.first_sent
        ]
        space.locks.take_back(lease, undone)
        cycle.holes = [hole for hole in cycle.holes if hole[0] is not grant.answer.messages]
        write_grant(space, grant)
        if grant.open:
            grant.answer.voids_demand = False
            size = bytes_of(undone)
            if lease.session is not None:
                self._sessions.ask_again(grant, len(undone) + grant.void, size)
                return
            book = space.books[lease.subqueue]
            self._look_at(space.subqueues[lease.subqueue], book)
            book.ask_again(grant.client, len(undone) + grant.void, size, grant.bytes_left)
            if (grant.client, lease.subqueue) in cycle.to_tell:
                self._to_tell.append((grant.client, lease.subqueue))

    def _hand_out(self, subqueue: Subqueue, book: DemandBook) -> None:
        """Grant available messages to waiting clients, in order."""
        while subqueue.available and (waiter := book.first()) is not None:
            if not self._grant(subqueue, book, waiter, waiter.count) and has_granted_enough(self._space):
                return

    def _grant(self, subqueue: Subqueue, book: DemandBook, waiter: Waiter, count: int) -> int:
        """Lock up to `count` messages for a waiter, and return how many. Also handles the expired messages it
        meets."""
        space, cycle = self._space, self._space.cycle
        client = waiter.client
        room = min(space.bounds.granted_bytes_max - cycle.granted_bytes, waiter.bytes)
        looks = space.bounds.granted_max - cycle.granted
        if room <= 0 or has_granted_enough(space):
            return 0
        grant = cycle.open_grants.get((client, subqueue.number))
        lease = grant.lease if grant else self._new_lease(subqueue)
        taken, expired, looked = subqueue.take(count, room, lease, cycle.now_ms, looks)
        cycle.granted += looked
        if subqueue.changed_bytes:
            cycle.granted_bytes += laying_costs(taken) + laying_costs(expired)
        if taken:
            if grant is None:
                space.locks.start(lease)
                lease.holder = book.holder(client)
                book.granted(lease)
                grant = new_grant(space, client, lease)
                cycle.open_grants[client, subqueue.number] = grant
            size = bytes_of(taken)
            cycle.granted_bytes += size
            grant.void += book.given(waiter, len(taken), size)
            grant.bytes_left = waiter.bytes
            if grant.void:
                grant.answer.voids_demand = True
        if expired:
            self._time_to_live.expire_met(subqueue, expired)
        return len(taken)

    def _recall(self, subqueue: Subqueue, book: DemandBook) -> None:
        """Recall messages that clients have not passed on, if others wait and nothing is available."""
        if not subqueue.available:
            space, cycle = self._space, self._space.cycle
            for client in islice(book.recall(), space.bounds.recalls_max - cycle.recalls):
                cycle.recalls += 1
                space.answer(client, Recall(space.number, subqueue.name))

    def _new_lease(self, subqueue: Subqueue) -> Lease:
        return self._space.locks.new_lease(subqueue.number, self._space.locked_until_ms(subqueue))

    def check(self, *, goes_on: bool) -> None:
        """Assert between cycles that nobody waits in vain, and that clients are found when they go.
        `goes_on`: whether the next cycle follows at once."""
        due = {number for number, _, _ in self._to_look_at()}
        places = {(client, number) for client, numbers in self._places.items() for number in numbers}
        for number, book in self._space.books.items():
            book.check()
            subqueue = self._space.subqueues[number]
            assert goes_on or not (subqueue.available and book), "messages are available while a client waits"
            is_to_do = book.has_leaving or (book and (subqueue.available or book.can_recall))
            assert number in due or not is_to_do, "somebody waits, and nobody looks"
            assert places.issuperset((client, number) for client in book.clients())


def _answer_bytes(reference: Reference) -> int:
    """What a message takes in an answer."""
    return reference.size + len(reference.changed or b"") + _ANSWER_BYTES
