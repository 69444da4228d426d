"""What a message must have for a filter to match it: the keys under which an index finds filters. Pure.

A *cover* of a filter is a set of keys such that the filter can only match, or fail on, a message that has at
least one of them. The index keeps a filter under the keys of one of its covers, and evaluates it for no other
messages.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import TypeAlias

from broker.rules.values import Value, key_of


@dataclass(slots=True, frozen=True)
class Property:
    """A property of a message, by its folded name."""

    name: str
    is_system: bool = False


@dataclass(slots=True, frozen=True)
class Equal:
    """The property has this value, given by its key (`values.key_of`)."""

    property: Property
    value: object


@dataclass(slots=True, frozen=True)
class Present:
    """The property is there; it may be null."""

    property: Property


@dataclass(slots=True, frozen=True)
class Prefix:
    """The property is a text that begins with this one, which is not empty."""

    property: Property
    text: str


@dataclass(slots=True, frozen=True)
class Within:
    """The property is a number from `low` to `high`."""

    property: Property
    low: float | Decimal
    high: float | Decimal


Key: TypeAlias = Equal | Present | Prefix | Within
Cover: TypeAlias = frozenset[Key]


def equal_cover(property: Property, *values: Value) -> Cover:
    """The cover of a filter that wants one of these values, none of which is null."""
    return frozenset(Equal(property, key_of(value)) for value in values)
