"""Parses expressions: text to trees, for the SQL language and for selectors. Refusals name the position and
the reason.

A language is a grammar file, read by Lark, and a builder: one method for each rule of the grammar, which Lark
calls while it parses. Neither needs recursion, so a text cannot exhaust the stack. A tree that is too deep or
too large is refused before anything walks it recursively.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lark import Lark, Token, Transformer, UnexpectedCharacters, UnexpectedToken

from broker.base.errors import Reason, Refused
from broker.entities.rules import EXPRESSION_CHARACTERS_MAX
from broker.rules.syntax import (
    And,
    Arithmetic,
    Comparison,
    Constant,
    In,
    Like,
    Negative,
    Node,
    Not,
    Or,
    Positive,
    children,
)

DEPTH_MAX = 32
"""Limit of how deeply expressions are nested. A chain of AND or OR counts as one level."""
NODES_MAX = 1_024
"""Limit of the parts of an expression."""

_INTEGER_MIN, _INTEGER_MAX = -(2**63), 2**63 - 1


class Invalid(Exception):
    """What is wrong with an expression, and at which position."""

    def __init__(self, position: int, reason: str) -> None:
        super().__init__(reason)
        self.position, self.reason = position, reason


def position_of(token: Token) -> int:
    """The number of the token's first character in the text, from 1."""
    return (token.start_pos or 0) + 1


class ExpressionBuilder(Transformer[Token, Any]):
    """Makes trees of what the grammars have in common."""

    def any_of(self, terms: list[Node]) -> Node:
        return terms[0] if len(terms) == 1 else Or(tuple(terms))

    def all_of(self, terms: list[Node]) -> Node:
        return terms[0] if len(terms) == 1 else And(tuple(terms))

    def not_true(self, operands: list[Node]) -> Node:
        return Not(operands[0])

    def comparison(self, parts: list[Any]) -> Node:
        left, operator, right = parts
        return Comparison(operator, left, right)

    def operator(self, tokens: list[Token]) -> str:
        return "<>" if tokens[0] == "!=" else str(tokens[0])

    def arithmetic(self, parts: list[Any]) -> Node:
        left, operator, right = parts
        return Arithmetic(str(operator), left, right)

    def sign(self, parts: list[Any]) -> Node:
        sign, operand = parts
        if sign == "+":
            return Positive(operand)
        if isinstance(operand, Constant) and type(operand.value) in (int, float):
            return Constant(-operand.value, operand.position)  # type: ignore[operator]
        return Negative(operand)

    def like(self, parts: list[Any]) -> Node:
        operand, keyword, pattern, escape = parts
        return Like(operand, pattern, escape, position_of(keyword))

    def not_like(self, parts: list[Any]) -> Node:
        return Not(self.like(parts))

    def choices(self, parts: list[Node]) -> tuple[Node, ...]:
        return tuple(parts)

    def is_in(self, parts: list[Any]) -> Node:
        operand, choices = parts
        return In(operand, choices)

    def is_not_in(self, parts: list[Any]) -> Node:
        return Not(self.is_in(parts))

    def integer(self, tokens: list[Token]) -> Node:
        value = int(tokens[0])
        if value > -_INTEGER_MIN:  # that one may follow a minus; `check_trees` refuses it elsewhere
            raise _too_large(value, position_of(tokens[0]))
        return Constant(value, position_of(tokens[0]))

    def decimal(self, tokens: list[Token]) -> Node:
        return Constant(float(tokens[0]), position_of(tokens[0]))

    def null(self, _: list[Token]) -> Node:
        return Constant(None)

    def text(self, tokens: list[Token]) -> Node:
        return Constant(tokens[0][1:-1].replace("''", "'"), position_of(tokens[0]))

    def true(self, _: list[Token]) -> Node:
        return Constant(True)

    def false(self, _: list[Token]) -> Node:
        return Constant(False)


class Language:
    """A grammar file, and the builder that makes trees of what it describes."""

    def __init__(self, grammar: str, start: Sequence[str], builder: ExpressionBuilder) -> None:
        """`start` names the rules of the grammar that a text may be."""
        self._lark = Lark(
            Path(__file__).with_name(grammar).read_text(encoding="utf-8"),
            parser="lalr",
            lexer="basic",
            start=list(start),
            transformer=builder,
            maybe_placeholders=True,
        )

    def parse(self, text: str, what: str, start: str) -> Any:
        """What the builder makes of a text that is a `start` of the grammar. `what` names the text in
        refusals. Raises Refused(ARGUMENT)."""
        if len(text) > EXPRESSION_CHARACTERS_MAX:
            raise Refused(
                Reason.ARGUMENT,
                f"The {what} has {len(text)} characters; the limit is {EXPRESSION_CHARACTERS_MAX}.",
            )
        with refusals(what):
            try:
                return self._lark.parse(text, start=start)
            except UnexpectedCharacters as unexpected:
                raise _unreadable(text, unexpected.pos_in_stream or 0) from unexpected
            except UnexpectedToken as unexpected:
                raise _unexpected(text, unexpected) from unexpected


@contextmanager
def refusals(what: str) -> Iterator[None]:
    """Turn what is invalid in a text into a refusal that names the text."""
    try:
        yield
    except Invalid as invalid:
        raise Refused(
            Reason.ARGUMENT, f"The {what} is not valid at position {invalid.position}: {invalid.reason}."
        ) from invalid


def check_trees(roots: Sequence[Node], what: str) -> None:
    """Refuse expressions that are too deep or have too many parts, and integers that only fit 64 bits with a
    minus before them. Raises Refused(ARGUMENT)."""
    nodes, level = 0, list(roots)
    for _ in range(DEPTH_MAX):
        nodes += len(level)
        if nodes > NODES_MAX:
            raise Refused(Reason.ARGUMENT, f"The {what} has more than {NODES_MAX} parts.")
        for node in level:
            if isinstance(node, Constant) and type(node.value) is int and node.value > _INTEGER_MAX:
                with refusals(what):
                    raise _too_large(node.value, node.position)
        level = [child for node in level for child in children(node)]
        if not level:
            return
    raise Refused(Reason.ARGUMENT, f"The {what} is nested more than {DEPTH_MAX} levels deep.")


def _too_large(value: int, position: int) -> Invalid:
    return Invalid(position, f"the integer {value} does not fit 64 bits")


def _unreadable(text: str, offset: int) -> Invalid:
    character = text[offset]
    if character in _CLOSED_BY:
        return Invalid(offset + 1, f"the {character} has no {_CLOSED_BY[character]} after it")
    return Invalid(offset + 1, f"the character {character!r} has no meaning here")


_CLOSED_BY = {"'": "closing '", '"': 'closing "', "[": "closing ]"}


def _unexpected(text: str, unexpected: UnexpectedToken) -> Invalid:
    expected = _expected(unexpected.accepts)
    if unexpected.token.type == "$END":
        return Invalid(len(text) + 1, f"the text ends where {expected} is expected")
    token = unexpected.token
    return Invalid(position_of(token), f"'{token!s:.40}' stands where {expected} is expected")


_EXPECTATIONS = (
    ("_EXISTS", "a condition"),
    ("TEXT", "a value"),
    ("_SET", "SET or REMOVE"),
    ("NAME", "the name of a property"),
    ("PLUS", "an operator"),
    ("_AND", "AND, OR or the end"),
)
"""What may follow, by a terminal that is only expected there."""


def _expected(terminals: Iterable[str]) -> str:
    found = set(terminals)
    for terminal, words in _EXPECTATIONS:
        if terminal in found:
            return words
    known = {
        "RPAR": "')'",
        "LPAR": "'('",
        "EQUAL": "'='",
        "$END": "the end",
        "COMMA": "','",
        "SEMICOLON": "';'",
    }
    return " or ".join(sorted(known.get(each, each.strip("_")) for each in found))
