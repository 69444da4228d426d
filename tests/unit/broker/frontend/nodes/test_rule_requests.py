"""broker/frontend/nodes/rule_requests.py: rules of a subscription are added, removed and shown."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from broker.access.addresses import Address
from broker.base.errors import Reason, Refused
from broker.entities.rules import RuleDescription
from broker.entities.subscription_validation import TopicLimits
from broker.entities.topics import SubscriptionSettings
from broker.frontend.nodes.rule_requests import RULE_OPERATIONS, RuleRequests
from broker.namespace.subscriptions import Subscriptions
from broker.throttle.memory_mark import Memory
from tests.unit.broker.namespace.test_subscriptions import Entities

RED = {"rule-name": "red", "rule-description": {"correlation-filter": {"label": "red"}}}


LARGE = {"correlation-filter": {"label": "x" * 900_000}}


class Work:
    """The node of one subqueue of the topic `events`, which has a subscription."""

    def __init__(self, entities: Entities, subqueue: str) -> None:
        namespace = SimpleNamespace(subscriptions=Subscriptions(entities, TopicLimits()))
        self.resident = 0
        services = SimpleNamespace(memory=Memory(1 << 30, lambda: self.resident, lambda: 0))
        connection: Any = SimpleNamespace(served=SimpleNamespace(namespace=namespace), services=services)
        entity: Any = lambda: SimpleNamespace(description=entities.all["events"])  # noqa: E731
        self.subscriptions = namespace.subscriptions
        self.requests = RuleRequests(connection, Address("events", subqueue, "$management"), entity)

    async def ask(self, operation: str, body: dict[str, Any]) -> Any:
        _, function = RULE_OPERATIONS[f"com.microsoft:{operation}"]
        response = await function(self.requests, body)
        return response.body if response.properties["statusCode"] == 200 else None


async def work_with(*rules: str, subqueue: str = "subscriptions/one") -> Work:
    work = Work(Entities(), subqueue)
    described = [RuleDescription(name) for name in rules]
    await work.subscriptions.create("events", "One", SubscriptionSettings(), described)
    return work


def names(body: Any) -> list[str]:
    return [each["rule-description"].value[2] for each in body["rules"]]


async def test_rules_are_added_shown_and_removed() -> None:
    work = await work_with("$Default")
    assert await work.ask("add-rule", RED) == {}
    assert names(await work.ask("enumerate-rules", {"top": 100, "skip": 0})) == ["$Default", "red"]
    assert await work.ask("remove-rule", {"rule-name": "$default"}) == {}
    assert names(await work.ask("enumerate-rules", {})) == ["red"]


async def test_rules_are_shown_in_pages_until_there_are_no_more() -> None:
    work = await work_with(*"abcde")
    pages = [await work.ask("enumerate-rules", {"top": 2, "skip": skip}) for skip in (0, 2, 4)]
    assert [names(page) for page in pages] == [["a", "b"], ["c", "d"], ["e"]]
    assert await work.ask("enumerate-rules", {"top": 2, "skip": 6}) is None
    for body in ({"top": 0}, {"skip": -1}):
        with pytest.raises(Refused):
            await work.ask("enumerate-rules", body)


async def test_a_rule_that_exists_or_does_not_is_refused() -> None:
    work = await work_with("red")
    for operation, body, reason in (
        ("add-rule", RED, Reason.ENTITY_EXISTS),
        ("remove-rule", {"rule-name": "blue"}, Reason.ENTITY_NOT_FOUND),
        ("remove-rule", {}, Reason.ARGUMENT),
        ("add-rule", {"rule-name": "large", "rule-description": LARGE}, Reason.ARGUMENT),
    ):
        with pytest.raises(Refused) as caught:
            await work.ask(operation, body)
        assert caught.value.reason is reason


@pytest.mark.parametrize(
    ("subqueue", "reason"),
    [
        ("", Reason.NOT_ALLOWED),
        ("$transfer/$deadletterqueue", Reason.NOT_ALLOWED),
        ("subscriptions/one/$deadletterqueue", Reason.NOT_ALLOWED),
        ("subscriptions/gone", Reason.ENTITY_NOT_FOUND),
    ],
)
async def test_only_subscriptions_that_exist_have_rules(subqueue: str, reason: Reason) -> None:
    work = await work_with("red", subqueue=subqueue)
    for operation, body in (
        ("add-rule", RED),
        ("remove-rule", {"rule-name": "red"}),
        ("enumerate-rules", {}),
    ):
        with pytest.raises(Refused) as caught:
            await work.ask(operation, body)
        assert caught.value.reason is reason


async def test_above_the_memory_mark_no_rules_are_added_but_removed() -> None:
    work = await work_with("$Default", "old")
    work.resident = 2 << 30
    with pytest.raises(Refused) as refused:
        await work.ask("add-rule", RED)
    assert refused.value.reason is Reason.SERVER_BUSY
    with pytest.raises(Refused):
        work.requests.in_transaction("com.microsoft:add-rule", RED)
    assert await work.ask("remove-rule", {"rule-name": "old"}) == {}
    work.resident = 0
    work.requests._connection.services.memory.look()
    assert await work.ask("add-rule", RED) == {}
