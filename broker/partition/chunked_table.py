"""A table by number, in chunks, so that no call takes longer because it has many entries. Pure.

A dictionary that is full moves all its entries to a larger table: with a million of them, that would block
the event loop for 45 ms. And it keeps its largest table, 50 MB after a million entries. So consecutive
numbers share a dictionary of their own, a chunk, whose growing takes a millisecond at most. It is freed with
its last entry, and made smaller once few are left.

Numbers should be dense, as sequence numbers are, or positions of small frames: a chunk with a single entry
takes some 300 bytes.
"""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from itertools import repeat
from typing import Generic, TypeVar

from broker.partition._untracked import untrack

CHUNK_SHIFT = 16
CHUNK = 1 << CHUNK_SHIFT
"""Numbers that share a chunk."""
_FEW = 4096
"""This many entries can be copied to another dictionary in less than a millisecond."""
_BYTES_MIN, _BYTES_EACH = 64 * 1024, 512
"""A chunk up to this size is kept. A dictionary that has only grown takes up to 200 bytes per entry."""

V = TypeVar("V")


class ChunkedTable(Generic[V]):
    """Values by number. Iterates over chunks in order, and over each chunk in the order of insertion."""

    __slots__ = ("_chunks", "count")

    def __init__(self) -> None:
        self._chunks: dict[int, dict[int, V]] = {}
        """By number >> CHUNK_SHIFT. None is empty."""
        self.count = 0
        """As `len`, for what happens with each operation: reading it calls no code."""
        untrack([self])

    # --- looking --------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[int]:
        for _, chunk in sorted(self._chunks.items()):
            yield from chunk

    def values(self) -> Iterator[V]:
        """Yield all values, in the order of the iteration."""
        for _, chunk in sorted(self._chunks.items()):
            yield from chunk.values()

    def items(self) -> Iterator[tuple[int, V]]:
        """Yield all numbers with their values, in the order of the iteration."""
        for _, chunk in sorted(self._chunks.items()):
            yield from chunk.items()

    def __contains__(self, number: object) -> bool:
        assert isinstance(number, int)
        chunk = self._chunks.get(number >> CHUNK_SHIFT)
        return chunk is not None and number in chunk

    def __getitem__(self, number: int) -> V:
        chunk = self._chunks.get(number >> CHUNK_SHIFT)
        if chunk is None:
            raise KeyError(number)
        return chunk[number]

    def get(self, number: int) -> V | None:
        """The value of a number; None if it has none."""
        chunk = self._chunks.get(number >> CHUNK_SHIFT)
        return None if chunk is None else chunk.get(number)

    def finder(self) -> Callable[[int], V | None]:
        """A function like `get`, as fast as can be, until the table changes."""
        if len(self._chunks) != 1:
            return self.get
        (chunk,) = self._chunks.values()
        return chunk.get

    def chunk_of(self, number: int) -> dict[int, V]:
        """The values of some numbers, among them this one's if it has one. Valid until the table changes."""
        return self._chunks.get(number >> CHUNK_SHIFT) or {}

    def get_each(self, numbers: Sequence[int]) -> Iterator[V | None]:
        """As `get`, for each of several ascending numbers."""
        if not numbers:
            return iter(())
        place = numbers[0] >> CHUNK_SHIFT
        if numbers[-1] >> CHUNK_SHIFT != place:
            return map(self.get, numbers)
        chunk = self._chunks.get(place)
        return repeat(None, len(numbers)) if chunk is None else map(chunk.get, numbers)

    def known(self, numbers: Sequence[int]) -> Iterator[int]:
        """Those of several ascending numbers that have values."""
        if not numbers:
            return iter(())
        place = numbers[0] >> CHUNK_SHIFT
        if numbers[-1] >> CHUNK_SHIFT != place:
            return filter(self.__contains__, numbers)
        return filter(self._chunks.get(place, {}).__contains__, numbers)

    # --- coming in and leaving ------------------------------------------------------------------------------

    def __setitem__(self, number: int, value: V) -> None:
        chunk = self._chunks.get(number >> CHUNK_SHIFT) or self._find_or_make(number >> CHUNK_SHIFT)
        before = len(chunk)
        chunk[number] = value
        self.count += len(chunk) - before

    def add(self, numbers: Sequence[int], values: Sequence[V]) -> None:
        """Set the values of ascending numbers."""
        begin, count = 0, len(numbers)
        while begin < count:
            place, end = numbers[begin] >> CHUNK_SHIFT, count
            if numbers[-1] >> CHUNK_SHIFT != place:
                end = bisect_left(numbers, place + 1 << CHUNK_SHIFT, begin)
            chunk = self._chunks.get(place) or self._find_or_make(place)
            before = len(chunk)
            if end - begin == count:
                chunk.update(zip(numbers, values, strict=True))
            else:
                chunk.update(zip(numbers[begin:end], values[begin:end], strict=True))
            self.count += len(chunk) - before
            begin = end

    def pop(self, number: int) -> V:
        """Remove a number. Returns its value."""
        place = number >> CHUNK_SHIFT
        chunk = self._chunks[place]
        value = chunk.pop(number)
        self.count -= 1
        left = len(chunk)
        if not left & left - 1:  # zero or a power of two: not each time
            self._shrink(place)
        return value

    def pop_each(self, numbers: Sequence[int]) -> list[V]:
        """Remove several numbers, in any order. Returns their values."""
        if not numbers:
            return []
        place = numbers[0] >> CHUNK_SHIFT
        if len(self._chunks) > 1 and not min(numbers) >> CHUNK_SHIFT == place == max(numbers) >> CHUNK_SHIFT:
            return [self.pop(number) for number in numbers]
        chunk = self._chunks[place]
        values = list(map(chunk.pop, numbers))
        self.count -= len(values)
        if len(chunk) <= _FEW:
            self._shrink(place)
        return values

    def pop_some(self, count: int) -> list[V]:
        """Remove some entries, `count` at most, to free a table that is no longer used. Returns their values;
        none are left if there are none."""
        if not self._chunks:
            return []
        place, chunk = next(reversed(self._chunks.items()))
        values = [chunk.popitem()[1] for _ in range(min(count, len(chunk)))]
        self.count -= len(values)
        if not chunk:
            del self._chunks[place]
        return values

    def check(self) -> None:
        """Assert the invariants above."""
        assert self.count == sum(map(len, self._chunks.values()))
        for place, chunk in self._chunks.items():
            assert chunk and all(number >> CHUNK_SHIFT == place for number in chunk)

    def _find_or_make(self, place: int) -> dict[int, V]:
        chunk = self._chunks.get(place)
        if chunk is None:
            chunk = self._chunks[place] = {}
            untrack([chunk])  # from Python 3.14 on, every dictionary is tracked when it is made
        return chunk

    def _shrink(self, place: int) -> None:
        """Free a chunk that is empty, or the room of entries that have gone."""
        chunk = self._chunks[place]
        if not chunk:
            del self._chunks[place]
        elif sys.getsizeof(chunk) > _BYTES_MIN + _BYTES_EACH * len(chunk):
            smaller = self._chunks[place] = dict(chunk)
            untrack([smaller])
