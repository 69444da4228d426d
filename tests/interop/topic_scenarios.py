"""Scenarios with topics for all official clients, and the topic of each client for each scenario.

As in `scenarios.py`, each client has a topic of its own for each scenario, and programs in other languages
use the same names. The entities are created with the administration client, which is what users do.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from azure.servicebus.management import (
    CorrelationRuleFilter,
    FalseRuleFilter,
    ServiceBusAdministrationClient,
    SqlRuleAction,
    SqlRuleFilter,
    TrueRuleFilter,
)

Filter = CorrelationRuleFilter | SqlRuleFilter | TrueRuleFilter | FalseRuleFilter
Rules = dict[str, tuple[Filter, str | None]]
"""Filters and the text of actions, by name."""


@dataclass(slots=True, frozen=True)
class Subscription:
    """A subscription: its properties, and the rules that it has in place of the one that matches all."""

    name: str
    properties: dict[str, Any] = field(default_factory=dict)
    rules: Rules = field(default_factory=dict)


ALL = Subscription("all")
"""It gets every message."""

FILTERED = [
    Subscription("true", rules={"rule": (TrueRuleFilter(), None)}),
    Subscription("false", rules={"rule": (FalseRuleFilter(), None)}),
    Subscription(
        "correlation",
        rules={"rule": (CorrelationRuleFilter(label="red", properties={"size": 7}), None)},
    ),
    Subscription("sql", rules={"rule": (SqlRuleFilter("size > 5 AND sys.Label LIKE 're%'"), None)}),
    Subscription(
        "several",
        rules={
            "red": (CorrelationRuleFilter(label="red"), None),
            "small": (SqlRuleFilter("size < 5"), None),
            "copied": (CorrelationRuleFilter(label="blue"), "SET size = size * 2; SET sys.Label = 'changed'"),
        },
    ),
    Subscription(
        "failing",
        {"dead_lettering_on_filter_evaluation_exceptions": True},
        {"rule": (SqlRuleFilter("size / (size - 7) = 1"), None)},
    ),
]
"""Filters of all kinds. Clients publish messages with the labels red, blue and green, and sizes."""

YEAR_2020 = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)


def sql(name: str, expression: str, **parameters: Any) -> Subscription:
    """A subscription with one SQL filter."""
    given = {f"@{each}": value for each, value in parameters.items()}
    return Subscription(name, rules={"rule": (SqlRuleFilter(expression, parameters=given), None)})


TYPED = [
    sql(
        "numbers", "whole + 1 = 8 AND fraction * 2 = 3.0 AND whole IN (1, 7) AND -whole < 0 AND whole <> '7'"
    ),
    sql("texts", "text LIKE 'a!_%' ESCAPE '!' AND text <> 'A_b' AND text > 'a' AND text NOT IN ('b', 'c')"),
    sql("booleans", "yes = TRUE AND NOT (no = TRUE) AND yes <> 1"),
    sql("dates", "at > @then AND at < @later", then=YEAR_2020, later=YEAR_2020.replace(year=2021)),
    sql("absent", "missing IS NULL AND NOT EXISTS (missing) AND EXISTS (whole) AND whole IS NOT NULL"),
    sql("unknown", "missing = 1 OR missing <> 1 OR NOT (missing = 1) OR missing LIKE '%' OR missing IN (1)"),
    sql(
        "system",
        "sys.MessageId = 'typed' AND sys.CorrelationId = 'c' AND sys.To = 't' AND sys.ReplyTo = 'r' AND "
        "sys.ContentType = 'ct' AND sys.Label = 'l' AND sys.SessionId IS NULL AND user.[text] = \"text\"",
    ),
    Subscription(
        "correlation",
        rules={
            "rule": (
                CorrelationRuleFilter(
                    message_id="typed",
                    correlation_id="c",
                    to="t",
                    reply_to="r",
                    content_type="ct",
                    label="l",
                    properties={"whole": 7, "fraction": 1.5, "text": "a_b", "yes": True},
                ),
                None,
            )
        },
    ),
    Subscription("other-value", rules={"rule": (CorrelationRuleFilter(properties={"whole": 8}), None)}),
]
"""Clients publish one message with properties of each type: whole = 7, fraction = 1.5, text = 'a_b', yes, no,
and at, the middle of 2020. Each subscription gets it but "unknown" and "other-value"."""

TOPICS: dict[str, list[Subscription]] = {
    "publish": [ALL, Subscription("other")],
    "filters": FILTERED,
    "typed-filters": TYPED,
    "settle": [ALL, Subscription("other")],
    "renew-lock": [Subscription("all", {"lock_duration": "PT5S"})],
    "peek-pages": [ALL],
    "schedule-and-cancel": [ALL],
    "sessions": [Subscription("sessions", {"requires_session": True}), Subscription("plain")],
    "dead-letters": [
        Subscription("all", {"max_delivery_count": 2, "dead_lettering_on_message_expiration": True})
    ],
    "forwarding": [
        Subscription("to-queue", {"forward_to": "{topic}.queue"}),
        Subscription(
            "to-topic",
            {"forward_to": "{topic}.topic"},
            {"red": (CorrelationRuleFilter(label="red"), "SET way = 'changed'")},
        ),
        Subscription("dead-letters-to-queue", {"forward_dead_lettered_messages_to": "{topic}.queue"}),
    ],
    "rule-manager": [ALL],
}
"""Topics of the scenarios for every official client. `{topic}` stands for the topic's name."""

TRANSACTIONS: dict[str, list[Subscription]] = {
    "transaction": [ALL, Subscription("other")],
    "transaction-in-a-session": [
        Subscription("sessions", {"requires_session": True}),
        Subscription("plain"),
    ],
    "transaction-over-entities": [ALL],
    "transaction-schedules": [ALL],
}
"""Topics of the scenarios for clients that have transactions."""

JMS_SUBSCRIPTIONS = [
    Subscription("plain"),
    Subscription("plain-too"),
    Subscription("mine$client-1$D"),
    Subscription("mine$client-2$D"),
    Subscription("ours$$D"),
]
JMS = (
    "topic-subscription",
    "topic-durable",
    "topic-durable-of-a-client",
    "topic-shared",
    "topic-transacted",
    "topic-refusals",
)
"""Scenarios for Qpid JMS, each with a topic that has these subscriptions."""

LEADS_ELSEWHERE = ("forwarding", "transaction-over-entities")
"""Scenarios with a queue and a second topic, to which messages go on."""


def topic_name(client: str, scenario: str) -> str:
    """The topic of this client for this scenario."""
    return f"topics.{client}.{scenario}"


def create_topics(admin: ServiceBusAdministrationClient, client: str, scenarios: Iterable[str]) -> None:
    """Create the topics of these scenarios, and what they forward to."""
    for scenario in scenarios:
        name = topic_name(client, scenario)
        admin.create_topic(name)
        if scenario in LEADS_ELSEWHERE:
            admin.create_queue(f"{name}.queue")
            admin.create_topic(f"{name}.topic")
            create_subscription(admin, f"{name}.topic", ALL)
        for subscription in {**TOPICS, **TRANSACTIONS}[scenario]:
            create_subscription(admin, name, subscription)


def create_subscription(admin: ServiceBusAdministrationClient, topic: str, it: Subscription) -> None:
    properties: dict[str, Any] = {
        key: value.format(topic=topic) if isinstance(value, str) else value
        for key, value in it.properties.items()
    }
    admin.create_subscription(topic, it.name, **properties)
    for name, (filter_, action) in it.rules.items():
        admin.create_rule(
            topic, it.name, name, filter=filter_, action=SqlRuleAction(action) if action else None
        )
    if it.rules:
        admin.delete_rule(topic, it.name, "$Default")
