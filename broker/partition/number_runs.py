"""Runs of consecutive sequence numbers, as a sequence of numbers. Pure.

A million numbers may be a single run, so they are never listed as a whole: a slice lists only its own.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate, chain
from typing import overload


class NumberRuns(Sequence[int]):
    """The numbers of some runs, each given by its first number and its length."""

    __slots__ = ("_ends", "_firsts")

    def __init__(self, firsts: Sequence[int], counts: Sequence[int]) -> None:
        self._firsts = firsts
        self._ends = list(accumulate(counts))
        """How many numbers there are up to the end of each run."""

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __iter__(self) -> Iterator[int]:
        return chain.from_iterable(
            range(first, first + end - begin)
            for first, begin, end in zip(self._firsts, [0, *self._ends], self._ends, strict=False)
        )

    @overload
    def __getitem__(self, place: int) -> int: ...
    @overload
    def __getitem__(self, place: slice) -> list[int]: ...
    def __getitem__(self, place: int | slice) -> int | list[int]:
        if isinstance(place, slice):
            begin, end, step = place.indices(len(self))
            return [self._at(each) for each in range(begin, end, step)]
        return self._at(range(len(self))[place])

    def _at(self, place: int) -> int:
        run = bisect_right(self._ends, place)
        return self._firsts[run] + place - (self._ends[run - 1] if run else 0)


def runs_of(numbers: Sequence[int], firsts: list[int], counts: list[int]) -> None:
    """Add ascending numbers to runs that end below them."""
    for number in numbers:
        if firsts and firsts[-1] + counts[-1] == number:
            counts[-1] += 1
        else:
            firsts.append(number)
            counts.append(1)
