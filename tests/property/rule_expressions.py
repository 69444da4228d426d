"""Random expressions of the SQL language, and a naive evaluation of them: straight from the tables of the
contract (AMQP contract 11.3), without anything of the product.

An expression is a tuple: what it is, and its parts. Values are Python's; a missing property is not in the
message.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

Expression = tuple[Any, ...]

TEXTS = ("", "a", "b", "A", "ab", "ba", "a_b", "a%", "abab")
NAMES = ("a", "b", "c", "d")
SYSTEM_NAMES = ("Label", "To", "CorrelationId", "Nonsense")
"""The last one does not exist."""
PARAMETERS: Mapping[str, Any] = {"@one": 1, "@text": "ab", "@yes": True}


class Failed(Exception):
    """The expression has no result."""


@dataclass(frozen=True)
class Message:
    """What a message has."""

    own: Mapping[str, Any] = field(default_factory=dict)
    system: Mapping[str, str] = field(default_factory=dict)

    def read(self, name: str) -> Any:
        if name.startswith("sys."):
            if name == "sys.Nonsense":
                raise Failed(name)
            return self.system.get(name[4:])
        return self.own.get(name)


# --- random expressions -------------------------------------------------------------------------------------

integers = st.integers(-3, 3) | st.sampled_from((2**31, 2**62, -(2**63) + 1))
floats = st.sampled_from((-1.5, -1.0, 0.0, 0.5, 1.0, 2.0))
constants = st.one_of(integers, integers, floats, st.sampled_from(TEXTS), st.booleans(), st.none())
own_names = st.sampled_from(NAMES)
names = st.one_of(own_names, own_names, own_names, st.sampled_from([f"sys.{each}" for each in SYSTEM_NAMES]))

reads = st.tuples(st.just("read"), names)
leaves = st.one_of(
    st.tuples(st.just("constant"), constants),
    reads,
    reads,
    st.tuples(st.just("parameter"), st.sampled_from(sorted(PARAMETERS))),
    st.tuples(st.just("named"), names),
)
values = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.tuples(st.just("arithmetic"), st.sampled_from("+-*/%"), inner, inner),
        st.tuples(st.just("sign"), st.sampled_from("+-"), reads),
    ),
    max_leaves=3,
)
few_values = st.one_of(leaves, leaves, leaves, values)
patterns = st.text("ab%_", max_size=5)
conditions = st.one_of(
    st.tuples(st.just("compare"), st.sampled_from(("=", "<>", "<", "<=", ">", ">=")), few_values, few_values),
    st.tuples(st.just("compare"), st.just("="), reads, st.tuples(st.just("constant"), constants)),
    st.tuples(
        st.just("compare"),
        st.sampled_from(("<", "<=", ">", ">=")),
        reads,
        st.tuples(st.just("constant"), st.integers(-1, 1)),
    ),
    st.tuples(st.just("null"), names),
    st.tuples(st.just("exists"), names),
    st.tuples(st.just("in"), few_values, st.lists(few_values, min_size=1, max_size=3).map(tuple)),
    st.tuples(st.just("like"), few_values, patterns, st.none() | st.just("a")).filter(
        lambda each: escapes_well(each[2], each[3])
    ),
)
expressions = st.recursive(
    conditions,
    lambda inner: st.one_of(
        st.tuples(st.just("not"), inner),
        st.tuples(st.just("and"), st.lists(inner, min_size=2, max_size=3).map(tuple)),
        st.tuples(st.just("or"), st.lists(inner, min_size=2, max_size=3).map(tuple)),
    ),
    max_leaves=6,
)
messages = st.builds(
    Message,
    st.dictionaries(own_names, st.one_of(st.integers(-3, 3), floats, st.sampled_from(TEXTS), st.booleans(),
                                         st.none())),
    st.dictionaries(st.sampled_from(SYSTEM_NAMES[:-1]), st.sampled_from(TEXTS[1:])),
)  # fmt: skip


def escapes_well(pattern: str, escape: str | None) -> bool:
    """Whether an escape character is followed by what it can escape."""
    if escape is None:
        return True
    rest = pattern.replace(escape * 2, "").replace(f"{escape}%", "").replace(f"{escape}_", "")
    return escape not in rest


def text_of(expression: Expression) -> str:
    """The expression as somebody would write it."""
    match expression:
        case ("constant", value):
            return _constant(value)
        case ("read" | "parameter", name):
            return str(name)
        case ("named", name):
            return f"property('{name}')"
        case ("arithmetic", operator, left, right):
            return f"({text_of(left)} {operator} {text_of(right)})"
        case ("sign", sign, operand):
            return f"{sign}{text_of(operand)}"
        case ("compare", operator, left, right):
            return f"{text_of(left)} {operator} {text_of(right)}"
        case ("null", name):
            return f"{name} IS NULL"
        case ("exists", name):
            return f"EXISTS({name})"
        case ("in", operand, choices):
            return f"{text_of(operand)} IN ({', '.join(map(text_of, choices))})"
        case ("like", operand, pattern, escape):
            more = "" if escape is None else f" ESCAPE '{escape}'"
            return f"{text_of(operand)} LIKE '{pattern}'{more}"
        case ("not", operand):
            return f"NOT ({text_of(operand)})"
        case ("and" | "or" as word, terms):
            return f" {word.upper()} ".join(f"({text_of(term)})" for term in terms)
    raise AssertionError(expression)


def _constant(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return str(value).upper().replace("NONE", "NULL")
    return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else repr(value)


# --- the naive evaluation -----------------------------------------------------------------------------------


def is_true(expression: Expression, message: Message) -> bool:
    """Whether a filter matches. Raises Failed. Where only *true* matters, an AND ends at the first term that
    is not true."""
    match expression:
        case ("and", terms):
            return all(is_true(term, message) for term in terms)
        case ("or", terms):
            return any(is_true(term, message) for term in terms)
    return truth(expression, message) is True


def truth(expression: Expression, message: Message) -> bool | None:
    """True, false or unknown. Raises Failed."""
    match expression:
        case ("and", terms):
            return _first(terms, message, False)
        case ("or", terms):
            return _first(terms, message, True)
        case ("not", operand):
            return {True: False, False: True, None: None}[truth(operand, message)]
        case ("compare", operator, left, right):
            return _compare(operator, value_of(left, message), value_of(right, message))
        case ("null", name):
            return message.read(name) is None
        case ("exists", name):
            return message.read(name) is not None if name.startswith("sys.") else name in message.own
        case ("in", operand, choices):
            value = value_of(operand, message)
            if value is None:
                return None
            found = []
            for choice in choices:
                found.append(_compare("=", value, value_of(choice, message)))
                if found[-1]:
                    return True
            return None if None in found else False
        case ("like", operand, pattern, escape):
            value = value_of(operand, message)
            return _like(value, pattern, escape) if isinstance(value, str) else None
    raise AssertionError(expression)


def _first(terms: tuple[Expression, ...], message: Message, decisive: bool) -> bool | None:
    found: list[bool | None] = []
    for term in terms:
        found.append(truth(term, message))
        if found[-1] is decisive:
            return decisive
    return None if None in found else not decisive


def value_of(expression: Expression, message: Message) -> Any:
    """The value of an expression; None for null. Raises Failed."""
    match expression:
        case ("constant", value):
            return value
        case ("read" | "named", name):
            return message.read(name)
        case ("parameter", name):
            return PARAMETERS[name]
        case ("sign", sign, operand):
            value = value_of(operand, message)
            if value is None:
                return None
            if not _is_number(value):
                raise Failed(expression)
            return -value if sign == "-" else value
        case ("arithmetic", operator, left, right):
            return _calculated(operator, value_of(left, message), value_of(right, message))
    raise AssertionError(expression)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _compare(operator: str, left: Any, right: Any) -> bool | None:
    if left is None or right is None:
        return None
    numbers = _is_number(left) and _is_number(right)
    texts = isinstance(left, str) and isinstance(right, str)
    booleans = isinstance(left, bool) and isinstance(right, bool)
    if operator in ("=", "<>"):
        same = (numbers or texts or booleans) and left == right
        return same if operator == "=" else not same
    if not (numbers or texts):
        return None
    return bool({"<": left < right, "<=": left <= right, ">": left > right, ">=": left >= right}[operator])


def _calculated(operator: str, left: Any, right: Any) -> Any:
    if left is None or right is None:
        return None
    if operator == "+" and isinstance(left, str) and isinstance(right, str):
        return left + right
    if not (_is_number(left) and _is_number(right)):
        raise Failed(operator)
    whole = isinstance(left, int) and isinstance(right, int)
    match operator:
        case "+":
            result = left + right
        case "-":
            result = left - right
        case "*":
            result = left * right
        case _ if right == 0 and whole:
            raise Failed("division by zero")
        case "/" if whole:
            result = abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)
        case "/":
            result = _divided(float(left), float(right))
        case _ if whole:
            result = (
                int(math.copysign(abs(left) % abs(right), left)) if abs(left) < 2**50 else _rest(left, right)
            )
        case _:
            result = math.nan if right == 0 or math.isinf(left) else math.fmod(left, right)
    if whole and not -(2**63) <= result < 2**64:
        raise Failed("does not fit")
    return result


def _rest(left: int, right: int) -> int:
    rest = abs(left) % abs(right)
    return -rest if left < 0 else rest


def _divided(left: float, right: float) -> float:
    if right:
        return left / right
    if left == 0 or math.isnan(left):
        return math.nan
    return math.inf if (left > 0) == (math.copysign(1, right) > 0) else -math.inf


def _like(text: str, pattern: str, escape: str | None) -> bool:
    """One character of the pattern at a time, trying every way to divide the text."""
    if not pattern:
        return not text
    if pattern[0] == escape:
        return text[:1] == pattern[1] and _like(text[1:], pattern[2:], escape)
    if pattern[0] == "%":
        return any(_like(text[cut:], pattern[1:], escape) for cut in range(len(text) + 1))
    return bool(text) and pattern[0] in ("_", text[0]) and _like(text[1:], pattern[1:], escape)
