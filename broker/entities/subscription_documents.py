"""Subscriptions and their rules as parts of their topic's catalogue document (`documents.py`). Pure.

{"name": …, "number": …, "settings": {…}, "rules": [RULE, …], "created_at_ms": …, "updated_at_ms": …,
 "file_settings": null or {…}, "file_rules": null or [RULE, …], "idle_ms": …}

RULE      {"name": …, "filter": FILTER, "action": null or SQL, "created_at_ms": …}
FILTER    {"type": "true"}, {"type": "false"}, {"type": "sql", …SQL},
          {"type": "correlation", "label": …, …, "properties": [VALUE, …]} with the fields that are given
SQL       {"expression": …, "parameters": [VALUE, …], "compatibility_level": …}
VALUE     [name, type, value], or [name, type, value, false] for a time that was given without a zone
"""

from __future__ import annotations

import dataclasses
import functools
import json
from typing import Any, assert_never

from broker.entities.descriptions import EntityStatus
from broker.entities.rules import (
    CorrelationFilter,
    FalseFilter,
    Filter,
    NamedValues,
    RuleDescription,
    RuleValue,
    SqlAction,
    SqlFilter,
    TrueFilter,
    ValueType,
)
from broker.entities.topics import SubscriptionDescription, SubscriptionSettings

Fields = dict[str, Any]


ENCODED_MAX = 16_384
"""The latest texts of so many subscriptions are remembered."""


@functools.lru_cache(ENCODED_MAX)
def subscription_text(subscription: SubscriptionDescription) -> str:
    """A subscription in JSON, on one line."""
    return json.dumps(encode_subscription(subscription))


def encode_subscription(subscription: SubscriptionDescription) -> Fields:
    """A subscription as JSON has it."""
    of_file, file_rules = subscription.file_settings, subscription.file_rules
    return {
        "name": subscription.name,
        "number": subscription.number,
        "settings": _encode_settings(subscription.settings),
        "rules": list(map(encode_rule, subscription.rules)),
        "created_at_ms": subscription.created_at_ms,
        "updated_at_ms": subscription.updated_at_ms,
        "file_settings": None if of_file is None else _encode_settings(of_file),
        "file_rules": None if file_rules is None else list(map(encode_rule, file_rules)),
        "idle_ms": subscription.idle_ms,
    }


def decode_subscription(fields: Fields) -> SubscriptionDescription:
    """The inverse of `encode_subscription`."""
    of_file, file_rules = fields.pop("file_settings"), fields.pop("file_rules")
    return SubscriptionDescription(
        settings=_decode_settings(fields.pop("settings")),
        rules=tuple(map(decode_rule, fields.pop("rules"))),
        file_settings=None if of_file is None else _decode_settings(of_file),
        file_rules=None if file_rules is None else tuple(map(decode_rule, file_rules)),
        **fields,
    )


def _encode_settings(settings: SubscriptionSettings) -> Fields:
    return dataclasses.asdict(settings) | {"status": settings.status.value}


def _decode_settings(fields: Fields) -> SubscriptionSettings:
    return SubscriptionSettings(**(fields | {"status": EntityStatus(fields["status"])}))


def encode_rule(rule: RuleDescription) -> Fields:
    return {
        "name": rule.name,
        "filter": _encode_filter(rule.filter),
        "action": None if rule.action is None else _encode_sql(rule.action),
        "created_at_ms": rule.created_at_ms,
    }


def decode_rule(fields: Fields) -> RuleDescription:
    action = fields["action"]
    return RuleDescription(
        fields["name"],
        _decode_filter(fields["filter"]),
        None if action is None else SqlAction(**_decode_sql(action)),
        fields["created_at_ms"],
    )


def _encode_filter(rule_filter: Filter) -> Fields:
    match rule_filter:
        case TrueFilter():
            return {"type": "true"}
        case FalseFilter():
            return {"type": "false"}
        case SqlFilter():
            return {"type": "sql", **_encode_sql(rule_filter)}
        case CorrelationFilter():
            given = {
                field.name: value
                for field in dataclasses.fields(rule_filter)
                if (value := getattr(rule_filter, field.name)) is not None
            }
            return {"type": "correlation", **given, "properties": _encode_values(rule_filter.properties)}
    assert_never(rule_filter)


def _decode_filter(fields: Fields) -> Filter:
    rest = dict(fields)
    match rest.pop("type"):
        case "true":
            return TrueFilter()
        case "false":
            return FalseFilter()
        case "sql":
            return SqlFilter(**_decode_sql(rest))
        case "correlation":
            return CorrelationFilter(**(rest | {"properties": _decode_values(rest["properties"])}))
        case other:
            raise ValueError(f"a filter of the type {other}")


def _encode_sql(sql: SqlFilter | SqlAction) -> Fields:
    return {
        "expression": sql.expression,
        "parameters": _encode_values(sql.parameters),
        "compatibility_level": sql.compatibility_level,
    }


def _decode_sql(fields: Fields) -> Fields:
    return fields | {"parameters": _decode_values(fields["parameters"])}


def _encode_values(values: NamedValues) -> list[list[str | bool | int | float]]:
    return [
        [name, value.type.value, value.value, *(() if value.has_zone else (False,))] for name, value in values
    ]


def _decode_values(values: list[list[Any]]) -> NamedValues:
    return tuple((name, RuleValue(ValueType(kind), *value)) for name, kind, *value in values)
