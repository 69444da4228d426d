"""The SQL language of filters and actions (AMQP contract 11.2, 11.5). Its grammar is in `sql.lark`."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import Any

from lark import Token

from broker.base.errors import Reason, Refused
from broker.rules.covers import Property
from broker.rules.evaluating import SQL_COMPARISONS, Dialect, Evaluate
from broker.rules.message_view import SYSTEM_PROPERTIES, MessageView
from broker.rules.parsing import ExpressionBuilder, Invalid, Language, check_trees, position_of
from broker.rules.syntax import (
    Exists,
    IsNull,
    NewId,
    Node,
    Not,
    Parameter,
    Read,
    ReadNamed,
    RemoveProperty,
    SetProperty,
    Statement,
)

STATEMENTS_MAX = 32
"""Limit of an action (AMQP contract 11.6)."""

_SCOPE = re.compile(r"\s*(sys|user)\s*\.\s*(.*)", re.IGNORECASE | re.DOTALL)


def parse_filter(text: str) -> Node:
    """The tree of a filter's expression. Raises Refused(ARGUMENT)."""
    tree: Node = _language().parse(text, "filter", "filter")
    check_trees([tree], "filter")
    return tree


def parse_action(text: str) -> tuple[Statement, ...]:
    """The statements of an action, in order. Raises Refused(ARGUMENT)."""
    statements: tuple[Statement, ...] = _language().parse(text, "action", "action")
    if not statements:
        raise Refused(Reason.ARGUMENT, "The action has no statement.")
    if len(statements) > STATEMENTS_MAX:
        raise Refused(
            Reason.ARGUMENT, f"The action has {len(statements)} statements; the limit is {STATEMENTS_MAX}."
        )
    check_trees([each.value for each in statements if isinstance(each, SetProperty)], "action")
    return statements


def property_named(name: str) -> Property:
    """The property that a text names, with its scope if it has one: `sys.Label`, `user.colour`, `colour`."""
    scoped = _SCOPE.fullmatch(name)
    if scoped is None:
        return Property(name.casefold())
    return Property(scoped[2].casefold(), is_system=scoped[1].casefold() == "sys")


class _Named:
    """A property in a text: which one, how it is spelled, and where."""

    __slots__ = ("position", "property", "spelling")

    def __init__(self, scope: Token | None, name: Token) -> None:
        self.position = position_of(name if scope is None else scope)
        self.spelling = _unquoted(name)
        is_system = scope is not None and scope[:3].casefold() == "sys"
        self.property = Property(self.spelling.casefold(), is_system)


def _unquoted(name: Token) -> str:
    if name.type == "QUOTED":
        return name[1:-1].replace('""', '"')
    return name[1:-1].replace("]]", "]") if name.type == "BRACKETED" else str(name)


class _SqlBuilder(ExpressionBuilder):
    def filter(self, parts: list[Node]) -> Node:
        return parts[0]

    def action(self, parts: list[Statement | None]) -> tuple[Statement, ...]:
        return tuple(part for part in parts if part is not None)

    def set_property(self, parts: list[Any]) -> Statement:
        named, _, value = parts
        return SetProperty(named.property, named.spelling, value, named.position)

    def remove_property(self, parts: list[_Named]) -> Statement:
        return RemoveProperty(parts[0].property, parts[0].position)

    def property(self, parts: list[Any]) -> _Named:
        scope, name = parts
        return _Named(scope, name)

    def read(self, parts: list[_Named]) -> Node:
        return Read(parts[0].property, parts[0].position)

    def parameter(self, tokens: list[Token]) -> Node:
        return Parameter(tokens[0].casefold(), position_of(tokens[0]))

    def is_null(self, parts: list[_Named]) -> Node:
        return IsNull(Read(parts[0].property))

    def is_not_null(self, parts: list[_Named]) -> Node:
        return Not(self.is_null(parts))

    def exists(self, parts: list[_Named]) -> Node:
        return Exists(parts[0].property)

    def call(self, parts: list[Any]) -> Node:
        name: Token = parts[0]
        arguments: tuple[Node, ...] = parts[1] or ()
        match name.casefold():
            case "newid":
                _check_count(name, len(arguments), 0)
                return NewId()
            case "property" | "p":
                _check_count(name, len(arguments), 1)
                return ReadNamed(arguments[0])
        raise Invalid(position_of(name), f"there is no function '{name:.40}'")


def _check_count(name: Token, given: int, wanted: int) -> None:
    if given != wanted:
        raise Invalid(
            position_of(name),
            f"the function '{name}' takes {wanted} argument{'s' * (wanted != 1)}, not {given}",
        )


@cache
def _language() -> Language:
    """Made when it is first needed, because that takes some 50 ms."""
    return Language("sql.lark", ("filter", "action"), _SqlBuilder())


def _reader(property: Property) -> Evaluate[MessageView]:
    name = property.name
    if property.is_system:
        return SYSTEM_PROPERTIES.get(name) or (lambda message: message.system_property(name))
    return lambda message: message.application_property(name)


def _exists(property: Property) -> Callable[[MessageView], bool]:
    name = property.name
    if property.is_system:
        return lambda message: message.system_property(name) is not None
    return lambda message: message.has(name)


SQL_DIALECT: Dialect[MessageView] = Dialect(_reader, _exists, SQL_COMPARISONS, property_named)
