"""Offsets: one text for each, and what a batch reads between two of them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pyspark_partibus.offsets import Offset, Range, counter_of, on_the_wire, partition_of, ranges_between

START = Offset("gen", "own", {1: 7, 0: 5}, initial=True)


def test_the_same_offset_has_the_same_text_whatever_its_order() -> None:
    other = Offset("gen", "own", {0: 5, 1: 7}, initial=True)
    assert json.dumps(START.to_json()) == json.dumps(other.to_json())
    assert (
        json.dumps(START.to_json())
        == '{"v": 1, "gen": "gen", "own": "own", "p": {"0": 5, "1": 7}, "init": 1}'
    )


def test_where_the_cursor_was_is_kept_until_more_is_known() -> None:
    first = START.ending({0: 9, 1: 7}, "gen", {0: 5, 1: 7})
    assert first.ending({0: 9, 1: 8}, "gen").settled == {0: 5, 1: 7}
    assert first.ending({0: 9, 1: 8}, "gen", {0: 9, 1: 7}).settled == {0: 9, 1: 7}
    assert first.ending({0: 1}, "new").settled is None


def test_an_offset_survives_its_json() -> None:
    end = START.ending({0: 9, 1: 7}, "gen")
    for each in (START, end, end.ending({0: 9, 1: 8}, "gen", {0: 5, 1: 7})):
        assert Offset.from_json(json.loads(json.dumps(each.to_json()))) == each


@pytest.mark.parametrize(
    "value", [{}, [1], None, {"topic": {"0": 5}}, {"v": 1}, {"v": 1, "gen": "g", "own": "o", "p": {"a": "b"}}]
)
def test_what_is_no_offset_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="the checkpoint is damaged or belongs to another source"):
        Offset.from_json(value)


def test_offsets_of_another_version_are_refused() -> None:
    with pytest.raises(ValueError, match="version 2"):
        Offset.from_json({"v": 2})


def test_nothing_new_is_the_same_offset() -> None:
    assert START.ending({0: 5, 1: 7}, "gen") is START


def test_a_batch_reads_from_its_start_to_its_end() -> None:
    start = Offset("gen", "own", {0: 5, 1: 7})
    assert ranges_between(start, start.ending({0: 9, 1: 7}, "gen")) == [Range(0, 5, 9)]


def test_batch_0_begins_at_its_base_when_it_is_run_again() -> None:
    end = START.ending({0: 9, 1: 8}, "gen")
    assert end.base == {0: 5, 1: 7}
    later = Offset("gen", "another", {0: 20, 1: 20}, initial=True)
    assert ranges_between(later, end) == [Range(0, 5, 9), Range(1, 7, 8)]


def test_the_second_batch_begins_where_the_first_one_ended() -> None:
    first = START.ending({0: 9, 1: 8}, "gen")
    second = first.ending({0: 10, 1: 8}, "gen")
    assert second.base is None
    assert ranges_between(first, second) == [Range(0, 9, 10)]


def test_new_partitions_and_new_generations_are_read_from_their_first_message() -> None:
    start = Offset("gen", "own", {0: 5})
    assert ranges_between(start, start.ending({0: 5, 1: 3}, "gen")) == [Range(1, 1, 3)]
    assert ranges_between(start, start.ending({0: 2}, "new")) == [Range(0, 1, 2)]


def test_positions_on_the_wire_are_sequence_numbers() -> None:
    assert on_the_wire({146: 2, 0: 3}) == [3, 41095346599755778]
    assert (partition_of(41095346599755778), counter_of(41095346599755778)) == (146, 2)
    assert (Range(1, 2, 4).first, Range(1, 2, 4).behind, len(Range(1, 4, 2))) == (
        (1 << 48) + 2,
        (1 << 48) + 4,
        0,
    )
