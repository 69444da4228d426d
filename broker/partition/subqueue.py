"""A subqueue: references to stored messages, in order, and their locks. Pure; knows nothing of records,
clients and the clock.

Dead-lettering moves a reference (`references.py`) from one subqueue to another. In a topic, several subqueues
may refer to one stored message (`bodies.py`).

Order: `_order` holds ascending sequence numbers, 8 bytes each, including stale ones until it is tidied.
`_next` is the place up to which messages have been handed out. A message that becomes available before that
place (because it was given back or moved here) is added to the heap `_returned`. So an available message is
always in `_order` from `_next` on, or in `_returned`. Either may hold stale or duplicate numbers, so each
message is checked before it is used. Scheduled and deferred messages are in the order too, for those who
look.

Message sessions: if the messages belong to sessions, `sessions` has the order of each session, and neither
`_next` nor `_returned` is used. Subqueues without sessions have no such index.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import islice

from broker.base.sifted_heap import SiftedHeap
from broker.entities.descriptions import MESSAGE_OVERHEAD_BYTES
from broker.entities.roles import SubqueueDescription
from broker.partition import _references
from broker.partition._untracked import untrack
from broker.partition.changed_properties import cost_of, laying_cost
from broker.partition.chunked_table import ChunkedTable
from broker.partition.clock_settings import ClockSettings
from broker.partition.columns import value_bytes
from broker.partition.message_sessions import MessageSession, MessageSessions
from broker.partition.order import Order
from broker.partition.postponing import put_off_again
from broker.partition.references import ACTIVE, DEFERRED, SCHEDULED, Lease, Reference
from broker.partition.timers import MovableTimers, TimerWheel
from broker.partition.work import Work

_SCHEDULE_TICK_MS = 20
"""Resolution of schedules: a message becomes active at most this much after its time."""
REBUILT_AT_ONCE = 1024
"""References that one step of `rebuild` handles: less than a millisecond."""
RUN_FIRST = 8
"""Messages in the first run that `take` locks at once. Each run may be twice as long as the one before it."""
UPCOMING_MAX = 4096
"""Entries of the order that `upcoming` looks at."""


class Subqueue:
    """The references of one subqueue. Owned by the partition's state machine."""

    __slots__ = (
        "_next",
        "_order",
        "_returned",
        "_work",
        "available",
        "bytes",
        "came_back",
        "changed_bytes",
        "column_bytes",
        "dead_letters_to",
        "deferred",
        "expiry",
        "has_columns",
        "locked",
        "name",
        "number",
        "redrives_to",
        "references",
        "role",
        "schedule",
        "scheduled",
        "sessions",
        "transfers_fail_to",
    )

    def __init__(self, number: int, description: SubqueueDescription, work: Work[Subqueue]) -> None:
        self.number = number
        self.name = description.name
        self.role = description.role
        self.dead_letters_to = description.dead_letters_to
        """The number of the subqueue for its dead letters; None if its messages cannot be dead-lettered."""
        self.transfers_fail_to = description.transfers_fail_to
        """The number of the subqueue for its messages that no other entity takes."""
        self.redrives_to = description.redrives_to
        """The number of the subqueue to which dead letters from here are re-driven."""
        self._work = work
        self.references: ChunkedTable[Reference] = ChunkedTable()
        self.expiry: TimerWheel | None = None
        """Sequence numbers by expiry, if the subqueue enforces the time to live."""
        self.schedule: MovableTimers | None = None
        """Sequence numbers of scheduled messages by the time at which they are enqueued, in wall time. None
        until there is one, and during a replay."""
        self.available = 0
        """References that are ACTIVE and not locked."""
        self.locked = 0
        self.deferred = 0
        """References that are DEFERRED, locked or not."""
        self.scheduled = 0
        """References that are SCHEDULED."""
        self.bytes = 0
        """The size of all messages, as they were sent."""
        self.changed_bytes = 0
        """The size of all changed properties, summed over the messages."""
        self.column_bytes = 0
        """The size of all byte values in columns (`columns.py`)."""
        self.has_columns = False
        """Some message has had columns since the subqueue was made."""
        self.sessions: MessageSessions | None = None
        """The messages by session. None if no message has had a session, no client has asked for one, and
        before `rebuild`."""
        self._order: Order | None = None
        """None until `rebuild`."""
        self._next = 0
        self._returned: SiftedHeap[int] = SiftedHeap(untrack)
        self.came_back: list[int] | None = None
        """Messages that were given back or moved here in this cycle; None if no client wants to know."""

    @property
    def size_bytes(self) -> int:
        """The size that counts towards the quota: the messages as they were sent, their changed properties,
        and the memory that their state takes."""
        return self.message_bytes + self.session_bytes

    @property
    def message_bytes(self) -> int:
        """The same without the index of sessions."""
        described = MESSAGE_OVERHEAD_BYTES * self.references.count
        return self.bytes + self.changed_bytes + self.column_bytes + described

    @property
    def session_bytes(self) -> int:
        """The memory that the index of sessions takes, about."""
        return self.sessions.size_bytes if self.sessions is not None else 0

    # --- coming in and leaving ------------------------------------------------------------------------------

    def append(self, references: Sequence[Reference], sequence_numbers: Sequence[int], size: int) -> None:
        """Add new messages at the end. `size` is their total size in bytes. They are not in `expiry` yet."""
        self.references.add(sequence_numbers, references)
        self._work.occupied[self.number] = self
        self._work.messages += len(references)
        if self._order is not None:
            self._order.extend(sequence_numbers)
        self.available += len(references)
        self._add(size)
        if self.has_columns or type(references[0]) is not Reference:
            self._add_columns(references)

    def postpone(self, references: Iterable[Reference]) -> None:
        """Make active messages scheduled ones; their times are set."""
        if self.sessions is not None:
            references = list(references)
            self.sessions.take_out(references)
        for reference in references:
            reference.state = SCHEDULED
            self.available -= 1
            self.scheduled += 1
            if self._order is not None:
                self._watch_time(reference)

    def reschedule(self, references: Iterable[Reference], at_ms: int) -> None:
        """Give scheduled messages another time."""
        for reference in references:
            before_ms = put_off_again(reference, at_ms)
            if self._order is not None:
                if self.schedule is not None:
                    self.schedule.cancel(before_ms)
                self._watch_time(reference)

    def _scheduled_at(self, number: int) -> int | None:
        """When a message will be enqueued; None if it is not scheduled (any more)."""
        reference = self.references.get(number)
        return None if reference is None or reference.state is not SCHEDULED else reference.enqueued_at_ms

    def _watch_time(self, reference: Reference) -> None:
        if self.schedule is None:
            self.schedule = MovableTimers(_SCHEDULE_TICK_MS, self._scheduled_at)
        self.schedule.add(reference.enqueued_at_ms, reference.sequence_number)

    def insert(self, reference: Reference, *, has_come_due: bool = False) -> None:
        """Add a message at its place in the order; it is not locked. `has_come_due`: if it is scheduled, its
        time has come and the caller deals with that, so it is not added to `schedule`."""
        number = reference.sequence_number
        assert number not in self.references and reference.lease is None
        self.references[number] = reference
        self._work.occupied[self.number] = self
        self._work.messages += 1
        self._add(reference.size, self._work.properties.hold_one(reference))
        if type(reference) is not Reference:
            self._add_columns((reference,))
        if self._order is not None:
            self._order.insert(number)
            if number < self._next:
                self._returned.push(number)
            if self.came_back is not None:
                self.came_back.append(number)
        if reference.state is ACTIVE:
            self.available += 1
        elif reference.state is DEFERRED:
            self.deferred += 1
        else:
            self.scheduled += 1
            if self._order is not None and not has_come_due:
                self._watch_time(reference)
        if self.expiry is not None and reference.lives_until_ms is not None:
            self.expiry.add(reference.lives_until_ms, number)
            self._work.timed.enter(self.number, self.expiry, reference.lives_until_ms)

    def _add(self, size: int, changed: int = 0, columns: int = 0) -> None:
        """Count bytes that have come, or negative ones that have gone."""
        work = self._work
        work.changed.sums(self.number)
        self.bytes += size
        work.bytes += size
        if changed:
            self.changed_bytes += changed
            work.changed_bytes += changed
        if columns:
            self.column_bytes += columns
            work.column_bytes += columns

    def _add_columns(self, references: Sequence[Reference]) -> None:
        """Count the columns of messages that were added, and enter the messages in their sessions."""
        self._add(0, 0, value_bytes(references))
        self._has_got_columns()
        if self._order is not None and self.role.has_sessions:
            self._add_to_sessions(references)

    def _has_got_columns(self) -> None:
        self.has_columns = True
        self._work.columned[self.number] = self

    def _add_to_sessions(self, references: Iterable[Reference]) -> None:
        """Enter those messages that belong to sessions."""
        of_sessions = [each for each in references if each.session_id is not None]
        if of_sessions:
            self.start_sessions().add(of_sessions)

    def start_sessions(self) -> MessageSessions:
        """The index of sessions, made if there is none."""
        if self.sessions is None:
            self.sessions = MessageSessions(self.references, self._count_sessions)
            self._work.indexed[self.number] = self
        return self.sessions

    def _count_sessions(self, more: int) -> None:
        """So many sessions have come, or gone if it is negative."""
        self._work.sessions += more
        self._work.changed.sums(self.number)

    def bring_back(self, references: Sequence[Reference]) -> None:
        """Add messages read from a log or checkpoint, by ascending numbers; `rebuild` puts them in order
        with others."""
        if references and type(references[0]) is not Reference:
            self._has_got_columns()
        before = self.references.count
        self.references.add([reference.sequence_number for reference in references], references)
        self._work.occupied[self.number] = self
        self._work.messages += self.references.count - before
        self._add(0, self._work.properties.hold(references))

    def watch_lives(
        self, first: int, lives: dict[int, int | None], life_column: Sequence[int | None]
    ) -> int | None:
        """Add the deadlines of new messages to `expiry`.

        `life_column` has one deadline per message, starting at sequence number `first`; the values of `lives`
        are its distinct deadlines. Returns the first of them; None if there is none.
        """
        wheel = self.expiry
        assert wheel is not None, "the messages were replayed"
        if len(lives) == 1:
            (soonest_ms,) = lives.values()
            if soonest_ms is None:
                return None
            wheel.add_all(soonest_ms, range(first, first + len(life_column)))
        else:
            soonest_ms = min([each for each in lives.values() if each is not None])
            for number, lives_until_ms in enumerate(life_column, first):
                if lives_until_ms is not None:
                    wheel.add(lives_until_ms, number)
        self._work.timed.enter(self.number, wheel, soonest_ms)
        return soonest_ms

    def watch_each(self, references: Iterable[Reference]) -> None:
        """As `watch_lives`, but of any messages, which know their deadlines."""
        wheel = self.expiry
        if wheel is None:
            return
        for reference in references:
            if reference.lives_until_ms is not None:
                wheel.add(reference.lives_until_ms, reference.sequence_number)
                self._work.timed.enter(self.number, wheel, reference.lives_until_ms)

    def remove(self, sequence_numbers: Sequence[int], *, has_timers: bool = True) -> list[Reference]:
        """Remove messages that are not locked. `has_timers`: their timers must be cancelled."""
        removed = self.references.pop_each(sequence_numbers)
        size, active, deferred = _references.tally(removed, ACTIVE, DEFERRED)
        scheduled = len(removed) - active - deferred
        if has_timers:
            self._cancel_timers(removed, scheduled)
        changed = columns = 0
        if self.column_bytes:
            columns = value_bytes(removed)
        if self.sessions is not None:
            self.sessions.remove(removed)
        if self.changed_bytes:
            changed = self._work.properties.release(removed)
        self._work.messages -= len(removed)
        self._add(-size, -changed, -columns)
        self.deferred -= deferred
        self.scheduled -= scheduled
        self.available -= active
        if self._order is not None:
            self._order.left(sequence_numbers)
        if not self.references.count:
            self._work.occupied.pop(self.number, None)
        return removed

    def _cancel_timers(self, removed: list[Reference], scheduled: int) -> None:
        """Cancel the timers of messages that are removed; this many of them are scheduled."""
        if self.expiry is not None:
            self.expiry.cancel_each(_references.lives(removed))
        if scheduled and self.schedule is not None:
            for reference in removed:
                if reference.state is SCHEDULED:
                    self.schedule.cancel(reference.enqueued_at_ms)

    def cut(self, first: int) -> list[Reference]:
        """Undo the latest `append`: remove all messages from sequence number `first` on, as if they had never
        come."""
        assert self._order is not None
        numbers = [number for number in self._order.numbers(first) if number in self.references]
        references = [self.references[number] for number in numbers]
        if self.expiry is not None:
            self.expiry.forget_latest([each.lives_until_ms for each in references], first)
        if self.schedule is not None:
            times = [each.enqueued_at_ms for each in references if each.state is SCHEDULED]
            self.schedule.forget_latest(times, first)
        self.remove(numbers, has_timers=False)
        self._order.cut(first)
        self._next = min(self._next, first)
        return references

    # --- handing out and taking back ------------------------------------------------------------------------

    def take(
        self, count: int, bytes_max: int, lease: Lease, now_ms: int, looks_max: int = 1 << 62
    ) -> tuple[list[Reference], list[Reference], int]:
        """Lock the oldest available messages: at most `count`, and `bytes_max` bytes, which the last message
        may exceed: changed properties count with what they cost to deliver. Looks at `looks_max` messages at
        most.

        Returns the locked messages, the expired ones met on the way, and how many messages were looked at.
        The expired ones are left for the caller to remove.
        """
        taken, bytes_left, is_stopped = self._lock_runs(min(count, looks_max), bytes_max, lease, now_ms)
        looks = len(taken)
        expired: list[Reference] = []
        if is_stopped:
            more, expired, more_looks = self._lock_one_by_one(
                count - looks, bytes_left, lease, now_ms, looks_max - looks
            )
            taken += more
            looks += more_looks
        self.available -= len(taken)
        self._lock(taken, lease)
        return taken, expired, looks

    def _lock_runs(
        self, count: int, bytes_max: int, lease: Lease, now_ms: int
    ) -> tuple[list[Reference], int, bool]:
        """The fast path of `take`: lock what was given back and then the next messages in order, in runs,
        until one is missing, not active, locked or expired.

        Returns the locked messages, how many bytes are left, and whether such a message stopped it. Runs
        begin short and grow, because few of the many that receivers ask for may fit into the bytes: the rest
        of the last run leaves the heap for nothing.
        """
        assert self._order is not None
        expires_at_ms = None if self.expiry is None else now_ms
        taken: list[Reference] = []
        run_max = RUN_FIRST
        while bytes_max > 0 and (wanted := min(run_max, count - len(taken))) > 0:
            came_back = self._returned.pop_below(self._next, wanted)
            numbers = came_back or self._order.take(self._next, wanted)
            found = list(self.references.get_each(numbers))
            locked, bytes_max = _references.lock(found, ACTIVE, lease, bytes_max, expires_at_ms)
            taken += locked
            if locked and not came_back:
                self._next = locked[-1].sequence_number + 1
            if len(locked) < len(found):
                self._returned.push_each(came_back[len(locked) :])
                return taken, bytes_max, bytes_max > 0
            if not found:
                break
            run_max *= 2
        return taken, bytes_max, False

    def _lock_one_by_one(
        self, count: int, bytes_max: int, lease: Lease, now_ms: int, looks_max: int
    ) -> tuple[list[Reference], list[Reference], int]:
        """As `take`, but pass over messages that are missing, not active, locked or expired. The caller
        accounts for those that it locks."""
        taken: list[Reference] = []
        expired: dict[int, Reference] = {}  # by number: one that is also in `_returned` is met twice
        looks = 0
        waiting = self._waiting()
        while count > 0 and bytes_max > 0 and looks < looks_max:
            if (number := next(waiting, None)) is None:
                break
            looks += 1
            reference = self.references.get(number)
            if reference is None or reference.state is not ACTIVE or reference.lease is not None:
                continue
            if self.expiry is not None and (
                reference.lives_until_ms is not None and reference.lives_until_ms <= now_ms
            ):
                expired[number] = reference
                bytes_max -= cost_of(reference.changed)
                continue
            reference.lease = lease
            taken.append(reference)
            count -= 1
            bytes_max -= reference.size + laying_cost(reference)
        return taken, list(expired.values()), looks

    def _waiting(self) -> Iterator[int]:
        """Yield the numbers of messages that may be available, in order, stale ones included. Each counts as
        handed out once it is yielded."""
        assert self._order is not None
        returned = self._returned
        for number in self._order.numbers(self._next):
            while returned and returned.first < number:
                yield returned.pop()
            self._next = number + 1
            yield number
        while returned:
            yield returned.pop()

    def take_from_session(
        self,
        session: MessageSession,
        count: int,
        bytes_max: int,
        lease: Lease,
        now_ms: int,
        looks_max: int,
    ) -> tuple[list[Reference], list[Reference], int]:
        """As `take`, but the oldest available messages of one session."""
        assert self.sessions is not None, "it has this session"
        taken: list[Reference] = []
        expired: list[Reference] = []
        looks = 0
        waiting = session.waiting
        while count > 0 and bytes_max > 0 and looks < looks_max and waiting:
            if session.delayed and not self.sessions.has_next(session):
                break
            looks += 1
            reference = self.sessions.next_in(session)
            if reference is None:
                continue
            if self.expiry is not None and (
                reference.lives_until_ms is not None and reference.lives_until_ms <= now_ms
            ):
                expired.append(reference)
                bytes_max -= cost_of(reference.changed)
                continue
            reference.lease = lease
            taken.append(reference)
            count -= 1
            bytes_max -= reference.size + laying_cost(reference)
        self.available -= len(taken)
        self.sessions.lost_available(session, len(taken))
        self._lock(taken, lease)
        return taken, expired, looks

    def lock_by_number(self, references: Sequence[Reference], lease: Lease) -> None:
        """Lock messages that are not locked, in any state."""
        if self.sessions is not None:
            self.sessions.take_out(references)
        for reference in references:
            reference.lease = lease
            if reference.state is ACTIVE:
                self.available -= 1
        if lease.is_delay and self.sessions is not None:
            self.sessions.delay(references)
        self._lock(references, lease)

    def renew(self, reference: Reference, lease: Lease) -> None:
        """Move a locked message to another lease."""
        assert reference.lease is not None
        reference.lease.left -= 1
        reference.lease = lease
        lease.references.append(reference)
        lease.left += 1

    def unlock(self, references: list[Reference]) -> None:
        """Account for messages whose locks have ended (`lease` is already None). The caller must next give
        them back, remove them or take them out."""
        self.locked -= len(references)
        self._work.changed.locks(self.number)
        _, active, _ = _references.tally(references, ACTIVE, DEFERRED)
        self.available += active
        if self.sessions is not None:
            self.sessions.unlock(references)

    def give_back(self, references: Iterable[Reference]) -> None:
        """Make unlocked messages available again, each at its old place in the order."""
        if self.sessions is not None:
            self.sessions.give_back(references)
            return
        references = list(references)
        numbers = [reference.sequence_number for reference in references if reference.state is ACTIVE]
        self._returned.push_each(numbers)
        if self.came_back is not None:
            self.came_back += [reference.sequence_number for reference in references]
        self._returned.tidy(self.references, len(self.references), len(numbers))

    def defer(self, references: Iterable[Reference]) -> None:
        """Defer unlocked messages, so that only their sequence numbers find them."""
        if self.sessions is not None:
            references = list(references)
            self.sessions.take_out(references)
        self._work.changed.sums(self.number)
        for reference in references:
            if reference.state is ACTIVE:
                reference.state = DEFERRED
                self.available -= 1
                self.deferred += 1

    def change(self, references: Collection[Reference], changed: bytes) -> None:
        """Merge changed properties into those that the messages already have."""
        self._add(0, self._work.properties.change(references, changed))

    def replace_changed(self, reference: Reference, changed: bytes | None) -> None:
        """Give a message other changed properties than those it has, or none."""
        self._add(0, self._work.properties.replace(reference, changed))

    def _lock(self, references: Sequence[Reference], lease: Lease) -> None:
        lease.references.extend(references)
        lease.left += len(references)
        self.locked += len(references)
        self._work.changed.locks(self.number)

    # --- looking --------------------------------------------------------------------------------------------

    def browse(self, from_number: int) -> Iterator[Reference]:
        """Yield all references from a sequence number on, in order. The subqueue must not change during the
        iteration."""
        assert self._order is not None
        for number in self._order.numbers(from_number):
            reference = self.references.get(number)
            if reference is not None:
                yield reference

    def count_from(self, from_number: int) -> int:
        """About how many references there are from a sequence number on: up to twice as many, if many have
        been removed."""
        assert self._order is not None
        return self._order.count_from(from_number)

    def find_in_order(self, is_before: Callable[[int], bool | None]) -> int | None:
        """See `Order.find`."""
        assert self._order is not None
        return self._order.find(is_before)

    def upcoming(self) -> Iterator[Reference]:
        """Yield the references that will be handed out next, roughly in that order. The subqueue must not
        change during the iteration."""
        assert self._order is not None
        for number in islice(self._order.numbers(self._next), UPCOMING_MAX):
            reference = self.references.get(number)
            if reference is not None and reference.lease is None and reference.state is ACTIVE:
                yield reference

    # --- order ----------------------------------------------------------------------------------------------

    def rebuild(self, clock_settings: ClockSettings) -> Iterator[int]:
        """Rebuild the order and all sums from the references, but not the size of changed properties, which
        `bring_back` counts. Each step returns how many references it has handled.

        No reference may be locked, and nothing else may happen to the subqueue before the last step. Stored
        expiries become monotonic deadlines: `clock_settings` says how far wall time was ahead for each
        message.
        """
        references = self.references
        order = Order(references)
        self.locked = self.deferred = self.scheduled = 0
        self._add(-self.bytes, 0, -self.column_bytes)
        has_sessions = self.has_columns and self.role.has_sessions
        strays: list[int] = []
        latest = -1
        remaining = iter(references.items())
        while part := list(islice(remaining, REBUILT_AT_ONCE)):
            untrack([reference for _, reference in part])  # those from a checkpoint
            if self.has_columns:
                self._add(0, 0, value_bytes(reference for _, reference in part))
            if has_sessions:
                self._add_to_sessions(reference for _, reference in part)
            ascending: list[int] = []
            expiring: list[int] = []
            size = 0
            for number, reference in part:
                if number > latest:
                    ascending.append(number)
                    latest = number
                else:
                    strays.append(number)
                size += reference.size
                if reference.state is SCHEDULED:
                    self.scheduled += 1
                    self._watch_time(reference)
                    continue
                if reference.state is DEFERRED:
                    self.deferred += 1
                if reference.expires_at_ms is not None:
                    expiring.append(number)
            self._add(size)
            if ascending:
                order.extend(ascending)
            if expiring:
                self._set_deadlines(sorted(expiring), clock_settings)
            yield len(part)
        for start in range(0, len(strays), REBUILT_AT_ONCE):
            for number in strays[start : start + REBUILT_AT_ONCE]:
                order.insert(number)
            yield 0
        self.available = len(references) - self.deferred - self.scheduled
        if references:
            self._work.occupied[self.number] = self
        self._order = order
        self._next = 0
        self._returned.clear()

    def _set_deadlines(self, numbers: Sequence[int], clock_settings: ClockSettings) -> None:
        """Set the deadlines of messages that expire; `numbers` are ascending."""
        for wall_ahead_ms, begin, end in clock_settings.spans(numbers):
            shared: dict[int, int] = {}
            for reference in self.references.get_each(numbers[begin:end]):
                assert reference is not None
                expires_at_ms = reference.expires_at_ms
                assert expires_at_ms is not None
                reference.lives_until_ms = due_ms = shared.setdefault(
                    expires_at_ms, expires_at_ms - wall_ahead_ms
                )
                if self.expiry is not None:
                    self.expiry.add(due_ms, reference.sequence_number)
                    self._work.timed.enter(self.number, self.expiry, due_ms)

    def check(self) -> None:
        """Assert that all sums and the order agree with the references."""
        self.references.check()
        references = list(self.references.values())
        assert (self.number in self._work.occupied) == bool(references)
        assert (self.number in self._work.columned) == self.has_columns
        if self.expiry is not None:
            self._work.timed.check(self.number, self.expiry)
        assert all(number == reference.sequence_number for number, reference in self.references.items())
        assert self.locked == sum(1 for each in references if each.lease is not None)
        assert self.deferred == sum(1 for each in references if each.state is DEFERRED)
        assert self.scheduled == sum(1 for each in references if each.state is SCHEDULED)
        assert self.available == sum(1 for each in references if each.state is ACTIVE and each.lease is None)
        assert self.bytes == sum(each.size for each in references)
        assert self.changed_bytes == sum(len(each.changed) for each in references if each.changed is not None)
        assert self.column_bytes == value_bytes(references)
        if self.sessions is not None:
            self.sessions.check()
        assert (
            not self.role.has_sessions
            or self.sessions is not None
            or not any(each.session_id is not None for each in references)
        )
        assert self._order is not None
        self._order.check()
        assert set(self.references) <= set(self._order.numbers(0)), "a message that peeking does not reach"
        reachable = {*self._order.numbers(self._next), *self._returned}
        assert all(
            each.sequence_number in reachable
            for each in references
            if each.state is ACTIVE and each.lease is None
        )
        if self.expiry is not None:
            self.expiry.check(each.lives_until_ms for each in references if each.lives_until_ms is not None)
        if self.schedule is not None:
            self.schedule.check(each.enqueued_at_ms for each in references if each.state is SCHEDULED)
        assert all(
            each.lives_until_ms is None
            if each.state is SCHEDULED
            else (each.expires_at_ms is None) == (each.lives_until_ms is None)
            for each in references
        )
