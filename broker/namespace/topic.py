"""A topic: clients send to it, and receive from its subscriptions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from broker.base.errors import Reason, Refused
from broker.entities.descriptions import EntityDescription
from broker.entities.roles import KEEPS_FAILED_TRANSFERS
from broker.entities.topics import (
    PLACES,
    TOPIC_SUBQUEUES,
    SubscriptionDescription,
    TopicDescription,
)
from broker.namespace.entity import Entity, Partition
from broker.namespace.meter import EntityMeter
from broker.namespace.resting import Resting
from broker.namespace.runtime import EntityRuntime, sum_up
from broker.operations.message_states import SubqueueCounts


class Topic(Entity):
    """A running topic. Owned by the event loop."""

    FOREIGN_CAPABILITIES = frozenset({"temporary-queue", "temporary-topic", "shared"})
    """JMS clients ask for these. They may take a subscription for a queue."""
    FOREIGN_BECAUSE = (
        "the subscriptions of a topic do not come and go with their receivers: receive from one that exists, "
        "by its address or with a durable subscriber."
    )
    TAKES_NO_SENDS = "Messages are sent to a topic, and not to its subscriptions."
    MULTIPLIES = True

    description: TopicDescription

    def __init__(
        self,
        description: TopicDescription,
        meter: EntityMeter,
        start_partition: Callable[[Entity, int], Partition],
        resting: Resting,
        size_bytes_max: int = 0,
    ) -> None:
        super().__init__(description, meter, start_partition, resting, size_bytes_max)
        self._accessed: dict[int, int] = {}
        """When a client last used each subscription, by its number."""

    def note_access(self, subqueue: str, now_ms: int) -> None:
        """What clients do with a subscription is no use of the topic (AMQP contract 10.8)."""
        subscription = self.description.subscription_of(subqueue)
        if subscription is None:
            self.accessed_at_ms = now_ms
        else:
            self._accessed[subscription.number] = now_ms

    def accessed_by(self, subscription: int | None) -> int | None:
        """When a client last used the topic itself, or the subscription with this number."""
        return self.accessed_at_ms if subscription is None else self._accessed.get(subscription)

    def is_watched(self, subscription: int | None) -> bool:
        """Whether a link is attached to the topic itself, or to the subscription with this number."""
        for watcher in self.watchers:
            found = self.description.subscription_of(watcher.subqueue)
            if (None if found is None else found.number) == subscription:
                return True
        return False

    def check_can_receive(self, subqueue: str) -> None:
        """As for every entity; NOT_ALLOWED for the topic itself, too. The status of a topic is about sending,
        that of a subscription about receiving."""
        role = self.description.subqueues.role_of(subqueue)
        is_own = self.description.subscription_of(subqueue) is None
        if is_own and role is not None and role is not KEEPS_FAILED_TRANSFERS:
            raise Refused(
                Reason.NOT_ALLOWED,
                f"Messages cannot be received from the topic '{self.name}' itself: receive from one of its "
                f"subscriptions, whose addresses are '{self.name}/Subscriptions/…'.",
            )
        super().check_can_receive(subqueue)

    @property
    def known_counts(self) -> Mapping[str, SubqueueCounts] | None:
        """None: `runtime` adds up what all subscriptions hold."""
        return None

    @property
    def keeps_sessions(self) -> bool:
        """Whether some subscription requires sessions."""
        return self.description.keeps_sessions

    @property
    def makes_copies(self) -> bool:
        """Whether a rule of some subscription has an action."""
        return self.description.makes_copies

    @property
    def filters(self) -> int:
        """One for each rule of its subscriptions."""
        return self.description.filters

    async def update(self, description: EntityDescription) -> None:
        """As for every entity. Partitions that hold messages of a subscription that is gone are opened, so
        that they remove these."""
        gone = {*self.description.subqueues} - {*description.subqueues}
        for number in gone:
            self._accessed.pop(number // PLACES, None)
        await super().update(description)
        if gone:
            for number in range(description.partitions):
                if self.gone is None and not self.may_hold_none(number, gone):
                    self.partition(number)

    def runtime(self) -> EntityRuntime:
        """As for every entity; it does not count what the subscriptions hold one by one."""
        return self.runtime_with(self.counts_of(each.name for each in TOPIC_SUBQUEUES.values()))

    def runtime_with(self, counts: Mapping[str, SubqueueCounts]) -> EntityRuntime:
        """What the topic holds itself, and the size of everything in it."""
        runtime = sum_up(TOPIC_SUBQUEUES, None, counts, self.available, self.accessed_at_ms)
        return replace(runtime, active=0, size_bytes=self._size())

    def subscription_runtime(
        self, subscription: SubscriptionDescription, counts: Mapping[str, SubqueueCounts] | None = None
    ) -> EntityRuntime:
        """What a subscription holds now. `counts`: those of all subqueues, if they are known."""
        subqueues = dict(subscription.subqueues())
        if counts is None:
            counts = self.counts_of(each.name for each in subqueues.values())
        accessed_at_ms = self.accessed_by(subscription.number)
        return sum_up(subqueues, subscription.settings.forward_to, counts, self.available, accessed_at_ms)
