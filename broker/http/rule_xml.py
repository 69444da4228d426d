"""Converts rules between XML and `RuleDescription` (HTTP contract 2.7).

The type of a filter decides, and not its text: clients write the expression of a false filter differently.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from lxml import etree

from broker.entities.rules import (
    COMPATIBILITY_LEVEL,
    CorrelationFilter,
    FalseFilter,
    Filter,
    NamedValues,
    RuleDescription,
    SqlAction,
    SqlFilter,
    TrueFilter,
)
from broker.entities.validation import WrongProperty
from broker.http.atom import INSTANCE, SERVICE_BUS, Description, Element, child, timestamp, top
from broker.http.typed_values import read_value, type_of, write_value

_ITEM: Final = "KeyValueOfstringanyType"
_CORRELATION: Final = (
    ("CorrelationId", "correlation_id"),
    ("MessageId", "message_id"),
    ("To", "to"),
    ("ReplyTo", "reply_to"),
    ("Label", "label"),
    ("SessionId", "session_id"),
    ("ReplyToSessionId", "reply_to_session_id"),
    ("ContentType", "content_type"),
)


def read_rule(description: Description, name: str) -> RuleDescription:
    """Read the rule that a request describes; the name comes from its URL. Raises WrongProperty."""
    rule = read_rule_element(description.element, name)
    return replace(rule, name=name)


def read_rule_element(element: Element, name: str) -> RuleDescription:
    """Read a rule as an element has it. `name` is for a rule without one. Raises WrongProperty."""
    of_filter, of_action = _find(element, "Filter"), _find(element, "Action")
    return RuleDescription(
        _text(element, "Name") or name,
        TrueFilter() if of_filter is None else _read_filter(of_filter),
        None if of_action is None else _read_action(of_action),
    )


def write_rule(rule: RuleDescription) -> Element:
    """Write a rule. Clients fail on one without filter or action, so both are always there."""
    root = top("RuleDescription", SERVICE_BUS, i=INSTANCE)
    _write_filter(root, rule.filter)
    action = etree.SubElement(root, f"{{{SERVICE_BUS}}}Action")
    if rule.action is None:
        _set_type(action, "EmptyRuleAction")
    else:
        _set_type(action, "SqlRuleAction")
        _write_sql(action, rule.action)
    child(root, "CreatedAt", timestamp(rule.created_at_ms))
    child(root, "Name", rule.name)
    return root


def _read_filter(element: Element) -> Filter:
    match type_of(element):
        case "TrueFilter" | None:
            return TrueFilter()
        case "FalseFilter":
            return FalseFilter()
        case "SqlFilter":
            expression, parameters, level = _read_sql(element, "SqlFilter")
            return SqlFilter(expression, parameters, level)
        case "CorrelationFilter":
            given = {field: _text(element, name) or None for name, field in _CORRELATION}
            return CorrelationFilter(**given, properties=_read_values(element, "Properties"))
        case other:
            raise WrongProperty(
                "Filter",
                f"The filter type '{other:.60}' is none of TrueFilter, FalseFilter, SqlFilter, "
                "CorrelationFilter.",
            )


def _read_action(element: Element) -> SqlAction | None:
    match type_of(element):
        case "EmptyRuleAction" | None:
            return None
        case "SqlRuleAction":
            expression, parameters, level = _read_sql(element, "SqlRuleAction")
            return SqlAction(expression, parameters, level)
        case other:
            raise WrongProperty(
                "Action", f"The action type '{other:.60}' is neither EmptyRuleAction nor SqlRuleAction."
            )


def _read_sql(element: Element, name: str) -> tuple[str, NamedValues, int]:
    level = (_text(element, "CompatibilityLevel") or "").strip()
    if level and not level.isdecimal():
        raise WrongProperty(name, f"The CompatibilityLevel '{level:.40}' is not a number.")
    parameters = _read_values(element, "Parameters")
    return _text(element, "SqlExpression"), parameters, int(level) if level else COMPATIBILITY_LEVEL


def _read_values(element: Element, name: str) -> NamedValues:
    values = []
    for item in element.findall(f"{{{SERVICE_BUS}}}{name}/{{{SERVICE_BUS}}}{_ITEM}"):
        key, value = _text(item, "Key"), _find(item, "Value")
        if not key or value is None:
            raise WrongProperty(name, f"An entry of '{name}' has no Key or no Value.")
        try:
            values.append((key, read_value(value)))
        except ValueError as error:
            raise WrongProperty(name, f"The value of '{key:.60}' in '{name}': {error}.") from error
    if len({key for key, _ in values}) != len(values):
        raise WrongProperty(name, f"A name stands twice in '{name}'.")
    return tuple(values)


def _write_filter(root: Element, rule_filter: Filter) -> None:
    element = etree.SubElement(root, f"{{{SERVICE_BUS}}}Filter")
    _set_type(element, type(rule_filter).__name__)
    match rule_filter:
        case TrueFilter():
            _write_sql(element, SqlFilter("1=1"))
        case FalseFilter():
            _write_sql(element, SqlFilter("1=0"))
        case SqlFilter():
            _write_sql(element, rule_filter)
        case CorrelationFilter():
            for name, field in _CORRELATION:
                if (text := getattr(rule_filter, field)) is not None:
                    child(element, name, text)
            _write_values(element, "Properties", rule_filter.properties)


def _write_sql(element: Element, sql: SqlFilter | SqlAction) -> None:
    child(element, "SqlExpression", sql.expression)
    child(element, "CompatibilityLevel", str(sql.compatibility_level))
    _write_values(element, "Parameters", sql.parameters)


def _write_values(parent: Element, name: str, values: NamedValues) -> None:
    if not values:
        return
    element = etree.SubElement(parent, f"{{{SERVICE_BUS}}}{name}")
    for key, value in values:
        item = etree.SubElement(element, f"{{{SERVICE_BUS}}}{_ITEM}")
        child(item, "Key", key)
        write_value(item, value)


def _set_type(element: Element, name: str) -> None:
    element.set(f"{{{INSTANCE}}}type", name)


def _find(element: Element, name: str) -> Element | None:
    return element.find(f"{{{SERVICE_BUS}}}{name}")


def _text(element: Element, name: str) -> str:
    return element.findtext(f"{{{SERVICE_BUS}}}{name}") or ""
