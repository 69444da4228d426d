"""A queue: clients send to its main subqueue and receive from all three."""

from __future__ import annotations

from broker.base.errors import Reason, Refused
from broker.entities.descriptions import DEAD_LETTER, MAIN, QueueDescription
from broker.namespace.entity import Entity


class Queue(Entity):
    """A running queue. Owned by the event loop."""

    FOREIGN_CAPABILITIES = frozenset({"topic", "temporary-topic", "shared", "temporary-queue"})
    """JMS clients ask for these."""
    FOREIGN_BECAUSE = "the entity is a queue: each message goes to one receiver only."

    description: QueueDescription

    def check_can_send(self, subqueue: str) -> None:
        """Raises Refused: NOT_ALLOWED, ENTITY_DISABLED."""
        if subqueue != MAIN:
            raise Refused(Reason.NOT_ALLOWED, "Messages cannot be sent to a dead-letter queue.")
        status = self.description.settings.status
        if not status.can_send:
            raise Refused(
                Reason.ENTITY_DISABLED,
                f"Entity '{self.name}' is disabled for sending: its status is {status.value}.",
            )

    def check_can_receive(self, subqueue: str) -> None:
        """Raises Refused: ENTITY_DISABLED if the queue's status does not allow receiving; NOT_ALLOWED if the
        messages here are forwarded, as the service does."""
        settings = self.description.settings
        target = {MAIN: settings.forward_to, DEAD_LETTER: settings.forward_dead_lettered_to}.get(subqueue)
        if target is not None:
            raise Refused(
                Reason.NOT_ALLOWED,
                "Cannot create a message receiver on an entity with auto-forwarding enabled: the messages of "
                f"'{self.name}' are forwarded to '{target}'.",
            )
        status = settings.status
        if not status.can_receive:
            raise Refused(
                Reason.ENTITY_DISABLED,
                f"Entity '{self.name}' is disabled for receiving: its status is {status.value}.",
            )

    def requires_session(self, subqueue: str) -> bool:
        """Dead-letter queues have no sessions (AMQP contract 5.4)."""
        return self.description.settings.requires_session and subqueue == MAIN
