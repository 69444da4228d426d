"""Which subscriptions get a message."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest

from broker.base.errors import Refused
from broker.entities.rules import (
    CorrelationFilter,
    FalseFilter,
    Filter,
    RuleDescription,
    RuleValue,
    SqlAction,
    SqlFilter,
    TrueFilter,
    ValueType,
)
from broker.rules.matching import FAULTS_MAX, Failure, Fault, Match, Matcher, check_expressions
from broker.rules.message_view import MessageView
from protocol.codec import Decimal64
from tests.support.rule_messages import ENQUEUED_MS, matched, stored_with


def colour(value: str) -> CorrelationFilter:
    return CorrelationFilter(properties=(("colour", RuleValue(ValueType.STRING, value)),))


TENTH = "@p", RuleValue(ValueType.DOUBLE, 0.1)


def rules(*filters: Filter) -> list[RuleDescription]:
    return [RuleDescription(f"rule{number}", filter) for number, filter in enumerate(filters)]


def match(matcher: Matcher, *args: Any, **more: Any) -> Match:
    return matched(matcher, stored_with(*args, **more))


def test_without_subscriptions_nobody_gets_anything() -> None:
    assert match(Matcher()) == Match()


def test_all_subscriptions_that_match_get_the_message_in_the_order_of_their_numbers() -> None:
    matcher = Matcher()
    matcher.set_rules(9, rules(TrueFilter()))
    matcher.set_rules(4, rules(colour("red")))
    matcher.set_rules(2, rules(FalseFilter()))
    matcher.set_rules(7, rules(colour("blue"), colour("red")))
    matcher.set_rules(1, [])
    assert match(matcher) == Match((9,))
    assert match(matcher, {"colour": "red"}) == Match((4, 7, 9))
    assert match(matcher, {"colour": "blue"}) == Match((7, 9))


def test_several_rules_that_match_give_one_copy() -> None:
    matcher = Matcher()
    matcher.set_rules(1, rules(TrueFilter(), TrueFilter(), colour("red"), CorrelationFilter(label="l")))
    assert match(matcher, {"colour": "red"}, subject="l") == Match((1,))


def test_rules_are_replaced_and_forgotten() -> None:
    matcher = Matcher()
    matcher.set_rules(1, rules(colour("red"), TrueFilter()))
    matcher.set_rules(2, rules(colour("red")))
    matcher.set_rules(1, rules(colour("blue")))
    assert match(matcher, {"colour": "red"}) == Match((2,))
    assert match(matcher, {"colour": "blue"}) == Match((1,))
    matcher.forget(2)
    matcher.forget(3)
    assert match(matcher, {"colour": "red"}) == Match()
    matcher.set_rules(1, rules(TrueFilter()))
    assert match(matcher) == Match((1,))
    matcher.forget(1)
    assert match(matcher) == Match()
    assert not matcher._entries


def test_subscriptions_with_the_same_filter_share_its_evaluation() -> None:
    matcher = Matcher()
    for number in range(100):
        matcher.set_rules(number, rules(colour("red")))
    assert len(matcher._entries) == 1
    assert match(matcher, {"colour": "red"}).subscriptions == tuple(range(100))


def test_a_rule_that_cannot_be_compiled_fails_on_every_message() -> None:
    matcher = Matcher()
    matcher.set_rules(1, rules(CorrelationFilter()))
    matcher.set_rules(2, rules(TrueFilter(), CorrelationFilter()))
    found = match(matcher)
    assert found.subscriptions == (2,)
    (failure,) = found.failures  # subscription 2 gets the message through its other rule
    assert (failure.subscription, failure.rule) == (1, "rule0")
    assert "at least one value" in failure.description


def test_sql_filters_are_found_by_their_terms() -> None:
    matcher = Matcher()
    matcher.set_rules(1, rules(SqlFilter("colour = 'red' AND price > 5")))
    matcher.set_rules(2, rules(SqlFilter("colour IN ('red', 'blue') OR sys.Label = 'all'")))
    matcher.set_rules(3, rules(SqlFilter("price IS NULL")))
    matcher.set_rules(4, rules(SqlFilter("1=1")))
    matcher.set_rules(5, rules(SqlFilter("1=0")))
    assert match(matcher, {"colour": "red", "price": 6}) == Match((1, 2, 4))
    assert match(matcher, {"colour": "red", "price": 5}) == Match((2, 4))
    assert match(matcher, {"price": 5}, subject="all") == Match((2, 4))
    assert match(matcher) == Match((3, 4))


def test_a_filter_that_fails_does_not_match_and_is_reported() -> None:
    matcher = Matcher()
    matcher.set_rules(1, rules(SqlFilter("100 / price > 5")))
    matcher.set_rules(2, rules(SqlFilter("100 / price > 5"), TrueFilter()))
    assert match(matcher, {"price": 10}) == Match((1, 2))
    assert match(matcher, {"price": 0}) == Match((2,), (), (Failure(1, "rule0", "100 / 0 has no result."),))


def test_rules_are_checked_before_they_are_made() -> None:
    check_expressions(RuleDescription("ok", SqlFilter("a = 1")))
    with pytest.raises(Refused, match="position 5"):
        check_expressions(RuleDescription("wrong", SqlFilter("a = ")))
    with pytest.raises(Refused, match="action is not valid at position 6"):
        check_expressions(RuleDescription("wrong", SqlFilter("a = 1"), SqlAction("SET a")))


def test_each_rule_with_an_action_gives_a_copy_of_its_own() -> None:
    matcher = Matcher()
    matcher.set_rules(
        1,
        [
            RuleDescription("b", TrueFilter(), SqlAction("SET a = 1")),
            RuleDescription("a", colour("red"), SqlAction("SET a = 2")),
            RuleDescription("c", colour("red")),
            RuleDescription("d", colour("red")),
        ],
    )
    matcher.set_rules(2, [RuleDescription("b", TrueFilter(), SqlAction("SET sys.Label = sys.MessageId"))])
    found = match(matcher, {"colour": "red"})
    assert found.subscriptions == (1,)
    assert [(copy.subscription, copy.rule) for copy in found.copies] == [(1, "a"), (1, "b"), (2, "b")]
    views = [MessageView(copy.message.data, ENQUEUED_MS) for copy in found.copies]
    assert [view.application_property("a") for view in views] == [2, 1, None]
    assert views[2].system_property("label") == "id"
    assert [copy.rule for copy in match(matcher).copies] == ["b", "b"]
    matcher.set_rules(1, [])
    matcher.set_rules(2, [])
    assert match(matcher, {"colour": "red"}) == Match()


def test_an_action_that_fails_gives_no_copy_and_is_reported() -> None:
    matcher = Matcher()
    failing = SqlAction("SET a = 1 / b")
    matcher.set_rules(1, [RuleDescription("x", TrueFilter(), failing)])
    matcher.set_rules(2, [RuleDescription("x", TrueFilter(), failing), RuleDescription("y", TrueFilter())])
    found = match(matcher, {"b": 0})
    assert (found.subscriptions, found.copies) == ((2,), ())
    assert [(failure.subscription, failure.rule) for failure in found.failures] == [(1, "x")]
    assert len(match(matcher, {"b": 1}).copies) == 2
    matcher.set_rules(1, [RuleDescription("x", TrueFilter(), SqlAction("wrong"))])
    assert "position 1" in match(matcher, {"b": 0}).failures[0].description


MALFORMED = {
    "a text that is not UTF-8": b"\xa1\x01\xff",
    "a boolean of 2": b"\x56\x02",
    "a character beyond Unicode": b"\x73\x00\x11\x00\x00",
    "a symbol that is not ASCII": b"\xa3\x01\xff",
    "an infinite time span": b"\x00\xa3\x16com.microsoft:timespan\x82\x7f\xf0\x00\x00\x00\x00\x00\x00",
}


@pytest.mark.parametrize("encoded", MALFORMED.values(), ids=MALFORMED.keys())
def test_a_malformed_value_equals_nothing_and_an_action_on_its_message_fails(encoded: bytes) -> None:
    matcher = Matcher()
    matcher.set_rules(1, rules(colour("red"), SqlFilter("colour LIKE 'r%' OR colour = 'red' OR colour > 1")))
    matcher.set_rules(
        2, [RuleDescription("acting", SqlFilter("EXISTS(colour)"), SqlAction("SET x = colour"))]
    )
    matcher.set_rules(3, rules(TrueFilter()))
    placeholder = "z" * (len(encoded) - 2)
    well_formed = b"\xa1\x06colour\xa1%c%s" % (len(placeholder), placeholder.encode())
    stored = stored_with({"colour": placeholder})
    assert stored.count(well_formed) == 1
    found = matched(matcher, stored.replace(well_formed, b"\xa1\x06colour" + encoded))
    assert found.subscriptions == (3,)
    if encoded != MALFORMED["an infinite time span"]:  # which can be decoded
        (failure,) = found.failures
        assert failure.subscription == 2 and failure.description.startswith("A property of the message is")


def test_nothing_comes_before_or_behind_nan() -> None:
    matcher = Matcher()
    matcher.set_rules(1, rules(SqlFilter("a < b OR a >= b OR b < a"), SqlFilter("NOT (a < b)")))
    matcher.set_rules(2, rules(SqlFilter("b < 3"), SqlFilter("b > @p", parameters=(TENTH,))))
    assert match(matcher, {"a": Decimal64(0x31C0000000000001.to_bytes(8, "big")), "b": math.nan}) == Match()


def test_a_malformed_system_property_equals_nothing() -> None:
    matcher = Matcher()
    matcher.set_rules(1, rules(CorrelationFilter(to="there"), SqlFilter("sys.To LIKE 't%'")))
    matcher.set_rules(2, rules(TrueFilter()))
    stored = stored_with(to="there").replace(b"\xa1\x05there", b"\xa1\x05the\xffe")
    assert matched(matcher, stored) == Match((2,))


def test_whatever_a_rule_raises_is_the_failure_of_that_rule_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def unforeseen(self: MessageView, name: str) -> None:
        raise ZeroDivisionError

    matcher = Matcher()
    matcher.set_rules(1, rules(colour("red")))
    matcher.set_rules(2, rules(CorrelationFilter(label="l")))
    monkeypatch.setattr(MessageView, "application_property", unforeseen)
    found = match(matcher, {"colour": "red"}, subject="l")
    assert found.subscriptions == (2,)
    assert found.failures == (Failure(1, "rule0", "It has no result (ZeroDivisionError)."),)


def test_an_unforeseen_exception_is_reported_once_for_each_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    def unforeseen(self: MessageView, name: str) -> None:
        raise ZeroDivisionError("why")

    matcher = Matcher()
    matcher.set_rules(1, rules(CorrelationFilter(label="l")))
    matcher.set_rules(2, rules(SqlFilter("a = 1 OR b = 2"), SqlFilter("100 / c = 1")))
    match(matcher, {"c": 0}, subject="l")
    assert matcher.take_faults() == [], "a rule that has no result is no fault"
    monkeypatch.setattr(MessageView, "application_property", unforeseen)
    for _ in range(3):
        match(matcher, {"a": 1}, subject="l")
    error = "ZeroDivisionError('why')"
    assert Fault(2, "rule0", error) in (faults := matcher.take_faults())
    assert Fault(0, "", error) in faults, "the index could not look at the message either"
    assert len(faults) == len({*faults}) and matcher.take_faults() == []
    matcher.set_rules(2, rules(SqlFilter("a = 1 OR b = 2")))
    match(matcher, {"a": 1}, subject="l")
    assert matcher.take_faults() == [Fault(2, "rule0", error)]


def test_a_bounded_number_of_rules_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def unforeseen(self: MessageView, name: str) -> None:
        raise ZeroDivisionError

    matcher = Matcher()
    matcher.set_rules(1, rules(*(SqlFilter(f"a = {each} OR b = 2") for each in range(FAULTS_MAX + 9))))
    monkeypatch.setattr(MessageView, "application_property", unforeseen)
    match(matcher, {"a": 1})
    assert len(matcher.take_faults()) == FAULTS_MAX


def test_the_copies_of_a_message_have_a_limit_and_a_single_one_has_none() -> None:
    matcher = Matcher()
    for number in range(1, 5):
        matcher.set_rules(number, [RuleDescription("acting", TrueFilter(), SqlAction("SET a = 1"))])
    stored = stored_with(body=b"x" * 10_000)
    found = matched(matcher, stored, 30_000)
    assert [copy.subscription for copy in found.copies] == [1, 2]
    assert found.failures[0] == Failure(3, "acting", "The copies of the message exceed 30000 bytes.")
    assert len(found.failures) == 2
    assert len(matched(matcher, stored, 0).copies) == 1
    assert len(matched(matcher, stored).copies) == 4


@pytest.mark.parametrize("pattern", ["'%_x%'", "'%_' + 'x%'"])
def test_a_rule_that_takes_too_long_to_search_fails_alone_and_searching_is_counted(pattern: str) -> None:
    """Each filter may search as much, whatever the others have searched."""
    matcher = Matcher()
    twice, thrice = (SqlFilter(" OR ".join([f"long LIKE {pattern}"] * count + ["n = 1"])) for count in (2, 3))
    matcher.set_rules(1, rules(twice))
    matcher.set_rules(2, rules(thrice))
    matcher.set_rules(3, rules(SqlFilter(f"n = 1 AND NOT long LIKE {pattern}")))
    found = match(matcher, {"long": "a" * 32_000, "n": 1})
    assert found.subscriptions == (1, 3)
    assert [each.subscription for each in found.failures] == [2]
    assert "more than 65536 characters" in found.failures[0].description
    assert 5 * 1_000 <= matcher.work <= 5 * 1_000 + 50


MANY = {str(number): 1 for number in range(5_000)}
ACTION = SqlAction(";".join(f"SET a{number} = p" for number in range(31)))


@pytest.mark.parametrize(
    "rule, message, work",
    [
        # Symptom: it was 17, as if the action had a single statement.
        (RuleDescription("r", SqlFilter("1=1"), ACTION), {"p": "x"}, 16 + 2 * 31),
        # Symptom: these were 1, and 17.
        (RuleDescription("r", SqlFilter(" OR ".join(["p = 1 + 2"] * 40))), {"p": "x"}, 200 // 8),
        (RuleDescription("r", SqlFilter("p LIKE '%ab%' OR p LIKE '%c%'")), {"p": "x" * 32_000}, 125),
        (RuleDescription("r", SqlFilter("NOT EXISTS(p)")), MANY, 5_000),
        (RuleDescription("r", SqlFilter("1=1"), SqlAction("REMOVE p")), MANY, 5_000),
    ],
)
def test_the_work_of_matching_follows_what_takes_long(
    rule: RuleDescription, message: dict[str, Any], work: int
) -> None:
    matcher = Matcher()
    matcher.set_rules(1, [rule])
    match(matcher, message)
    assert work <= matcher.work <= work * 1.5 + 30


def test_each_look_at_many_prefixes_or_ranges_is_counted() -> None:
    matcher = Matcher()
    matcher.set_rules(1, rules(*(SqlFilter(f"p LIKE '{'x' * number}y%'") for number in range(500))))
    matcher.set_rules(2, rules(*(SqlFilter(f"n > {number} AND n < {number}.5") for number in range(500))))
    match(matcher, {"p": "z", "n": 1_000})
    assert matcher.work >= 500 + 500 // 16


def test_one_message_is_matched_in_steps() -> None:
    matcher = Matcher()
    matcher.set_rules(1, [RuleDescription(f"r{number}", SqlFilter("1=1"), ACTION) for number in range(100)])
    failing = SqlAction("SET a = 1 / 0")
    matcher.set_rules(2, [RuleDescription(f"f{number}", SqlFilter("1=1"), failing) for number in range(100)])
    matcher.set_rules(3, rules(*(SqlFilter(f"p LIKE '%_{number}%'") for number in range(20)), TrueFilter()))
    stored = stored_with({"p": "x" * 1_000})
    at_once, before = matched(matcher, stored), matcher.work
    steps = matcher.match_steps(stored, ENQUEUED_MS, work_max=200)
    works = [before]
    while True:
        try:
            next(steps)
        except StopIteration as end:
            in_steps: Match = end.value
            break
        works.append(matcher.work)
    # Symptom: one step. With 1,000 rules, nobody else was served for as long as that took.
    assert len(works) >= 35
    assert max(after - before for before, after in pairwise(works)) <= 200 + 16 + 2 * 31 + 100
    assert in_steps == at_once and len(in_steps.copies) == 100 and in_steps.subscriptions == (3,)


def test_whether_matching_a_message_may_take_long_is_known_before() -> None:
    matcher = Matcher()
    small, large = stored_with({"p": 1}), stored_with({"p": "x" * 10_000})
    matcher.set_rules(1, rules(TrueFilter()))
    assert not matcher.is_hard(large, 100), "nobody looks at its properties"
    matcher.set_rules(2, rules(*(SqlFilter(f"p = {number} OR q = 1") for number in range(200))))
    assert not matcher.is_hard(small, 100), "the filters may be found by an index"
    assert not matcher.is_hard(stored_with({"p": 1}, body=b"x" * 10_000), 100)
    assert matcher.is_hard(large, 100)
    assert matcher.is_hard(large[:9_000], 100), "what is malformed is met with care"
    matcher.set_rules(3, [RuleDescription(f"r{number}", SqlFilter("1=1"), ACTION) for number in range(2)])
    assert matcher.is_hard(small, 100) and not matcher.is_hard(small, 1_000)
    matcher.set_rules(3, rules(SqlFilter("p LIKE '%_b%'")))
    assert matcher.is_hard(small, 1_000)
    matcher.set_rules(3, rules(SqlFilter("p LIKE '%b%'")))
    assert matcher.hard_work == 0
