"""A queue: clients send to its main subqueue and receive from all three."""

from __future__ import annotations

from broker.entities.descriptions import QueueDescription
from broker.namespace.entity import Entity


class Queue(Entity):
    """A running queue. Owned by the event loop."""

    FOREIGN_CAPABILITIES = frozenset({"topic", "temporary-topic", "shared", "temporary-queue"})
    """JMS clients ask for these."""
    FOREIGN_BECAUSE = "the entity is a queue: each message goes to one receiver only."
    TAKES_NO_SENDS = "Messages cannot be sent to a dead-letter queue."

    description: QueueDescription
