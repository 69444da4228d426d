"""broker/http/subscription_xml.py: subscription descriptions, complete and in the service's order."""

from __future__ import annotations

import dataclasses

from lxml import etree

from broker.entities.descriptions import EntityStatus
from broker.entities.rules import RuleDescription, SqlFilter, TrueFilter
from broker.entities.topics import SubscriptionDescription, SubscriptionSettings
from broker.http.atom import INSTANCE, SERVICE_BUS, Description, parse_entry
from broker.http.description_xml import unknown_elements
from broker.http.subscription_xml import SETTINGS, read_first_rule, read_subscription, write_subscription
from broker.namespace.runtime import EntityRuntime
from tests.unit.broker.http.test_queue_xml import NOW_MS, body

ORDER = [
    "LockDuration",
    "RequiresSession",
    "DefaultMessageTimeToLive",
    "DeadLetteringOnMessageExpiration",
    "DeadLetteringOnFilterEvaluationExceptions",
    "MessageCount",
    "MaxDeliveryCount",
    "EnableBatchedOperations",
    "Status",
    "ForwardTo",
    "CreatedAt",
    "UpdatedAt",
    "AccessedAt",
    "UserMetadata",
    "CountDetails",
    "ForwardDeadLetteredMessagesTo",
    "AutoDeleteOnIdle",
    "EntityAvailabilityStatus",
]
FORWARDING = SubscriptionSettings(
    lock_duration_ms=5_000,
    default_time_to_live_ms=60_000,
    dead_lettering_on_expiration=True,
    dead_lettering_on_filter_errors=False,
    max_delivery_count=3,
    status=EntityStatus.RECEIVE_DISABLED,
    forward_to="orders",
    forward_dead_lettered_to="dir/dead letters",
    user_metadata="mine",
)


def described(inner: str) -> Description:
    opening = f'<SubscriptionDescription xmlns="{SERVICE_BUS}" xmlns:i="{INSTANCE}">'
    description = parse_entry(body(f"{opening}{inner}</SubscriptionDescription>"))
    assert unknown_elements(description, SETTINGS) == []
    return description


def test_an_empty_description_has_the_services_defaults_and_the_default_rule() -> None:
    assert read_subscription(described(""), None) == SubscriptionSettings()
    assert read_first_rule(described("")) == RuleDescription("$Default", TrueFilter())


def test_what_is_written_is_complete_in_order_and_read_back_as_it_was() -> None:
    subscription = SubscriptionDescription("one", 1, FORWARDING, (), NOW_MS, NOW_MS)
    root = write_subscription(subscription, EntityRuntime(1, 2, 0, 0, 0, 3, 99, "Available", None), "host")
    assert [etree.QName(each).localname for each in root] == ORDER
    assert root.findtext(f"{{{SERVICE_BUS}}}ForwardDeadLetteredMessagesTo") == "sb://host/dir/dead%20letters"
    description = parse_entry(body(etree.tostring(root).decode()))
    assert read_subscription(description, None) == FORWARDING


def test_a_session_stays_when_an_update_leaves_it_out() -> None:
    sessions = dataclasses.replace(SubscriptionSettings(), requires_session=True)
    assert read_subscription(described(""), sessions) == sessions


def test_the_first_rule_may_be_given_with_any_name() -> None:
    inner = '<Filter i:type="SqlFilter"><SqlExpression>a = 1</SqlExpression></Filter>'
    rule = read_first_rule(
        described(f"<DefaultRuleDescription>{inner}<Name>mine</Name></DefaultRuleDescription>")
    )
    assert rule == RuleDescription("mine", SqlFilter("a = 1"))
    unnamed = read_first_rule(described(f"<DefaultRuleDescription>{inner}</DefaultRuleDescription>"))
    assert unnamed.name == "$Default"
