"""The client sends: credit out, messages in, outcomes back, as AMQP has them.

What becomes of the messages is decided in `broker/messaging/sending.py`. This link knows credit, deliveries
and batches as the wire has them (message format 0x80013700): a batch is one delivery.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from broker.access.addresses import Address
from broker.base.errors import Reason, Refused
from broker.entities.descriptions import MAIN
from broker.frontend.host import Host
from broker.messaging.sending import Sending, too_large
from broker.namespace.entity import Entity
from broker.wording import error_of, no_transactions
from protocol.codec import Symbol, ULong
from protocol.events import MessagesReceived, MessageTooLarge
from protocol.links import Delivery, Link

TRANSFER_DESTINATION = "com.microsoft:transfer-destination-address"
"""Attach property: the link leads to this entity, and what it names as its target stands in between (AMQP
contract 4.1)."""


class IncomingLink:
    """A link on which a client sends to a queue. Owned by its connection."""

    rights = ("Send",)

    @classmethod
    def attach(cls, connection: Host, link: Link, queue: Entity, address: Address) -> None:
        """Accept the link and grant its first credit. Raises Refused."""
        queue.check_can_send(address.subqueue)
        if (destination := connection.engine.link_properties(link).get(TRANSFER_DESTINATION)) is not None:
            raise Refused(
                Reason.NOT_IMPLEMENTED,
                f"Sending to '{destination!s:.300}' via '{queue.name}' ({TRANSFER_DESTINATION}) is not "
                "supported by this version. "
                "Attach to the destination itself.",
            )
        size_max = queue.message_bytes_max
        connection.engine.accept_link(
            link,
            max_message_bytes=size_max,
            properties={Symbol("com.microsoft:max-message-batch-size"): ULong(size_max)},
        )
        link.context = cls(connection, link, queue, address.path)

    def __init__(self, connection: Host, link: Link, queue: Entity, path: str) -> None:
        self.link, self.queue, self.path = link, queue, path
        self._connection = connection
        services = connection.services
        self._window = services.settings.link_credit
        self._used = 0
        """Messages that have their outcome, and whose credit was not granted anew yet."""
        self._meter = queue.meter
        self._sending: Sending[Delivery] = Sending(
            queue,
            connection,
            stored=self._accept,
            refused=self._refuse,
            memory=services.memory,
            clock=services.clock,
            message_id=services.message_id,
        )
        self._batch: Iterator[None] | None = None
        """The batch that is being taken apart."""
        queue.watchers.add(self)
        connection.engine.grant(link, self._window)

    # --- messages in ----------------------------------------------------------------------------------------

    def received(self, event: MessagesReceived) -> bool:
        """Transfers of the client (§2.7.5). False if they are not done in this slice of time: it is to be
        called again with the same."""
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

    def refused(self, event: MessageTooLarge | MessagesReceived) -> None:
        """Refuse a message that is too large, or messages sent in a transaction."""
        if isinstance(event, MessageTooLarge):
            self._refuse(event.deliveries, too_large(self.queue, event.size), 1)
        else:
            self._refuse(event.deliveries, no_transactions(), len(event.payloads))

    # --- outcomes back --------------------------------------------------------------------------------------

    def _accept(self, deliveries: Sequence[Delivery], count: int) -> None:
        """`count` deliveries are stored: `deliveries`, or none of them if they came settled. Their credit
        comes back either way."""
        if not self.link.gone:
            self._connection.engine.accept(deliveries)
            self._replenish(count)
            self._connection.flush_if_done()

    def _refuse(self, deliveries: Sequence[Delivery], why: Refused, count: int) -> None:
        """The same for deliveries that are refused."""
        if not self.link.gone:
            self._connection.engine.reject(deliveries, error_of(why))
            self._meter.refused(why.reason, count)
            self._replenish(count)
            self._connection.flush_soon()

    def _replenish(self, count: int) -> None:
        """Grant credit anew, a quarter of the window at a time: a flow costs as much as a message."""
        self._used += count
        if self._used >= max(self._window // 4, 1):
            self._connection.engine.grant(self.link, self._used)
            self._used = 0

    # --- the end --------------------------------------------------------------------------------------------

    def credit_granted(self) -> None:
        """A sender's flow says nothing that matters here."""

    def detached(self) -> None:
        """The link is gone. What was sent on it will be stored all the same; nobody waits for it."""
        self.queue.watchers.discard(self)

    def queue_changed(self) -> None:
        """Other settings: the queue may not take messages any more, or others in size."""
        try:
            self.queue.check_can_send(MAIN)
        except Refused as why:
            self._connection.close_link(self.link, why)
        else:
            self._connection.engine.limit_messages(self.link, self.queue.message_bytes_max)

    def queue_ended(self, why: Refused) -> None:
        """The queue was deleted."""
        self._connection.close_link(self.link, why)
