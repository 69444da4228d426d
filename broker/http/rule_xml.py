"""Converts rules between XML and `RuleDescription` (HTTP contract 2.7).

The type of a filter decides, and not its text: clients write the expression of a false filter differently.
Whatever cannot be understood is refused: a part of a rule that got lost would make it match or change other
messages than its author meant.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
_RULE_PARTS: Final = ("Filter", "Action", "CreatedAt", "Name")
_SQL_PARTS: Final = ("SqlExpression", "CompatibilityLevel", "Parameters", "RequiresPreprocessing")
_CORRELATION_PARTS: Final = (*(name for name, _ in _CORRELATION), "Properties")
_NIL: Final = f"{{{INSTANCE}}}nil"


def read_rule(description: Description, name: str) -> RuleDescription:
    """Read the rule that a request describes; the name comes from its URL. Raises WrongProperty."""
    rule = read_rule_element(description.element, name)
    return replace(rule, name=name)


def read_rule_element(element: Element, name: str) -> RuleDescription:
    """Read a rule as an element has it. `name` is for a rule without one. Raises WrongProperty."""
    parts = _parts(element, _RULE_PARTS)
    of_filter, of_action = parts.get("Filter"), parts.get("Action")
    return RuleDescription(
        _text(parts, "Name") or name,
        TrueFilter() if of_filter is None or _is_empty(of_filter) else _read_filter(of_filter),
        None if of_action is None or _is_empty(of_action) else _read_action(of_action),
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
        case "TrueFilter":
            _parts(element, _SQL_PARTS)
            return TrueFilter()
        case "FalseFilter":
            _parts(element, _SQL_PARTS)
            return FalseFilter()
        case "SqlFilter":
            expression, parameters, level = _read_sql(element)
            return SqlFilter(expression, parameters, level)
        case "CorrelationFilter":
            parts = _parts(element, _CORRELATION_PARTS)
            given = {field: _text(parts, name) or None for name, field in _CORRELATION}
            return CorrelationFilter(**given, properties=_read_values(parts, "Properties"))
        case other:
            raise _wrong_type("Filter", other, "TrueFilter, FalseFilter, SqlFilter, CorrelationFilter")


def _read_action(element: Element) -> SqlAction | None:
    match type_of(element):
        case "EmptyRuleAction":
            _parts(element, ())
            return None
        case "SqlRuleAction":
            expression, parameters, level = _read_sql(element)
            return SqlAction(expression, parameters, level)
        case other:
            raise _wrong_type("Action", other, "EmptyRuleAction, SqlRuleAction")


def _wrong_type(element: str, given: str | None, known: str) -> WrongProperty:
    if given is None:
        return WrongProperty(element, f"The element '{element}' has no i:type, which must be one of {known}.")
    return WrongProperty(element, f"The type '{given:.60}' of the element '{element}' is none of {known}.")


def _read_sql(element: Element) -> tuple[str, NamedValues, int]:
    parts = _parts(element, _SQL_PARTS)
    level = _text(parts, "CompatibilityLevel").strip()
    if level and not level.isdecimal():
        raise WrongProperty("CompatibilityLevel", f"The CompatibilityLevel '{level:.40}' is not a number.")
    parameters = _read_values(parts, "Parameters")
    return _text(parts, "SqlExpression"), parameters, int(level) if level else COMPATIBILITY_LEVEL


def _read_values(parts: Mapping[str, Element], name: str) -> NamedValues:
    if name not in parts:
        return ()
    values = []
    for item in parts[name]:
        if item.tag != f"{{{SERVICE_BUS}}}{_ITEM}":
            raise _unknown(item, parts[name], (_ITEM,))
        entry = _parts(item, ("Key", "Value"))
        key, value = _text(entry, "Key"), entry.get("Value")
        if not key or value is None:
            raise WrongProperty(name, f"An entry of '{name}' has no Key or no Value.")
        try:
            values.append((key, read_value(value)))
        except ValueError as error:
            raise WrongProperty(name, f"The value of '{key:.60}' in '{name}': {error}.") from error
    if len({key for key, _ in values}) != len(values):
        raise WrongProperty(name, f"A name stands twice in '{name}'.")
    return tuple(values)


def _parts(element: Element, known: Sequence[str]) -> dict[str, Element]:
    """The children of an element, by name. Raises WrongProperty for one that is unknown or stands twice."""
    parts: dict[str, Element] = {}
    for part in element:
        name = etree.QName(part)
        if name.namespace != SERVICE_BUS or name.localname not in known:
            raise _unknown(part, element, known)
        if name.localname in parts:
            parent = etree.QName(element).localname
            raise WrongProperty(
                name.localname, f"The element '{parent}' has more than one element '{name.localname}'."
            )
        parts[name.localname] = part
    return parts


def _unknown(part: Element, parent: Element, known: Sequence[str]) -> WrongProperty:
    name, inside = etree.QName(part), etree.QName(parent).localname
    if name.localname in known:
        where = f"is in the namespace '{name.namespace or '':.100}' and not in {SERVICE_BUS}"
    else:
        where = f"is none of {', '.join(known)}" if known else "has no place there"
    return WrongProperty(
        name.localname, f"The element '{name.localname:.60}' in the element '{inside}' {where}."
    )


def _text(parts: Mapping[str, Element], name: str) -> str:
    """The text of a part; empty if it is missing. Raises WrongProperty if there are elements in it."""
    part = parts.get(name)
    if part is None:
        return ""
    _parts(part, ())
    return part.text or ""


def _is_empty(element: Element) -> bool:
    """Whether an element stands for a missing one, as the older .NET library writes that (`i:nil`)."""
    return not len(element) and not (element.text or "").strip() and set(element.attrib) <= {_NIL}


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
