"""The order of a subqueue: ascending sequence numbers, in chunks. Pure; it does not look at the messages.

The number of a removed message stays in its chunk until about half of the chunk's numbers are stale; then
that chunk alone is rebuilt. So no call touches more than a few chunks, however many messages wait, and a walk
along the order skips about one stale number at most for each number still present. Memory use is 8 bytes per
number.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

from broker.partition import _references

CHUNK = 4096
"""Numbers in a new chunk. A chunk holds at most twice as many."""
_SLACK = 64
"""A chunk with fewer stale numbers than this is not rebuilt."""
_TAKEN_OFF_SHARE = 512
"""Taking this share of a chunk off its front takes no longer than sifting it later."""


class Present(Protocol):
    """The owner's messages, by number."""

    def known(self, numbers: Sequence[int], /) -> Iterable[int]:
        """Those of several ascending numbers that are present."""


class _Chunk:
    __slots__ = ("gone", "numbers")

    def __init__(self, numbers: array[int]) -> None:
        self.numbers = numbers
        self.gone = 0
        """How many of the numbers belong to removed messages."""


class Order:
    """The numbers in `present` (the owner's messages), and some stale ones. Owned by a subqueue."""

    __slots__ = ("_chunks", "_firsts", "_present")

    def __init__(self, present: Present, numbers: Sequence[int] = ()) -> None:
        """`numbers` must be ascending, and all of them present."""
        self._present = present
        self._chunks: list[_Chunk] = [_Chunk(array("Q"))]
        self._firsts: list[int] = [0]
        """Per chunk: a lower bound of its numbers, higher than every number in the chunk before."""
        if numbers:
            self.extend(numbers)

    def extend(self, numbers: Sequence[int]) -> None:
        """Add ascending numbers at the end."""
        last = self._chunks[-1].numbers
        assert not last or numbers[0] > last[-1], "sequence numbers never come back"
        if not last:
            self._firsts[-1] = numbers[0]
        place = max(CHUNK - len(last), 0)
        if len(numbers) <= place:
            last.extend(numbers)
            return
        last.extend(numbers[:place])
        for start in range(place, len(numbers), CHUNK):
            self._chunks.append(_Chunk(array("Q", numbers[start : start + CHUNK])))
            self._firsts.append(numbers[start])

    def insert(self, number: int) -> None:
        """Add a number at its place. A stale number may become present again."""
        last = self._chunks[-1].numbers
        if not last or number > last[-1]:
            self.extend((number,))
            return
        place = self._chunk_of(number)
        chunk = self._chunks[place]
        at = bisect_left(chunk.numbers, number)
        if at < len(chunk.numbers) and chunk.numbers[at] == number:
            chunk.gone -= 1
            return
        chunk.numbers.insert(at, number)
        self._firsts[place] = min(self._firsts[place], number)
        if len(chunk.numbers) > 2 * CHUNK:
            self._split(place)

    def left(self, numbers: Sequence[int]) -> None:
        """The messages with these numbers are no longer present."""
        if not numbers:
            return
        first, last = _references.bounds(list(numbers))
        low, high = self._chunk_of(first), self._chunk_of(last)
        if low == high:
            if not self._take_off(low, first, last, len(numbers)):
                self._leave(low, len(numbers))
            return
        if high == low + 1:
            begin = self._firsts[high]
            self.left([number for number in numbers if number >= begin])
            self.left([number for number in numbers if number < begin])
            return
        counts: dict[int, int] = {}
        for number in numbers:
            place = self._chunk_of(number)
            counts[place] = counts.get(place, 0) + 1
        for place in sorted(counts, reverse=True):  # from the end: dropping a chunk moves those behind
            self._leave(place, counts[place])

    def cut(self, first: int) -> None:
        """Drop all numbers from `first` on; none of them is present."""
        while len(self._chunks) > 1 and self._firsts[-1] >= first:
            self._drop(len(self._chunks) - 1)
        chunk = self._chunks[-1]
        at = bisect_left(chunk.numbers, first)
        chunk.gone -= len(chunk.numbers) - at
        del chunk.numbers[at:]

    def runs(self, from_number: int) -> Iterator[array[int]]:
        """Yield all numbers from `from_number` on, in order, at most one chunk at a time. Stale numbers may
        be among them.

        The order must not change during the iteration.
        """
        place = self._chunk_of(from_number)
        numbers = self._chunks[place].numbers
        yield numbers[bisect_left(numbers, from_number) :]
        for chunk in self._chunks[place + 1 :]:
            yield chunk.numbers

    def numbers(self, from_number: int) -> Iterator[int]:
        """As `runs`, but one number at a time."""
        for run in self.runs(from_number):
            yield from run

    def count_from(self, from_number: int) -> int:
        """How many numbers there are from `from_number` on, stale ones included."""
        place = self._chunk_of(from_number)
        numbers = self._chunks[place].numbers
        behind = sum(len(chunk.numbers) for chunk in self._chunks[place + 1 :])
        return len(numbers) - bisect_left(numbers, from_number) + behind

    def find(self, is_before: Callable[[int], bool | None]) -> int | None:
        """The first number for which `is_before` is False; None if it is True for all. It is True for all
        lower numbers, and None for those that do not count.

        Looks at the numbers of a few chunks only. Where it meets a chunk none of whose numbers counts, the
        result may be too low.
        """
        low, high = 0, len(self._chunks)
        while high - low > 1:  # the chunks from `high` on begin with numbers that are not before
            middle = (low + high) // 2
            known = (each for each in map(is_before, self._chunks[middle].numbers) if each is not None)
            if next(known, False):
                low = middle
            else:
                high = middle
        for chunk in self._chunks[low : high + 1]:
            for number in chunk.numbers:
                if is_before(number) is False:
                    return number
        return self._firsts[high] if high < len(self._chunks) else None

    def take(self, from_number: int, count: int) -> array[int]:
        """Return up to `count` numbers from `from_number` on, all from one chunk; empty if there are none."""
        place = self._chunk_of(from_number)
        while True:
            numbers = self._chunks[place].numbers
            at = bisect_left(numbers, from_number)
            if at < len(numbers):
                return numbers[at : at + count]
            place += 1
            if place == len(self._chunks):
                return numbers[at:]

    def check(self) -> None:
        """Assert the invariants above."""
        numbers = list(self.numbers(0))
        assert numbers == sorted(set(numbers))
        for place, chunk in enumerate(self._chunks):
            gone = len(chunk.numbers) - sum(1 for _ in self._present.known(chunk.numbers))
            assert chunk.gone == gone <= _SLACK + len(chunk.numbers) // 2 + 1, (
                chunk.gone,
                gone,
                len(chunk.numbers),
            )
            assert not chunk.numbers or chunk.numbers[0] >= self._firsts[place]
            assert chunk.numbers or len(self._chunks) == 1
            assert place + 1 == len(self._chunks) or chunk.numbers[-1] < self._firsts[place + 1]

    def _chunk_of(self, number: int) -> int:
        return max(bisect_right(self._firsts, number) - 1, 0)

    def _take_off(self, place: int, first: int, last: int, count: int) -> bool:
        """Take numbers off the front of a chunk if they are all that it has up to the last one of them, as
        when messages are completed in order, and enough of them. None of them becomes stale then."""
        chunk = self._chunks[place]
        numbers = chunk.numbers
        is_front = count < len(numbers) and numbers[0] == first and numbers[count - 1] == last
        if not is_front or count * _TAKEN_OFF_SHARE < len(numbers):
            return False
        chunk.numbers = numbers[count:]
        return True

    def _leave(self, place: int, count: int) -> None:
        chunk = self._chunks[place]
        chunk.gone += count
        total = len(chunk.numbers)
        if chunk.gone >= total:
            assert chunk.gone == total, "more numbers have left than there were"
            self._drop(place)
        elif chunk.gone > _SLACK + total // 2:
            chunk.numbers = array("Q", self._present.known(chunk.numbers))
            chunk.gone = 0

    def _drop(self, place: int) -> None:
        """Drop a chunk. If it is the only one, empty it instead."""
        if len(self._chunks) == 1:
            self._chunks[0].gone = 0
            del self._chunks[0].numbers[:]
        else:
            del self._chunks[place], self._firsts[place]

    def _split(self, place: int) -> None:
        chunk = self._chunks[place]
        behind = _Chunk(chunk.numbers[CHUNK:])
        del chunk.numbers[CHUNK:]
        behind.gone = len(behind.numbers) - sum(1 for _ in self._present.known(behind.numbers))
        chunk.gone -= behind.gone
        self._chunks.insert(place + 1, behind)
        self._firsts.insert(place + 1, behind.numbers[0])
