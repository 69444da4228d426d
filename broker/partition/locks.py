"""The locks of a partition: leases, their tokens and when they end. Pure. Volatile: a restart forgets all
locks.

A lock token is 16 bytes, big endian: the message's sequence number, then the lease's nonce, which is the
log's epoch (4 bytes) and a counter (4 bytes). The epoch changes each time the log is opened, so tokens from
before are invalid.

Messages locked together share a `Lease`: one object, one timer and one nonce. A lock ends at exactly the
millisecond that the client was told, whether or not its timer has fired.

Invariants: a reference is locked if and only if its `lease` is set, and it is then in that lease's
`references`; `left` counts those; a lease with none left is forgotten at once.

Messages of a session are locked for as long as their holder has their session (AMQP contract 10.3). Their
leases have no timer: `session_locks.py` ends them, and moves the holder's `until_ms` when the session's lock
is renewed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from broker.base.errors import Reason
from broker.identifiers import LockToken
from broker.partition import _references
from broker.partition._untracked import untrack
from broker.partition.chunked_table import ChunkedTable
from broker.partition.demand_and_recall import DemandBook
from broker.partition.references import TOKEN, Lease, Reference, SessionHolder
from broker.partition.subqueue import Subqueue
from broker.partition.subqueues import Subqueues
from broker.partition.timers import DueKeys, TimerWheel

TOKEN_BYTES = 16
DROPPED_AT_ONCE = 1024
"""Leases that one step of `drop` forgets: less than a millisecond."""

SPARSE = 2
"""A lease refers to at most so many times as many messages as it holds. Settled ones keep their changed
properties, 64 KiB each."""

Unlocked = list[tuple[Subqueue, list[Reference]]]
"""Messages whose locks have ended, by subqueue."""

HELD_UNTIL_MS = 1 << 62
"""When a lock made by `hold` would end: never, since it is ended when the commit has ended."""


class Held(NamedTuple):
    """Messages that `Locks.hold` keeps, all of one lease."""

    nonce: int
    """That lease's."""
    until_ms: int
    lease: Lease
    """The one that keeps them meanwhile."""
    session: SessionHolder | None
    """Who holds the messages' session, if they have one."""


class Locks:
    """All leases of one partition. Owned by its state machine."""

    def __init__(
        self,
        subqueues: Subqueues,
        books: Mapping[int, DemandBook],
        epoch: int,
        first_nonce: int,
        tick_ms: int,
    ) -> None:
        self.nonce = first_nonce
        """How many leases were made in this epoch."""
        self._subqueues, self._books = subqueues, books
        self._epoch = epoch & 0xFFFFFFFF
        self._leases: ChunkedTable[Lease] = ChunkedTable()
        """By id. There may be one for each message, if messages were abandoned with a delay."""
        self._homes: ChunkedTable[list[int]] = ChunkedTable()
        """By nonce: the number of the subqueue whose messages its leases lock, and the number of those
        leases."""
        self._ids = 0
        self._ends = TimerWheel(tick_ms, self._leases.__contains__)
        self._ended = DueKeys()
        """Leases that have expired but still hold their messages. Their tokens are no longer valid."""

    def __bool__(self) -> bool:
        """Whether there are any leases."""
        return bool(self._leases)

    def new_nonce(self) -> int:
        """A number that no lock of this partition has had before, also across restarts."""
        self.nonce += 1
        assert self.nonce < 1 << 32, "an epoch has room for four billion leases"
        return self._epoch << 32 | self.nonce

    def new_lease(self, subqueue: int, until_ms: int, session: SessionHolder | None = None) -> Lease:
        """Make a lease with a new nonce, in the subqueue with this number. It takes effect when started."""
        return self._make(subqueue, self.new_nonce(), until_ms, session)

    def start(self, lease: Lease) -> None:
        """Start a lease, once it holds messages. It expires at its `until_ms`, or with its session's lock."""
        self._leases[lease.id] = lease
        home = self._homes.get(lease.nonce)
        if home is None:
            home = self._homes[lease.nonce] = [lease.subqueue, 0]
            untrack([home, lease.references])
        home[1] += 1
        if lease.session is None:
            self._ends.add(lease.until_ms, lease.id)
        else:
            lease.session.leases[lease] = None

    def next_due_ms(self) -> int | None:
        """When the next lease expires; None if there is none."""
        return self._ends.next_due_ms()

    def is_due(self, now_ms: int) -> bool:
        """Whether `run_out` has something to do."""
        return bool(self._ended) or self._ends.is_due(now_ms)

    @property
    def has_ended(self) -> bool:
        """`run_out` has more to do."""
        return bool(self._ended)

    def unlock(
        self,
        tokens: Sequence[LockToken],
        now_ms: int,
        failures: dict[int, Reason] | None = None,
        within: int | None = None,
    ) -> Unlocked:
        """End the locks of these tokens. Adds the place of each token whose lock is gone to `failures`.

        `within` is the number of the only subqueue in which locks are found; None for all.
        """
        tokens = list(tokens)
        unlocked: dict[int, list[Reference]] = {}
        place = 0
        while place < len(tokens):
            found = self._find(tokens[place], now_ms, within)
            if found is None:
                if failures is not None:
                    failures[place] = Reason.LOCK_LOST
                place += 1
                continue
            begin, (number, lease) = place, found
            # Messages locked together are mostly settled together.
            table = self._subqueues[lease.subqueue].references.chunk_of(number)
            group = unlocked.setdefault(lease.subqueue, [])
            place = _references.unlock(tokens, begin, table, lease, group)
            lease.left -= place - begin
            self._tidy(lease)
        groups = [(self._subqueues[number], each) for number, each in unlocked.items()]
        for subqueue, each in groups:
            subqueue.unlock(each)
        return groups

    def subqueue_of(self, token: LockToken, now_ms: int, within: int | None = None) -> Subqueue | None:
        """The subqueue of the message that a token locks, or None if the lock is gone. `within` is as for
        `unlock`."""
        found = self._find(token, now_ms, within)
        return None if found is None else self._subqueues[found[1].subqueue]

    def references_of(
        self, tokens: Sequence[LockToken], now_ms: int, within: int | None = None
    ) -> Iterator[Reference]:
        """The messages that these tokens lock, without those whose locks are gone. `within` is as for
        `unlock`."""
        for token in tokens:
            if (found := self._find(token, now_ms, within)) is not None:
                number, lease = found
                yield self._subqueues[lease.subqueue].references[number]

    def renew(
        self, tokens: Sequence[LockToken], now_ms: int, until_ms: int, within: int | None = None
    ) -> dict[int, Reason]:
        """Move the end of these tokens' locks to `until_ms`. Returns the places of tokens whose locks are
        gone. `within` is as for `unlock`."""
        failures: dict[int, Reason] = {}
        renewed: dict[int, Lease] = {}
        for index, token in enumerate(tokens):
            found = self._find(token, now_ms, within)
            if found is None:
                failures[index] = Reason.LOCK_LOST
                continue
            number, old = found
            if old.session is not None:  # it is renewed with its session
                failures[index] = Reason.NOT_ALLOWED
                continue
            new = renewed.get(old.id)
            if new is None:
                new = renewed[old.id] = self._make(old.subqueue, old.nonce, until_ms)
                renewed[new.id] = new  # a token named twice is renewed once
                self.start(new)
                self._books[old.subqueue].renewed(old, new)
            if new is not old:
                subqueue = self._subqueues[old.subqueue]
                subqueue.renew(subqueue.references[number], new)
                self._tidy(old)
        return failures

    def hold(self, token: LockToken, kept: dict[int, Held]) -> tuple[Subqueue, Reference]:
        """Make a valid token invalid, but keep its message locked until `take_back` ends the lock, or
        `restore` makes the token valid again.

        `kept` collects what is kept, by the id of the lease that the messages had.
        """
        found = self._find(token, -1)
        assert found is not None, "the caller has looked"
        number, old = found
        held = kept.get(old.id)
        if held is None:
            lease = self.new_lease(old.subqueue, HELD_UNTIL_MS)
            self.start(lease)
            held = kept[old.id] = Held(old.nonce, _end_of(old), lease, old.session)
        subqueue = self._subqueues[old.subqueue]
        reference = subqueue.references[number]
        self._move(subqueue, reference, held.lease)
        return subqueue, reference

    def restore(self, held: Held) -> None:
        """Make the tokens of messages that were held valid again. They end when they would have ended."""
        session = held.session
        if session is not None and session.has_gone:
            session = None
        lease = self._make(held.lease.subqueue, held.nonce, held.until_ms, session)
        self.start(lease)
        for reference in held.lease.references:
            self._move(self._subqueues[lease.subqueue], reference, lease)

    def _move(self, subqueue: Subqueue, reference: Reference, lease: Lease) -> None:
        old = reference.lease
        assert old is not None
        subqueue.renew(reference, lease)
        self._tidy(old)

    def run_out(self, now_ms: int) -> Iterator[tuple[Lease, Subqueue, list[Reference]]]:
        """Find leases that are due, as the caller iterates and takes their messages back. The remaining ones
        stay due (`has_ended`), and so does the last one if the caller leaves some of its messages."""
        self._ended.add(self._ends.expire(now_ms))
        while self._ended:
            for id in self._ended.take(1):
                lease = self._leases.get(id)
                if lease is not None:
                    references = [reference for reference in lease.references if reference.lease is lease]
                    yield lease, self._subqueues[lease.subqueue], references

    def end_later(self, lease: Lease) -> None:
        """The rest of a lease that has run out ends when `run_out` is called again."""
        self._ended.put_back((lease.id,))

    def take_back(self, lease: Lease, references: list[Reference]) -> None:
        """End the locks of some of a lease's messages."""
        for reference in references:
            reference.lease = None
        self._subqueues[lease.subqueue].unlock(references)
        lease.left -= len(references)
        self._tidy(lease)

    def drop(self) -> Iterator[int]:
        """Forget all leases, in steps. Nothing here is used any more."""
        while leases := self._leases.pop_some(DROPPED_AT_ONCE):
            yield len(leases)
        while homes := self._homes.pop_some(DROPPED_AT_ONCE):
            yield len(homes)
        yield from self._ends.drop()

    def check(self) -> None:
        """Assert the invariants above."""
        held: dict[int, int] = {}
        for subqueue in self._subqueues:
            for reference in subqueue.references.values():
                lease = reference.lease
                if lease is not None:
                    assert (
                        self._leases.get(lease.id) is lease
                        and lease.subqueue == subqueue.number
                        and reference in lease.references
                    )
                    held[lease.id] = held.get(lease.id, 0) + 1
        assert held == {id: lease.left for id, lease in self._leases.items()}
        assert all(len(each.references) <= SPARSE * each.left for each in self._leases.values())
        assert all(lease.session is None or lease in lease.session.leases for lease in self._leases.values())
        homes: dict[int, list[int]] = {}
        for lease in self._leases.values():
            homes.setdefault(lease.nonce, [lease.subqueue, 0])[1] += 1
        assert homes == dict(self._homes.items())
        self._ends.check(lease.until_ms for lease in self._leases.values() if lease.session is None)

    def _make(self, subqueue: int, nonce: int, until_ms: int, session: SessionHolder | None = None) -> Lease:
        self._ids += 1
        return Lease(self._ids, nonce, subqueue, None, until_ms, session)

    def _tidy(self, lease: Lease) -> None:
        """Some of the messages have left a lease: end it if it holds none, and forget those that have left if
        they are many. A settled message would take memory for as long as one beside it is locked."""
        if not lease.left:
            self._end(lease)
        elif len(lease.references) > SPARSE * lease.left:
            lease.references = [reference for reference in lease.references if reference.lease is lease]
            untrack([lease.references])

    def _end(self, lease: Lease) -> None:
        self._leases.pop(lease.id)
        home = self._homes[lease.nonce]
        home[1] -= 1
        if not home[1]:
            self._homes.pop(lease.nonce)
        if lease.session is None:
            self._ends.cancel(lease.until_ms)
        else:
            lease.session.leases.pop(lease, None)
        self._books[lease.subqueue].ended(lease)

    def _find(self, token: LockToken, now_ms: int, within: int | None = None) -> tuple[int, Lease] | None:
        """The sequence number of the message that a token locks, and the lease that holds it; None if the
        lock is gone, or is not in the subqueue `within`."""
        if len(token) != TOKEN_BYTES:
            return None
        number, nonce = TOKEN.unpack(token)
        home = self._homes.get(nonce)
        if home is None or (within is not None and within != home[0]):
            return None
        reference = self._subqueues[home[0]].references.get(number)
        lease = reference.lease if reference is not None else None
        if lease is None or lease.nonce != nonce or _end_of(lease) <= now_ms:
            return None
        return number, lease


def _end_of(lease: Lease) -> int:
    return lease.until_ms if lease.session is None else lease.session.until_ms
