"""Finds the covers of an expression (`covers.py`): what a message must have for the expression to be true, or
to fail, on it.

    a = 'x'             a is 'x'
    a IN ('x', 'y')     a is 'x' or 'y'
    a > 5 AND a <= 9    a is from 5 to 9
    a LIKE 'x%'         a begins with x
    a <> 5, a LIKE '%x' a is there
    … AND …             any cover of a term, as long as no term before it can fail
    … OR …              a cover of each term, together

Everything else has no cover, and is evaluated for every message.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from decimal import Decimal

from broker.rules.covers import Cover, Key, Prefix, Present, Property, Within, equal_cover
from broker.rules.like import literal_prefix
from broker.rules.message_view import SYSTEM_PROPERTIES
from broker.rules.syntax import (
    And,
    Arithmetic,
    Comparison,
    Constant,
    Exists,
    In,
    IsNull,
    Like,
    Negative,
    Node,
    Not,
    Or,
    Parameter,
    Positive,
    Read,
    ReadNamed,
    children,
)
from broker.rules.values import Value


def can_fail(node: Node) -> bool:
    """Whether evaluating an expression may raise EvaluationFailed."""
    match node:
        case Arithmetic() | Negative() | Positive() | ReadNamed():
            return True
        case Read(property) | Exists(property):
            return property.is_system and property.name not in SYSTEM_PROPERTIES
        case Like(_, pattern, escape) if not (_is_known(pattern) and (escape is None or _is_known(escape))):
            return True
    return any(map(can_fail, children(node)))


def covers_of(node: Node, parameters: Mapping[str, Value]) -> tuple[Cover, ...]:
    """The covers of a condition of which only *true* matters."""
    match node:
        case And(terms):
            return _covers_of_all(terms, parameters)
        case Or(terms):
            return _cover_of_any(terms, parameters)
    if can_fail(node):
        return ()
    match node:
        case Comparison("=", Read(property), other) | Comparison("=", other, Read(property)) if _is_constant(
            other
        ):
            return (_equal_to_one_of(property, [other], parameters),)
        case In(Read(property), choices) if all(map(_is_constant, choices)):
            return (_equal_to_one_of(property, choices, parameters),)
        case Exists(property) | Not(IsNull(Read(property))):
            return (_present(property),)
        case Like(Read(property), Constant(str(pattern)), escape) if prefix := _prefix(pattern, escape):
            return (frozenset((Prefix(property, prefix),)),)
        case Comparison(operator, Read(property), other) if within := _within(
            property, operator, other, parameters
        ):
            return (frozenset((within,)),)
        case Comparison(operator, other, Read(property)) if within := _within(
            property, _MIRRORED[operator], other, parameters
        ):
            return (frozenset((within,)),)
    return tuple(_present(property) for property in _read_at_once(node))


def _covers_of_all(terms: Sequence[Node], parameters: Mapping[str, Value]) -> tuple[Cover, ...]:
    """A term that can fail is only evaluated where the terms before it are true."""
    found: list[Cover] = []
    ranges: dict[Property, Within] = {}
    for term in terms:
        for cover in covers_of(term, parameters):
            match tuple(cover):
                case (Within() as each,):
                    one = ranges.get(each.property, each)
                    low, high = max(one.low, each.low), min(one.high, each.high)
                    ranges[each.property] = Within(each.property, low, high)
                case _:
                    found.append(cover)
        if can_fail(term):
            break
    return (*found, *(frozenset((within,)) for within in ranges.values()))


def _cover_of_any(terms: Sequence[Node], parameters: Mapping[str, Value]) -> tuple[Cover, ...]:
    together: set[Key] = set()
    for term in terms:
        covers = covers_of(term, parameters)
        if not covers:
            return ()
        narrowest: Cover = min(covers, key=_breadth)
        together |= narrowest
    return (frozenset(together),)


def _breadth(cover: Cover) -> tuple[int, int]:
    """Fewer messages are likely to have a value than to be in a range, or to have a property at all."""
    return sum(isinstance(key, Present | Within) for key in cover), len(cover)


def _read_at_once(node: Node) -> Sequence[Property]:
    """Properties of which one that is null makes a condition unknown."""
    match node:
        case Not(In() | Like() | Comparison()):
            return _read_at_once(node.operand)
        case Comparison(_, left, right):
            return [each.property for each in (left, right) if isinstance(each, Read)]
        case In(Read(property)) | Like(Read(property)):
            return [property]
    return ()


def _equal_to_one_of(property: Property, choices: Sequence[Node], parameters: Mapping[str, Value]) -> Cover:
    values = [
        choice.value if isinstance(choice, Constant) else parameters[choice.name]
        for choice in choices
        if isinstance(choice, Constant | Parameter)
    ]
    return equal_cover(property, *(value for value in values if value is not None))


_MIRRORED = {"=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}


def _within(property: Property, operator: str, other: Node, parameters: Mapping[str, Value]) -> Within | None:
    """The range of numbers in which a comparison may be true; None if it is no such comparison."""
    match other:
        case Constant(value):
            pass
        case Parameter(name):
            value = parameters[name]
        case _:
            return None
    if not isinstance(value, int | float | Decimal) or isinstance(value, bool) or value != value:
        return None
    if operator in ("<", "<="):
        return Within(property, -math.inf, value)
    return Within(property, value, math.inf) if operator in (">", ">=") else None


def _prefix(pattern: str, escape: Node | None) -> str:
    """What every text that matches a pattern begins with; the escape is a constant."""
    character = escape.value if isinstance(escape, Constant) else None
    return literal_prefix(pattern, character) if isinstance(character, str | None) else ""


def _present(property: Property) -> Cover:
    return frozenset((Present(property),))


def _is_known(node: Node) -> bool:
    return isinstance(node, Constant)


def _is_constant(node: Node) -> bool:
    return isinstance(node, Constant | Parameter)
