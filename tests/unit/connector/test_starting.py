"""Where a query begins and ends."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import pytest

from pyspark_partibus.client.operations import Cursor, Node
from pyspark_partibus.errors import OptionError, Unavailable
from pyspark_partibus.offsets import Positions
from pyspark_partibus.options import SourceOptions, source_options
from pyspark_partibus.starting import ending_positions, starting_positions
from tests.support.fake_node import FakeNode

HEADS, STARTS = {0: 10, 1: 20}, {0: 3, 1: 4}


def options(**given: str) -> SourceOptions:
    return source_options(
        {"endpoint": "amqp://host", "entity": "orders", "cursor": "c", "retryTimeout": "0s", **given}
    )


def starting(node: FakeNode, default: str = "latest", **given: str) -> Positions:
    return starting_positions(cast(Node, node), options(**given), default)[1]


@pytest.mark.parametrize(
    ("given", "positions"),
    [
        ({}, HEADS),
        ({"startingOffsets": "earliest"}, STARTS),
        ({"startingOffsets": '{"0": 7}'}, {0: 7, 1: 4}),
        ({"startingOffsets": '{"0": -1, "1": -2}'}, {0: 10, 1: 4}),
        ({"startingTimestamp": "2026-01-01"}, {0: 5, 1: 5}),
        ({"startingOffsets": "committed"}, STARTS),
    ],
)
def test_where_a_query_begins(given: dict[str, str], positions: Positions) -> None:
    assert starting(FakeNode(HEADS, STARTS), **given) == positions


def test_a_query_goes_on_at_its_cursor_if_the_entity_is_still_the_same() -> None:
    node = FakeNode(HEADS, STARTS)
    node.cursors["c"] = Cursor("them", "gen", {0: 8})
    assert starting(node, startingOffsets="committed") == {0: 8, 1: 4}
    node.cursors["c"] = Cursor("them", "earlier", {0: 8})
    assert starting(node, startingOffsets="committed") == STARTS


@pytest.mark.parametrize(
    ("given", "positions"),
    [
        ({}, HEADS),
        ({"endingOffsets": '{"0": 7}'}, {0: 7, 1: 20}),
        ({"endingOffsets": '{"0": -2}'}, {0: 3, 1: 20}),
        ({"endingTimestamp": "2026-01-01"}, {0: 5, 1: 5}),
    ],
)
def test_where_a_batch_query_ends(given: dict[str, str], positions: Positions) -> None:
    node = FakeNode(HEADS, STARTS)
    assert ending_positions(cast(Node, node), node.answer, options(**given)) == positions


def test_a_batch_query_cannot_end_beyond_what_is_there() -> None:
    node = FakeNode(HEADS, STARTS)
    with pytest.raises(OptionError, match=r"endingOffsets.*is 11 in partition 0, which ends at 10"):
        ending_positions(cast(Node, node), node.answer, options(endingOffsets='{"0": 11}'))


def test_a_query_cannot_begin_beyond_what_is_there() -> None:
    with pytest.raises(OptionError, match=r"startingOffsets.*is 21 in partition 1, which ends at 20"):
        starting(FakeNode(HEADS, STARTS), startingOffsets='{"1": 21}')
    assert starting(FakeNode(HEADS, STARTS), startingOffsets='{"1": 20}') == {0: 3, 1: 20}


def test_an_unknown_partition_is_an_error() -> None:
    with pytest.raises(OptionError, match="names partition 2; 'orders' has 2"):
        starting(FakeNode(HEADS, STARTS), startingOffsets='{"2": 1}')


def test_a_partition_that_is_down_has_no_position() -> None:
    node = FakeNode(HEADS, STARTS)
    node.answer = replace(node.answer, unavailable=(3,))
    with pytest.raises(Unavailable, match="partitions 3 of 'orders'"):
        starting(node)


def test_a_partition_that_comes_back_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    node = FakeNode(HEADS, STARTS)
    whole, node.answer = node.answer, replace(node.answer, unavailable=(3,))
    monkeypatch.setattr("time.sleep", lambda _: setattr(node, "answer", whole))
    assert starting(node, retryTimeout="1s") == HEADS
    assert node.asked == ["heads", "heads"]
