"""Rules in the bodies of `$management` requests and responses (AMQP contract 7.3.10). Pure.

A request describes a rule with maps, a response with described lists, whose descriptors are:

    0x13700000004  rule: filter, action, name, created    0x1370000006  SQL filter: expression, level
    0x13700000005  empty action                           0x1370000007  true filter
    0x13700000006  SQL action: expression, level          0x1370000008  false filter
                                                          0x1370000009  correlation filter

Expressions have no parameters in either: the clients send and read the expression alone.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from typing import Any, Final

from broker.base.errors import Reason, Refused
from broker.base.ticks import EPOCH_TICKS, TICKS_PER_MS
from broker.entities.rules import (
    DATE_TIME_TICKS_MAX,
    DATE_TIME_TICKS_MIN,
    DURATION_TICKS_MAX,
    DURATION_TICKS_MIN,
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
from broker.frontend.nodes.bodies import check_fields
from protocol.codec import (
    Byte,
    Char,
    Described,
    Float,
    Int,
    Long,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
)

_RULE, _EMPTY_ACTION, _SQL_ACTION = ULong(0x137_0000_0004), ULong(0x137_0000_0005), ULong(0x137_0000_0006)
_SQL_FILTER, _TRUE_FILTER = ULong(0x13_7000_0006), ULong(0x13_7000_0007)
_FALSE_FILTER, _CORRELATION_FILTER = ULong(0x13_7000_0008), ULong(0x13_7000_0009)
_TIME_SPAN, _DATE_TIME_OFFSET = "com.microsoft:timespan", "com.microsoft:datetime-offset"
"""The .NET client's descriptors for types that AMQP does not have, both in ticks."""
_CORRELATION_FIELDS: Final = {
    "correlation-id": "correlation_id",
    "message-id": "message_id",
    "to": "to",
    "reply-to": "reply_to",
    "label": "label",
    "session-id": "session_id",
    "reply-to-session-id": "reply_to_session_id",
    "content-type": "content_type",
}
"""In the order in which a response has them."""
_DESCRIPTION_FIELDS = frozenset(("sql-filter", "correlation-filter", "sql-rule-action", "rule-name"))


def rule_of(body: Mapping[str, Any]) -> RuleDescription:
    """The rule that a request adds. Raises Refused(ARGUMENT)."""
    name = rule_name_of(body)
    description = _map(body, "rule-description")
    check_fields(description, _DESCRIPTION_FIELDS, "'rule-description'")
    if (inner := description.get("rule-name")) not in (None, name):
        raise _wrong(f"'rule-name' is '{name:.80}', but {inner!r:.80} in 'rule-description'")
    action = None
    if description.get("sql-rule-action") is not None:
        action = SqlAction(_expression(description, "sql-rule-action"))
    return RuleDescription(name, _filter_of(description), action)


def rule_name_of(body: Mapping[str, Any]) -> str:
    """The name of the rule that a request is about. Raises Refused(ARGUMENT)."""
    name = body.get("rule-name")
    if not isinstance(name, str):
        raise _wrong("'rule-name' must be a string")
    return str(name)


def described_rule(rule: RuleDescription) -> Described:
    """A rule as a response has it."""
    action = (
        Described(_EMPTY_ACTION, [])
        if rule.action is None
        else Described(_SQL_ACTION, [rule.action.expression, Int(rule.action.compatibility_level)])
    )
    return Described(
        _RULE, [_described_filter(rule.filter), action, rule.name, Timestamp(rule.created_at_ms)]
    )


def _filter_of(description: Mapping[str, Any]) -> Filter:
    sql, correlation = description.get("sql-filter"), description.get("correlation-filter")
    if (sql is None) is (correlation is None):
        raise _wrong("'rule-description' must have either a 'sql-filter' or a 'correlation-filter'")
    if sql is not None:
        return SqlFilter(_expression(description, "sql-filter"))
    fields = _map(description, "correlation-filter")
    check_fields(fields, frozenset((*_CORRELATION_FIELDS, "properties")), "'correlation-filter'")
    given = {}
    for name, field in _CORRELATION_FIELDS.items():
        value = fields.get(name)
        if not (value is None or isinstance(value, str)):
            raise _wrong(f"'{name}' must be a string")
        if value == "":
            raise _wrong(f"'{name}' cannot be empty: leave it out, or match an empty text with a SQL filter")
        given[field] = None if value is None else str(value)
    return CorrelationFilter(**given, properties=_values_of(fields))


def _values_of(fields: Mapping[str, Any]) -> NamedValues:
    if fields.get("properties") is None:
        return ()
    return tuple((name, _value_of(name, value)) for name, value in _map(fields, "properties").items())


_READERS: Final[Mapping[type, tuple[ValueType, Callable[[Any], str | bool | int | float]]]] = {
    str: (ValueType.STRING, str),
    Symbol: (ValueType.STRING, str),
    Char: (ValueType.STRING, str),
    bool: (ValueType.BOOLEAN, bool),
    Byte: (ValueType.BYTE, int),
    UByte: (ValueType.UNSIGNED_BYTE, int),
    Short: (ValueType.SHORT, int),
    UShort: (ValueType.UNSIGNED_SHORT, int),
    Int: (ValueType.INT, int),
    UInt: (ValueType.UNSIGNED_INT, int),
    Long: (ValueType.LONG, int),
    ULong: (ValueType.UNSIGNED_LONG, int),
    int: (ValueType.INT, int),
    Float: (ValueType.FLOAT, float),
    float: (ValueType.DOUBLE, float),
    Timestamp: (ValueType.DATE_TIME, lambda value: int(value) * TICKS_PER_MS),
    uuid.UUID: (ValueType.GUID, str),
}


def _value_of(name: str, value: object) -> RuleValue:
    read = _read(name, value)
    limits = _TICKS.get(read.type)
    if limits is not None and not limits[0] <= int(read.value) <= limits[1]:
        raise _wrong(
            f"the property '{name:.80}' of a correlation filter is beyond what a {read.type.value} can be"
        )
    return read


_TICKS: Final = {
    ValueType.DATE_TIME: (DATE_TIME_TICKS_MIN, DATE_TIME_TICKS_MAX),
    ValueType.DURATION: (DURATION_TICKS_MIN, DURATION_TICKS_MAX),
}
"""What responses can show again, in XML too."""


def _read(name: str, value: object) -> RuleValue:
    if isinstance(value, Described) and isinstance(value.value, int):
        if str(value.descriptor) == _TIME_SPAN:
            return RuleValue(ValueType.DURATION, int(value.value))
        if str(value.descriptor) == _DATE_TIME_OFFSET:
            return RuleValue(ValueType.DATE_TIME, int(value.value) - EPOCH_TICKS)
    if type(value) not in _READERS:
        raise _wrong(f"the property '{name:.80}' of a correlation filter cannot be {value!r:.80}")
    declared, read = _READERS[type(value)]
    return RuleValue(declared, read(value))


def _described_filter(rule_filter: Filter) -> Described:
    match rule_filter:
        case TrueFilter():
            return Described(_TRUE_FILTER, [])
        case FalseFilter():
            return Described(_FALSE_FILTER, [])
        case SqlFilter():
            return Described(_SQL_FILTER, [rule_filter.expression, Int(rule_filter.compatibility_level)])
        case CorrelationFilter():
            fields = [getattr(rule_filter, field) for field in _CORRELATION_FIELDS.values()]
            properties = {name: _as_amqp(value) for name, value in rule_filter.properties}
            return Described(_CORRELATION_FILTER, [*fields, properties])


_WRITERS: Final[Mapping[ValueType, Callable[[Any], object]]] = {
    ValueType.STRING: str,
    ValueType.BOOLEAN: bool,
    ValueType.BYTE: Byte,
    ValueType.UNSIGNED_BYTE: UByte,
    ValueType.SHORT: Short,
    ValueType.UNSIGNED_SHORT: UShort,
    ValueType.INT: Int,
    ValueType.UNSIGNED_INT: UInt,
    ValueType.LONG: Long,
    ValueType.UNSIGNED_LONG: ULong,
    ValueType.FLOAT: Float,
    ValueType.DOUBLE: float,
    ValueType.DATE_TIME: lambda ticks: Timestamp(ticks // TICKS_PER_MS),
    ValueType.DURATION: lambda ticks: Described(Symbol(_TIME_SPAN), Long(ticks)),
    ValueType.GUID: uuid.UUID,
}


def _as_amqp(value: RuleValue) -> object:
    return _WRITERS[value.type](value.value)


def _expression(description: Mapping[str, Any], name: str) -> str:
    fields = _map(description, name)
    check_fields(fields, frozenset(("expression",)), f"'{name}'")
    expression = fields.get("expression")
    if not isinstance(expression, str):
        raise _wrong(f"'{name}' needs an 'expression', which is a string")
    return str(expression)


def _map(body: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = body.get(name)
    if not isinstance(value, dict):
        raise _wrong(f"'{name}' must be a map")
    return {str(key): each for key, each in value.items()}


def _wrong(text: str) -> Refused:
    return Refused(Reason.ARGUMENT, f"{text}.")
