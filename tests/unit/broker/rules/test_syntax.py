"""Trees of expressions."""

from __future__ import annotations

from broker.rules.sql import parse_filter
from broker.rules.syntax import Node, children


def count(node: Node) -> int:
    return 1 + sum(map(count, children(node)))


def test_every_part_of_an_expression_is_reached_through_its_children() -> None:
    assert count(parse_filter("a = 1")) == 3
    assert count(parse_filter("NOT (a LIKE 'x' ESCAPE '!' OR b IN (1, -c) AND d IS NULL)")) == 14
    assert count(parse_filter("+a * p('b') <> newid() AND EXISTS(c) AND @d = @e")) == 12
