"""Links on which clients send: grants credit, takes messages in, and sends their outcomes back.

`broker/messaging/sending.py` decides what becomes of the messages. This link handles credit, deliveries and
batches as they are on the wire; a batch (message format 0x80013700) is one delivery.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from broker.access.addresses import Address
from broker.base.errors import Refused
from broker.entities.descriptions import MAIN
from broker.frontend.connection_view import ConnectionView
from broker.frontend.links.coordinator import via_entity
from broker.frontend.links.termini import generation_of
from broker.messaging.sending import Sending, too_large
from broker.namespace.entity import Entity
from broker.refusal_wording import error_of
from protocol.codec import Symbol, ULong
from protocol.events import MessagesReceived, MessageTooLarge, Outcome
from protocol.links import Delivery, Link


class IncomingLink:
    """A link on which a client sends to a queue. Owned by its connection."""

    rights = ("Send",)
    subqueue = MAIN

    @classmethod
    def attach(cls, connection: ConnectionView, link: Link, queue: Entity, address: Address) -> None:
        """Accept the link and grant its first credit. Raises Refused."""
        queue.check_can_send(address.subqueue)
        cls.accept(connection, link, queue)
        link.context = cls(connection, link, queue, address.path)

    @staticmethod
    def accept(connection: ConnectionView, link: Link, queue: Entity) -> None:
        """Answer the attach with the limits of the entity that the messages are for."""
        size_max = queue.message_bytes_max
        connection.engine.accept_link(
            link,
            max_message_bytes=size_max,
            properties={
                Symbol("com.microsoft:max-message-batch-size"): ULong(size_max),
                **generation_of(connection.engine, link, queue),
            },
        )

    def __init__(self, connection: ConnectionView, link: Link, queue: Entity, path: str) -> None:
        self.link, self.queue = link, queue
        self.paths: tuple[str, ...] = (path,)
        self._connection = connection
        services = connection.services
        self._window = services.settings.link_credit
        self._used = 0
        """Messages that have their outcome, and whose credit has not been granted again yet."""
        self._meter = queue.meter
        self._sending: Sending[Delivery] = Sending(
            queue,
            connection,
            stored=self._accept,
            refused=self._refuse,
            memory=services.memory,
            message_id=services.message_id,
        )
        self._batch: Iterator[None] | None = None
        """The batch being split into its messages."""
        queue.watchers.add(self)
        connection.engine.grant(link, self._window)

    # --- messages in ----------------------------------------------------------------------------------------

    def received(self, event: MessagesReceived) -> bool:
        """Take in the client's transfers (§2.7.5). Returns False if the time slice ran out first; then it
        must be called again with the same event."""
        self.queue.accessed_at_ms = self._connection.services.clock.now_ms()
        try:
            if event.batch:
                return self._receive_batch(event)
            self._sending.send(event.payloads, event.deliveries)
        except Refused as why:
            self._refuse(event.deliveries, why, len(event.payloads))
        return True

    def _receive_batch(self, event: MessagesReceived) -> bool:
        steps = self._batch or self._sending.send_batch(event.payloads[0], event.deliveries)
        self._batch = None
        for _ in steps:
            if self._connection.is_late:
                self._batch = steps
                return False
        return True

    def received_in_transaction(self, event: MessagesReceived) -> None:
        """Add messages to a transaction (§4.4.2). They are accepted at once, and stored with its commit."""
        self._receive_in_transaction(event)

    def _receive_in_transaction(
        self, event: MessagesReceived, via: Entity | None = None, *, is_via: bool = False
    ) -> None:
        """`via`: the entity that passes the messages on, if the link's attach has named one (`is_via`)."""
        connection, state = self._connection, event.transaction
        assert state is not None
        self.queue.accessed_at_ms = connection.services.clock.now_ms()
        try:
            transaction = connection.transactions.find(state.txn_id)
            transaction.send(
                self.queue,
                lambda: self._sending.collect(event.payloads, is_batch=event.batch),
                via if is_via else via_entity(transaction, self.link),
                is_via=is_via,
            )
        except Refused as why:
            self._refuse(event.deliveries, why, len(event.payloads))
            return
        connection.engine.settle_in_transaction(event.deliveries, state.txn_id, Outcome.ACCEPTED)
        self._replenish(len(event.payloads))
        connection.flush_soon()

    def refused(self, event: MessageTooLarge) -> None:
        """Refuse a message that is too large."""
        self._refuse(event.deliveries, too_large(self.queue, event.size), 1)

    # --- outcomes out ---------------------------------------------------------------------------------------

    def _accept(self, deliveries: Sequence[Delivery], count: int) -> None:
        """Accept `count` stored messages: `deliveries`, or none if they came settled. Their credit is granted
        again either way."""
        if not self.link.gone:
            self._connection.engine.accept(deliveries)
            self._used += count
            if self._used >= self._window // 4:
                self._replenish(0)
            self._connection.flush_if_done()

    def _refuse(self, deliveries: Sequence[Delivery], why: Refused, count: int) -> None:
        """Reject messages that were refused; parameters as for `_accept`."""
        if not self.link.gone:
            self._connection.engine.reject(deliveries, error_of(why))
            self._meter.refused(why.reason, count)
            self._replenish(count)
            self._connection.flush_soon()

    def _replenish(self, count: int) -> None:
        """Grant credit again, a quarter of the window at a time, because a flow frame costs as much as a
        message."""
        self._used += count
        if self._used >= max(self._window // 4, 1):
            self._connection.engine.grant(self.link, self._used)
            self._used = 0

    # --- the end --------------------------------------------------------------------------------------------

    def credit_granted(self) -> None:
        """Do nothing: a sender's flow has no effect here."""

    def detached(self) -> None:
        """Forget the link. Messages sent on it are still stored, but nobody waits for their outcomes."""
        self.queue.watchers.discard(self)
        self._batch = None
        del self._sending  # it reports to this link, and only Python's collector could free the two

    def queue_changed(self) -> None:
        """Apply the queue's new settings: it may refuse all messages now, or allow a different size."""
        try:
            self.queue.check_can_send(MAIN)
        except Refused as why:
            self._connection.close_link(self.link, why)
        else:
            self._connection.engine.limit_messages(self.link, self.queue.message_bytes_max)

    def queue_ended(self, why: Refused) -> None:
        """Close the link: the queue was deleted."""
        self._connection.close_link(self.link, why)
