"""A topic: clients send to it, and receive from its subscriptions."""

from __future__ import annotations

from dataclasses import replace

from broker.base.errors import Reason, Refused, not_found_text
from broker.entities.descriptions import MAIN, EntityDescription
from broker.entities.roles import KEEPS_FAILED_TRANSFERS
from broker.entities.topics import TOPIC_SUBQUEUES, TopicDescription
from broker.namespace.entity import Entity, EntityRuntime


class Topic(Entity):
    """A running topic. Owned by the event loop."""

    FOREIGN_CAPABILITIES = frozenset({"temporary-queue", "temporary-topic", "shared"})
    """JMS clients ask for these. They may take a subscription for a queue."""

    description: TopicDescription

    def check_can_send(self, subqueue: str) -> None:
        """Raises Refused: NOT_ALLOWED, ENTITY_DISABLED."""
        if subqueue != MAIN:
            raise Refused(Reason.NOT_ALLOWED, "Messages are sent to a topic, and not to its subscriptions.")
        status = self.description.settings.status
        if not status.can_send:
            raise Refused(
                Reason.ENTITY_DISABLED,
                f"Entity '{self.name}' is disabled for sending: its status is {status.value}.",
            )

    def check_can_receive(self, subqueue: str) -> None:
        """Raises Refused: ENTITY_DISABLED if the status of the topic or the subscription does not allow
        receiving; NOT_ALLOWED if these messages are forwarded, or for the topic itself; ENTITY_NOT_FOUND if
        the subscription is gone."""
        subqueues = self.description.subqueues
        number = subqueues.number_of(subqueue)
        if number is None:
            raise Refused(Reason.ENTITY_NOT_FOUND, not_found_text(f"{self.name}/{subqueue}"))
        subscription = self.description.subscription_of(subqueue)
        if subscription is None and subqueues[number].role is not KEEPS_FAILED_TRANSFERS:
            raise Refused(
                Reason.NOT_ALLOWED,
                f"Messages cannot be received from the topic '{self.name}' itself: receive from one of its "
                f"subscriptions, whose addresses are '{self.name}/Subscriptions/…'.",
            )
        path = self.path_of(subqueue)
        if (target := self.description.forwarding_of(number)) is not None:
            raise Refused(
                Reason.NOT_ALLOWED,
                "Cannot create a message receiver on an entity with auto-forwarding enabled: the messages of "
                f"'{path}' are forwarded to '{target}'.",
            )
        for name, status in (
            (self.name, self.description.settings.status),
            (path, subscription.settings.status if subscription else None),
        ):
            if status is not None and not status.can_receive:
                raise Refused(
                    Reason.ENTITY_DISABLED,
                    f"Entity '{name}' is disabled for receiving: its status is {status.value}.",
                )

    def requires_session(self, subqueue: str) -> bool:
        """Dead-letter queues have no sessions (AMQP contract 5.4), and what is sent to a topic need not
        belong to one."""
        subscription = self.description.subscription_of(subqueue)
        return (
            subscription is not None
            and subqueue == subscription.subqueue_name
            and subscription.settings.requires_session
        )

    @property
    def keeps_sessions(self) -> bool:
        """Whether some subscription requires sessions."""
        return any(each.settings.requires_session for each in self.description.subscriptions)

    def path_of(self, subqueue: str) -> str:
        """The path of the topic, or of a subscription."""
        subscription = self.description.subscription_of(subqueue)
        return self.name if subscription is None else f"{self.name}/Subscriptions/{subscription.name}"

    async def update(self, description: EntityDescription) -> None:
        """As for every entity. Partitions that hold messages of a subscription that is gone are opened, so
        that they remove these."""
        gone = {*self.description.subqueues} - {*description.subqueues}
        await super().update(description)
        if gone:
            for number in range(description.partitions):
                if self.gone is None and not self.may_hold_none(number, gone):
                    self.partition(number)

    def runtime(self) -> EntityRuntime:
        """What the topic holds itself, and the size of everything in it."""
        return replace(self.runtime_of(TOPIC_SUBQUEUES, None), active=0, size_bytes=self._size())
