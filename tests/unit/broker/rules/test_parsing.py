"""Parsing: limits, and refusals with their position and reason."""

from __future__ import annotations

import pytest

from broker.base.errors import Reason, Refused
from broker.entities.rules import EXPRESSION_CHARACTERS_MAX
from broker.rules.covers import Property
from broker.rules.parsing import DEPTH_MAX, NODES_MAX
from broker.rules.sql import parse_action, parse_filter
from broker.rules.syntax import Comparison, Constant, Read, SetProperty


@pytest.mark.parametrize(
    ("text", "position", "reason"),
    [
        ("", 1, "the text ends where a condition is expected"),
        ("a = ", 5, "the text ends where a value is expected"),
        ("a", 2, "the text ends where an operator is expected"),
        ("a = 1 OR", 9, "the text ends where a condition is expected"),
        ("a = 1 b", 7, "'b' stands where an operator is expected"),
        ("AND = 1", 1, "'AND' stands where a condition is expected"),
        ("a = = 1", 5, "'=' stands where a value is expected"),
        ("a = b = c", 7, "'=' stands where an operator is expected"),
        ("a IS 5", 6, "'5' stands where NOT or NULL is expected"),
        ("a NOT = 1", 7, "'=' stands where IN or LIKE is expected"),
        ("a IN ()", 7, "')' stands where a value is expected"),
        ("EXISTS(5)", 8, "'5' stands where the name of a property is expected"),
        ("a = 'x", 5, "the ' has no closing ' after it"),
        ('"a = 1', 1, 'the " has no closing " after it'),
        ("[a = 1", 1, "the [ has no closing ] after it"),
        ("a = 1 ! b", 7, "the character '!' has no meaning here"),
        ("a = 9223372036854775808", 5, "the integer 9223372036854775808 does not fit 64 bits"),
        ("a = +9223372036854775808", 6, "the integer 9223372036854775808 does not fit 64 bits"),
        ("a = 0 - 9223372036854775808", 9, "the integer 9223372036854775808 does not fit 64 bits"),
        ("a = - -9223372036854775808", 8, "the integer 9223372036854775808 does not fit 64 bits"),
        ("a = -9223372036854775809", 6, "the integer 9223372036854775809 does not fit 64 bits"),
        ("a = now()", 5, "there is no function 'now'"),
        ("newid(a) = 1", 1, "the function 'newid' takes 0 arguments, not 1"),
        ("a = p(b, c)", 5, "the function 'p' takes 1 argument, not 2"),
    ],
)
def test_an_invalid_filter_is_refused_with_position_and_reason(text: str, position: int, reason: str) -> None:
    with pytest.raises(Refused) as refused:
        parse_filter(text)
    assert refused.value.reason is Reason.ARGUMENT
    assert refused.value.description == f"The filter is not valid at position {position}: {reason}."


@pytest.mark.parametrize(
    ("text", "position", "reason"),
    [
        ("a = 1", 1, "'a' stands where SET or REMOVE is expected"),
        ("SET a", 6, "the text ends where '=' is expected"),
        ("SET a 'x'", 7, "''x'' stands where '=' is expected"),
        ("REMOVE a 'x'", 10, "''x'' stands where ',' or ';' or the end is expected"),
        ("SET a = 1 SET b = 2", 11, "'SET' stands where an operator is expected"),
        ("REMOVE 5", 8, "'5' stands where the name of a property is expected"),
    ],
)
def test_an_invalid_action_is_refused_with_position_and_reason(text: str, position: int, reason: str) -> None:
    with pytest.raises(Refused) as refused:
        parse_action(text)
    assert refused.value.description == f"The action is not valid at position {position}: {reason}."


def test_an_integer_that_only_fits_64_bits_with_its_sign_is_accepted() -> None:
    assert parse_filter("a = -9223372036854775808") == Comparison(
        "=", Read(Property("a")), Constant(-(2**63))
    )
    (statement,) = parse_action("SET a = -9223372036854775808")
    assert isinstance(statement, SetProperty) and statement.value == Constant(-(2**63))
    with pytest.raises(Refused, match="position 9: the integer 9223372036854775808 does not fit 64 bits"):
        parse_action("SET a = 9223372036854775808")


def test_the_length_of_a_text_is_bounded() -> None:
    longest = "a = '" + "x" * (EXPRESSION_CHARACTERS_MAX - 6) + "'"
    parse_filter(longest)
    with pytest.raises(
        Refused,
        match=f"has {EXPRESSION_CHARACTERS_MAX + 1} characters; the limit is {EXPRESSION_CHARACTERS_MAX}",
    ):
        parse_filter(longest + " ")


def test_the_depth_of_an_expression_is_bounded() -> None:
    parse_filter("NOT " * (DEPTH_MAX - 2) + "a = 1")
    for text in ("NOT " * (DEPTH_MAX - 1) + "a = 1", "a = " + "- " * 400 + "b", "a = " + "+".join("b" * 400)):
        with pytest.raises(Refused, match=f"nested more than {DEPTH_MAX} levels"):
            parse_filter(text)


def test_parentheses_and_chains_of_terms_do_not_make_an_expression_deep() -> None:
    parse_filter("(" * 400 + "a = 1" + ")" * 400)
    parse_filter(" AND ".join(["a=1"] * 100) + " OR " + " OR ".join(["a=1"] * 30))


def test_the_number_of_parts_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """No text of the permitted length has more parts than the limit; the limit holds beyond that too."""
    assert EXPRESSION_CHARACTERS_MAX <= NODES_MAX
    monkeypatch.setattr("broker.rules.parsing.NODES_MAX", 10)
    parse_filter("a IN (1, 2, 3, 4, 5, 6, 7, 8)")
    with pytest.raises(Refused, match="more than 10 parts"):
        parse_filter("a IN (1, 2, 3, 4, 5, 6, 7, 8, 9)")
