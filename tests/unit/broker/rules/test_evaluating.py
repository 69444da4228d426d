"""Evaluation: the tables of the contract, case by case (AMQP contract 11.3)."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from broker.base.errors import Refused
from broker.entities.rules import RuleValue, SqlFilter, ValueType
from broker.rules.evaluating import Compiler
from broker.rules.filters import compile_filter
from broker.rules.sql import SQL_DIALECT, parse_filter
from broker.rules.values import EvaluationFailed
from protocol.codec import Char, Described, Float, Long, Symbol, Timestamp, UByte, UInt, ULong
from tests.support.rule_messages import ENQUEUED_MS, view_of

T, F, U = "1 = 1", "1 = 0", "missing = 1"
NAMES = {True: T, False: F, None: U}


def result(text: str, application: dict[str, Any] | None = None, **more: Any) -> bool | None:
    """What a condition is: true, false or unknown."""
    decide = Compiler(SQL_DIALECT).condition(parse_filter(text), only_true=False)
    return decide(view_of(application, **more))


AND_TABLE = {
    (True, True): True, (True, False): False, (True, None): None,
    (False, True): False, (False, False): False, (False, None): False,
    (None, True): None, (None, False): False, (None, None): None,
}  # fmt: skip
OR_TABLE = {
    (True, True): True, (True, False): True, (True, None): True,
    (False, True): True, (False, False): False, (False, None): None,
    (None, True): True, (None, False): None, (None, None): None,
}  # fmt: skip


@pytest.mark.parametrize(("left", "right"), list(AND_TABLE))
def test_and_and_or_have_three_values(left: bool | None, right: bool | None) -> None:
    assert result(f"{NAMES[left]} AND {NAMES[right]}") is AND_TABLE[left, right]
    assert result(f"{NAMES[left]} OR {NAMES[right]}") is OR_TABLE[left, right]


def test_not_unknown_is_unknown() -> None:
    assert result(f"NOT {T}") is False
    assert result(f"NOT {F}") is True
    assert result(f"NOT {U}") is None


@pytest.mark.parametrize(
    "text",
    ["a = 1", "a <> 1", "a < 1", "a >= 1", "1 = a", "a = NULL", "a + 1 = 1", "-a = 1", "a LIKE '%'",
     "'x' LIKE a", "'x' LIKE 'x' ESCAPE a", "'x' LIKE 'x' ESCAPE NULL", "'x' LIKE NULL", "a IN (1, 2)",
     "a NOT IN (1, 2)", "1 NOT IN (2, a)", "p('a') = 1", "p(a) = 1"],
)  # fmt: skip
@pytest.mark.parametrize("sent", [{}, {"a": None}])
def test_an_unknown_operand_makes_the_result_unknown(text: str, sent: dict[str, Any]) -> None:
    assert result(text, sent) is None


def test_in_is_true_if_one_of_its_values_is_equal_whatever_the_others_are() -> None:
    assert result("a IN (missing, 2, 1)", {"a": 1}) is True
    assert result("a NOT IN (missing, 2, 1)", {"a": 1}) is False
    assert result("a IN (2, 'x')", {"a": 1}) is False


def test_missing_and_null_are_null_and_only_null_exists() -> None:
    assert result("a IS NULL") is result("a IS NULL", {"a": None}) is True
    assert result("a IS NULL", {"a": 0}) is False
    assert result("a IS NOT NULL", {"a": ""}) is True
    assert result("EXISTS(a)") is False
    assert result("EXISTS(A)", {"a": None}) is True
    assert result("EXISTS(sys.Label)") is False
    assert result("EXISTS(sys.Label)", subject="s") is True


NUMBERS: list[Any] = [3, Long(3), UInt(3), UByte(3), ULong(3), 3.0, Float(3)]


@pytest.mark.parametrize("sent", NUMBERS)
def test_numbers_compare_by_value_whatever_their_type(sent: Any) -> None:
    """The official JS client sends unsigned integers, the Python client signed ones."""
    assert result("n = 3 AND n = 3.0 AND n <> 4 AND n > 2.5 AND n <= 3 AND n IN (3)", {"n": sent}) is True


GUID = uuid.UUID(int=7)


@pytest.mark.parametrize(
    ("text", "sent", "expected"),
    [
        ("a = 'red'", "red", True),
        ("a = 'red'", "RED", False),
        ("a = 'red'", Symbol("red"), True),
        ("a = 'c'", Char("c"), True),
        ("a < 'b'", "a", True),
        ("a >= 'b'", "a", False),
        ("a = TRUE", True, True),
        ("a = TRUE", False, False),
        ("a <> TRUE", False, True),
        ("a = 1", True, False),
        ("a <> 1", True, True),
        ("a = '3'", 3, False),
        ("a <> '3'", 3, True),
        ("a < '3'", 3, None),
        ("a > 3", "5", None),
        ("a > TRUE", True, None),
        ("a = '00000000-0000-0000-0000-000000000007'", GUID, False),
        ("a = a", GUID, True),
        ("a < newid()", GUID, True),
        ("a = 'x'", b"x", False),
        ("a = a", b"x", True),
        ("a LIKE 'r_d'", "red", True),
        ("a LIKE 'R%'", "red", False),
        ("a NOT LIKE 'b%'", "red", True),
        ("a LIKE '1%'", 10, None),
        ("a LIKE '10!%' ESCAPE '!'", "10%", True),
        ("a LIKE 'x' + '%'", "xy", True),
        ("a LIKE 'x' + '!%' ESCAPE '' + '!'", "x%", True),
        ("a < sys.EnqueuedTimeUtc", Timestamp(5), True),
        ("sys.EnqueuedTimeUtc - a > a - a", Timestamp(5), True),
        ("a > a - a", Described(Symbol("com.microsoft:timespan"), Long(5)), True),
    ],
)
def test_comparisons(text: str, sent: Any, expected: bool | None) -> None:
    assert result(text, {"a": sent}) is expected


def test_system_properties_are_compared_like_others() -> None:
    sent: dict[str, Any] = {"subject": "order", "correlation_id": "c1", "to": "t"}
    assert result("sys.Label = 'order' AND SYS.CorrelationId LIKE 'c%' AND sys.To = 't'", **sent) is True
    assert result("sys.Label = 'Order'", **sent) is False
    assert result("sys.ReplyTo = 'x'", **sent) is None
    assert result("sys.MessageId = 'id'", **sent) is True


def test_an_application_property_is_no_system_property() -> None:
    assert result("Label = 'x'", subject="x") is None
    assert result("user.Label = 'x'", {"Label": "x"}) is True


def test_a_system_property_that_does_not_exist_fails() -> None:
    for text in ("sys.Colour = 1", "sys.Colour IS NULL", "EXISTS(sys.Colour)", "p('sys.Colour') = 1"):
        with pytest.raises(EvaluationFailed, match="no system property"):
            result(text)


def test_properties_whose_names_are_computed() -> None:
    assert result("property(which) = 5", {"which": "Size", "size": 5}) is True
    assert result("p('sys.' + which) = 'x'", {"which": "Label"}, subject="x") is True
    with pytest.raises(EvaluationFailed, match="name of a property is a text, not a number"):
        result("p(5) = 1")


def test_arithmetic_in_comparisons() -> None:
    assert result("(a + 1) * 2 = 8 AND a % 2 = 1 AND -a < +a", {"a": UInt(3)}) is True
    for text in ("a / 0 = 1", "a + 'x' = 1", "-'x' = 1"):
        with pytest.raises(EvaluationFailed):
            result(text, {"a": 3})


def test_new_ids_are_guids_that_differ() -> None:
    assert result("newid() = newid()") is False
    assert result("newid() <> newid()") is True


def test_a_wrong_escape_fails_if_it_is_computed_and_is_refused_if_it_is_written() -> None:
    with pytest.raises(EvaluationFailed, match="one character"):
        result("a LIKE 'x' ESCAPE a", {"a": "xx"})
    for text, why in (("a LIKE 'x' ESCAPE 'xx'", "one character"), ("a LIKE 5", "are texts")):
        with pytest.raises(Refused, match=rf"position 3: .*{why}"):
            compile_filter(SqlFilter(text))


def test_terms_are_evaluated_from_left_to_right_until_the_result_is_known() -> None:
    assert result("a = 1 AND a / 0 = 1", {"a": 2}) is False
    assert result("a = 2 OR a / 0 = 1", {"a": 2}) is True
    with pytest.raises(EvaluationFailed):
        result("missing = 1 AND a / 0 = 1", {"a": 2})  # it may be false, which NOT would tell from unknown


@pytest.mark.parametrize("term", ["missing = 1", "EXISTS(missing)", "a = 1"])
def test_a_filter_ends_an_and_at_the_first_term_that_is_not_true(term: str) -> None:
    assert not compile_filter(SqlFilter(f"{term} AND a / 0 = 1")).matches(view_of({"a": 2}))
    assert compile_filter(SqlFilter(f"{term} AND a / 0 = 1 OR a = 2")).matches(view_of({"a": 2}))


def test_parameters_stand_for_their_values() -> None:
    parameters = (
        ("@Colour", RuleValue(ValueType.STRING, "red")),
        ("@since", RuleValue(ValueType.DATE_TIME, (ENQUEUED_MS - 1) * 10_000)),
        ("@span", RuleValue(ValueType.DURATION, 10_001)),
    )
    text = "colour = @colour AND sys.EnqueuedTimeUtc > @since AND sys.EnqueuedTimeUtc - @since < @span"
    compiled = compile_filter(SqlFilter(text, parameters))
    assert compiled.matches(view_of({"colour": "red"}))
    assert not compiled.matches(view_of({"colour": "blue"}))


def test_a_parameter_that_is_not_given_is_refused() -> None:
    with pytest.raises(Refused, match="position 10: there is no parameter '@colour'"):
        compile_filter(SqlFilter("colour = @Colour"))


def test_a_pattern_that_a_message_brings_has_a_limit() -> None:
    assert result("a LIKE b", {"a": "x" * 1_024, "b": "_" * 1_024}) is True
    with pytest.raises(EvaluationFailed, match="a pattern of 1025 characters, more than 1024"):
        result("a LIKE b", {"a": "x" * 1_025, "b": "_" * 1_025})
