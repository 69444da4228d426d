"""Requests about the rules of a subscription (AMQP contract 7.3.10).

A change holds on all partitions, and is durable, when its response is sent. The messages of a subscription
stay as they are: a rule decides about those that are enqueued afterwards.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from broker.access.addresses import Address
from broker.base.errors import Reason, Refused, not_found_text
from broker.entities.rule_changes import RuleChange
from broker.entities.topics import SubscriptionDescription, TopicDescription, subscription_path
from broker.frontend.connection_view import ConnectionView
from broker.frontend.nodes.bodies import NO_CONTENT, Operations, integer, ok
from broker.frontend.nodes.request_node import Response
from broker.frontend.nodes.rule_bodies import described_rule, rule_name_of, rule_of
from broker.namespace.entity import Entity
from broker.namespace.subscriptions import check_new_rules

PAGE_MAX = 1_000
"""Rules that one response shows."""
RULE_AT_ONCE = frozenset(("com.microsoft:enumerate-rules",))
"""Operations that only read, and so are no part of any transaction."""


class RuleRequests:
    """Serves one connection's requests about one subscription."""

    def __init__(self, connection: ConnectionView, address: Address, entity: Callable[[], Entity]) -> None:
        """`entity` gives the topic as it is found at the time of a request."""
        self._connection, self._entity, self._subqueue = connection, entity, address.subqueue

    def in_transaction(self, name: str, body: dict[str, Any]) -> RuleChange | None:
        """The change of rules that a request asks for; None if it asks for something else. Raises Refused."""
        match name:
            case "com.microsoft:add-rule":
                _, subscription = self._subscription()
                rule = rule_of(body)
                check_new_rules([rule])
                self._connection.services.memory.admit_description()
                return RuleChange(subscription.number, rule)
            case "com.microsoft:remove-rule":
                _, subscription = self._subscription()
                return RuleChange(subscription.number, removed=rule_name_of(body))
            case _:
                return None

    async def _add(self, body: dict[str, Any]) -> Response:
        topic, subscription = self._subscription()
        rule = rule_of(body)
        self._connection.services.memory.admit_description()
        await self._connection.served.namespace.subscriptions.add_rule(topic.name, subscription.name, rule)
        return ok({})

    async def _remove(self, body: dict[str, Any]) -> Response:
        topic, subscription = self._subscription()
        name = rule_name_of(body)
        await self._connection.served.namespace.subscriptions.remove_rule(topic.name, subscription.name, name)
        return ok({})

    async def _enumerate(self, body: dict[str, Any]) -> Response:
        """A page of rules, in the order of their creation."""
        skip, count = integer(body, "skip", 0), integer(body, "top", PAGE_MAX)
        if skip < 0 or count <= 0:
            raise Refused(Reason.ARGUMENT, f"'skip' is {skip} and 'top' is {count}; 'top' must be positive.")
        _, subscription = self._subscription()
        rules = subscription.rules[skip : skip + min(count, PAGE_MAX)]
        if not rules:
            return NO_CONTENT
        return ok({"rules": [{"rule-description": described_rule(rule)} for rule in rules]})

    def _subscription(self) -> tuple[TopicDescription, SubscriptionDescription]:
        """The topic and the subscription. Raises Refused, too if the subscription was deleted meanwhile."""
        description = self._entity().description
        start, _, name = self._subqueue.partition("/")
        if not isinstance(description, TopicDescription) or start != "subscriptions" or "/" in name:
            raise Refused(Reason.NOT_ALLOWED, "Only subscriptions have rules.")
        subscription = description.subscription(name)
        if subscription is None:
            raise Refused(Reason.ENTITY_NOT_FOUND, not_found_text(subscription_path(description.name, name)))
        return description, subscription


RULE_OPERATIONS: Operations[RuleRequests] = {
    "com.microsoft:add-rule": ("Manage", RuleRequests._add),
    "com.microsoft:remove-rule": ("Manage", RuleRequests._remove),
    "com.microsoft:enumerate-rules": ("Listen", RuleRequests._enumerate),
}
