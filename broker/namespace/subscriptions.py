"""Creates, changes and deletes the subscriptions of topics, and their rules.

Each change is one change of the topic's description (`Namespace.change_entity`): it is durable as a whole or
not made, and holds on all partitions when it is acknowledged. Messages that are enqueued afterwards follow
it; those in a subscription stay where they are.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from typing import Protocol

from broker.base.errors import Reason, Refused, not_found_text
from broker.entities.descriptions import EntityDescription
from broker.entities.rule_changes import RuleChange, changed, existing_rule, with_rule, without_rule
from broker.entities.rules import RuleDescription
from broker.entities.subscription_validation import (
    TopicLimits,
    check_limits,
    check_rules,
    check_subscription,
    check_subscription_update,
)
from broker.entities.topics import (
    SubscriptionDescription,
    SubscriptionSettings,
    TopicDescription,
    subscription_path,
)
from broker.entities.validation import AUTO_DELETE_ON_IDLE_MS_MIN
from broker.rules.actions import sets_session
from broker.rules.matching import check_expressions


class ChangesEntities(Protocol):
    """What is needed of the namespace."""

    def describe(self, name: str) -> EntityDescription | None:
        """The description of the entity of this name."""

    def missing(self, name: str) -> Refused:
        """Why no entity of this name is live."""

    async def change_entity(
        self,
        name: str,
        change: Callable[[EntityDescription, int], EntityDescription],
        first: Callable[[], Awaitable[None]] | None = None,
    ) -> EntityDescription:
        """Replace an entity's description, durably, on all partitions."""


class Subscriptions:
    """The subscriptions of all topics of a namespace (`Namespace.subscriptions`). Owned by the event loop."""

    def __init__(
        self,
        namespace: ChangesEntities,
        limits: TopicLimits,
        idle_ms_min: int = AUTO_DELETE_ON_IDLE_MS_MIN,
    ) -> None:
        self._namespace, self._limits, self._idle_ms_min = namespace, limits, idle_ms_min

    @property
    def limits(self) -> TopicLimits:
        """How many subscriptions and rules there may be."""
        return self._limits

    def topic(self, name: str) -> TopicDescription:
        """The topic of this name. Raises Refused: ENTITY_NOT_FOUND, and why it is out of service."""
        description = self._namespace.describe(name)
        if description is None:
            raise self._namespace.missing(name)
        return _as_topic(description)

    def find(self, topic: str, name: str) -> SubscriptionDescription:
        """A subscription of a topic. Raises as `topic`."""
        return _existing(self.topic(topic), name)

    async def create(
        self,
        topic: str,
        name: str,
        settings: SubscriptionSettings,
        rules: Sequence[RuleDescription],
    ) -> SubscriptionDescription:
        """Create a subscription with its rules, durably. Raises Refused: ENTITY_NOT_FOUND, ENTITY_EXISTS,
        ARGUMENT, QUOTA_EXCEEDED, and as `Namespace.change_entity`."""
        settings = check_subscription(topic, name, settings, self._idle_ms_min)
        check_new_rules(rules)

        def change(topic: TopicDescription, now_ms: int) -> TopicDescription:
            if topic.subscription(name) is not None:
                raise Refused(
                    Reason.ENTITY_EXISTS,
                    f"The messaging entity '{subscription_path(topic.name, name)}' already exists.",
                )
            check_session_actions(rules, settings, is_partitioned=topic.partitions > 1)
            return topic.with_new(name, settings, rules, now_ms)

        return _existing(await self._change(topic, change), name)

    async def update(self, topic: str, name: str, settings: SubscriptionSettings) -> SubscriptionDescription:
        """Replace a subscription's settings, durably. Raises as `create`."""

        def change(subscription: SubscriptionDescription, now_ms: int) -> SubscriptionDescription:
            after = check_subscription_update(
                topic, subscription.name, subscription.settings, settings, self._idle_ms_min
            )
            return replace(subscription, settings=after, updated_at_ms=now_ms, idle_ms=0)

        return await self._change_one(topic, name, change)

    async def delete(self, topic: str, name: str) -> None:
        """Delete a subscription with everything in it, durably. Raises as `create`."""

        def change(topic: TopicDescription, now_ms: int) -> TopicDescription:
            return topic.without(_existing(topic, name).number)

        await self._change(topic, change)

    async def delete_idle(self, topic: str, number: int, is_idle: Callable[[], bool]) -> None:
        """Delete the subscription with this number if it is still there, and idle, once no other change of
        the topic is under way. Raises as `Namespace.change_entity`."""

        def change(topic: TopicDescription, now_ms: int) -> TopicDescription:
            return topic.without(number) if topic.numbered(number) is not None and is_idle() else topic

        await self._change(topic, change)

    async def add_rule(self, topic: str, name: str, rule: RuleDescription) -> SubscriptionDescription:
        """Add a rule to a subscription, durably. Raises as `create`; ENTITY_EXISTS if there is a rule of this
        name."""

        def change(rules: tuple[RuleDescription, ...], path: str) -> Iterable[RuleDescription]:
            return with_rule(rules, rule, path)

        return await self._change_rules(topic, name, change, [rule])

    async def replace_rule(self, topic: str, name: str, rule: RuleDescription) -> SubscriptionDescription:
        """Replace the rule of this name, durably. Raises as `create`."""

        def change(rules: tuple[RuleDescription, ...], path: str) -> Iterable[RuleDescription]:
            old = existing_rule(rules, rule.name, path)
            new = replace(rule, name=old.name, created_at_ms=old.created_at_ms)
            return (new if each is old else each for each in rules)

        return await self._change_rules(topic, name, change, [rule])

    async def remove_rule(self, topic: str, name: str, rule: str) -> SubscriptionDescription:
        """Remove a rule from a subscription, durably. Raises as `create`."""

        def change(rules: tuple[RuleDescription, ...], path: str) -> Iterable[RuleDescription]:
            return without_rule(rules, rule, path)

        return await self._change_rules(topic, name, change)

    async def make_changes(
        self,
        topic: TopicDescription,
        changes: Sequence[RuleChange],
        made: Callable[[Sequence[str]], Sequence[str]],
        first: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Change rules of several subscriptions, durably and together. `made` gives the topic's
        `rule_changes_made` after that, from those before. `first` is awaited once it is certain that all
        changes can be made; if it raises Refused, none is. Without it, those that cannot be made, or are made
        already, are left out. Raises as `create`."""

        def change(present: TopicDescription, now_ms: int) -> TopicDescription:
            if present.generation != topic.generation:
                raise Refused(Reason.ENTITY_NOT_FOUND, not_found_text(topic.name))
            after = changed(present, changes, now_ms, may_be_made=first is None)
            return replace(after, rule_changes_made=tuple(made(present.rule_changes_made)))

        await self._change(topic.name, change, first)

    async def _change_rules(
        self,
        topic: str,
        name: str,
        change: Callable[[tuple[RuleDescription, ...], str], Iterable[RuleDescription]],
        changed: Sequence[RuleDescription] = (),
    ) -> SubscriptionDescription:
        """Let `change` make new rules from the present ones and the subscription's path. `changed` are those
        that were not checked before."""
        check_new_rules(changed)

        def of_topic(description: TopicDescription, now_ms: int) -> TopicDescription:
            subscription = _existing(description, name)
            check_session_actions(changed, subscription.settings, is_partitioned=description.partitions > 1)
            rules = change(subscription.rules, subscription_path(topic, subscription.name))
            return description.with_changed(subscription.with_rules(rules, now_ms))

        return _existing(await self._change(topic, of_topic), name)

    async def _change_one(
        self,
        topic: str,
        name: str,
        change: Callable[[SubscriptionDescription, int], SubscriptionDescription],
    ) -> SubscriptionDescription:
        def of_topic(topic: TopicDescription, now_ms: int) -> TopicDescription:
            return topic.with_changed(change(_existing(topic, name), now_ms))

        return _existing(await self._change(topic, of_topic), name)

    async def _change(
        self,
        topic: str,
        change: Callable[[TopicDescription, int], TopicDescription],
        first: Callable[[], Awaitable[None]] | None = None,
    ) -> TopicDescription:
        def of_entity(description: EntityDescription, now_ms: int) -> EntityDescription:
            before = _as_topic(description)
            after = change(before, now_ms)
            check_limits(before, after, self._limits)
            return after

        return _as_topic(await self._namespace.change_entity(topic, of_entity, first))


def _as_topic(description: EntityDescription) -> TopicDescription:
    if not isinstance(description, TopicDescription):
        raise Refused(Reason.ENTITY_NOT_FOUND, f"{not_found_text(description.name)} It is not a topic.")
    return description


def _existing(topic: TopicDescription, name: str) -> SubscriptionDescription:
    subscription = topic.subscription(name)
    if subscription is None:
        raise Refused(Reason.ENTITY_NOT_FOUND, not_found_text(subscription_path(topic.name, name)))
    return subscription


def check_new_rules(rules: Sequence[RuleDescription]) -> None:
    """Check rules by themselves: names, filters and actions. Raises Refused(ARGUMENT)."""
    check_rules(rules)
    for rule in rules:
        check_expressions(rule)


def check_session_actions(
    rules: Iterable[RuleDescription], settings: SubscriptionSettings, *, is_partitioned: bool
) -> None:
    """Check that no action puts copies into sessions of which they are not in the partition: the sessions of
    a subscription are looked for in the partitions of their ids. Raises Refused(ARGUMENT)."""
    if not (is_partitioned and settings.requires_session):
        return
    for rule in rules:
        if rule.action is not None and sets_session(rule.action):
            raise Refused(
                Reason.ARGUMENT,
                f"The action of the rule '{rule.name}' sets sys.SessionId, but the subscription requires "
                "sessions and its topic is partitioned: the copy stays in the message's partition, where its "
                "session is not looked for.",
            )
