"""Topics and their subscriptions as data: descriptions, settings, and how subqueues are numbered.

A topic is one entity. Each of its partitions has the subqueues of the topic itself and of every subscription.
Subqueue numbers are stored, so they follow from the number of the subscription, which its topic never gives
again:

    number = 4 x subscription + place          places: those of a queue's subqueues (`QUEUE_SUBQUEUES`)

Subscription 0 is the topic itself. Its main subqueue has number 0, gets what clients send, and keeps only
what is scheduled; everything else goes on to the subscriptions at once.

Like all descriptions, these are immutable: a change makes a new description, which goes to the catalogue and
to all partitions as a whole.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Self

from broker.entities.descriptions import (
    DEAD_LETTER,
    MAIN,
    TRANSFER,
    TRANSFER_DEAD_LETTER,
    EntityDescription,
    EntitySettings,
    EntityStatus,
    key_of,
    target_of,
)
from broker.entities.roles import (
    DISTRIBUTES,
    KEEPS_DEAD_LETTERS,
    KEEPS_FAILED_TRANSFERS,
    OWN_END,
    PASSES_ON,
    SERVES_RECEIVERS,
    SubqueueDescription,
    SubqueueTable,
)
from broker.entities.rules import RuleDescription

PLACES: Final = OWN_END
"""Subqueue numbers of each subscription, and of the topic itself."""
SUBSCRIPTION_NUMBER_MAX: Final = (1 << 16) // PLACES - 1
"""The highest number that a subscription may have: partitions store the numbers of subqueues in 16 bits."""
MAIN_PLACE, DEAD_LETTER_PLACE, TRANSFER_DEAD_LETTER_PLACE, TRANSFER_PLACE = range(PLACES)
SUBQUEUES_KNOWN_MAX: Final = 16_384
"""The latest subqueues of so many subscriptions are remembered."""
TOPIC_SUBQUEUES: Final[Mapping[int, SubqueueDescription]] = {
    MAIN_PLACE: SubqueueDescription(MAIN, DISTRIBUTES),
    TRANSFER_DEAD_LETTER_PLACE: SubqueueDescription(TRANSFER_DEAD_LETTER, KEEPS_FAILED_TRANSFERS),
    TRANSFER_PLACE: SubqueueDescription(TRANSFER, PASSES_ON, transfers_fail_to=TRANSFER_DEAD_LETTER_PLACE),
}
"""The subqueues of a topic itself."""


@dataclass(slots=True, frozen=True)
class TopicSettings(EntitySettings):
    """A topic's settings (HTTP contract 3.2)."""

    filtering_messages_before_publishing: bool = False
    enable_subscription_partitioning: bool = False


@dataclass(slots=True, frozen=True)
class SubscriptionSettings:
    """A subscription's settings (HTTP contract 3.2). Defaults are the service's."""

    lock_duration_ms: int = 60_000
    requires_session: bool = False
    default_time_to_live_ms: int | None = None
    dead_lettering_on_expiration: bool = False
    dead_lettering_on_filter_errors: bool = True
    """Messages for which a filter cannot be evaluated go to the dead-letter subqueue."""
    max_delivery_count: int = 10
    enable_batched_operations: bool = True
    status: EntityStatus = EntityStatus.ACTIVE
    forward_to: str | None = None
    forward_dead_lettered_to: str | None = None
    user_metadata: str | None = None
    auto_delete_on_idle_ms: int | None = None

    @property
    def forwarding(self) -> tuple[str | None, str | None]:
        """The entities to which messages and dead letters are forwarded; None if they are not."""
        return self.forward_to, self.forward_dead_lettered_to


@dataclass(slots=True, frozen=True)
class SubscriptionDescription:
    """A subscription's description, which is a part of its topic's."""

    name: str
    """As spelled at creation; compared without regard to case."""
    number: int
    """From 1 to SUBSCRIPTION_NUMBER_MAX. The topic never gives it again."""
    settings: SubscriptionSettings = SubscriptionSettings()
    rules: tuple[RuleDescription, ...] = ()
    """In the order of their creation. A subscription without rules gets no messages."""
    created_at_ms: int = 0
    updated_at_ms: int = 0
    file_settings: SubscriptionSettings | None = None
    """The settings from the configuration file as last applied, as for an entity."""
    file_rules: tuple[RuleDescription, ...] | None = None
    """The rules from the configuration file as last applied."""
    idle_ms: int = 0
    """How long it had been idle when that was last noted."""
    _hash: int | None = field(default=None, init=False, repr=False, compare=False)

    def __hash__(self) -> int:
        """Computed once: it takes several microseconds, and texts are found by it (`documents.py`)."""
        if self._hash is None:
            found = hash(
                (self.name, self.number, self.settings, self.rules, self.updated_at_ms, self.idle_ms)
            )
            object.__setattr__(self, "_hash", found)
            return found
        return self._hash

    @classmethod
    def new(
        cls,
        name: str,
        number: int,
        settings: SubscriptionSettings,
        rules: Iterable[RuleDescription],
        now_ms: int,
        from_file: bool = False,
    ) -> Self:
        """A subscription that is created now. `from_file`: the configuration file asks for it."""
        new = cls(name, number, settings, created_at_ms=now_ms, updated_at_ms=now_ms)
        if from_file:
            new = replace(new, file_settings=settings, file_rules=tuple(rules))
        return new.with_rules(rules, now_ms)

    @property
    def key(self) -> str:
        """The name by which it is found in its topic."""
        return key_of(self.name)

    def subqueue(self, place: int) -> int:
        """The number of one of its subqueues."""
        return PLACES * self.number + place

    @property
    def subqueue_name(self) -> str:
        """The name of its main subqueue: what follows the topic in its address, case folded."""
        return subqueue_name_of(self.name)

    def subqueues(self) -> Iterable[tuple[int, SubqueueDescription]]:
        """Its subqueues, each with its number."""
        return _subqueues_of(self.number, self.subqueue_name)

    def with_rules(self, rules: Iterable[RuleDescription], now_ms: int) -> Self:
        """The subscription with these rules instead of its own. A rule without a time is created now."""
        dated = (each if each.created_at_ms else replace(each, created_at_ms=now_ms) for each in rules)
        return replace(self, rules=tuple(dated), updated_at_ms=now_ms, idle_ms=0)

    def rule(self, name: str) -> RuleDescription | None:
        """The rule of this name, in any case."""
        key = key_of(name)
        return next((each for each in self.rules if key_of(each.name) == key), None)


@functools.lru_cache(SUBQUEUES_KNOWN_MAX)
def _subqueues_of(number: int, name: str) -> Sequence[tuple[int, SubqueueDescription]]:
    """The subqueues of a subscription with this number, whose main subqueue has this name. They are made
    once, because each change of a topic describes all its subscriptions anew."""
    main, dead_letters, failed = (
        PLACES * number + place for place in (MAIN_PLACE, DEAD_LETTER_PLACE, TRANSFER_DEAD_LETTER_PLACE)
    )
    return (
        (main, SubqueueDescription(name, SERVES_RECEIVERS, dead_letters, failed, main)),
        (dead_letters, SubqueueDescription(f"{name}/{DEAD_LETTER}", KEEPS_DEAD_LETTERS, None, failed, main)),
        (
            failed,
            SubqueueDescription(f"{name}/{TRANSFER_DEAD_LETTER}", KEEPS_FAILED_TRANSFERS, redrives_to=main),
        ),
    )


def subscription_path(topic: str, name: str) -> str:
    """The path of a subscription, as addresses and refusals spell it."""
    return f"{topic}/Subscriptions/{name}"


def subqueue_name_of(subscription: str) -> str:
    """The name of a subscription's main subqueue in the partitions of its topic."""
    return f"subscriptions/{key_of(subscription)}"


_OF_THE_TOPIC: Final = SubscriptionSettings()


@dataclass(slots=True, frozen=True)
class TopicDescription(EntityDescription):
    """A topic's description, with its subscriptions."""

    KIND = "Topic"

    settings: TopicSettings = field(default_factory=TopicSettings)
    file_settings: TopicSettings | None = None
    subscriptions: tuple[SubscriptionDescription, ...] = ()
    """In the order of their creation."""
    last_subscription: int = 0
    """The highest number that a subscription of this topic ever had."""
    rule_changes_made: tuple[str, ...] = ()
    """Transactions whose changes of rules it has, although its partition may not have forgotten them: their
    ids in hexadecimal digits."""
    _by_key: Mapping[str, SubscriptionDescription] = field(init=False, repr=False, compare=False)
    _by_number: Mapping[int, SubscriptionDescription] = field(init=False, repr=False, compare=False)
    _subqueues: SubqueueTable = field(init=False, repr=False, compare=False)
    keeps_sessions: bool = field(init=False, repr=False, compare=False)
    """Whether some subscription requires sessions. Every send asks."""
    makes_copies: bool = field(init=False, repr=False, compare=False)
    """Whether a rule of some subscription has an action. Every send asks."""
    filters: int = field(init=False, repr=False, compare=False)
    """How many rules all subscriptions have together. Every send to a throttled namespace asks."""

    def __post_init__(self) -> None:
        subqueues = dict(TOPIC_SUBQUEUES)
        for each in self.subscriptions:
            subqueues.update(each.subqueues())
        object.__setattr__(self, "_by_key", {each.key: each for each in self.subscriptions})
        object.__setattr__(self, "_by_number", {each.number: each for each in self.subscriptions})
        end = PLACES * (self.last_subscription + 1)
        object.__setattr__(self, "_subqueues", SubqueueTable(subqueues, end))
        keeps = any(each.settings.requires_session for each in self.subscriptions)
        object.__setattr__(self, "keeps_sessions", keeps)
        makes = any(rule.action is not None for each in self.subscriptions for rule in each.rules)
        object.__setattr__(self, "makes_copies", makes)
        object.__setattr__(self, "filters", sum(len(each.rules) for each in self.subscriptions))

    @property
    def subqueues(self) -> SubqueueTable:
        return self._subqueues

    def forwarding_of(self, number: int) -> str | None:
        subqueue = self._subqueues[number]
        subscription = self.subscription_of(subqueue.name)
        return None if subscription is None else target_of(subqueue.role, subscription.settings.forwarding)

    def may_forward(self) -> Iterable[int]:
        """Only those of subscriptions whose settings say so."""
        return [
            number
            for each in self.subscriptions
            if each.settings.forwarding != (None, None)
            for number, _ in each.subqueues()
        ]

    def status_of(self, number: int) -> EntityStatus:
        """The topic's own status is about sending, and about its own subqueues."""
        subscription = self.subscription_of(self._subqueues[number].name)
        return self.settings.status if subscription is None else subscription.settings.status

    def delivery(self, subqueue: str) -> SubscriptionSettings:
        subscription = self.subscription_of(subqueue)
        return _OF_THE_TOPIC if subscription is None else subscription.settings

    def subscription(self, name: str) -> SubscriptionDescription | None:
        """The subscription of this name, in any case."""
        return self._by_key.get(key_of(name))

    def numbered(self, number: int) -> SubscriptionDescription | None:
        """The subscription that has this number."""
        return self._by_number.get(number)

    def subscription_of(self, subqueue: str) -> SubscriptionDescription | None:
        """The subscription that a subqueue belongs to; None for those of the topic itself."""
        start, _, rest = subqueue.partition("/")
        return self._by_key.get(rest.partition("/")[0]) if start == "subscriptions" else None

    def path_of(self, subqueue: str) -> str:
        """The path of the topic, or of a subscription."""
        subscription = self.subscription_of(subqueue)
        return self.name if subscription is None else subscription_path(self.name, subscription.name)

    def with_new(
        self,
        name: str,
        settings: SubscriptionSettings,
        rules: Sequence[RuleDescription],
        now_ms: int,
        *,
        from_file: bool = False,
    ) -> Self:
        """The topic with one more subscription. `from_file`: the configuration file asks for it."""
        number = self.last_subscription + 1
        return self.with_all([SubscriptionDescription.new(name, number, settings, rules, now_ms, from_file)])

    def with_all(self, subscriptions: Iterable[SubscriptionDescription]) -> Self:
        """The topic with these subscriptions: in place of those that have their numbers, or as new ones. It
        takes as long for many as for one."""
        given = {each.number: each for each in subscriptions}
        last = max(self.last_subscription, *given)
        kept = [given.pop(each.number, each) for each in self.subscriptions]
        return replace(self, subscriptions=(*kept, *given.values()), last_subscription=last)

    def with_changed(self, changed: SubscriptionDescription) -> Self:
        """The topic with another description of the subscription that has this number."""
        return self._with(changed if each.number == changed.number else each for each in self.subscriptions)

    def without(self, number: int) -> Self:
        """The topic without a subscription."""
        return self._with(each for each in self.subscriptions if each.number != number)

    def _with(self, subscriptions: Iterable[SubscriptionDescription]) -> Self:
        return replace(self, subscriptions=tuple(subscriptions))
