"""Links to the transaction coordinator: a client declares and discharges its transactions here (AMQP 1.0 §4;
AMQP contract 8.2).

    declare    0x31  [global-id]       begins a transaction; answered with `declared` and the new txn-id
    discharge  0x32  [txn-id, fail]    commits it, or with `fail` rolls it back; answered with `accepted` once
                                       that is durable, or with `rejected`

Both come as the value of a message. `broker/messaging/transactions.py` decides everything else. The end of
the link rolls back the transactions that were declared on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from broker.base.errors import Reason, Refused
from broker.frontend.connection_view import ConnectionView
from broker.messaging.transaction import Transaction
from broker.namespace.entity import Entity
from broker.refusal_wording import error_of
from protocol.codec import DecodeError, Described
from protocol.events import MessagesReceived, MessageTooLarge
from protocol.links import SETTLED, Delivery, Link
from protocol.sections import VALUE, find_sections
from protocol.values import decode_bounded

CREDIT = 100
"""Messages that a client may send ahead of their outcomes."""
MESSAGE_BYTES_MAX = 4096
"""A declare or discharge takes some 40 bytes."""
UNCLAIMED_MAX = 10
"""Transactions that a client may declare before it puts a token: the Java and .NET clients declare first."""
NOT_OFFERED = frozenset({"amqp:distributed-transactions", "amqp:promotable-transactions"})
"""Capabilities of coordinators (§4.5.7) that this one lacks."""
DECLARE = (0x31, "amqp:declare:list")
DISCHARGE = (0x32, "amqp:discharge:list")


class CoordinatorLink:
    """A client's link to the coordinator. Owned by its connection."""

    paths = ()
    rights = ()
    """None: the entity of each operation in a transaction asks for its own."""

    @classmethod
    def attach(cls, connection: ConnectionView, link: Link) -> None:
        """Accept the link and grant its credit. Raises Refused."""
        if link.snd_settle_mode == SETTLED:
            raise _settled()
        if connection.served.namespace.tier.is_basic:
            raise Refused(Reason.NOT_ALLOWED, "Transactions need the standard tier: this one is basic.")
        for capability in connection.engine.node_capabilities(link):
            if capability in NOT_OFFERED:
                raise Refused(
                    Reason.NOT_IMPLEMENTED, f"The coordinator does not have the capability '{capability}'."
                )
        connection.engine.accept_link(link, max_message_bytes=MESSAGE_BYTES_MAX)
        link.context = cls(connection, link)

    def __init__(self, connection: ConnectionView, link: Link) -> None:
        self.link = link
        self._connection = connection
        connection.engine.grant(link, CREDIT)

    def received(self, event: MessagesReceived) -> None:
        """Carry out what the client declares and discharges, in its order."""
        if event.settled:
            self._connection.close_link(self.link, _settled())
            return
        for delivery, payload in zip(event.deliveries, event.payloads, strict=True):
            try:
                self._carry_out([delivery], payload)
            except Refused as why:
                self._connection.engine.reject([delivery], error_of(why))
        self._connection.engine.grant(self.link, len(event.payloads))
        self._connection.flush_soon()

    def received_in_transaction(self, event: MessagesReceived) -> None:
        """Refuse a declare or discharge that is part of a transaction."""
        text = "A declare or discharge cannot be part of a transaction."
        self._refuse(event.deliveries, Refused(Reason.NOT_ALLOWED, text), len(event.payloads))

    def refused(self, event: MessageTooLarge) -> None:
        """Refuse a message that is too large to be a declare or discharge."""
        text = f"A message of {event.size} bytes is no declare or discharge."
        self._refuse(event.deliveries, Refused(Reason.DECODE, text), 1)

    def credit_granted(self) -> None:
        """Do nothing: a sender's flow has no effect here."""

    def detached(self) -> None:
        """Roll back the transactions of this link that are open."""
        self._connection.transactions.give_up(self)

    def _carry_out(self, delivery: Sequence[Delivery], payload: bytes) -> None:
        """Carry out one declare or discharge. Raises Refused."""
        transactions = self._connection.transactions
        kind, fields = _read(payload)
        if kind in DECLARE:
            if fields and fields[0] is not None:
                raise Refused(Reason.NOT_IMPLEMENTED, "Distributed transactions are not supported.")
            if not self._connection.claims and len(transactions) >= UNCLAIMED_MAX:
                raise Refused(
                    Reason.UNAUTHORIZED,
                    f"Unauthorized access. The limit without a token is {UNCLAIMED_MAX} transactions.",
                )
            declared = transactions.declare(self, is_claimed=bool(self._connection.claims))
            self._connection.engine.declare(delivery, declared)
            return
        txn_id, fail = [*fields, None][:2] if fields else (None, None)
        if not isinstance(txn_id, bytes) or not isinstance(fail, bool | None):
            raise Refused(
                Reason.DECODE, "A discharge has a txn-id, and a boolean that says whether it fails."
            )
        if fail:
            transactions.roll_back(txn_id)
            self._connection.engine.accept(delivery)
        else:
            transactions.commit(txn_id, partial(self._committed, delivery), self._may_use)

    def _may_use(self, via: Entity) -> None:
        """Check that the client may use the entity whose link its AMQP session attached first: that link may
        have ended long ago. Raises Refused."""
        self._connection.authorize(via.name, "Send", "Listen")

    def _committed(self, delivery: Sequence[Delivery], why: Refused | None) -> None:
        """Tell the client that its commit is durable, or why it was rolled back."""
        if self.link.gone:
            return
        if why is None:
            self._connection.engine.accept(delivery)
        else:
            self._connection.engine.reject(delivery, error_of(why))
        self._connection.flush_soon()

    def _refuse(self, deliveries: Sequence[Delivery], why: Refused, count: int) -> None:
        self._connection.engine.reject(deliveries, error_of(why))
        self._connection.engine.grant(self.link, count)
        self._connection.flush_soon()


def via_entity(transaction: Transaction, link: Link) -> Entity | None:
    """The entity through which a transaction may send on this link to another one: that of the first link of
    their AMQP session, if the coordinator's link is in it too (AMQP contract 8.3). None if it may not."""
    owner = transaction.owner
    if not isinstance(owner, CoordinatorLink) or owner.link.session is not link.session:
        return None
    via: Entity | None = link.session.context
    return None if via is None or via.gone is not None else via


def _read(payload: bytes) -> tuple[Any, list[Any]]:
    """The descriptor and the fields of a declare or discharge. Raises Refused."""
    try:
        sections = find_sections(payload)
        if not sections.has(VALUE):
            raise DecodeError("it has no value")
        value = decode_bounded(payload[sections.values[VALUE] : sections.ends[VALUE]])[0]
    except DecodeError as error:
        raise Refused(Reason.DECODE, f"The message is no declare or discharge: {error}.") from error
    if (
        not isinstance(value, Described)
        or not isinstance(value.value, list)
        or not isinstance(value.descriptor, int | str)
        or value.descriptor not in DECLARE + DISCHARGE
    ):
        raise Refused(Reason.DECODE, "The message is no declare or discharge.")
    return value.descriptor, value.value


def _settled() -> Refused:
    return Refused(
        Reason.NOT_ALLOWED,
        "A declare or discharge must not be sent settled, because its sender needs the outcome.",
    )
