"""Compiles trees to closures: functions that look at a message and give a value, or true, false or unknown.

Logic has three values (AMQP contract 11.3); None stands for unknown. Terms of AND and OR are evaluated from
left to right, until the result is known. Where only *true* matters, which is everywhere but below a NOT, an
AND ends at the first term that is not true, so nothing behind it can fail.

A *dialect* says what the SQL language and selectors do differently: how properties are read, and how values
of different kinds compare.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeAlias, TypeVar

from broker.rules.arithmetic import calculate, kind_of, negated, unchanged
from broker.rules.covers import Property
from broker.rules.like import PATTERN_CHARACTERS_MAX, Matches, WrongPattern, compile_like, searches
from broker.rules.parsing import Invalid
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
    NewId,
    Node,
    Not,
    Or,
    Parameter,
    Positive,
    Read,
    ReadNamed,
)
from broker.rules.values import EvaluationFailed, Value, equal, ordered


class Searched(Protocol):
    """What counts the characters that LIKE looks at."""

    def search(self, characters: int) -> None:
        """So many are searched one by one. Raises EvaluationFailed if these are too many."""

    def pass_over(self, characters: int) -> None:
        """A text is found among so many, which takes far less."""


M = TypeVar("M", bound=Searched)
"""What is looked at: a view of a message."""

Evaluate: TypeAlias = Callable[[M], Value]
Decide: TypeAlias = Callable[[M], bool | None]
Compare: TypeAlias = Callable[[Value, Value], bool | None]


@dataclass(slots=True, frozen=True)
class Dialect(Generic[M]):
    """What a language makes of properties and comparisons."""

    reader: Callable[[Property], Evaluate[M]]
    """A function that reads this property; of one that is missing, it gives None."""
    exists: Callable[[Property], Callable[[M], bool]]
    comparisons: Mapping[str, Compare]
    property_named: Callable[[str], Property]
    """The property that a text names."""


def _less(left: Value, right: Value) -> bool | None:
    return left < right if ordered(left, right) else None  # type: ignore[operator]


def _not_more(left: Value, right: Value) -> bool | None:
    return left <= right if ordered(left, right) else None  # type: ignore[operator]


def _different(left: Value, right: Value) -> bool | None:
    same = equal(left, right)
    return None if same is None else not same


SQL_COMPARISONS: Mapping[str, Compare] = {
    "=": equal,
    "<>": _different,
    "<": _less,
    "<=": _not_more,
    ">": lambda left, right: _less(right, left),
    ">=": lambda left, right: _not_more(right, left),
}
"""Values of different kinds are different; whether one of them comes first is unknown, as with NaN."""


class Compiler(Generic[M]):
    """Compiles the trees of one text."""

    def __init__(self, dialect: Dialect[M], parameters: Mapping[str, Value] | None = None) -> None:
        self._dialect, self._parameters = dialect, parameters or {}

    def condition(self, node: Node, *, only_true: bool) -> Decide[M]:
        """Compile a condition. `only_true`: the caller does not tell false and unknown apart. Raises
        Invalid."""
        match node:
            case And():
                terms = [self.condition(term, only_true=only_true) for term in node.terms]
                return _all_true(terms) if only_true else _and(terms)
            case Or():
                return _or([self.condition(term, only_true=only_true) for term in node.terms])
            case Not():
                return _not(self.condition(node.operand, only_true=False))
            case Comparison():
                return _comparison(
                    self._dialect.comparisons[node.operator], self.value(node.left), self.value(node.right)
                )
            case IsNull():
                operand = self.value(node.operand)
                return lambda message: operand(message) is None
            case In():
                return _in(
                    self._dialect.comparisons["="],
                    self.value(node.operand),
                    [self.value(choice) for choice in node.choices],
                )
            case Like():
                return self._like(node)
            case Exists():
                return self._dialect.exists(node.property)
            case _:  # a boolean value, which only selectors have as a condition
                operand = self.value(node)
                return lambda message: value if isinstance(value := operand(message), bool) else None

    def value(self, node: Node) -> Evaluate[M]:
        """Compile an expression. Raises Invalid."""
        match node:
            case Constant():
                constant = node.value
                return lambda message: constant
            case Parameter():
                if node.name not in self._parameters:
                    raise Invalid(node.position, f"there is no parameter '{node.name}'")
                parameter = self._parameters[node.name]
                return lambda message: parameter
            case Read():
                return self._dialect.reader(node.property)
            case ReadNamed():
                return self._named(self.value(node.name))
            case NewId():
                return lambda message: uuid.uuid4()
            case Negative() | Positive():
                change, operand = (
                    negated if isinstance(node, Negative) else unchanged,
                    self.value(node.operand),
                )
                return lambda message: change(operand(message))
            case Arithmetic():
                operator, left, right = node.operator, self.value(node.left), self.value(node.right)
                return lambda message: calculate(operator, left(message), right(message))
            case _:
                return self.condition(node, only_true=False)

    def _named(self, name_of: Evaluate[M]) -> Evaluate[M]:
        dialect = self._dialect

        def read(message: M) -> Value:
            name = name_of(message)
            if name is None:
                return None
            if not isinstance(name, str):
                raise EvaluationFailed(f"The name of a property is a text, not {kind_of(name)}.")
            return dialect.reader(dialect.property_named(name))(message)

        return read

    def _like(self, node: Like) -> Decide[M]:
        operand, pattern = self.value(node.operand), self.value(node.pattern)
        if isinstance(node.pattern, Constant) and isinstance(node.escape, Constant | None):
            escape = None if node.escape is None else node.escape.value
            if node.pattern.value is None or (node.escape is not None and escape is None):
                return lambda message: None
            matches = _constant_like(node, node.pattern.value, escape)
            if searches(node.pattern.value, escape):
                return _searching(matches, operand)
            return _finding(matches, operand)
        escape_of: Evaluate[M] = (lambda message: "") if node.escape is None else self.value(node.escape)
        without_escape = node.escape is None

        def decide(message: M) -> bool | None:
            text, wanted, escape = operand(message), pattern(message), escape_of(message)
            if not (isinstance(text, str) and isinstance(wanted, str) and isinstance(escape, str)):
                return None
            if len(wanted) > PATTERN_CHARACTERS_MAX:
                raise EvaluationFailed(
                    f"A LIKE has a pattern of {len(wanted)} characters, more than {PATTERN_CHARACTERS_MAX}."
                )
            chosen = None if without_escape else escape
            try:
                if searches(wanted, chosen):
                    message.search(len(text))
                else:
                    message.pass_over(len(text))
                return compile_like(wanted, chosen)(text)
            except WrongPattern as wrong:
                raise EvaluationFailed(f"A LIKE has no result: {wrong}.") from wrong

        return decide


def _constant_like(node: Like, pattern: Value, escape: Value) -> Matches:
    if not isinstance(pattern, str) or not isinstance(escape, str | None):
        raise Invalid(node.position, "the pattern and the escape of a LIKE are texts")
    try:
        return compile_like(pattern, escape)
    except WrongPattern as wrong:
        raise Invalid(node.position, str(wrong)) from wrong


def _searching(matches: Matches, operand: Evaluate[M]) -> Decide[M]:
    def decide(message: M) -> bool | None:
        text = operand(message)
        if not isinstance(text, str):
            return None
        message.search(len(text))
        return matches(text)

    return decide


def _finding(matches: Matches, operand: Evaluate[M]) -> Decide[M]:
    def decide(message: M) -> bool | None:
        text = operand(message)
        if not isinstance(text, str):
            return None
        message.pass_over(len(text))
        return matches(text)

    return decide


def _comparison(compare: Compare, left: Evaluate[M], right: Evaluate[M]) -> Decide[M]:
    return lambda message: compare(left(message), right(message))


def _not(operand: Decide[M]) -> Decide[M]:
    def decide(message: M) -> bool | None:
        result = operand(message)
        return None if result is None else not result

    return decide


def _all_true(terms: Sequence[Decide[M]]) -> Decide[M]:
    def decide(message: M) -> bool | None:
        for term in terms:  # noqa: SIM110 (a generator costs more than the terms)
            if not term(message):
                return False
        return True

    return decide


def _and(terms: Sequence[Decide[M]]) -> Decide[M]:
    def decide(message: M) -> bool | None:
        known: bool | None = True
        for term in terms:
            result = term(message)
            if result is False:
                return False
            if result is None:
                known = None
        return known

    return decide


def _or(terms: Sequence[Decide[M]]) -> Decide[M]:
    def decide(message: M) -> bool | None:
        known: bool | None = False
        for term in terms:
            result = term(message)
            if result:
                return True
            if result is None:
                known = None
        return known

    return decide


def _in(same: Compare, operand: Evaluate[M], choices: Sequence[Evaluate[M]]) -> Decide[M]:
    """As if each choice were compared with `=`, joined by OR."""

    def decide(message: M) -> bool | None:
        value = operand(message)
        if value is None:
            return None
        known: bool | None = False
        for choice in choices:
            result = same(value, choice(message))
            if result:
                return True
            if result is None:
                known = None
        return known

    return decide
