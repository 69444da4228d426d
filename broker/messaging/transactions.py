"""The transactions of a connection: they collect sends and settlements, and carry them out together, or not
at all (AMQP 1.0 §4; AMQP contract 8).

`transaction.py` has one of them. Here they are declared, found by their ids, committed and rolled back.

What transactions hold is bounded for each connection and for all together, and so is their number. If all
are taken, a connection that wants more than it has gets it from the one that has most, until it has as much.
A client that never discharges its transactions does not keep them: the broker ends one that was declared and
not used within the time limit, and one that failed some time ago. Knows nothing of AMQP.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from broker.base.errors import Reason, Refused
from broker.base.metrics import Metrics
from broker.base.plurals import counted
from broker.messaging.guarded_sink import guarded
from broker.messaging.sending import UnderWay
from broker.messaging.transaction import Limits, Transaction, rolled_back
from broker.namespace.entity import Entity, next_client
from broker.operations.general import Failed
from broker.operations.interface import Answer, Sink
from broker.operations.transactions import Transact, Transacted

UNCLAIMED_SHARE = 10
"""Clients without a token have this part of all transactions, a tenth, until they use them."""

Done = Callable[[Refused | None], None]
"""Takes the end of a commit: None once it is durable, or why nothing was done."""


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
    connections: dict[Transactions, None] = field(default_factory=dict)
    """Those that have open transactions."""
    passed_on: Callable[[Entity, int], None] = lambda via, number: None
    """Told of partitions that are about to get messages for other entities. Set by the server."""
    commit_rules: Callable[[Entity, Transact, Sink], None] | None = None
    """Carries out a transaction that changes rules. Set by the server."""

    def make_place(self, newcomer: Transactions) -> None:
        """If all are taken, end a transaction of the connection that has the most. So no connection has two
        more than another one that wants one. Raises Refused if `newcomer` has its share."""
        if self.count < self.limits.transactions_max:
            return
        largest = max(self.connections, key=len, default=newcomer)
        if len(largest) < len(newcomer) + 2:
            raise Refused(
                Reason.QUOTA_EXCEEDED,
                f"{self.count} transactions are open on all connections; the limit is "
                f"{self.limits.transactions_max}.",
            )
        largest.end_one()

    def make_room(self, newcomer: Transactions, size: int) -> None:
        """Fail transactions of connections that hold more bytes than `newcomer` with `size` more would, until
        these bytes fit. The caller checks whether they do."""
        while self.bytes + size > self.bytes_max:
            largest = max(self.connections, key=_bytes_of, default=newcomer)
            if largest.bytes <= newcomer.bytes + size or not largest.fail_largest():
                return


class Transactions:
    """The transactions of one connection, by their ids. Owned by the connection."""

    __slots__ = (
        "_all",
        "_client",
        "_committing",
        "_cookies",
        "_ids",
        "_open",
        "_under_way",
        "bytes",
    )

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
        Refused if there are too many, unless another connection has more than its share of them.

        `is_claimed` says whether the client has a token. If too many clients without one have transactions
        that they have not used, the oldest of these transactions ends.
        """
        limits = self._all.limits
        if len(self._open) >= limits.transactions_per_connection_max:
            raise Refused(
                Reason.QUOTA_EXCEEDED,
                f"This connection has {counted(len(self._open), 'open transaction')}; the limit is "
                f"{limits.transactions_per_connection_max}.",
            )
        self._all.make_place(self)
        self._ids += 1
        txn_id = self._ids.to_bytes(8, "big")
        transaction = self._open[txn_id] = Transaction(self, self._all, owner, txn_id)
        self._all.count += 1
        self._all.connections[self] = None
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
                f"{self._all.limits.transaction_timeout_ms / 1000:g} seconds, and some end when too many are "
                "open, on the connections that have most.",
            )
        return transaction

    def commit(self, txn_id: bytes, done: Done, may_use: Callable[[Entity], None] = lambda via: None) -> None:
        """Carry out everything in a transaction, which is then no longer open. `done` is called at once or
        later; `may_use` is as for `Transaction.prepared`. Raises Refused if there is no such transaction, or
        if it has failed."""
        transaction = self.find(txn_id)
        self._end(txn_id)
        try:
            posted = transaction.prepared(may_use)
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
        if operation.transfers is not None:
            self._all.passed_on(queue, number)
        if operation.rule_changes:
            assert self._all.commit_rules is not None, "the server has set it"
            self._all.commit_rules(queue, operation, self._answered)
            return
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

    def has(self, transaction: Transaction) -> bool:
        """Whether this transaction is open."""
        return self._open.get(transaction.txn_id) is transaction

    def make_room(self, size: int) -> None:
        """Make room for `size` bytes by failing transactions of connections that hold more than this one."""
        self._all.make_room(self, size)

    def fail(self, txn_id: bytes, why: Refused) -> None:
        """Fail a transaction, if it exists: an operation in it was refused."""
        if (transaction := self._open.get(txn_id)) is not None:
            transaction.fail(why)

    def fail_all(self, why: Refused) -> None:
        """Fail all open transactions, because messages that belong to them may have been dropped unseen."""
        for transaction in self._open.values():
            transaction.fail(why)

    def end_one(self) -> None:
        """End one transaction so that another connection can have one: a failed one, else one without
        operations, else the oldest."""
        min(self._open.values(), key=Transaction.worth).end()

    def fail_largest(self) -> bool:
        """Fail the open transaction that holds the most bytes. Returns whether any of them holds some."""
        largest = max(self._open.values(), key=_bytes_of)
        held = largest.bytes
        if held:
            text = "the transactions of this connection held more bytes than those of others that need room"
            largest.fail(Refused(Reason.QUOTA_EXCEEDED, text))
        return held > 0

    def _end(self, txn_id: bytes) -> None:
        transaction = self._open.pop(txn_id)
        if not self._open:
            self._all.connections.pop(self, None)
        transaction.stop_timer()
        self._all.unclaimed.pop(transaction, None)
        self._all.count -= 1

    def _fail(self) -> None:
        """An unexpected exception is being handled: end this client, and no other."""
        self._under_way.fail()

    @guarded
    def _answered(self, answer: Answer) -> None:
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


def _bytes_of(each: Transactions | Transaction) -> int:
    return each.bytes
