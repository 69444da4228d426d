"""Which subscriptions and rules a topic may have; used by both the API and the configuration file.

Pure; raises what `validation.py` raises. This module does not understand SQL: `broker/rules` does.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields

from broker.base.errors import Reason, Refused
from broker.entities.descriptions import EntityStatus, key_of
from broker.entities.rules import (
    DEFAULT_RULE_NAME,
    EXPRESSION_CHARACTERS_MAX,
    VALUE_BYTES_MAX,
    VALUES_BYTES_MAX,
    CorrelationFilter,
    NamedValues,
    RuleDescription,
    SqlAction,
    SqlFilter,
)
from broker.entities.topics import (
    SUBSCRIPTION_NUMBER_MAX,
    SubscriptionSettings,
    TopicDescription,
    subscription_path,
)
from broker.entities.validation import (
    AUTO_DELETE_ON_IDLE_MS_MIN,
    check_delivery,
    check_lifetimes,
    refuse,
)

SQL_FILTERS_MAX, CORRELATION_FILTERS_MAX = 2_000, 100_000
"""For each topic, over all its subscriptions (HTTP contract 6.1). A rule that matches everything counts as a
SQL filter."""
SUBSCRIPTIONS_MAX, RULES_MAX = 2_000, 1_000
NAME_LENGTH_MAX = 50

_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._~-]{0,48}[A-Za-z0-9])?")
_OF_A_CLIENT = re.compile(r"\$[A-Za-z0-9._~-]*\$D\Z")


@dataclass(slots=True, frozen=True)
class TopicLimits:
    """How many subscriptions and rules there may be."""

    subscriptions: int = SUBSCRIPTIONS_MAX
    """Of one topic."""
    rules: int = RULES_MAX
    """Of one subscription."""


def check_subscription_name(name: str) -> None:
    """Check the name of a subscription: 1 to 50 characters, no slashes. That of a JMS client ends with
    `$CLIENT_ID$D`, as the service names it (AMQP contract 5.1a)."""
    if len(name) > NAME_LENGTH_MAX or not _NAME.fullmatch(_OF_A_CLIENT.sub("", name)):
        refuse("Name", f"'{name:.60}' is not the name of a subscription: {_NAME_RULE}.")


def check_rule_name(name: str) -> None:
    """Check the name of a rule: as a subscription's, or `$Default`."""
    if not _NAME.fullmatch(name) and key_of(name) != key_of(DEFAULT_RULE_NAME):
        refuse("Name", f"'{name:.60}' is not the name of a rule: {_NAME_RULE}, or it is {DEFAULT_RULE_NAME}.")


_NAME_RULE = (
    "it must have 1 to 50 letters, digits, periods, hyphens, underscores or tildes, and begin and end with a "
    "letter or a digit"
)


def check_subscription(
    topic: str,
    name: str,
    settings: SubscriptionSettings,
    idle_ms_min: int = AUTO_DELETE_ON_IDLE_MS_MIN,
) -> SubscriptionSettings:
    """Check each setting of a subscription, and how they combine. Returns them as they take effect."""
    check_subscription_name(name)
    check_lifetimes(settings, idle_ms_min)
    if settings.status is EntityStatus.SEND_DISABLED:
        refuse(
            "Status",
            "Nothing is sent to a subscription itself, so its status cannot be SendDisabled: set that of its "
            "topic, or change its rules.",
        )
    return check_delivery(subscription_path(topic, name), settings)


def check_subscription_update(
    topic: str,
    name: str,
    old: SubscriptionSettings,
    new: SubscriptionSettings,
    idle_ms_min: int = AUTO_DELETE_ON_IDLE_MS_MIN,
) -> SubscriptionSettings:
    """Check the settings of an existing subscription, of which sessions are fixed."""
    if old.requires_session != new.requires_session:
        refuse(
            "RequiresSession",
            "The value for the 'RequiresSession' property of an existing Subscription cannot be changed.",
        )
    return check_subscription(topic, name, new, idle_ms_min)


def check_rule(rule: RuleDescription) -> None:
    """Check a rule's name, that its filter says something, and the sizes of its expressions and values."""
    check_rule_name(rule.name)
    if rule.filter == CorrelationFilter():
        refuse("CorrelationFilter", "A correlation filter needs at least one property.")
    if isinstance(rule.filter, CorrelationFilter):
        _check_sizes("CorrelationFilter", rule.name, _texts_of(rule.filter), rule.filter.properties)
    for sql, element in ((rule.filter, "SqlFilter"), (rule.action, "SqlRuleAction")):
        if isinstance(sql, SqlFilter | SqlAction):
            if not sql.expression.strip():
                refuse(element, f"The SqlExpression of the rule '{rule.name}' is empty.")
            if len(sql.expression) > EXPRESSION_CHARACTERS_MAX:
                refuse(
                    element,
                    f"The SqlExpression of the rule '{rule.name}' has {len(sql.expression)} characters; the "
                    f"limit is {EXPRESSION_CHARACTERS_MAX}.",
                )
            _check_sizes(element, rule.name, (), sql.parameters)


def _texts_of(filter: CorrelationFilter) -> Iterator[str]:
    """What a filter wants the properties of the properties section to be."""
    for field in fields(filter):
        value = getattr(filter, field.name)
        if isinstance(value, str):
            yield value


def _check_sizes(element: str, rule: str, texts: Iterable[str], values: NamedValues) -> None:
    """Check that names and values are no larger than those of a message's properties may be."""
    sizes = [_bytes_of(text) for text in texts]
    for name, value in values:
        sizes += [_bytes_of(name), _bytes_of(str(value.value))]
    total, largest = sum(sizes), max(sizes, default=0)
    if largest > VALUE_BYTES_MAX:
        refuse(
            element,
            f"A name or a value of the rule '{rule}' takes {largest} bytes; the limit is {VALUE_BYTES_MAX}.",
        )
    if total > VALUES_BYTES_MAX:
        refuse(
            element,
            f"The names and values of the rule '{rule}' take {total} bytes together; the limit is "
            f"{VALUES_BYTES_MAX}.",
        )


def _bytes_of(text: str) -> int:
    return len(text.encode(errors="surrogatepass"))


def check_rules(rules: Sequence[RuleDescription]) -> None:
    """Check the rules of one subscription: each of them, and that no two have the same name."""
    names = set()
    for rule in rules:
        check_rule(rule)
        if key_of(rule.name) in names:
            refuse("Name", f"Two rules have the name '{rule.name}' (case does not count).")
        names.add(key_of(rule.name))


def check_limits(before: TopicDescription, after: TopicDescription, limits: TopicLimits) -> None:
    """Check how many subscriptions and rules a change gives a topic. What it already has more of may stay, as
    when a limit was lowered. Raises Refused(QUOTA_EXCEEDED)."""
    if len(after.subscriptions) > max(limits.subscriptions, len(before.subscriptions)):
        _exceeded(after, f"{limits.subscriptions} subscriptions")
    if after.last_subscription > max(SUBSCRIPTION_NUMBER_MAX, before.last_subscription):
        _exceeded(after, f"{SUBSCRIPTION_NUMBER_MAX} subscriptions over time, with those that were deleted,")
    if _most_rules(after) > max(limits.rules, _most_rules(before)):
        _exceeded(after, f"{limits.rules} rules in one subscription")
    (sql_before, correlation_before), (sql, correlation) = filter_counts(before), filter_counts(after)
    if sql > max(SQL_FILTERS_MAX, sql_before):
        _exceeded(after, f"{SQL_FILTERS_MAX} SQL filters")
    if correlation > max(CORRELATION_FILTERS_MAX, correlation_before):
        _exceeded(after, f"{CORRELATION_FILTERS_MAX} correlation filters")


def _most_rules(topic: TopicDescription) -> int:
    return max([len(each.rules) for each in topic.subscriptions], default=0)


def filter_counts(topic: TopicDescription) -> tuple[int, int]:
    """The numbers of SQL filters and of correlation filters (HTTP contract 2.6)."""
    filters = [rule.filter for each in topic.subscriptions for rule in each.rules]
    correlation = sum([isinstance(each, CorrelationFilter) for each in filters])
    return len(filters) - correlation, correlation


def _exceeded(topic: TopicDescription, limit: str) -> None:
    raise Refused(Reason.QUOTA_EXCEEDED, f"The topic '{topic.name}' may have {limit} at most.")
