"""The partition's state machine: checks, decides, applies. Pure: no I/O, no clock, no asyncio.

The task feeds it one *batch* at a time: `begin(commit, now_ms)`, `handle` for each operation, `finish`. What an operation
changes is appended to the commit as records and applied at once, by the same methods that replay uses; its answers are
collected, and released by the task after the commit is durable (durability rules 1 and 2). When a commit fails the
whole object is thrown away and made again from the log, so nothing here undoes anything, but for one case: on a full disk
the sends of a batch are cut off again and the rest is committed alone (`undo_sends`, durability rule 6).

Locks, demand and recalls are volatile; everything else is a fold over the records:

    operation        record      effect
    Send             ENQUEUED    messages at the end of the main subqueue, with the next sequence numbers
    Complete, Delete REMOVED     the reference is gone
    Abandon, lock    RETURNED    delivery count + 1, available again; a deferred message stays deferred
      expiry         MOVED       … or, at the maximum delivery count, to the dead-letter subqueue (AMQP contract 10.3)
                     CHANGED     … or, in a dead-letter subqueue, available again; no record unless properties change
    Defer            DEFERRED    delivery count + 1 (the main subqueue alone), set aside, whatever the count
    DeadLetter       MOVED       to the dead-letter subqueue; in a dead-letter subqueue it is refused, and the lock goes on
    expiry           MOVED, or REMOVED (AMQP contract 10.4)
    Release, Recalled, Detach    none: no client saw the message, so no delivery is counted

Dead-letter subqueues know no time to live, and count no deliveries (AMQP contract 5.6, 10.4). An expired message is never
handed out; a locked one expires when its lock ends, a deferred one never. Everything in a batch happens at the same time,
and a time to live is at least 1 ms, so a message cannot expire in the batch that enqueues it. Locks and times to live count
in monotonic time, so setting the wall clock ends none of them; wall time only goes into records (see `broker/clock.py`). A settlement
counts if it arrived before its lock ended, however long the disk has kept it waiting: locks that end meanwhile do so after it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import assert_never

from broker.changed_properties import DEAD_LETTER_DESCRIPTION, DEAD_LETTER_REASON, encode_changes, merge_changes
from broker.entities import QueueDescription
from broker.errors import Reason, Refused
from broker.operations import (
    Abandon,
    Arrived,
    ClientId,
    Complete,
    DeadLetter,
    Defer,
    Delete,
    Deleted,
    Demand,
    Detach,
    Failed,
    Locked,
    Operation,
    Peek,
    Recall,
    Recalled,
    ReceiveDeferred,
    Release,
    Renewed,
    RenewLocks,
    Send,
    Sent,
    Settled,
    SubqueueCounts,
    Unmet,
    Update,
    Updated,
    Watch,
    Withdraw,
    Withdrawn,
)
from broker.partition import records
from broker.partition.batch import Batch, Grant, fill_locked, peeked
from broker.partition.bounds import MIB as MIB
from broker.partition.bounds import Bounds as Bounds
from broker.partition.demand import DemandBook, Waiter
from broker.partition.locks import Locks
from broker.partition.messages import Messages
from broker.partition.parts import Divisible, Parts
from broker.partition.quotas import check_changes
from broker.partition.records import Mark
from broker.partition.sending import Sending
from broker.partition.subqueue import DEFERRED, Lease, Reference, Subqueue
from broker.partition.timers import DueKeys
from storage.log import Commit, Frame, Position

_ANSWER_BYTES = 256
"""The memory that a message of an answer takes beside its bytes and its changed properties, at least."""
_DEAD_LETTER = 1
"""The number of the dead-letter subqueue."""

_MAX_DELIVERIES = encode_changes({
    DEAD_LETTER_REASON: "MaxDeliveryCountExceeded",
    DEAD_LETTER_DESCRIPTION: "Message could not be consumed after maximum delivery attempts.",
})  # fmt: skip
_EXPIRED = encode_changes({
    DEAD_LETTER_REASON: "TTLExpiredException",
    DEAD_LETTER_DESCRIPTION: "The message expired and was dead lettered.",
})  # fmt: skip


_NO_BATCH = Batch(Commit(Position(0)), 0, 0, 0)
"""Stands for the batch between two batches; nothing is ever put into it."""


class Partition:
    """One partition of a queue. Owned by its task."""

    def __init__(
        self,
        number: int,
        describe: Callable[[], QueueDescription],
        messages: Messages,
        *,
        epoch: int,
        first_nonce: int = 0,
        bounds: Bounds | None = None,
    ) -> None:
        """`messages` were replayed. `epoch` is the log's; `first_nonce` is 0, unless an epoch goes on with another object."""
        self.number = number
        self.bounds = bounds or Bounds()
        self.messages = messages
        self._describe = describe
        self._description = describe()
        self._main = messages.main
        self._subqueues = messages.subqueues
        self._books = [DemandBook() for _ in self._subqueues]
        self._locks = Locks(self._subqueues, self._books, epoch, first_nonce, self.bounds.tick_ms)
        self._overdue = DueKeys()
        """Sequence numbers whose time came, and which were not looked at yet."""
        self._watches: set[tuple[ClientId, int]] = set()
        """Clients to be told when something arrives, with the subqueue's number."""
        self._telling: dict[tuple[ClientId, int], None] = {}
        """Watches for which something has arrived, in the order in which their clients are told."""
        self._sending = Sending(number, messages, self.bounds.work_max)
        self._batch = _NO_BATCH
        self._parts: Parts | None = None
        """A long settlement or renewal: the first operation of the next batch goes on with it."""
        self._arrived_ms = 0
        """When the operation in hand came into the mailbox. It may have waited there for the disk since, which ends no lock."""

    @property
    def nonce(self) -> int:
        """How many leases were made in this epoch."""
        return self._locks.nonce

    # --- one batch --------------------------------------------------------------------------------------------------

    def begin(self, commit: Commit, now_ms: int, wall_ms: int, since_ms: int | None = None) -> None:
        """Start a batch, at a monotonic and a wall time, and first do what has become due.

        `since_ms`: when the oldest operation of the batch arrived. Locks that have ended since then end after the operations.
        """
        self._batch = Batch(commit, now_ms, wall_ms, self.messages.next_number)
        self.messages.position = commit.start
        self._run_out_locks(now_ms if since_ms is None else since_ms)
        self._expire_overdue()

    def handle(self, client: ClientId, operation: Operation, arrived_ms: int | None = None) -> bool:
        """Carry out one operation of the batch, or refuse it. A lock counts if it had not ended when the operation arrived.

        False if the batch ends before the operation is done: it is to be the first one of the next batch.
        """
        self._arrived_ms = self._batch.now_ms if arrived_ms is None else arrived_ms
        try:
            return self._carry_out(client, operation) is not False
        except Refused as refused:
            self._batch.answers.append((client, Failed(refused.reason, refused.description, getattr(operation, "cookie", None))))
            return True

    def go_on(self) -> Iterator[None]:
        """What the last operation of the batch has left to do, in steps. `finish` does what is left of it."""
        return self._sending.go_on()

    @property
    def is_full(self) -> bool:
        """The batch has done as much as one may do: whatever else waits is for the next one."""
        return self._batch.work >= self.bounds.work_max

    def finish(self, waiting_since_ms: int | None = None) -> Batch:
        """Hand out what there is, and end the batch. `waiting_since_ms`: when the oldest operation arrived that waits for the next one."""
        batch = self._batch
        deque(self.go_on(), maxlen=0)
        self._run_out_locks(batch.now_ms if waiting_since_ms is None else waiting_since_ms)
        for subqueue, book in zip(self._subqueues, self._books, strict=True):
            if book.is_idle:
                continue
            batch.granted_bytes = batch.granted = 0  # bounds for each, so that none starves the others
            self._serve(subqueue, book)
            self._recall(subqueue, book)
            for client in book.left():
                batch.answers.append((client, Withdrawn(self.number, subqueue.name)))
                self._close_grant(client, subqueue)
        for client, number in batch.to_tell:
            if not self._subqueues[number].available and self._books[number].waits(client):
                batch.answers.append((client, Unmet(self.number, self._subqueues[number].name)))
        if self._watches or self._telling:
            self._tell_watchers()
        for grant in batch.grants:
            self._fill(grant)
        for reference in batch.passing:
            reference.payload = b""
        payloads = self.messages.payloads
        payloads.count_state(self.messages.state_bytes)
        if batch.grants:
            payloads.read(batch.now_ms)
        return batch

    def let_go(self) -> None:
        """The batch was answered: forget its commit, its answers and their messages, some MiB. The next batch may be hours away."""
        self._batch = _NO_BATCH

    def undo_sends(self, commit: Commit) -> int:
        """The disk is full: cut off what the batch has sent, and put its other records into another commit.

        The senders' answers become `Failed(DISK_FULL)`; those of the others wait for the new commit. Gives how many sends.
        """
        batch = self._batch
        undone = 0
        for index, (client, answer) in enumerate(batch.answers):
            if isinstance(answer, Sent):
                undone += 1
                failed = Failed(Reason.DISK_FULL, f"Partition {self.number}: the disk is full, nothing was stored.", answer.cookie)
                batch.answers[index] = (client, failed)
        if batch.has_sent:
            for grant in batch.grants:
                self._ungrant(grant)
            self.messages.cut(batch.first_sent)
            batch.has_sent = False
        batch.answers = [each for each in batch.answers if not isinstance(each[1], Locked) or each[1].tokens or each[1].deferred]
        for kind, body in batch.marks:
            commit.add(kind, [body], records.VERSION)
        batch.commit = commit
        return undone

    def read_ahead(self, frames: Sequence[Frame]) -> None:
        """Keep in memory what stands in frames that were read anyway, and goes out next."""
        data = {frame.position: frame.data for frame in frames}
        take = self.messages.payloads.take
        for subqueue in self._subqueues:
            for reference in subqueue.upcoming():
                frame = data.get(reference.frame.position)
                if reference.payload or frame is None or not take(reference.size):
                    break
                reference.payload = frame[reference.offset : reference.offset + reference.size]

    @property
    def has_more(self) -> bool:
        """Something was left for the next batch, which should come at once."""
        if self._overdue or self._telling or self._locks.has_ended:
            return True
        return any(subqueue.available and book for subqueue, book in zip(self._subqueues, self._books, strict=True))

    def next_due_ms(self) -> int | None:
        """When a batch is due although nobody asks for one."""
        expiry = self._main.expiry
        lock_ends_ms = self._locks.next_due_ms()
        expires_ms = expiry.next_due_ms() if expiry is not None else None
        if lock_ends_ms is None or expires_ms is None:
            return expires_ms if lock_ends_ms is None else lock_ends_ms
        return min(lock_ends_ms, expires_ms)

    def _carry_out(self, client: ClientId, operation: Operation) -> bool | None:
        """False if it is not done."""
        match operation:
            case Send():
                first = self._sending.send(self._batch, self._description, operation)
                self._batch.answers.append((client, Sent(first, operation.cookie)))
            case Complete() | Abandon() | Defer() | DeadLetter() | RenewLocks() if len(operation.tokens) > self.bounds.settled_max:
                return self._carry_out_part(client, operation)
            case Complete():
                self._settle(client, operation, self._remove)
            case Demand():
                self._demand(client, operation)
            case Withdraw():
                return self._withdraw(client, self.messages.find(operation.subqueue))
            case Recalled():
                self._recalled(client, operation)
            case Release():
                self._batch.work += len(operation.tokens)
                for subqueue, references in self._locks.unlock(operation.tokens, self._arrived_ms):
                    self._give_back(subqueue, references)
            case Abandon():
                self._check_changes(operation)
                self._settle(client, operation, lambda subqueue, each: self._return(subqueue, each, operation.changed))
            case Defer():
                self._check_changes(operation)
                self._settle(client, operation, lambda subqueue, each: self._defer(subqueue, each, operation.changed))
            case DeadLetter():
                self._check_changes(operation)
                self._dead_letter(client, operation)
            case RenewLocks():
                self._batch.work += len(operation.tokens)
                failures = self._locks.renew(operation.tokens, self._arrived_ms, self._locked_until_ms())
                self._batch.answers.append((client, Renewed(self._locked_until_ms(), operation.cookie, failures)))
            case Peek():
                return self._peek(client, operation)
            case Watch():
                return self._watch(client, operation)
            case ReceiveDeferred():
                self._receive_deferred(client, operation)
            case Delete():
                self._delete(client, operation)
            case Update():
                self._description = self._describe()
                self._batch.answers.append((client, Updated(operation.cookie)))
            case Detach():
                self._detach(client, operation)
            case _:
                assert_never(operation)
        return None

    # --- demand and handing out -------------------------------------------------------------------------------------

    def _demand(self, client: ClientId, demand: Demand) -> None:
        subqueue = self.messages.find(demand.subqueue)
        book = self._books[subqueue.number]
        if book.is_leaving(client):
            book.leave(client)
            self._batch.answers.append((client, Withdrawn(self.number, subqueue.name)))
        if demand.count > 0:
            book.ask(client, demand.count, demand.bytes_max)
            if demand.tell_unmet:
                self._batch.to_tell.append((client, subqueue.number))

    def _withdraw(self, client: ClientId, subqueue: Subqueue) -> bool:
        """A drain means: what is there now, and then no more. So the demand is met first, and asked back for (§2.6.7)."""
        book = self._books[subqueue.number]
        self._serve(subqueue, book)
        if subqueue.available and book.waits(client) and (client, subqueue.number) not in self._batch.open_grants:
            return False  # the batch has handed out as much as one may, and this client has got nothing yet
        self._recall(subqueue, book)
        if book.withdraw(client):
            self._batch.answers.append((client, Withdrawn(self.number, subqueue.name)))
        self._close_grant(client, subqueue)
        return True

    def _serve(self, subqueue: Subqueue, book: DemandBook) -> None:
        """Give what is available to those who wait, in their turns."""
        while subqueue.available and (waiter := book.first()) is not None:
            if not self._grant(subqueue, book, waiter, waiter.count) and self._has_granted_enough:
                return

    @property
    def _has_granted_enough(self) -> bool:
        return self._batch.granted_bytes >= self.bounds.granted_bytes_max or self._batch.granted >= self.bounds.granted_max

    def _grant(self, subqueue: Subqueue, book: DemandBook, waiter: Waiter, count: int) -> int:
        """Lock up to `count` messages for a waiter; gives how many. What is met expired is dealt with, too."""
        client = waiter.client
        room = min(self.bounds.granted_bytes_max - self._batch.granted_bytes, waiter.bytes)
        looks = self.bounds.granted_max - self._batch.granted
        if room <= 0 or looks <= 0:
            return 0
        grant = self._batch.open_grants.get((client, subqueue.number))
        lease = grant.lease if grant else self._new_lease(subqueue)
        taken, expired, looked = subqueue.take(count, room, lease, self._batch.now_ms, looks)
        self._batch.granted += looked
        if taken:
            if grant is None:
                self._locks.start(lease)
                lease.holder = book.holder(client)
                book.granted(lease)
                grant = self._new_grant(client, lease)
                self._batch.open_grants[client, subqueue.number] = grant
            size = sum(reference.size for reference in taken)
            self._batch.granted_bytes += size
            grant.void += book.served(waiter, len(taken), size)
            grant.bytes_left = waiter.bytes
            if grant.void:
                grant.answer.voids_demand = True
        if expired:
            self._expire(expired)
        return len(taken)

    def _recall(self, subqueue: Subqueue, book: DemandBook) -> None:
        if not subqueue.available:
            self._batch.answers.extend((client, Recall(self.number, subqueue.name)) for client in book.recall())

    def _recalled(self, client: ClientId, recalled: Recalled) -> None:
        subqueue = self.messages.find(recalled.subqueue)
        book = self._books[subqueue.number]
        self._batch.work += len(recalled.tokens)
        returned = self._locks.unlock(recalled.tokens, self._arrived_ms)
        book.recalled(client)
        for other, references in returned:
            self._give_back(other, references)
        if returned:
            book.pass_turn(client)
            while subqueue.available and (waiter := book.latest_but(client)) is not None:
                if not self._grant(subqueue, book, waiter, waiter.count) and self._has_granted_enough:
                    return

    def _detach(self, client: ClientId, detach: Detach) -> None:
        self._batch.work += len(detach.unseen)
        returned = self._locks.unlock(detach.unseen, self._arrived_ms)
        for book in self._books:
            book.detach(client)
        for subqueue in self._subqueues if self._watches or self._telling else ():
            self._watches.discard((client, subqueue.number))
            self._telling.pop((client, subqueue.number), None)
        for subqueue, references in returned:
            self._give_back(subqueue, references)

    def _receive_deferred(self, client: ClientId, receive: ReceiveDeferred) -> None:
        subqueue = self.messages.find(receive.subqueue)
        found: list[Reference] = []
        for number in dict.fromkeys(receive.sequence_numbers):
            reference = subqueue.references.get(number)
            if reference is None or reference.state != DEFERRED or reference.lease is not None:
                raise Refused(Reason.MESSAGE_NOT_FOUND, f"No deferred message has the sequence number {number}, or it is locked.")
            found.append(reference)
        room = self.bounds.granted_bytes_max
        for place, reference in enumerate(found):
            room -= reference.size + len(reference.changed or b"") + _ANSWER_BYTES
            if (room < 0 and place) or place >= self.bounds.granted_max:
                del found[place:]
                break
        lease = self._new_lease(subqueue)
        grant = self._new_grant(client, lease, deferred=True, cookie=receive.cookie)
        grant.open = False
        if found:
            subqueue.lock_deferred(found, lease)
            self._locks.start(lease)

    def _new_lease(self, subqueue: Subqueue) -> Lease:
        return self._locks.new_lease(subqueue, self._locked_until_ms())

    def _locked_until_ms(self) -> int:
        return self._batch.now_ms + self._description.settings.lock_duration_ms

    def _new_grant(self, client: ClientId, lease: Lease, deferred: bool = False, cookie: object = None) -> Grant:
        answer = Locked(self.number, lease.subqueue.name, [], [], [], [], [], [], [], lease.until_ms, deferred, cookie)
        grant = Grant(client, lease, answer)
        self._batch.grants.append(grant)
        self._batch.answers.append((client, answer))
        return grant

    def _fill(self, grant: Grant) -> None:
        fill_locked(grant.answer, grant.lease)
        if b"" in grant.answer.messages:
            self._batch.holes.append((grant.answer.messages, list(grant.lease.references)))

    def _close_grant(self, client: ClientId, subqueue: Subqueue) -> None:
        grant = self._batch.open_grants.pop((client, subqueue.number), None)
        if grant is not None:
            grant.open = False

    def _ungrant(self, grant: Grant) -> None:
        """Take what this batch has sent out of a lease of this batch; the client waits for other messages again."""
        batch, lease = self._batch, grant.lease
        undone = [reference for reference in lease.references if reference.sequence_number >= batch.first_sent]
        if not undone:
            return
        lease.references = [reference for reference in lease.references if reference.sequence_number < batch.first_sent]
        self._locks.take_back(lease, undone)
        batch.holes = [hole for hole in batch.holes if hole[0] is not grant.answer.messages]
        self._fill(grant)
        if grant.open:
            grant.answer.voids_demand = False
            size = sum(reference.size for reference in undone)
            self._books[lease.subqueue.number].ask_again(grant.client, len(undone) + grant.void, size, grant.bytes_left)

    # --- settling ---------------------------------------------------------------------------------------------------

    def _settle(
        self,
        client: ClientId,
        operation: Complete | Abandon | Defer | DeadLetter,
        settle: Callable[[Subqueue, list[Reference]], None],
    ) -> None:
        failures: dict[int, Reason] = {}
        self._batch.work += len(operation.tokens)
        for subqueue, references in self._locks.unlock(operation.tokens, self._arrived_ms, failures):
            settle(subqueue, references)
        self._batch.answers.append((client, Settled(operation.cookie, failures)))

    def _carry_out_part(self, client: ClientId, operation: Divisible) -> bool:
        """As much of a long operation as one batch may do; False until it was the last part."""
        if self._parts is None or self._parts.operation is not operation:
            self._parts = Parts(operation)
        parts = self._parts
        part = parts.next(self.bounds.settled_max)
        try:
            self._carry_out(client, part)
        except Refused as refused:
            if not parts.done:
                raise
            parts.refuse_rest(refused.reason)
        else:
            parts.add(part, self._batch.answers.pop()[1])
        if not parts.is_done:
            return False
        self._parts = None
        self._batch.answers.append((client, parts.answer()))
        return True

    def _check_changes(self, operation: Abandon | Defer | DeadLetter) -> None:
        """Raises Refused; the locks go on."""
        check_changes(self._description, self.number, self._subqueues, self.messages.payloads, operation.changed, len(operation.tokens))

    def _dead_letter(self, client: ClientId, operation: DeadLetter) -> None:
        """Messages of a dead-letter subqueue go no further: their locks are left as they are (AMQP contract 10.4)."""
        failures: dict[int, Reason] = {}
        self._batch.work += 2 * len(operation.tokens)
        places: list[int] = []
        for place, token in enumerate(operation.tokens):
            if self._locks.subqueue_of(token, self._arrived_ms) in (None, self._main):
                places.append(place)
            else:
                failures[place] = Reason.NOT_ALLOWED
        lost: dict[int, Reason] = {}
        for subqueue, references in self._locks.unlock([operation.tokens[place] for place in places], self._arrived_ms, lost):
            self._move(subqueue, references, operation.changed)
        failures |= {places[index]: reason for index, reason in lost.items()}
        self._batch.answers.append((client, Settled(operation.cookie, failures)))

    def _remove(self, subqueue: Subqueue, references: list[Reference]) -> None:
        self._mark(Mark(records.REMOVED, subqueue.number, [reference.sequence_number for reference in references]))

    def _return(self, subqueue: Subqueue, references: list[Reference], changed: bytes | None) -> None:
        """A delivery has failed: back, or to the dead-letter subqueue when it was the last one allowed."""
        kind = records.RETURNED
        if subqueue is not self._main:
            kind = records.CHANGED
        else:
            last = self._description.settings.max_delivery_count - 1
            spent = [reference for reference in references if reference.delivery_count >= last]
            if spent:
                references = [reference for reference in references if reference.delivery_count < last]
                self._move(subqueue, spent, merge_changes(changed, _MAX_DELIVERIES), counts_delivery=True)
        if references:
            if kind == records.RETURNED or changed is not None:
                self._mark(Mark(kind, subqueue.number, [reference.sequence_number for reference in references], changed))
            self._give_back(subqueue, references)

    def _defer(self, subqueue: Subqueue, references: list[Reference], changed: bytes | None) -> None:
        numbers = [reference.sequence_number for reference in references]
        self._mark(Mark(records.DEFERRED, subqueue.number, numbers, changed, counts_delivery=subqueue is self._main))

    def _move(self, subqueue: Subqueue, references: Sequence[Reference], changed: bytes | None, counts_delivery: bool = False) -> None:
        numbers = [reference.sequence_number for reference in references]
        self._batch.dead_lettered += len(numbers)
        self._mark(Mark(records.MOVED, subqueue.number, numbers, changed, _DEAD_LETTER, counts_delivery))

    def _give_back(self, subqueue: Subqueue, references: list[Reference]) -> None:
        """Unlocked messages are available again, but for those that expired while they were locked."""
        subqueue.give_back(references)
        if subqueue.expiry is not None:
            expired = [each for each in references if each.lives_until_ms is not None and each.lives_until_ms <= self._batch.now_ms]
            self._expire([each for each in expired if each.state != DEFERRED])

    def _mark(self, mark: Mark) -> None:
        body = records.encode_mark(mark)
        self._batch.commit.add(mark.kind, [body], records.VERSION)
        self._batch.marks.append((mark.kind, body))
        self.messages.apply_mark(mark)

    # --- time -------------------------------------------------------------------------------------------------------

    def _run_out_locks(self, until_ms: int) -> None:
        batch, ended_max = self._batch, self.bounds.ended_locks_max
        ended = self._locks.run_out(until_ms)
        while batch.expired_locks < ended_max and (lease := next(ended, None)) is not None:
            subqueue, references = lease
            batch.expired_locks += len(references)
            self._return(subqueue, references, None)

    def _expire_overdue(self) -> None:
        assert self._main.expiry is not None, "the messages were replayed"
        if not self._overdue:
            self._overdue.add(self._main.expiry.expire(self._batch.now_ms, self.bounds.expired_max))
        if self._overdue:
            overdue = self._overdue.take(self.bounds.expired_max)
            found = [reference for number in overdue if (reference := self._main.references.get(number)) is not None]
            # A locked message expires when its lock ends, a deferred one never.
            self._expire([reference for reference in found if reference.lease is None and reference.state != DEFERRED])

    def _expire(self, references: list[Reference]) -> None:
        """Available messages of the main subqueue whose time to live is over."""
        if not references:
            return
        self._batch.expired_messages += len(references)
        if self._description.settings.dead_lettering_on_expiration:
            self._move(self._main, references, _EXPIRED)
        else:
            self._remove(self._main, references)

    # --- looking ----------------------------------------------------------------------------------------------------

    def _peek(self, client: ClientId, peek: Peek) -> bool:
        subqueue = self.messages.find(peek.subqueue)
        found: list[Reference] = []
        room, more = self.bounds.peeked_bytes_max, False
        if peek.bytes_max is not None:
            room = max(min(room, peek.bytes_max), 1)
        for number, reference in self._visible(subqueue, peek.from_sequence_number):
            if len(found) >= peek.count:
                break
            if reference is None and not found:
                peek.from_sequence_number = number
                return False
            if reference is None or room <= 0:
                more = True
                break
            found.append(reference)
            room -= reference.size
        self._batch.work += len(found)
        answer = peeked(found, peek.cookie, more)
        if b"" in answer.messages:
            self._batch.holes.append((answer.messages, found))
        self._batch.answers.append((client, answer))
        return True

    def _delete(self, client: ClientId, delete: Delete) -> None:
        """Messages that this batch has sent stay: they may still be refused (durability rule 3). Overdue messages expire by themselves."""
        subqueue = self.messages.find(delete.subqueue)
        numbers: list[int] = []
        next_number: int | None = None
        looked_at = 0
        for looked_at, reference in enumerate(subqueue.browse(max(delete.from_sequence_number, 0))):
            number = reference.sequence_number
            if reference.enqueued_at_ms >= delete.enqueued_before_ms or (self._batch.has_sent and number >= self._batch.first_sent):
                break  # enqueued times never go back, so the following ones are no older
            if len(numbers) >= delete.count or looked_at >= self.bounds.deleted_max:
                next_number = number
                break
            if reference.lease is None and reference.state != DEFERRED and not self._is_overdue(subqueue, reference):
                numbers.append(number)
        if numbers:
            self._mark(Mark(records.REMOVED, subqueue.number, numbers))
        self._batch.work += looked_at + 1
        self._batch.answers.append((client, Deleted(len(numbers), next_number, delete.cookie)))

    def _watch(self, client: ClientId, watch: Watch) -> bool:
        subqueue = self.messages.find(watch.subqueue)
        number, reference = next(self._visible(subqueue, watch.from_sequence_number), (None, None))
        if number is None:
            self._watches.add((client, subqueue.number))
        elif reference is None:
            watch.from_sequence_number = number
            return False
        else:
            self._batch.answers.append((client, Arrived(self.number, subqueue.name)))
        return True

    def _tell_watchers(self) -> None:
        """The answers leave with the batch, so a client that then peeks is shown what this batch has brought."""
        arrived = {self._main.number: self._batch.has_sent, _DEAD_LETTER: self._batch.dead_lettered > 0}
        for watch in [watch for watch in self._watches if arrived.get(watch[1])] if any(arrived.values()) else ():
            self._watches.remove(watch)
            self._telling[watch] = None
        for client, number in list(islice(self._telling, self.bounds.told_max)):
            del self._telling[client, number]
            self._batch.answers.append((client, Arrived(self.number, self._subqueues[number].name)))

    def _visible(self, subqueue: Subqueue, from_number: int) -> Iterator[tuple[int, Reference | None]]:
        """Messages that a client may look at: not those that this batch has sent, for they may still be refused (durability rule 3).

        Ends with a number and no message where as many were passed over as a batch may look at: it is the place to go on from.
        """
        passed_over = 0
        for reference in subqueue.browse(max(from_number, 0)):
            number = reference.sequence_number
            if self._batch.has_sent and number >= self._batch.first_sent:
                return
            if not self._is_overdue(subqueue, reference):
                yield number, reference
                continue
            passed_over += 1
            if passed_over >= self.bounds.looks_max:
                self._batch.work += passed_over
                yield number, None
                return

    def _is_overdue(self, subqueue: Subqueue, reference: Reference) -> bool:
        if subqueue.expiry is None or reference.lives_until_ms is None or reference.lives_until_ms > self._batch.now_ms:
            return False
        return reference.lease is None and reference.state != DEFERRED

    def counts(self) -> dict[str, SubqueueCounts]:
        """How much of what each subqueue holds."""
        return {
            subqueue.name: SubqueueCounts(
                active=len(subqueue.references) - subqueue.deferred,
                locked=subqueue.locked,
                deferred=subqueue.deferred,
                bytes=subqueue.size_bytes,
            )
            for subqueue in self._subqueues
        }

    def check(self) -> None:
        """Add up the whole state, between batches: assert all invariants."""
        self.messages.check()
        self._locks.check()
        for subqueue, book in zip(self._subqueues, self._books, strict=True):
            book.check()
            assert self.has_more or not (subqueue.available and book), "messages are available while a client waits"
