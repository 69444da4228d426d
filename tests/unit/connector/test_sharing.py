"""Sharing a batch's limit among partitions, and ranges among tasks."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pyspark_partibus.offsets import Range
from pyspark_partibus.sharing import ranges_of_tasks, share_out

BACKLOGS = st.dictionaries(st.integers(0, 40), st.integers(0, 10_000), max_size=20)
RANGES = st.dictionaries(st.integers(0, 40), st.tuples(st.integers(1, 100), st.integers(1, 300)), max_size=20)


@given(BACKLOGS, st.integers(1, 5000))
def test_the_limit_is_used_up_and_nobody_gets_more_than_waits(backlogs: dict[int, int], limit: int) -> None:
    shares = share_out(backlogs, limit)
    assert sum(shares.values()) == min(limit, sum(backlogs.values()))
    assert all(0 < share <= backlogs[each] for each, share in shares.items())


@given(BACKLOGS, st.integers(20, 5000))
def test_every_partition_that_waits_gets_something(backlogs: dict[int, int], limit: int) -> None:
    assert share_out(backlogs, limit).keys() == {each for each, backlog in backlogs.items() if backlog}


def test_a_longer_backlog_gets_a_larger_share() -> None:
    assert share_out({0: 900, 1: 100, 2: 0}, 100) == {0: 90, 1: 10}


def test_with_more_partitions_than_messages_the_longest_backlogs_go_first() -> None:
    assert share_out({0: 5, 1: 9, 2: 9}, 2) == {1: 1, 2: 1}


@given(RANGES, st.integers(1, 8), st.one_of(st.none(), st.integers(1, 100)))
def test_tasks_read_every_number_once(
    ranges: dict[int, tuple[int, int]], tasks_max: int, split: int | None
) -> None:
    whole = [Range(each, start, start + size) for each, (start, size) in ranges.items()]
    tasks = ranges_of_tasks(whole, tasks_max, split)
    assert tasks == ranges_of_tasks(whole[::-1], tasks_max, split)
    assert all(tasks)
    assert len(tasks) <= tasks_max
    read = sorted((piece.partition, number) for task in tasks for piece in task for number in _numbers(piece))
    assert read == sorted((each.partition, number) for each in whole for number in _numbers(each))


def test_a_partition_is_read_by_one_task_unless_it_may_be_split() -> None:
    hot = [Range(0, 1, 1001), Range(1, 1, 11)]
    assert ranges_of_tasks(hot, 2, None) == [[hot[0]], [hot[1]]]
    assert ranges_of_tasks(hot, 2, 500) == [[Range(0, 1, 501), Range(1, 1, 11)], [Range(0, 501, 1001)]]


def _numbers(piece: Range) -> range:
    return range(piece.start, piece.end)
