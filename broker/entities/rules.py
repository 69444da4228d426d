"""Rules of subscriptions as data (AMQP contract 11): filters, actions, and the values they carry.

Everything here is immutable, and can be compared and hashed. Nothing is checked: whether an expression can be
understood is decided by whoever compiles it. This module does not know where rules come from (configuration
file, ATOM, AMQP) or where they are kept (`documents.py`).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TypeAlias

from broker.base.ticks import EPOCH_TICKS

DEFAULT_RULE_NAME = "$Default"
"""The name of the rule that a new subscription gets if its creator gives none."""
COMPATIBILITY_LEVEL = 20
"""The only version of the SQL language that there is."""
DATE_TIME_TICKS_MIN, DATE_TIME_TICKS_MAX = -EPOCH_TICKS, 2_534_023_007_999_999_999
"""The years 1 to 9999, in ticks since the Unix epoch: what clients and XML have dates for."""
EXPRESSION_CHARACTERS_MAX = 1_024
"""Limit of the text of a filter or an action (AMQP contract 11.6)."""
VALUES_BYTES_MAX, VALUE_BYTES_MAX = 65_536, 32_768
"""Limits of all names and values of a filter or an action together, and of each of them (AMQP contract 11.6).
They are those of a message's properties: no message would match a larger filter."""
DURATION_TICKS_MIN, DURATION_TICKS_MAX = -(2**63), 2**63 - 1


class ValueType(enum.Enum):
    """The declared type of a value, by its name in XML (HTTP contract 2.7). It is kept so that a rule is
    shown as it was made; comparisons look at the value alone."""

    STRING = "string"
    BOOLEAN = "boolean"
    BYTE = "byte"
    UNSIGNED_BYTE = "unsignedByte"
    SHORT = "short"
    UNSIGNED_SHORT = "unsignedShort"
    INT = "int"
    UNSIGNED_INT = "unsignedInt"
    LONG = "long"
    UNSIGNED_LONG = "unsignedLong"
    FLOAT = "float"
    DOUBLE = "double"
    DATE_TIME = "dateTime"
    """The value is a number of ticks (`broker/base/ticks.py`) since the Unix epoch."""
    DURATION = "duration"
    """The value is a number of ticks."""
    GUID = "guid"
    """The value is its text: 32 hexadecimal digits with hyphens."""


@dataclass(slots=True, frozen=True)
class RuleValue:
    """A parameter of an expression, or what a correlation filter wants a property to be.

    The declared type is part of it, so `1`, `1.0` and `true` are different values here.
    """

    type: ValueType
    value: str | bool | int | float
    has_zone: bool = True
    """Whether a DATE_TIME was given with a zone. It is in UTC either way, and is shown as it was given."""


NamedValues: TypeAlias = tuple[tuple[str, RuleValue], ...]
"""Names and values in the order in which they were given."""


@dataclass(slots=True, frozen=True)
class TrueFilter:
    """Matches every message."""


@dataclass(slots=True, frozen=True)
class FalseFilter:
    """Matches no message."""


@dataclass(slots=True, frozen=True)
class SqlFilter:
    """Matches the messages for which an expression is true."""

    expression: str
    parameters: NamedValues = ()
    """Names begin with `@`."""
    compatibility_level: int = COMPATIBILITY_LEVEL


@dataclass(slots=True, frozen=True)
class CorrelationFilter:
    """Matches the messages that have every value that is given here. None stands for any value."""

    correlation_id: str | None = None
    message_id: str | None = None
    to: str | None = None
    reply_to: str | None = None
    label: str | None = None
    session_id: str | None = None
    reply_to_session_id: str | None = None
    content_type: str | None = None
    properties: NamedValues = ()
    """Application properties."""


Filter: TypeAlias = TrueFilter | FalseFilter | SqlFilter | CorrelationFilter


@dataclass(slots=True, frozen=True)
class SqlAction:
    """Statements that change a message's properties in the copy that a subscription gets."""

    expression: str
    parameters: NamedValues = ()
    """Names begin with `@`."""
    compatibility_level: int = COMPATIBILITY_LEVEL


@dataclass(slots=True, frozen=True)
class RuleDescription:
    """One rule of a subscription."""

    name: str
    """As spelled at creation; compared without regard to case within the subscription."""
    filter: Filter = TrueFilter()
    action: SqlAction | None = None
    created_at_ms: int = 0
