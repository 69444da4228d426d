"""One transaction: it collects sends and settlements, and checks that they can be carried out together
(AMQP contract 8.2, 8.3).

A transaction does nothing until it is committed. Then one operation goes to one partition, which writes
everything in one commit. So all of a transaction lies in one partition of one entity: on a partitioned
entity, its messages have one key, and the messages that it settles are in that key's partition.

*Several entities* take part through one of them, the *via entity*: the one whose messages the transaction
settles, else the one that its AMQP session used first. What is sent to the others is kept in the via entity's
partition by the same commit, and is transferred to them afterwards (`forwarding.py`).

An operation that is refused fails its whole transaction: what the transaction has collected is dropped at
once, and it can only be rolled back. A client that does not look at each outcome therefore never commits a
part. The same happens when it lasts too long. Locks stay as they are until the commit. A roll-back changes
nothing, so messages that were to be settled stay locked until their locks end. Knows nothing of AMQP.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from broker.base.errors import Reason, Refused
from broker.entities.descriptions import MESSAGE_OVERHEAD_BYTES
from broker.entities.rule_changes import RuleChange, changed, encode_changes
from broker.entities.topics import TopicDescription
from broker.identifiers import LockToken, partition_of, partition_of_token, sequence_of_token
from broker.message.transfers import via_partition_key
from broker.messaging.asking import lock_lost
from broker.messaging.sending import Collected
from broker.messaging.sending_via import check_destination
from broker.messaging.sends import transfer_of
from broker.messaging.settlement import Settlement
from broker.namespace.entity import Entity, ask, next_client
from broker.operations.interface import Answer
from broker.operations.scheduling import BreakPromise, Promised, PromiseNumbers
from broker.operations.sending import Send
from broker.operations.settling import Complete
from broker.operations.transactions import Transact
from broker.send_lists import merged

LOCK_TOKEN_BYTES = 16
SETTLED_BYTES = 256
"""The memory that a settlement takes until the commit, for each message."""
FAILED_KEPT_S = 120.0
"""How long a client can learn why its transaction has failed."""


class Limits(Protocol):
    """The settings that bound transactions."""

    @property
    def transaction_messages_max(self) -> int:
        """Messages that one transaction sends and settles."""

    @property
    def transaction_timeout_ms(self) -> int:
        """Time from a transaction's first operation to its commit, and from its declaration to its first
        operation."""

    @property
    def transactions_per_connection_max(self) -> int:
        """Transactions of one connection that are neither committed nor rolled back."""

    @property
    def transactions_max(self) -> int:
        """The same over all connections."""

    @property
    def connection_transaction_bytes_max(self) -> int:
        """Bytes that the transactions of one connection hold."""


class Everybody(Protocol):
    """What the transactions of all connections share."""

    @property
    def limits(self) -> Limits:
        """The settings that bound transactions."""

    @property
    def bytes_max(self) -> int:
        """Bytes that all transactions together may hold."""

    bytes: int
    unclaimed: dict[Transaction, None]


class OfConnection(Protocol):
    """The transactions of a connection."""

    def has(self, transaction: Transaction) -> bool:
        """Whether this transaction is open."""

    def roll_back(self, txn_id: bytes) -> None:
        """Forget everything in a transaction."""

    def make_room(self, size: int) -> None:
        """Make room by failing transactions of connections that hold more."""

    bytes: int
    """What they hold."""


@dataclass(slots=True)
class _Transfer:
    """Messages for an entity that is not the transaction's own, or may turn out not to be."""

    entity: Entity
    collected: Collected
    is_via: bool
    """The sender has named the via entity."""
    via_key: str | None
    """The key that the sender gave for the via entity."""


class Transaction:
    """One transaction, until it is committed or rolled back."""

    __slots__ = (
        "_all",
        "_asking",
        "_begun",
        "_cancelled",
        "_ends_at",
        "_failure",
        "_key",
        "_number",
        "_of_connection",
        "_promised",
        "_queue",
        "_rule_changes",
        "_scheduled",
        "_sends",
        "_settlements",
        "_timer",
        "_transfers",
        "_via",
        "_where",
        "bytes",
        "messages",
        "owner",
        "txn_id",
    )

    def __init__(
        self, of_connection: OfConnection, all_transactions: Everybody, owner: object, txn_id: bytes
    ) -> None:
        self._of_connection, self._all, self.txn_id = of_connection, all_transactions, txn_id
        self.owner = owner
        self.bytes = self.messages = 0
        """What it holds."""
        self._queue: Entity | None = None
        """The entity of its operations, and the partition; None before the first operation."""
        self._number = 0
        self._where = ""
        """What determined the partition, in words."""
        self._key: str | None = None
        """The key of its messages, in a partitioned entity."""
        self._sends: list[Send] = []
        self._settlements: list[tuple[Settlement, str, list[LockToken]]] = []
        """With the subqueue of their messages."""
        self._cancelled: list[int] = []
        """Scheduled messages to remove."""
        self._scheduled: list[Send] = []
        self._promised: list[list[int]] = []
        """The sequence numbers that the partition has promised for each of `_scheduled`."""
        self._rule_changes: list[RuleChange] = []
        self._transfers: list[_Transfer] = []
        """Messages for other entities than `_queue`, or for any while that is None."""
        self._via: Entity | None = None
        """The via entity, unless settlements choose another one."""
        self._begun = False
        """It has operations."""
        self._asking = 0
        """Requests that wait for the partition."""
        self._failure: str | None = None
        """Why it can only be rolled back."""
        loop, timeout_s = asyncio.get_running_loop(), self._all.limits.transaction_timeout_ms / 1000
        self._ends_at = loop.time() + timeout_s
        """When it fails, or if it has no operations or has failed already, ends; by the loop's clock."""
        self._timer = loop.call_later(timeout_s, self._look_at_clock)

    def send(
        self,
        queue: Entity,
        collect: Callable[[], Collected],
        via: Entity | None = None,
        *,
        is_via: bool = False,
    ) -> None:
        """Send messages with the transaction; `collect` makes them. Raises Refused, and then the transaction
        has failed.

        `via` is the entity that may pass the messages on, if the transaction is not on `queue`; `is_via` says
        that the sender has named it, so that it always does.
        """
        try:
            self._check_failure()
            is_transfer = is_via or (
                self._queue is not queue and via is not None and (self._queue is not None or via is not queue)
            )
            if not is_transfer:
                self._check_entity(queue)
                if self._queue is None and self._via is not None and self._via is not queue:
                    raise _two_entities(self._via, queue)
            collected = collect()
            if is_transfer:
                assert via is not None, "only then can it be a transfer"
                transfer = self._transfer(queue, collected, via, is_via)
            else:
                self._settle_on(queue)
                self._place_send(queue, collected.keys)
            messages = collected.send.messages
            self._add(len(messages), sum(map(len, messages)) + MESSAGE_OVERHEAD_BYTES * len(messages))
        except Refused as why:
            self.fail(why)
            raise
        if is_transfer:
            self._transfers.append(transfer)
        else:
            self._sends.append(collected.send)

    def settle(
        self, queue: Entity, subqueue: str, tokens: Sequence[LockToken], settlement: Settlement
    ) -> None:
        """Settle messages of a subqueue with the transaction. Raises Refused, and then the transaction has
        failed."""
        try:
            self._check_failure()
            self._check_entity(queue)
            if not settlement.is_answered:
                raise Refused(
                    Reason.NOT_ALLOWED,
                    "A transaction can complete, abandon, defer or dead-letter messages, not release them.",
                )
            self._settle_on(queue)
            for token in tokens:
                self._place_settlement(queue, token)
            size = SETTLED_BYTES + len(settlement.changed or b"")
            self._add(len(tokens), size * len(tokens))
        except Refused as why:
            self.fail(why)
            raise
        if self._settlements and self._settlements[-1][:2] == (settlement, subqueue):
            self._settlements[-1][2].extend(tokens)
        else:
            self._settlements.append((settlement, subqueue, list(tokens)))

    def cancel(self, queue: Entity, numbers: Sequence[int]) -> None:
        """Cancel scheduled messages with the transaction. Raises Refused, and then the transaction has
        failed."""
        try:
            self._check_failure()
            self._check_entity(queue)
            self._settle_on(queue)
            for sequence_number in numbers:
                number = partition_of(sequence_number)
                if not 0 <= number < len(queue.router.handles):
                    text = f"No scheduled message has the sequence number {sequence_number}."
                    raise Refused(Reason.MESSAGE_NOT_FOUND, text)
                text = f"the cancelling of message {sequence_number} (partition {number})"
                self._place(queue, number, text)
            self._add(len(numbers), SETTLED_BYTES * len(numbers))
        except Refused as why:
            self.fail(why)
            raise
        self._cancelled += dict.fromkeys(number for number in numbers if number not in self._cancelled)

    def change_rules(self, topic: Entity, change: RuleChange) -> None:
        """Add or remove a rule of a plain topic with the transaction. Raises Refused, and then the
        transaction has failed."""
        try:
            self._check_failure()
            description = topic.description
            if not isinstance(description, TopicDescription) or description.partitions > 1:
                raise Refused(
                    Reason.NOT_ALLOWED,
                    f"Rules of the partitioned entity '{topic.name}' cannot be changed in a transaction: "
                    "they hold on all partitions, and a transaction is in one.",
                )
            self._check_entity(topic)
            self._settle_on(topic)
            changed(description, [*self._rule_changes, change], 0)
            self._place(topic, 0, "")
            self._add(1, len(encode_changes([change])))
        except Refused as why:
            self.fail(why)
            raise
        self._rule_changes.append(change)

    async def schedule(self, queue: Entity, collected: Collected) -> list[int]:
        """Schedule messages with the transaction; returns the sequence numbers that they are going to have.
        Raises Refused, and then the transaction has failed.

        The partition promises the numbers at once, because the client expects them in the response.
        """
        count = len(collected.send.messages)
        self._asking += 1
        try:
            self._check_failure()
            self._check_entity(queue)
            self._settle_on(queue)
            self._place_send(queue, collected.keys)
            self._add(count, sum(map(len, collected.send.messages)) + MESSAGE_OVERHEAD_BYTES * count)
            handle = queue.router.handles[self._number]
            answer = await ask(handle, PromiseNumbers(count))
            assert isinstance(answer, Promised), f"{answer} is not an answer to PromiseNumbers"
            if not self._of_connection.has(self):
                self._failure = self._failure or "it has ended"
            if self._failure is not None:
                handle.post(BreakPromise(answer.first), next_client(), _ignore)
                self._check_failure()
        except Refused as why:
            self.fail(why)
            raise
        finally:
            self._asking -= 1
        numbers = list(range(answer.first, answer.first + count))
        self._scheduled.append(collected.send)
        self._promised.append(numbers)
        return numbers

    def fail(self, why: Refused) -> None:
        """Drop everything: the transaction can only be rolled back."""
        if self._failure is None:
            self._failure = why.description
            self._ends_at = asyncio.get_running_loop().time() + FAILED_KEPT_S
            if self._queue is not None:
                self._queue.meter.refused(why.reason, 1)
            self.drop()

    def drop(self) -> None:
        """Release what it holds."""
        self._of_connection.bytes -= self.bytes
        self._all.bytes -= self.bytes
        self.bytes = self.messages = 0
        if self._promised:
            assert self._queue is not None
            handle = self._queue.router.handles[self._number]
            for numbers in self._promised:
                handle.post(BreakPromise(numbers[0]), next_client(), _ignore)
        self._promised.clear()
        self._scheduled.clear()
        self._cancelled.clear()
        self._rule_changes.clear()
        self._transfers.clear()
        self._sends.clear()
        self._settlements.clear()

    def end(self) -> None:
        """Roll it back without being asked to: its id is unknown from now on."""
        self._of_connection.roll_back(self.txn_id)

    def worth(self) -> int:
        """How much the client loses if it ends: the least if it has failed, the most if it has operations."""
        return 0 if self._failure is not None else 2 if self._begun else 1

    def stop_timer(self) -> None:
        """Stop its time limit: it is no longer open."""
        self._timer.cancel()

    def prepared(self, may_use: Callable[[Entity], None]) -> tuple[Entity, int, Transact] | None:
        """The operation that carries it out, with its entity and partition; None if there is nothing to do.
        Raises Refused if it has failed.

        `may_use` raises Refused if the client may not use an entity that no operation has named: the via
        entity of a transaction that only sends to others.
        """
        self._check_failure()
        if self._asking:
            why = Refused(Reason.NOT_ALLOWED, "it was committed before all of its requests were answered")
            self.fail(why)
            self._check_failure()
        if not self._begun:
            return None
        if self._queue is None:
            try:
                self._choose_entity(may_use)
            except Refused as why:
                self.fail(why)
                self._check_failure()
        assert self._queue is not None, "it was chosen"
        settlements = [
            settlement.operation(tokens, subqueue=subqueue)
            for settlement, subqueue, tokens in self._settlements
        ]
        transact = Transact(
            merged(self._sends),
            settlements,  # type: ignore[arg-type]
            cancelled=self._cancelled,
            scheduled=merged(self._scheduled) if self._scheduled else None,
            promised=[number for numbers in self._promised for number in numbers],
            transfers=(
                merged([transfer_of(each.collected.send, each.entity.name) for each in self._transfers])
                if self._transfers
                else None
            ),
        )
        self._find_room(transact)
        if self._rule_changes:
            transact.change_id = uuid.uuid4().bytes
            transact.rule_changes = encode_changes(self._rule_changes)
        return self._queue, self._number, transact

    def _find_room(self, transact: Transact) -> None:
        """Count the messages towards the quota of the whole entity. If it is full, a transaction that removes
        messages may still fit: its partition knows their sizes. Raises Refused."""
        assert self._queue is not None, "it was chosen"
        sends = (transact.send, transact.scheduled, transact.transfers)
        messages = [message for send in sends if send is not None for message in send.messages]
        if not messages:
            return
        try:
            self._queue.admit(messages)
        except Refused as why:
            if not (transact.cancelled or any(isinstance(each, Complete) for each in transact.settlements)):
                self.fail(why)
                self._check_failure()
            transact.full, transact.room = why.description, self._queue.take_rest()

    def count(self) -> None:
        """Count what was carried out."""
        assert self._queue is not None
        meter = self._queue.meter
        self._promised.clear()  # they are kept
        for send in (*self._sends, *self._scheduled):
            meter.incoming_messages += len(send.messages)
            meter.incoming_bytes += sum(map(len, send.messages))
            meter.successful_requests += len(send.messages)
        for settlement, _, tokens in self._settlements:
            settlement.count(meter, len(tokens))

    # --- checks ---------------------------------------------------------------------------------------------

    def _check_failure(self) -> None:
        if self._failure is not None:
            raise rolled_back(self._failure)

    def _check_entity(self, queue: Entity) -> None:
        if self._queue is not None and self._queue is not queue:
            raise _two_entities(self._queue, queue)

    def _settle_on(self, queue: Entity) -> None:
        """The transaction is on this entity. Messages that were sent to it so far are not transferred, and
        all others go through it. Raises Refused."""
        if self._queue is not None or not self._transfers:
            return
        transfers, self._transfers = self._transfers, []
        for transfer in transfers:
            if transfer.is_via and self._via is not queue:
                assert self._via is not None
                raise _two_entities(self._via, queue)
            if transfer.entity is queue and not transfer.is_via:
                self._place_send(queue, transfer.collected.keys)
                self._sends.append(transfer.collected.send)
            else:
                self._place_transfer(queue, transfer.via_key)
                self._transfers.append(transfer)

    def _transfer(self, queue: Entity, collected: Collected, via: Entity, is_via: bool) -> _Transfer:
        """Messages that another entity passes on. Raises Refused if they cannot go through it, or do not fit
        into the entity that they are for."""
        if self._queue is None:
            if self._via is None:
                self._via = via
            elif self._via is not via:
                raise _two_entities(self._via, via)
            self._start_clock()
        elif is_via and self._queue is not via:
            raise _two_entities(self._queue, via)
        keys = {each for each in map(via_partition_key, collected.send.messages) if each}
        if len(keys) > 1:
            one, other, *_ = sorted(keys)
            raise Refused(
                Reason.NOT_ALLOWED,
                f"The messages have different via-partition-keys ('{one}' and '{other}').",
            )
        key = next(iter(keys), None)
        check_destination(queue, collected)
        if self._queue is not None:
            self._place_transfer(self._queue, key)
        return _Transfer(queue, collected, is_via, key)

    def _place_transfer(self, via: Entity, key: str | None) -> None:
        """Check that messages with this via-partition-key may go through the transaction's partition."""
        if key is not None and via.description.partitions > 1:
            number = via.router.number_of(key)
            self._place(via, number, f"a message with the via-partition-key '{key}' (partition {number})")

    def _choose_entity(self, may_use: Callable[[Entity], None]) -> None:
        """Find the entity of a transaction that only sends, and not to its via entity. Raises Refused.

        If everything goes to one other entity, the transaction is on that one, unless its messages do not fit
        together there.
        """
        first, via = self._transfers[0], self._via
        assert via is not None, "the first transfer has set it"
        if all(each.entity is first.entity and not each.is_via for each in self._transfers):
            keys = [key for each in self._transfers for key in each.collected.keys]
            try:
                self._place_send(first.entity, keys)
            except Refused:
                self._queue = self._key = None
            else:
                self._sends = [each.collected.send for each in self._transfers]
                self._transfers = []
                return
        if via.gone is not None:
            raise via.gone
        if not all(each.is_via for each in self._transfers):
            may_use(via)
        given = [each.via_key for each in self._transfers]
        given += [key for each in self._transfers for key in each.collected.keys]
        key = next((each for each in given if each), None)
        if via.description.partitions == 1:
            number = 0
        elif key is None:
            number = via.router.spread(1, asyncio.get_running_loop().time())[0][0]
        else:
            number = via.router.number_of(key)
        self._place(via, number, f"messages with the key '{key}' (partition {number})")
        for each in self._transfers:
            self._place_transfer(via, each.via_key)

    def _place_send(self, queue: Entity, keys: Sequence[str | None]) -> None:
        """Check that the messages may be part of the transaction. Raises Refused."""
        if queue.description.partitions == 1:
            self._place(queue, 0, "")
            return
        if self._key is not None:
            keys = [self._key, *keys]
        for key in keys:
            if key is None:  # an empty one is a key too
                raise Refused(
                    Reason.NOT_ALLOWED,
                    f"A message without a key cannot be sent to the partitioned entity '{queue.name}' in a "
                    "transaction: give all its messages the same session-id or partition-key.",
                )
            if key != keys[0]:
                raise Refused(
                    Reason.NOT_ALLOWED,
                    f"The transaction sends messages with different keys ('{keys[0]}' and '{key}') to the "
                    f"partitioned entity '{queue.name}': give all of them the same session-id or "
                    "partition-key.",
                )
        self._key = keys[0]
        assert self._key is not None, "a send has messages"
        number = queue.router.number_of(self._key)
        self._place(queue, number, f"a message with the key '{self._key}' (partition {number})")

    def _place_settlement(self, queue: Entity, token: LockToken) -> None:
        handles = queue.router.handles
        number = partition_of_token(token) if len(token) == LOCK_TOKEN_BYTES else len(handles)
        if number >= len(handles):
            raise lock_lost()
        text = f"a settlement of message {sequence_of_token(token)} (partition {number})"
        self._place(queue, number, text)

    def _start_clock(self) -> None:
        """Count the transaction as begun, because it has an operation."""
        if not self._begun:
            self._begun = True
            timeout_s = self._all.limits.transaction_timeout_ms / 1000
            self._ends_at = asyncio.get_running_loop().time() + timeout_s
            self._all.unclaimed.pop(self, None)  # only a client with a token has links to entities

    def _place(self, queue: Entity, number: int, what: str) -> None:
        if self._queue is None:
            self._queue, self._number, self._where = queue, number, what
            self._start_clock()
        elif number != self._number:
            raise Refused(
                Reason.NOT_ALLOWED,
                f"The transaction has {self._where} and {what} of the partitioned entity '{queue.name}': all "
                "operations of a transaction must be in one partition.",
            )

    def _add(self, messages: int, size: int) -> None:
        """Count what an operation adds. Raises Refused if it is too much."""
        limits = self._all.limits
        if self._of_connection.bytes + size <= limits.connection_transaction_bytes_max:
            self._of_connection.make_room(size)
        for count, count_max, what in (
            (self.messages + messages, limits.transaction_messages_max, "messages in this transaction"),
            (
                self._of_connection.bytes + size,
                limits.connection_transaction_bytes_max,
                "bytes in the transactions of this connection",
            ),
            (self._all.bytes + size, self._all.bytes_max, "bytes in the transactions of all connections"),
        ):
            if count > count_max:
                raise Refused(
                    Reason.QUOTA_EXCEEDED, f"There would be {count} {what}; the limit is {count_max}."
                )
        self.messages += messages
        self.bytes += size
        self._of_connection.bytes += size
        self._all.bytes += size

    def _look_at_clock(self) -> None:
        """Fail or end it if its time is over. The timer is set once and looks again if `_ends_at` has moved
        meanwhile, because that costs less than a new timer with the first operation."""
        loop = asyncio.get_running_loop()
        if self._ends_at <= loop.time():
            if not self._begun or self._failure is not None:
                self.end()
                return
            timeout_s = self._all.limits.transaction_timeout_ms / 1000
            text = f"it was not discharged within {timeout_s:g} seconds of its first operation"
            self.fail(Refused(Reason.TIMEOUT, text))
        self._timer = loop.call_later(self._ends_at - loop.time(), self._look_at_clock)


def _two_entities(one: Entity, other: Entity) -> Refused:
    return Refused(
        Reason.NOT_ALLOWED,
        f"The transaction has operations on the entity '{one.name}' and on the entity '{other.name}': all "
        "operations of a transaction must be on one entity, except sends on links that share an AMQP session "
        "with the coordinator's.",
    )


def _ignore(answer: Answer) -> None:
    """Ignore the answer."""


def rolled_back(why: str) -> Refused:
    """The refusal of a transaction that has failed, and of all further operations in it."""
    return Refused(Reason.TRANSACTION_ROLLED_BACK, f"The transaction was rolled back: {why}")
