"""Changes of rules, as values."""

from __future__ import annotations

import pytest

from broker.base.errors import Reason, Refused
from broker.entities.rule_changes import RuleChange, changed, decode_changes, encode_changes
from broker.entities.rules import CorrelationFilter, RuleDescription, SqlAction, SqlFilter
from tests.support.topics import topic

TOPIC = topic("a", "b")
RED = RuleDescription("red", CorrelationFilter(label="red"))
CHANGES = [
    RuleChange(1, removed="$default"),
    RuleChange(1, RED),
    RuleChange(2, RuleDescription("sql", SqlFilter("a = 1"), SqlAction("SET b = 2"))),
]


def names(changes: list[RuleChange], *, may_be_made: bool = False) -> list[list[str]]:
    after = changed(TOPIC, changes, 7, may_be_made=may_be_made)
    return [[rule.name for rule in each.rules] for each in after.subscriptions]


def test_all_changes_are_made_in_their_order() -> None:
    assert names(CHANGES) == [["red"], ["$Default", "sql"]]
    assert names([RuleChange(1, RED), RuleChange(1, removed="RED")]) == [["$Default"], ["$Default"]]
    after = changed(TOPIC, CHANGES, 7)
    assert after.subscriptions[0].rules[0].created_at_ms == 7 == after.subscriptions[0].updated_at_ms


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (RuleChange(1, RuleDescription("$DEFAULT")), Reason.ENTITY_EXISTS),
        (RuleChange(1, removed="red"), Reason.ENTITY_NOT_FOUND),
        (RuleChange(9, RED), Reason.ENTITY_NOT_FOUND),
    ],
)
def test_a_change_that_cannot_be_made_is_refused_or_left_out(change: RuleChange, reason: Reason) -> None:
    with pytest.raises(Refused) as refused:
        names([change])
    assert refused.value.reason is reason
    assert names([change, *CHANGES], may_be_made=True) == names(CHANGES)


def test_changes_that_are_made_again_change_nothing() -> None:
    after = changed(TOPIC, CHANGES, 7)
    assert changed(after, CHANGES, 9, may_be_made=True) == after


def test_changes_can_be_noted() -> None:
    assert decode_changes(encode_changes(CHANGES)) == CHANGES
