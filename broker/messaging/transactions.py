"""The transactions of a connection: they collect sends and settlements, and carry them out together, or not
at all (AMQP 1.0 §4; AMQP contract 8).

A transaction does nothing until it is committed. Then one operation goes to one partition, which writes
everything in one commit. So all of a transaction lies in one partition of one entity: on a partitioned
entity, its messages have one key, and the messages that it settles are in that key's partition.

An operation that is refused fails its whole transaction: what the transaction has collected is dropped at
once, and it can only be rolled back. A client that does not look at each outcome therefore never commits a
part. The same happens when it lasts too long. Locks stay as they are until the commit. A roll-back changes
nothing, so messages that were to be settled stay locked until their locks end.

What transactions hold is bounded for each connection and for all together, and so is their number. A client
that never discharges its transactions does not keep them: the broker ends one that was declared and not used
within the time limit, and one that failed some time ago. Knows nothing of AMQP.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from broker.base.errors import Reason, Refused
from broker.base.metrics import Metrics
from broker.entities.descriptions import MESSAGE_OVERHEAD_BYTES
from broker.messaging.asking import lock_lost
from broker.messaging.sending import Collected, UnderWay
from broker.messaging.sends import merged
from broker.messaging.settlement import Settlement
from broker.namespace.entity import Entity, next_client
from broker.operations import (
    Answer,
    Failed,
    LockToken,
    Send,
    Transact,
    Transacted,
    partition_of_token,
    sequence_of_token,
)

LOCK_TOKEN_BYTES = 16
SETTLED_BYTES = 256
"""The memory that a settlement takes until the commit, for each message."""
FAILED_KEPT_S = 120.0
"""How long a client can learn why its transaction has failed."""
UNCLAIMED_SHARE = 10
"""Clients without a token have this part of all transactions, a tenth, until they use them."""

Done = Callable[[Refused | None], None]
"""Takes the end of a commit: None once it is durable, or why nothing was done."""


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


@dataclass(slots=True)
class AllTransactions:
    """What the transactions of all connections take together."""

    limits: Limits
    bytes_max: int
    metrics: Metrics
    count: int = 0
    bytes: int = 0
    unclaimed: dict[Transaction, None] = field(default_factory=dict)
    """Transactions without operations whose clients had no token when they declared them, oldest first."""


class Transactions:
    """The transactions of one connection, by their ids. Owned by the connection."""

    __slots__ = ("_all", "_client", "_committing", "_cookies", "_ids", "_open", "_under_way", "bytes")

    def __init__(self, all_transactions: AllTransactions, under_way: UnderWay) -> None:
        self._all, self._under_way = all_transactions, under_way
        self._client = next_client()
        self._ids = self._cookies = 0
        self._open: dict[bytes, Transaction] = {}
        self._committing: dict[int, tuple[Transaction, Done]] = {}
        """By cookie."""
        self.bytes = 0
        """Bytes that they hold."""

    def __len__(self) -> int:
        """How many are open."""
        return len(self._open)

    def declare(self, owner: object, *, is_claimed: bool = True) -> bytes:
        """Begin a transaction; returns its id. `owner` may later give up all that it has declared. Raises
        Refused if there are too many.

        `is_claimed` says whether the client has a token. If too many clients without one have transactions
        that they have not used, the oldest of these transactions ends.
        """
        limits = self._all.limits
        for count, count_max, where in (
            (len(self._open), limits.transactions_per_connection_max, "on this connection"),
            (self._all.count, limits.transactions_max, "on all connections"),
        ):
            if count >= count_max:
                raise Refused(
                    Reason.QUOTA_EXCEEDED,
                    f"{count} transactions are open {where}; the limit is {count_max}.",
                )
        self._ids += 1
        txn_id = self._ids.to_bytes(8, "big")
        transaction = self._open[txn_id] = Transaction(self, self._all, owner, txn_id)
        self._all.count += 1
        if not is_claimed:
            unclaimed = self._all.unclaimed
            if len(unclaimed) >= max(limits.transactions_max // UNCLAIMED_SHARE, 1):
                next(iter(unclaimed)).end()
            unclaimed[transaction] = None
        return txn_id

    def find(self, txn_id: bytes) -> Transaction:
        """The transaction with this id. Raises Refused(TRANSACTION_UNKNOWN)."""
        transaction = self._open.get(txn_id)
        if transaction is None:
            raise Refused(
                Reason.TRANSACTION_UNKNOWN,
                f"There is no transaction '{txn_id[:32].hex()}' on this connection: it was never declared, "
                "or is already committed or rolled back. A transaction without operations ends after "
                f"{self._all.limits.transaction_timeout_ms / 1000:g} seconds.",
            )
        return transaction

    def commit(self, txn_id: bytes, done: Done) -> None:
        """Carry out everything in a transaction, which is then no longer open. `done` is called at once or
        later. Raises Refused if there is no such transaction, or if it has failed."""
        transaction = self.find(txn_id)
        self._end(txn_id)
        try:
            posted = transaction.prepared()
        except Refused:
            self._all.metrics.transactions_rolled_back.inc()
            raise
        if posted is None:
            self._all.metrics.transactions_committed.inc()
            done(None)
            return
        queue, number, operation = posted
        self._cookies += 1
        operation.cookie = self._cookies
        self._committing[self._cookies] = transaction, done
        self._under_way.took(transaction.bytes, transaction.messages)
        queue.router.handles[number].post(operation, self._client, self._answered)

    def roll_back(self, txn_id: bytes) -> None:
        """Forget everything in a transaction. Raises Refused(TRANSACTION_UNKNOWN)."""
        transaction = self.find(txn_id)
        self._end(txn_id)
        transaction.drop()
        self._all.metrics.transactions_rolled_back.inc()

    def give_up(self, owner: object) -> None:
        """Roll back all transactions that this owner has declared: it is gone."""
        for txn_id in [txn_id for txn_id, each in self._open.items() if each.owner is owner]:
            self.roll_back(txn_id)

    def fail(self, txn_id: bytes, why: Refused) -> None:
        """Fail a transaction, if it exists: an operation in it was refused."""
        if (transaction := self._open.get(txn_id)) is not None:
            transaction.fail(why)

    def fail_all(self, why: Refused) -> None:
        """Fail all open transactions, because messages that belong to them may have been dropped unseen."""
        for transaction in self._open.values():
            transaction.fail(why)

    def _end(self, txn_id: bytes) -> None:
        transaction = self._open.pop(txn_id)
        transaction.stop_timer()
        self._all.unclaimed.pop(transaction, None)
        self._all.count -= 1

    def _answered(self, answer: Answer) -> None:
        """Called by the partitions' tasks. An error here ends this client, not the partition."""
        try:
            self._take(answer)
        except Exception:
            self._under_way.fail()

    def _take(self, answer: Answer) -> None:
        if not isinstance(answer, Transacted | Failed):
            return
        assert isinstance(answer.cookie, int), "cookies of transactions are numbers"
        transaction, done = self._committing.pop(answer.cookie)
        self._under_way.finished_with(transaction.bytes, transaction.messages)
        if isinstance(answer, Transacted):
            self._all.metrics.transactions_committed.inc()
            transaction.count()
            transaction.drop()
            done(None)
        else:
            self._all.metrics.transactions_rolled_back.inc()
            why = Refused(answer.reason, answer.description)
            transaction.fail(why)
            done(rolled_back(why.description))


class Transaction:
    """One transaction, until it is committed or rolled back."""

    __slots__ = (
        "_all",
        "_ends_at",
        "_failure",
        "_key",
        "_number",
        "_of_connection",
        "_queue",
        "_sends",
        "_settlements",
        "_timer",
        "_txn_id",
        "_where",
        "bytes",
        "messages",
        "owner",
    )

    def __init__(
        self, of_connection: Transactions, all_transactions: AllTransactions, owner: object, txn_id: bytes
    ) -> None:
        self._of_connection, self._all, self._txn_id = of_connection, all_transactions, txn_id
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
        self._settlements: list[tuple[Settlement, list[LockToken]]] = []
        self._failure: str | None = None
        """Why it can only be rolled back."""
        loop, timeout_s = asyncio.get_running_loop(), self._all.limits.transaction_timeout_ms / 1000
        self._ends_at = loop.time() + timeout_s
        """When it fails, or if it has no operations or has failed already, ends; by the loop's clock."""
        self._timer = loop.call_later(timeout_s, self._look_at_clock)

    def send(self, queue: Entity, collect: Callable[[], Collected]) -> None:
        """Send messages with the transaction; `collect` makes them. Raises Refused, and then the transaction
        has failed."""
        try:
            self._check_failure()
            self._check_entity(queue)
            collected = collect()
            self._place_send(queue, collected.keys)
            messages = collected.send.messages
            self._add(len(messages), sum(map(len, messages)) + MESSAGE_OVERHEAD_BYTES * len(messages))
        except Refused as why:
            self.fail(why)
            raise
        self._sends.append(collected.send)

    def settle(self, queue: Entity, tokens: Sequence[LockToken], settlement: Settlement) -> None:
        """Settle messages with the transaction. Raises Refused, and then the transaction has failed."""
        try:
            self._check_failure()
            self._check_entity(queue)
            if not settlement.is_answered:
                raise Refused(
                    Reason.NOT_ALLOWED,
                    "A transaction can complete, abandon, defer or dead-letter messages, not release them.",
                )
            for token in tokens:
                self._place_settlement(queue, token)
            size = SETTLED_BYTES + len(settlement.changed or b"")
            self._add(len(tokens), size * len(tokens))
        except Refused as why:
            self.fail(why)
            raise
        if self._settlements and self._settlements[-1][0] == settlement:
            self._settlements[-1][1].extend(tokens)
        else:
            self._settlements.append((settlement, list(tokens)))

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
        self._sends.clear()
        self._settlements.clear()

    def end(self) -> None:
        """Roll it back without being asked to: its id is unknown from now on."""
        self._of_connection.roll_back(self._txn_id)

    def stop_timer(self) -> None:
        """Stop its time limit: it is no longer open."""
        self._timer.cancel()

    def prepared(self) -> tuple[Entity, int, Transact] | None:
        """The operation that carries it out, with its entity and partition; None if there is nothing to do.
        Raises Refused if it has failed."""
        self._check_failure()
        if self._queue is None:
            return None
        settlements = [settlement.operation(tokens) for settlement, tokens in self._settlements]
        return self._queue, self._number, Transact(merged(self._sends), settlements)  # type: ignore[arg-type]

    def count(self) -> None:
        """Count what was carried out."""
        assert self._queue is not None
        meter = self._queue.meter
        for send in self._sends:
            meter.incoming_messages += len(send.messages)
            meter.incoming_bytes += sum(map(len, send.messages))
            meter.successful_requests += len(send.messages)
        for settlement, tokens in self._settlements:
            settlement.count(meter, len(tokens))

    # --- checks ---------------------------------------------------------------------------------------------

    def _check_failure(self) -> None:
        if self._failure is not None:
            raise rolled_back(self._failure)

    def _check_entity(self, queue: Entity) -> None:
        if self._queue is not None and self._queue is not queue:
            raise Refused(
                Reason.NOT_ALLOWED,
                f"The transaction has operations on the entity '{self._queue.name}' and on the entity "
                f"'{queue.name}': all operations of a transaction must be on one entity.",
            )

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

    def _place(self, queue: Entity, number: int, what: str) -> None:
        if self._queue is None:
            self._queue, self._number, self._where = queue, number, what
            timeout_s = self._all.limits.transaction_timeout_ms / 1000
            self._ends_at = asyncio.get_running_loop().time() + timeout_s
            self._all.unclaimed.pop(self, None)  # only a client with a token has links to entities
        elif number != self._number:
            raise Refused(
                Reason.NOT_ALLOWED,
                f"The transaction has {self._where} and {what} of the partitioned entity '{queue.name}': all "
                "operations of a transaction must be in one partition.",
            )

    def _add(self, messages: int, size: int) -> None:
        """Count what an operation adds. Raises Refused if it is too much."""
        limits = self._all.limits
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
            if self._queue is None or self._failure is not None:
                self.end()
                return
            timeout_s = self._all.limits.transaction_timeout_ms / 1000
            text = f"it was not discharged within {timeout_s:g} seconds of its first operation"
            self.fail(Refused(Reason.TIMEOUT, text))
        self._timer = loop.call_later(self._ends_at - loop.time(), self._look_at_clock)


def rolled_back(why: str) -> Refused:
    """The refusal of a transaction that has failed, and of all further operations in it."""
    return Refused(Reason.TRANSACTION_ROLLED_BACK, f"The transaction was rolled back: {why}")
