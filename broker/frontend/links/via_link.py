"""Links on which clients send to an entity through another one: their attach has the property
`com.microsoft:transfer-destination-address` (AMQP contract 4.1, 8.3).

The target of such a link is the via entity, and the property names the final destination. The client needs
the right to send to both, for as long as the link lasts.
"""

from __future__ import annotations

import contextlib

from broker.access.addresses import Address, BadAddress, parse_address
from broker.base.errors import Reason, Refused
from broker.entities.descriptions import MAIN
from broker.frontend.connection_view import ConnectionView
from broker.frontend.links.incoming import IncomingLink
from broker.frontend.links.termini import check_host
from broker.messaging.sending_via import SendingVia
from broker.namespace.entity import Entity
from protocol.events import MessagesReceived
from protocol.links import Delivery, Link

TRANSFER_DESTINATION = "com.microsoft:transfer-destination-address"


class ViaLink(IncomingLink):
    """A link on which a client sends through another entity. Owned by its connection."""

    @classmethod
    def attach_via(cls, connection: ConnectionView, link: Link, via: Entity, address: Address) -> bool:
        """Accept the link, if its attach names a destination other than the target; returns whether it did.
        Raises Refused."""
        text = connection.engine.link_properties(link).get(TRANSFER_DESTINATION)
        if text is None:
            return False
        if not isinstance(text, str):
            raise Refused(Reason.ARGUMENT, f"'{TRANSFER_DESTINATION}' must be a string, not {text!r:.80}.")
        try:
            check_host(connection, text)
            target = parse_address(text)
        except BadAddress as error:
            raise Refused(Reason.ARGUMENT, str(error)) from error
        if target.node:
            raise Refused(Reason.NOT_ALLOWED, f"'{text:.300}' cannot be a destination: it takes no messages.")
        namespace = connection.served.namespace
        connection.authorize(target.path, "Send")
        destination = namespace.find(target.entity)
        if destination is None:
            raise namespace.missing(target.entity)
        destination.check_can_send(target.subqueue)
        if destination is via:
            return False
        via.check_can_send(address.subqueue)
        cls.accept(connection, link, destination)
        link.context = cls(connection, link, destination, address.path, via, target.path)
        return True

    def __init__(
        self,
        connection: ConnectionView,
        link: Link,
        destination: Entity,
        path: str,
        via: Entity,
        destination_path: str,
    ) -> None:
        """`path` is the via entity's, as claims name it."""
        super().__init__(connection, link, destination, path)
        self.via = via
        self.paths = (path, destination_path)
        self._sending_via: SendingVia[Delivery] = SendingVia(
            via,
            destination,
            connection,
            stored=self._accept,
            refused=self._refuse,
            passed_on=connection.services.transactions.passed_on,
        )
        via.watchers.add(self)

    def received(self, event: MessagesReceived) -> bool:
        """Have the via entity keep the messages. Each has its own outcome, a batch has one."""
        self.via.accessed_at_ms = self._connection.services.clock.now_ms()
        if not event.batch:
            with contextlib.suppress(Refused):  # not all can be sent: see which below
                collected = self._sending.collect(event.payloads, is_batch=False)
                self._sending_via.send_each(collected, event.deliveries)
                return True
        for index, payload in enumerate(event.payloads):
            own = event.deliveries[index : index + 1]
            try:
                collected = self._sending.collect([payload], is_batch=event.batch)
                self._sending_via.send(collected, own)
            except Refused as why:
                self._refuse(own, why, 1)
        return True

    def received_in_transaction(self, event: MessagesReceived) -> None:
        """Add messages to a transaction, whose entity must be the via entity."""
        self.via.accessed_at_ms = self._connection.services.clock.now_ms()
        self._receive_in_transaction(event, self.via, is_via=True)

    def detached(self) -> None:
        """Forget the link."""
        super().detached()
        self.via.watchers.discard(self)
        del self._sending_via

    def queue_changed(self) -> None:
        """Apply new settings of either entity."""
        try:
            self.via.check_can_send(MAIN)
        except Refused as why:
            self._connection.close_link(self.link, why)
        else:
            super().queue_changed()
