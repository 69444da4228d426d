"""The partition's state machine: checks, decides, applies. Pure: no I/O, no clock, no asyncio.

Its parts have files of their own: `sending.py`, `schedule.py`, `delivering.py`, `settling.py`,
`lock_expiry.py`, `delivery_count.py`, `dead_lettering.py`, `time_to_live.py`, `browsing.py`, `reading.py`,
`deleting.py`, `redriving.py`, `session_locks.py`, `session_data.py`, `promises.py`, `handing_over.py` and
`transactions.py`. They share a `Workspace`.

The task feeds it one *cycle* at a time: `begin(commit, now_ms)`, `handle` for each operation, `finish`. Each
operation appends its changes to the commit as records and applies them at once, by the same methods that
replay uses. Its answers are collected, and the task releases them after the commit is durable (durability
rules 1 and 2). When a commit fails, the whole object is thrown away and rebuilt from the log, so nothing here
undoes anything, with one exception: on a full disk, the sends of a cycle are cut off again and the rest is
committed alone (`undo_sends`, durability rule 6). So the settlements of a transaction that also sends are
applied only after the commit (`committed`).

Locks, demand and recalls are volatile; everything else is a fold over the records:

    operation                   record      effect
    Send                        ENQUEUED    messages at the end of the main subqueue, with the next sequence
                                            numbers
    the time of a schedule      ACTIVATED   a scheduled message goes to the end, with the next sequence number
    Reschedule                  RESCHEDULED a scheduled message has another time
    Complete, Delete,           REMOVED     the reference is removed
    CancelScheduled
    Redrive                     ENQUEUED,   a dead letter at the end of the main subqueue, with the next
                                REMOVED     sequence number
    Abandon, lock expiry        RETURNED    delivery count + 1, available again; a deferred message stays
                                            deferred
                                MOVED       … or, at the maximum delivery count, to the dead-letter subqueue
                                            (AMQP contract 10.3)
                                CHANGED     … or, in a dead-letter subqueue, available again; no record unless
                                            properties change
    Defer                       DEFERRED    delivery count + 1 (in the main subqueue only), deferred,
                                            however high the count
    DeadLetter                  MOVED       to the dead-letter subqueue; in a dead-letter subqueue it is
                                            refused, and the lock stays
    Transact                    as above    those of its send and of its settlements, in one commit; messages
                                            with promised numbers as COUNTERS and RELOCATED
    SettleThrough,              REMOVED_RUNS the references are removed, however many they are
    AdvanceCursor
    HandOver                    ENQUEUED    messages of another entity, as with Send, unless they are known
    FailTransfer                MOVED       to the transfer dead-letter subqueue
    expiry                      MOVED       to the dead-letter subqueue, or REMOVED (AMQP contract 10.4)
    Release, GiveBack,          none        no client saw the message, so no delivery is counted
    Recalled, Detach

Dead-letter subqueues ignore the time to live and count no deliveries (AMQP contract 5.6, 10.4). An expired
message is never handed out; a locked message expires when its lock ends, a deferred one never. Everything in
a cycle happens at the same time, and a time to live is at least 1 ms, so a message cannot expire in the cycle
that enqueues it. Locks and times to live count in monotonic time, so setting the wall clock ends none of
them; wall time is only written to records (see `broker/base/clock.py`). A settlement counts if it arrived
before its lock ended, however long it had to wait for the disk: a lock that ends meanwhile ends after it.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from functools import partial
from typing import assert_never

from broker.base.errors import Reason, Refused
from broker.entities.descriptions import EntityDescription
from broker.entities.topics import TopicDescription
from broker.identifiers import ClientId
from broker.operations.browsing import Peek, Watch
from broker.operations.deleting import Delete, DeleteExactly
from broker.operations.general import Detach, Failed, Update, Updated
from broker.operations.interface import Operation
from broker.operations.receiving import Demand, Locked, LockExactly, Recalled, ReceiveDeferred, Withdraw
from broker.operations.redriving import FindDeadLetters, Redrive, Redriven
from broker.operations.rule_changes import FindRuleChanges, ForgetRuleChanges
from broker.operations.scheduling import BreakPromise, CancelScheduled, PromiseNumbers, Reschedule
from broker.operations.selecting import WatchReturned
from broker.operations.sending import Send, Sent
from broker.operations.sessions import (
    AcceptSession,
    GetSessionState,
    ListSessions,
    RenewSession,
    SetSessionState,
    WatchSessions,
)
from broker.operations.settling import Abandon, Complete, DeadLetter, Defer, GiveBack, Release, RenewLocks
from broker.operations.streams import (
    AdvanceCursor,
    CreateCursor,
    DeleteCursor,
    FindPositions,
    GetCursor,
    GetSinkBatch,
    ListCursors,
    ReadRange,
    SendSinkBatch,
    SettledThrough,
    SettleThrough,
    SinkBatch,
    SinkBatchSent,
)
from broker.operations.transactions import Transact, Transacted
from broker.operations.transfers import FailTransfer, FindSources, HandedOver, HandOver, LockNext
from broker.partition.abandoned import Abandoned
from broker.partition.browsing import Browsing
from broker.partition.counting import Counting
from broker.partition.cycle import Cycle
from broker.partition.cycle_bounds import Bounds
from broker.partition.delaying import restore as restore_delays
from broker.partition.deleting import Deleting
from broker.partition.delivering import Delivering
from broker.partition.durable_state import read_back
from broker.partition.handing_over import HandingOver
from broker.partition.lock_expiry import run_out_locks
from broker.partition.long_operations import Divisible, Parts
from broker.partition.looking_ahead import LookingAhead
from broker.partition.messages import NO_NUMBER, Messages
from broker.partition.moving_cursors import MovingCursors
from broker.partition.promises import Promises
from broker.partition.publishing import Publishing, published_by
from broker.partition.publishing_later import PublishingLater
from broker.partition.quotas import DiskRoom
from broker.partition.reading import Reading
from broker.partition.redriving import Redriving, let_go, restore
from broker.partition.schedule import Schedule
from broker.partition.sending import Sending
from broker.partition.session_data import SessionData
from broker.partition.session_locks import SessionLocks
from broker.partition.settling import Settling
from broker.partition.settling_through import SettlingThrough
from broker.partition.sink_batches import SinkBatches
from broker.partition.time_to_live import TimeToLive
from broker.partition.transactions import UNSEEING, Transactions
from broker.partition.workspace import NO_CYCLE, Workspace
from storage.log import Commit

_ENDED, _NO_STEPS = object(), (None,) * 4


class Partition:
    """One partition of a queue. Owned by its task."""

    def __init__(
        self,
        number: int,
        description: EntityDescription,
        messages: Messages,
        *,
        epoch: int,
        first_nonce: int = 0,
        bounds: Bounds | None = None,
        disk: DiskRoom,
    ) -> None:
        """`messages` must have been replayed. `epoch` is the log's. `first_nonce` is 0, unless this object
        continues the epoch of an earlier one."""
        self.number = number
        self.messages = messages
        self._space = Workspace(number, description, messages, bounds or Bounds(), epoch, first_nonce, disk)
        self._time_to_live = TimeToLive(self._space)
        self._abandoned = Abandoned(self._space)
        self._publishing: Publishing | None = None
        later: PublishingLater | None = None
        if isinstance(description, TopicDescription):
            self._publishing = Publishing(messages, description)
            later = PublishingLater(self._space, self._publishing)
        self._sending = Sending(
            number,
            messages,
            self._space.bounds,
            self._space.times,
            partial(self._space.record, with_send=True),
            self._publishing,
        )
        self._duplicates = messages.states.duplicates
        self._schedule = Schedule(self._space, later)
        self._sessions = SessionLocks(self._space, self._time_to_live)
        self._sessions_end_first = False
        self._session_data = SessionData(self._space, self._sessions)
        self._delivering = Delivering(self._space, self._time_to_live, self._sessions)
        self._settling = Settling(self._space, self._time_to_live)
        self._promises = Promises(self._space, self._sending)
        self._transactions = Transactions(
            self._space, self._sending, self._settling, self._schedule, self._promises
        )
        self._handing_over = HandingOver(self._space, self._sending)
        self._browsing = Browsing(self._space, self._time_to_live)
        self._sink_batches = SinkBatches(self._space, self._sending)
        self._reading = Reading(self._space, self._time_to_live)
        self._settling_through = SettlingThrough(self._space, self._time_to_live)
        self._moving_cursors = MovingCursors(self._space, self._reading, self._settling_through)
        self._deleting = Deleting(self._space, self._time_to_live)
        self._redriving = Redriving(self._space, self._sending)
        self.counting = Counting(messages)
        self._ahead = LookingAhead(
            self._space, self._time_to_live, self._abandoned, self._schedule, self._sessions,
            self._delivering, self._browsing, self._transactions, can_be_quiet=self._publishing is None
        )  # fmt: skip
        self._due: Iterator[None] | None = None
        """The steps that publish scheduled messages of a topic; the operations of the cycle come after
        them."""
        self._later: Iterator[None] | None = None
        """The steps of operations that a topic takes long to carry out; they end the cycle."""
        self.left_over = 0
        """How many of the sends that `handle_sends` has taken last must wait for the next cycle after all,
        because one commit has no room for the copies of all. Known after `go_on`."""
        self._parts: Parts | None = None
        """A long settlement or renewal in progress; the first operation of the next cycle continues it."""

    @property
    def nonce(self) -> int:
        """How many leases were created in this epoch."""
        return self._space.locks.nonce

    def restore(self, wall_ahead_ms: int) -> Iterator[int]:
        """Finish opening, in steps, before the first cycle: hold the messages whose delay has not ended, and
        find the heads of the subqueues."""
        yield from restore_delays(self._space, wall_ahead_ms)
        yield from self._reading.restore()

    def drop(self) -> Iterator[int]:
        """Free everything, in steps. The partition is no longer used."""
        yield from self._space.locks.drop()
        yield from self.messages.drop()

    def describe(self, description: EntityDescription) -> None:
        """The entity has this description from now on."""
        self._space.description = description
        self.messages.subqueues.describe(description.subqueues)
        self._abandoned.look()
        if self._publishing is not None and isinstance(description, TopicDescription):
            self._publishing.describe(description)

    @property
    def work_max(self) -> int:
        """How many messages a cycle takes."""
        return self._space.bounds.work_max

    @property
    def has_steps(self) -> bool:
        """Whether a cycle may have something for `go_on`. That of a topic may, and takes long if it has many
        subscriptions."""
        return self._publishing is not None or self.is_under_way

    # --- one cycle ------------------------------------------------------------------------------------------

    def begin(self, commit: Commit, now_ms: int, wall_ms: int, since_ms: int | None = None) -> Cycle:
        """Start a cycle at a monotonic and a wall time, and first do what has come due. Afterwards, `go_on`
        may have something to do before the first operation.

        `since_ms` is when the oldest operation of the cycle arrived. Locks that have ended since then are
        ended after the operations.
        """
        cycle = self._space.cycle = Cycle(commit, now_ms, wall_ms, self.messages.next_number)
        self.left_over, self.messages.position = 0, commit.start
        self._ahead.wall_ahead_ms = wall_ms - now_ms
        self.messages.states.expire(now_ms, wall_ms, commit.start)
        if self._ahead.is_quiet(now_ms):
            cycle.is_quiet = True
            self.messages.evicted_below = self.messages.next_number
            return cycle
        self._ahead.disturb()
        if self._duplicates.slots:
            window_ms = self._space.description.settings.duplicate_detection_window_ms
            self._duplicates.forget_old(now_ms, wall_ms, window_ms, commit.start)
        if self._abandoned.has_more:
            self._abandoned.remove_some()
        self._due = self._schedule.enqueue_due()
        self.messages.evicted_below = self.messages.next_number
        self._sessions_end_first = not self._sessions_end_first
        self._end_locks(now_ms if since_ms is None else since_ms)
        self._time_to_live.expire_overdue()
        return cycle

    def handle(self, client: ClientId, operation: Operation, arrived_ms: int | None = None) -> bool:
        """Carry out one operation of the cycle, or refuse it. A lock counts if it had not ended when the
        operation arrived.

        Returns False if the cycle ends before the operation is done; it must then be the first one of the
        next cycle.
        """
        assert self._due is None, "what has come due comes first"
        self._space.arrived_ms = self._space.cycle.now_ms if arrived_ms is None else arrived_ms
        if self._sending.unapplied is not None:
            self._sending.apply()
        if not isinstance(operation, Send):
            self._ahead.disturb()
        effort = 0 if self._publishing is None else self._publishing.effort
        try:
            if isinstance(operation, Send) and self._publishing is None:
                self._send(client, operation)  # most operations are
                return True
            return self._carry_out(client, operation) is not False
        except Refused as refused:
            failed = Failed(refused.reason, refused.description, getattr(operation, "cookie", None))
            self._space.answer(client, failed)
            return True
        finally:
            if self._publishing is not None:
                self._space.cycle.work += self._publishing.effort - effort

    def handle_sends(self, sends: Sequence[tuple[ClientId, Send]]) -> int:
        """Carry out the first of these sends, together if possible: as many as the cycle has room for.
        Returns how many; it may turn out later that the last ones of them are `left_over`. Each of them is
        stored or refused as a whole, and has its own answer."""
        assert self._due is None, "what has come due comes first"
        space = self._space
        count, room = 0, space.bounds.work_max - space.cycle.work
        for _, send in sends:
            room -= len(send.messages)
            if room < 0 and count:
                break
            count += 1
        if self._publishing is not None:
            effort = self._publishing.effort
            is_long = self._is_long(sends[:count])
            space.cycle.work += self._publishing.effort - effort
            if is_long:
                return count
        if count > 1 and self._send_together(sends[:count]):
            return count
        for number, (client, send) in enumerate(sends[:count], 1):
            self.handle(client, send)
            if number < count and (self.is_full or self.is_under_way):
                return number
        return count

    def _send_together(self, sends: Sequence[tuple[ClientId, Operation]]) -> bool:
        """Carry out several sends in one go; False if that is not possible."""
        space = self._space
        together = [send for _, send in sends if isinstance(send, Send)]
        if len(sends) == 1 or len(together) < len(sends):
            return False
        firsts = self._sending.send_together(space.cycle, space.description, together)
        if firsts is None:
            return False
        for (client, _), send, first in zip(sends, together, firsts, strict=True):
            space.answer(client, Sent(first, send.cookie, []))
        return True

    def _is_long(self, operations: Sequence[tuple[ClientId, Operation]]) -> bool:
        """Whether it takes several steps to find out who gets what these operations send to a topic, or one
        commit has no room for all copies. Then they are carried out in `go_on`."""
        sends = [send for _, operation in operations if (send := self._published_by(operation)) is not None]
        steps = self._sending.find_ahead(self._space.cycle, sends)
        if next(steps, _ENDED) is _ENDED:
            return False
        self._later = self._carry_out_later(operations, steps, self._space.arrived_ms)
        self._space.cycle.work = max(self._space.cycle.work, self._space.bounds.work_max)
        return True

    def _published_by(self, operation: Operation) -> Send | HandOver | None:
        if isinstance(operation, Redrive):
            return self._redriving.published_by(operation)
        return published_by(operation)

    def _carry_out_later(
        self,
        operations: Sequence[tuple[ClientId, Operation]],
        steps: Generator[None, None, int],
        arrived_ms: int,
    ) -> Iterator[None]:
        fitting = yield from steps
        self.left_over = len(operations) - fitting
        operations = operations[:fitting]
        yield
        if self._send_together(operations):
            yield from self._sending.go_on()
            return
        for client, operation in operations:
            self.handle(client, operation, arrived_ms)
            yield
            yield from self._sending.go_on()

    @property
    def is_under_way(self) -> bool:
        """Whether `go_on` has anything to do."""
        steps = self._sending.rest, self._due, self._later, self._settling_through.rest
        return steps != _NO_STEPS

    def go_on(self) -> Iterator[None]:
        """Carry out the rest of what has come due, or of the cycle's last operation, in steps. `finish`
        completes any remaining steps."""
        if self._due is not None:
            yield from self._due
            self._due = None
        if self._later is not None:
            yield from self._later
            self._later = None
        yield from self._sending.go_on()
        yield from self._settling_through.go_on()

    @property
    def is_full(self) -> bool:
        """Whether the cycle has done as much work as allowed; further operations wait for the next one."""
        return self._space.cycle.work >= self._space.bounds.work_max

    def finish(self, waiting_since_ms: int | None = None) -> Cycle:
        """Hand out available messages and end the cycle.

        `waiting_since_ms` is when the oldest operation that waits for the next cycle arrived.
        """
        cycle = self._space.cycle
        self._sending.apply()
        if self.is_under_way:
            for _ in self.go_on():
                pass
        until_ms = cycle.now_ms if waiting_since_ms is None else waiting_since_ms
        if self._ahead.is_quiet(until_ms):
            self._ahead.look_at_new_messages()
        else:
            self._look_after(until_ms)
        for reference in cycle.passing:
            reference.payload = b""
        self.messages.evicted_below = NO_NUMBER
        self.messages.payloads.count_state(self.messages.state_bytes)
        if cycle.grants:
            self.messages.payloads.read(cycle.now_ms)
        return cycle

    def _look_after(self, until_ms: int) -> None:
        """Hand out messages and tell those who wait, after the cycle's operations. End locks that end by
        `until_ms`."""
        self._ahead.disturb()
        if self._publishing is not None:
            self._publishing.forget_ahead()
        self._end_locks(until_ms)
        self._transactions.has_more = False
        self._delivering.finish()
        self._browsing.tell_watchers()
        self._sessions.tell_watchers()
        self._delivering.write_answers()

    def let_go(self) -> None:
        """Release the answered cycle with its commit, answers and messages: some MiB, and the next cycle may
        be hours away."""
        if self._space.cycle.redriven:
            let_go(self._space)
        self._space.cycle = NO_CYCLE

    def undo_sends(self, commit: Commit) -> int:
        """On a full disk, undo what the cycle has sent and put its other records into another commit.

        The senders' answers become `Failed(DISK_FULL)`, and who has asked for a sink's batch must ask again;
        the other answers wait for the new commit. Returns how many sends were undone.
        """
        self._ahead.disturb()
        cycle = self._space.cycle
        undone = 0
        for index, (client, answer) in enumerate(cycle.answers):
            if isinstance(answer, Sent | Redriven | HandedOver | SinkBatchSent) or (
                isinstance(answer, Transacted) and answer.sent
            ):
                undone += 1
                failed = Failed(
                    Reason.DISK_FULL,
                    f"Partition {self.number}: the disk is full, and nothing that was sent is stored. "
                    "Receive and complete messages to make room, or give the disk more space.",
                    answer.cookie,
                )
                cycle.answers[index] = (client, failed)
            elif isinstance(answer, SinkBatch):  # it may have seen a batch that is being undone
                why = f"Partition {self.number}: the disk is full, and its ledger has gone back. Ask again."
                cycle.answers[index] = (client, Failed(Reason.PARTITION_UNAVAILABLE, why, answer.cookie))
        if cycle.has_sent:
            self._schedule.pause()
            for grant in cycle.grants:
                self._delivering.ungrant(grant)
            for record in reversed(cycle.sent_with):
                self.messages.states.undo(read_back(record), cycle.commit.start)
            cycle.sent_with.clear()
            if self.messages.next_number > cycle.first_sent:
                self.messages.cut(cycle.first_sent)
            restore(self._space)
            cycle.has_sent = False
            self._transactions.give_up()
            self._delivering.tell_unmet()
        cycle.answers = [
            each
            for each in cycle.answers
            if not isinstance(each[1], Locked) or each[1].tokens or each[1].deferred
        ]
        for kind, body, version in cycle.marks:
            commit.add(kind, [body], version)
        commit.grows_by = cycle.commit.grows_by
        cycle.commit = commit
        return undone

    def committed(self) -> None:
        """The cycle is durable: apply what has waited for that. Nothing may be awaited in between."""
        self._transactions.committed()

    def take_rule_faults(self) -> list[tuple[str, str, str]]:
        """Unforeseen exceptions in rules of a topic, to be logged: subscription, rule, error."""
        return [] if self._publishing is None else self._publishing.take_faults()

    @property
    def has_more(self) -> bool:
        """Whether work is left for the next cycle, which should follow at once."""
        return self._ahead.has_more

    def is_patient(self, client: ClientId, demand: Demand) -> bool:
        """Whether a demand can wait for other operations, because it could not be met now."""
        return self._delivering.is_patient(client, demand.subqueue)

    def is_held(self, *, by_messages: bool) -> bool:
        """Whether clients hold locks in it, which end when it is closed. `by_messages`: or it keeps messages
        or other durable state, or anything falls due in it."""
        kept = self.messages.count or self.messages.states.bytes or self.next_due_ms() is not None
        return bool(by_messages and kept) or self._ahead.has_locks

    def next_due_ms(self) -> int | None:
        """When a cycle is due even if no operation arrives."""
        return self._ahead.next_due_ms()

    def next_expiry_ms(self) -> int | None:
        """When the next message expires if the partition is closed; None if none does. Locks need no wake-up:
        they end when the partition closes."""
        return self._time_to_live.next_at_rest_ms()

    def next_schedule_ms(self) -> int | None:
        """When the next scheduled message is enqueued, in wall time; None if there is none."""
        return self._schedule.next_due_ms()

    def _carry_out(self, client: ClientId, operation: Operation) -> bool | None:
        """Carry out an operation; False if it is not done yet."""
        if self._must_wait(operation):
            return False
        if self._publishing is not None and self._later is None and self._is_long([(client, operation)]):
            return None
        match operation:
            case Send():
                self._send(client, operation)
            case Complete() | Abandon() | Defer() | DeadLetter() | RenewLocks():
                return self._settle(client, operation)
            case Demand():
                self._delivering.demand(client, operation)
            case Withdraw():
                return self._delivering.withdraw(client, self.messages.find(operation.subqueue))
            case Recalled():
                self._delivering.recalled(client, operation)
            case Release() | GiveBack():
                self._settling.release(client, operation)
            case Transact():
                self._transactions.carry_out(client, operation)
            case PromiseNumbers():
                return self._promises.make(client, operation)
            case BreakPromise():
                self._promises.break_one(client, operation)
            case Peek():
                return self._browsing.peek(client, operation)
            case Watch():
                return self._browsing.watch(client, operation)
            case WatchReturned():
                self._browsing.watch_returned(client, operation)
            case FindPositions():
                self._reading.find_positions(client, operation)
            case ReadRange():
                self._reading.read(client, operation)
            case CreateCursor():
                self._moving_cursors.create(client, operation)
            case GetCursor():
                self._moving_cursors.get(client, operation)
            case AdvanceCursor():
                self._moving_cursors.advance(client, operation)
            case SendSinkBatch():
                self._sink_batches.send(client, operation)
            case GetSinkBatch():
                self._sink_batches.get(client, operation)
            case SettleThrough():
                self._settle_through(client, operation)
            case ListCursors():
                self._moving_cursors.list(client, operation)
            case DeleteCursor():
                self._moving_cursors.delete(client, operation)
            case ReceiveDeferred():
                self._delivering.receive_deferred(client, operation)
            case CancelScheduled():
                self._schedule.cancel(client, operation)
            case Reschedule():
                self._schedule.reschedule(client, operation)
            case AcceptSession():
                self._sessions.accept(client, operation)
            case RenewSession():
                self._sessions.renew(client, operation)
            case WatchSessions():
                self._sessions.watch(client, operation)
            case GetSessionState():
                self._session_data.get(client, operation)
            case SetSessionState():
                self._session_data.set(client, operation)
            case ListSessions():
                return self._session_data.list(client, operation)
            case Delete():
                self._deleting.delete(client, operation)
            case DeleteExactly():
                self._deleting.delete_exactly(client, operation)
            case FindDeadLetters():
                self._redriving.find(client, operation)
            case LockExactly():
                self._delivering.lock_exactly(client, operation)
            case Redrive():
                self._redriving.redrive(client, operation)
            case HandOver():
                self._handing_over.take(client, operation)
            case FindSources():
                self._handing_over.find(client, operation)
            case FindRuleChanges():
                self._transactions.find_rule_changes(client, operation)
            case ForgetRuleChanges():
                self._transactions.forget_rule_changes(client, operation)
            case LockNext():
                return self._delivering.lock_next(client, operation)
            case FailTransfer():
                self._settling.fail_transfer(client, operation)
            case Update():
                self.describe(operation.description)
                self._space.answer(client, Updated(operation.cookie))
            case Detach():
                self._browsing.forget(client)
                self._delivering.detach(client, operation)
            case _:
                assert_never(operation)
        return None

    def _send(self, client: ClientId, send: Send) -> None:
        """Store messages. Raises Refused."""
        cycle = self._space.cycle
        first, known = self._sending.send_new(cycle, self._space.description, send)
        cycle.answers.append((client, Sent(first, send.cookie, known)))

    def _must_wait(self, operation: Operation) -> bool:
        """Whether an operation must be the first one of the next cycle."""
        if self._transactions.is_passing_on and not isinstance(operation, UNSEEING):
            return True
        # First serve the clients that wait for messages.
        return (
            isinstance(operation, Transact)
            and self._transactions.has_handed_out_nothing(operation)
            and (self._delivering.has_more or self._sessions.is_hungry)
        )

    def _settle(self, client: ClientId, operation: Divisible) -> bool:
        """Settle messages, or renew their locks: as many of one operation as the cycle allows. False until
        the last part is done. Raises Refused."""
        parts = self._parts
        if parts is not None and parts.operation is not operation:
            parts = None
        try:
            merging = self._settling.merging(operation, 0 if parts is None else parts.done)
            if merging.fitting == len(operation.tokens):
                self._settling.carry_out(client, operation, merging)
                return True
            parts = self._parts = parts or Parts(operation)
            part = parts.next(merging.fitting)
            self._settling.carry_out(client, part, merging)
        except Refused as refused:
            if parts is None or not parts.done:
                self._parts = None
                raise
            parts.refuse_rest(refused.reason)
        else:
            parts.add(part, self._space.cycle.answers.pop()[1])
        if not parts.is_done:
            return False
        self._parts = None
        self._space.answer(client, parts.answer())
        return True

    def _settle_through(self, client: ClientId, settle: SettleThrough) -> None:
        """Complete the messages before a position. Raises Refused if it is beyond the head."""
        subqueue = self.messages.find(settle.subqueue)
        self._reading.check_end(subqueue, settle.position)
        self._settling_through.start(
            subqueue,
            settle.position,
            lambda completed, locked: self._space.answer(
                client, SettledThrough(completed, locked, settle.cookie)
            ),
        )

    def _end_locks(self, until_ms: int) -> None:
        """End the locks of messages and sessions that end by `until_ms`. Either kind may take all that the
        cycle allows, so the other one is first in the next cycle."""
        if self._sessions_end_first and self._sessions.is_due(until_ms):
            self._sessions.run_out(until_ms)
        if self._space.locks.is_due(until_ms):
            run_out_locks(self._space, self._time_to_live, until_ms)
        if not self._sessions_end_first and self._sessions.is_due(until_ms):
            self._sessions.run_out(until_ms)

    def check(self) -> None:
        """Assert all invariants of the whole state, between cycles."""
        self.messages.check()
        self.counting.check()
        self._space.locks.check()
        self._sessions.check()
        self._ahead.check()
        self._delivering.check(goes_on=self.has_more)
