"""What the naive evaluation of SQL filters notices: each of these mutants is a small mistake in the evaluator
or in the index, and the comparison of random expressions must fail on it.

If a function has changed so that the characters are not there any more, choose others for the same mistake.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from broker.rules import arithmetic, evaluating, expression_covers, index, like, values
from broker.rules.filters import forget_compiled as forget_compiled_filters
from broker.rules.like import compile_like
from broker.rules.parsing import ExpressionBuilder
from tests.property.rule_expressions import (
    Expression,
    Failed,
    Message,
    escapes_well,
    expressions,
    messages,
    value_of,
)
from tests.property.test_rule_expressions import check_many, check_one
from tests.support.mutants import Mutant, applied, check_that_each_fits, tried

OF_CONDITIONS = [
    Mutant("unknown equals false", values.equal, "return None", "return False"),
    Mutant("true equals one", values.equal, "return False", "return left == right"),
    Mutant("unknown is known in AND", evaluating._and, "known = None", "pass"),
    Mutant("unknown is known in OR", evaluating._or, "known = None", "pass"),
    Mutant("NOT unknown is true", evaluating._not, "None if result is None else not result", "not result"),
    Mutant("unknown in IN is false", evaluating._in, "known = None", "pass"),
    Mutant("IN ends at unknown", evaluating._in, "known = None", "return None"),
    Mutant("less means not more", evaluating._less, "left < right", "left <= right"),
    Mutant("not more means less", evaluating._not_more, "left <= right", "left < right"),
    Mutant("what has no order is not less", evaluating._less, "else None", "else False"),
    Mutant("different means the same", evaluating._different, "not same", "same"),
    Mutant("an AND goes on behind what is not true", evaluating._all_true, "return False", "pass"),
    Mutant("a cover of one side covers an OR", expression_covers._cover_of_any, "return ()", "continue"),
    Mutant(
        "what is only there is not found", index.FilterIndex.candidates, "yield from found.present", "pass"
    ),
]
OF_VALUES = [
    Mutant("divisions round down", arithmetic._integers, "abs(left) // abs(right)", "left // abs(right)"),
    Mutant("a remainder is never negative", arithmetic._integers, "left - quotient * right", "left % right"),
    Mutant("a product is a sum", arithmetic._integers, "left * right", "left + right"),
    Mutant("large results are let through", arithmetic._integers, "not _LONG_MIN", "False and 0"),
    Mutant("a text and a number are joined", arithmetic.calculate, "isinstance(right, str)", "True"),
    Mutant("minus changes nothing", ExpressionBuilder.sign, 'sign == "+"', "True"),
]
OF_PATTERNS = [
    Mutant("the end may be anything", like.compile_like, "or not last.is_at(text, end)", ""),
    Mutant("any place serves twice", like.compile_like, "end_in(text, offset, end)", "end_in(text, 0, end)"),
    Mutant("an escape escapes nothing", like._cut, "if character == escape:", "if False:"),
    Mutant("_ stands for itself", like._cut, 'if character == "_"', 'if character == "?"'),
]
TRIED_EACH_TIME = 3
"""Of each kind."""
SHORT = settings(
    max_examples=600,
    phases=[Phase.generate],
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
numbers = st.tuples(st.just("constant"), st.integers(-9, 9) | st.sampled_from((2**33, "a")))
sums = st.tuples(st.just("arithmetic"), st.sampled_from("+-*/%"), numbers, numbers)
signs = st.tuples(st.just("sign"), st.sampled_from("+-"), st.just(("read", "a")))
NUMBER = Message({"a": 3})


def compare_conditions() -> None:
    @seed(1)
    @SHORT
    @given(expressions, st.lists(expressions, max_size=2), messages)
    def compare(expression: Expression, others: list[Expression], message: Message) -> None:
        check_one(expression, message)
        check_many([expression, *others], message)

    compare()


def compare_values() -> None:
    @seed(1)
    @SHORT
    @given(sums | signs)
    def compare(value: Expression) -> None:
        try:
            result = value_of(value, NUMBER)
        except Failed:
            result = 0
        check_one(("compare", "=", value, ("constant", result)), NUMBER)

    compare()


def compare_patterns() -> None:
    @seed(1)
    @SHORT
    @given(
        st.text("ab_", max_size=5), st.text("ab%_!", max_size=5).filter(lambda each: escapes_well(each, "!"))
    )
    def compare(text: str, pattern: str) -> None:
        check_one(("like", ("constant", text), pattern, "!"), NUMBER)

    compare()


COMPARISONS = [
    (compare, mutant)
    for compare, mutants in (
        (compare_conditions, OF_CONDITIONS),
        (compare_values, OF_VALUES),
        (compare_patterns, OF_PATTERNS),
    )
    for mutant in tried(mutants, TRIED_EACH_TIME)
]


def forget_compiled() -> None:
    """What was compiled before a mutant must not serve after it."""
    forget_compiled_filters()
    compile_like.cache_clear()


@pytest.mark.parametrize(
    ("compare", "mutant"), COMPARISONS, ids=[mutant.mistake.replace(" ", "-") for _, mutant in COMPARISONS]
)
def test_a_naive_evaluation_notices_a_mistake(compare: Callable[[], None], mutant: Mutant) -> None:
    forget_compiled()
    try:
        with applied(mutant), pytest.raises((AssertionError, LookupError, TypeError)):
            compare()
    finally:
        forget_compiled()


def test_each_mutant_fits_its_function() -> None:
    check_that_each_fits([*OF_CONDITIONS, *OF_VALUES, *OF_PATTERNS])
