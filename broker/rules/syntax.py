"""Expressions as trees: what a parser makes of a text, and what is evaluated.

SQL filters and selectors have grammars of their own, but the same trees. A position is the number of the
character in the text at which something begins, from 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from broker.rules.covers import Property
from broker.rules.values import Value


@dataclass(slots=True, frozen=True)
class Constant:
    """A value that the text gives: `'red'`, `5`, `NULL`."""

    value: Value
    position: int = field(default=1, compare=False)


@dataclass(slots=True, frozen=True)
class Parameter:
    """A value that is given beside the text."""

    name: str
    """Folded; begins with `@`."""
    position: int


@dataclass(slots=True, frozen=True)
class Read:
    """The value of a property."""

    property: Property
    position: int = field(default=1, compare=False)


@dataclass(slots=True, frozen=True)
class ReadNamed:
    """The value of the property whose name an expression gives."""

    name: Node


@dataclass(slots=True, frozen=True)
class NewId:
    """A guid that nobody has had before."""


@dataclass(slots=True, frozen=True)
class Negative:
    """A number or time span with `-` before it."""

    operand: Node


@dataclass(slots=True, frozen=True)
class Positive:
    """A number or time span with `+` before it."""

    operand: Node


@dataclass(slots=True, frozen=True)
class Arithmetic:
    """What two values give together: `price * 2`."""

    operator: str
    """One of + - * / %."""
    left: Node
    right: Node


@dataclass(slots=True, frozen=True)
class Comparison:
    """Whether two values compare so: `price > 5`."""

    operator: str
    """One of = <> < <= > >=."""
    left: Node
    right: Node


@dataclass(slots=True, frozen=True)
class IsNull:
    """Whether a value is null, or the property is missing: `colour IS NULL`."""

    operand: Node


@dataclass(slots=True, frozen=True)
class In:
    """Whether a value equals one of some others: `colour IN ('red', 'blue')`."""

    operand: Node
    choices: Sequence[Node]


@dataclass(slots=True, frozen=True)
class Like:
    """Whether a text matches a pattern (`like.py`): `colour LIKE 'r%'`."""

    operand: Node
    pattern: Node
    escape: Node | None
    position: int


@dataclass(slots=True, frozen=True)
class Exists:
    """Whether a message has a property, which may be null: `EXISTS (colour)`."""

    property: Property


@dataclass(slots=True, frozen=True)
class Not:
    """The opposite of a condition; unknown if that is unknown."""

    operand: Node


@dataclass(slots=True, frozen=True)
class And:
    """Whether all terms are true."""

    terms: Sequence[Node]


@dataclass(slots=True, frozen=True)
class Or:
    """Whether one of the terms is true."""

    terms: Sequence[Node]


Node: TypeAlias = (
    Constant | Parameter | Read | ReadNamed | NewId | Negative | Positive | Arithmetic | Comparison | IsNull
    | In | Like | Exists | Not | And | Or
)  # fmt: skip


@dataclass(slots=True, frozen=True)
class SetProperty:
    """A statement of an action. `value` is what the property gets."""

    property: Property
    name: str
    """As spelled in the statement."""
    value: Node
    position: int


@dataclass(slots=True, frozen=True)
class RemoveProperty:
    """A statement of an action."""

    property: Property
    position: int


Statement: TypeAlias = SetProperty | RemoveProperty


def children(node: Node) -> Sequence[Node]:
    """The parts of an expression that are expressions themselves."""
    match node:
        case Constant() | Parameter() | Read() | NewId() | Exists():
            return ()
        case ReadNamed():
            return (node.name,)
        case Negative() | Positive() | IsNull() | Not():
            return (node.operand,)
        case Arithmetic() | Comparison():
            return node.left, node.right
        case In():
            return node.operand, *node.choices
        case Like():
            return (node.operand, node.pattern) + (() if node.escape is None else (node.escape,))
        case And() | Or():
            return node.terms
