"""Runs of numbers behave like the list of these numbers."""

from __future__ import annotations

from broker.partition.number_runs import NumberRuns, runs_of

NUMBERS = [3, 4, 5, 9, 20, 21, 30]


def test_runs_are_the_numbers_that_they_were_made_of() -> None:
    firsts: list[int] = []
    counts: list[int] = []
    for begin in range(0, len(NUMBERS), 2):
        runs_of(NUMBERS[begin : begin + 2], firsts, counts)
    assert (firsts, counts) == ([3, 9, 20, 30], [3, 1, 2, 1])
    runs = NumberRuns(firsts, counts)
    assert list(runs) == NUMBERS and len(runs) == len(NUMBERS)
    for begin in range(9):
        for end in range(9):
            assert runs[begin:end] == NUMBERS[begin:end]
    assert [runs[place] for place in range(-7, 7)] == [NUMBERS[place] for place in range(-7, 7)]
    assert max(runs) == 30 and not NumberRuns([], []) and list(NumberRuns([], [])) == []
