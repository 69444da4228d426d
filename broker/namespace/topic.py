"""A topic: clients send to it, and receive from its subscriptions."""

from __future__ import annotations

from dataclasses import replace

from broker.base.errors import Reason, Refused
from broker.entities.topics import TOPIC_SUBQUEUES, TopicDescription
from broker.namespace.entity import Entity, EntityRuntime


class Topic(Entity):
    """A running topic. Owned by the event loop.

    This version administers topics but does not pass messages through them yet, and refuses them.
    """

    FOREIGN_CAPABILITIES = frozenset({"queue", "temporary-queue"})
    """JMS clients ask for these."""

    description: TopicDescription

    def check_can_send(self, subqueue: str) -> None:
        """Raises Refused(NOT_IMPLEMENTED)."""
        raise topics_not_served(self.name)

    def check_can_receive(self, subqueue: str) -> None:
        """Raises Refused(NOT_IMPLEMENTED)."""
        raise topics_not_served(self.name)

    def requires_session(self, subqueue: str) -> bool:
        """Whether messages here belong to message sessions."""
        return self.description.delivery(subqueue).requires_session

    def runtime(self) -> EntityRuntime:
        """What the topic holds itself, and the size of everything in it."""
        return replace(self.runtime_of(TOPIC_SUBQUEUES, None), active=0, size_bytes=self._size())


def topics_not_served(name: str) -> Refused:
    """Why messages cannot be sent to a topic or received from a subscription."""
    return Refused(
        Reason.NOT_IMPLEMENTED,
        f"'{name}' is or belongs to a topic. This version of the broker does not pass messages through "
        "topics yet.",
    )
