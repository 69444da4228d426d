"""The SQL language: what texts mean."""

from __future__ import annotations

import pytest

from broker.base.errors import Refused
from broker.rules.covers import Property
from broker.rules.sql import STATEMENTS_MAX, parse_action, parse_filter, property_named
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
    RemoveProperty,
    SetProperty,
)
from broker.rules.values import Value

A, B, C = (Comparison("=", Read(Property(name)), Constant(1)) for name in "abc")


def value_of(text: str) -> Node:
    found = parse_filter(f"x = {text}")
    assert isinstance(found, Comparison)
    return found.right


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5", 5),
        ("9223372036854775807", 2**63 - 1),
        ("-7", -7),
        ("1.5", 1.5),
        (".5", 0.5),
        ("2.", 2.0),
        ("1e3", 1000.0),
        ("1.5E-1", 0.15),
        ("'text'", "text"),
        ("''", ""),
        ("'it''s'", "it's"),
        ("TRUE", True),
        ("false", False),
        ("NULL", None),
    ],
)
def test_constants(text: str, value: Value) -> None:
    found = value_of(text)
    assert found == Constant(value)
    assert isinstance(found, Constant) and type(found.value) is type(value)


@pytest.mark.parametrize(
    ("text", "name", "is_system"),
    [
        ("colour", "colour", False),
        ("Colour_2", "colour_2", False),
        ("Größe", "größe".casefold(), False),
        ("user.colour", "colour", False),
        ("USER . colour", "colour", False),
        ("sys.Label", "label", True),
        ("[a b]]c]", "a b]c", False),
        ('"a ""b"""', 'a "b"', False),
        ("sys.[Label]", "label", True),
        ("[and]", "and", False),
        ("android", "android", False),
        ("sys", "sys", False),
        ("p", "p", False),
    ],
)
def test_names_of_properties(text: str, name: str, is_system: bool) -> None:
    assert value_of(text) == Read(Property(name, is_system))


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("a=1 OR b=1 AND c=1", Or((A, And((B, C))))),
        ("(a=1 or b=1) and c=1", And((Or((A, B)), C))),
        ("NOT a=1 AND b=1", And((Not(A), B))),
        ("NOT (a=1 AND b=1)", Not(And((A, B)))),
        ("NOT NOT a=1", Not(Not(A))),
        ("a=1 AND b=1 AND c=1", And((A, B, C))),
        ("((a)) = ((1))", A),
    ],
)
def test_not_binds_more_strongly_than_and_and_and_more_strongly_than_or(text: str, tree: Node) -> None:
    assert parse_filter(text) == tree


def test_products_bind_more_strongly_than_sums_and_signs_most() -> None:
    a, b, c = (Read(Property(name)) for name in "abc")
    assert value_of("a + b * c") == Arithmetic("+", a, Arithmetic("*", b, c))
    assert value_of("(a + b) * c") == Arithmetic("*", Arithmetic("+", a, b), c)
    assert value_of("a - b - c") == Arithmetic("-", Arithmetic("-", a, b), c)
    assert value_of("a / b % c") == Arithmetic("%", Arithmetic("/", a, b), c)
    assert value_of("-a * +b") == Arithmetic("*", Negative(a), Positive(b))
    assert value_of("- -5") == Constant(5)


@pytest.mark.parametrize("operator", ["=", "<>", "<", "<=", ">", ">="])
def test_comparisons(operator: str) -> None:
    assert parse_filter(f"a{operator}1") == Comparison(operator, Read(Property("a")), Constant(1))


def test_both_spellings_of_different_are_one() -> None:
    assert parse_filter("a != 1") == parse_filter("a <> 1")


def test_conditions_on_properties() -> None:
    a, label = Property("a"), Property("label", is_system=True)
    assert parse_filter("a IS NULL") == IsNull(Read(a))
    assert parse_filter("sys.Label is not null") == Not(IsNull(Read(label)))
    assert parse_filter("EXISTS (sys.Label)") == Exists(label)
    assert parse_filter("a IN (1, 'x')") == In(Read(a), (Constant(1), Constant("x")))
    assert parse_filter("a NOT IN (1)") == Not(In(Read(a), (Constant(1),)))
    assert parse_filter("a LIKE 'x%'") == Like(Read(a), Constant("x%"), None, 3)
    assert parse_filter("a NOT LIKE 'x!%' ESCAPE '!'") == Not(
        Like(Read(a), Constant("x!%"), Constant("!"), 7)
    )


def test_functions_and_parameters() -> None:
    assert value_of("NEWID()") == NewId()
    assert value_of("property('a')") == value_of("P('a')") == ReadNamed(Constant("a"))
    assert value_of("@Colour") == Parameter("@colour", 5)


def test_keywords_have_no_case_and_are_no_names() -> None:
    assert parse_filter("a=1 aNd nOt b=1") == And((A, Not(B)))
    for keyword in (
        "and",
        "or",
        "not",
        "is",
        "null",
        "in",
        "like",
        "escape",
        "exists",
        "set",
        "remove",
        "true",
        "false",
    ):
        with pytest.raises(Refused):
            parse_filter(f"EXISTS({keyword})")
        parse_filter(f"[{keyword}] > 1")


def test_names_given_as_texts_may_have_a_scope() -> None:
    assert property_named("Colour") == property_named("user.Colour") == Property("colour")
    assert property_named(" SYS . Label") == Property("label", is_system=True)


def test_statements_are_separated_by_commas_or_semicolons() -> None:
    statements = parse_action("SET A = 1, REMOVE sys.To; SET [b c] = a + 1;")
    assert statements == (
        SetProperty(Property("a"), "A", Constant(1), 5),
        RemoveProperty(Property("to", is_system=True), 19),
        SetProperty(Property("b c"), "b c", Arithmetic("+", Read(Property("a")), Constant(1)), 31),
    )


def test_the_number_of_statements_is_bounded() -> None:
    assert len(parse_action("SET a=1;" * STATEMENTS_MAX)) == STATEMENTS_MAX
    with pytest.raises(Refused, match=f"33 statements; the limit is {STATEMENTS_MAX}"):
        parse_action("SET a=1;" * (STATEMENTS_MAX + 1))
    with pytest.raises(Refused, match="no statement"):
        parse_action(" ; ")
