"""The order of a subqueue: sequence numbers, ascending, in chunks. Pure; knows no messages.

A number stays after its message has gone, until about half of its chunk has gone; then that one chunk is
rebuilt without them. So no call works on more than a few chunks, however many messages wait, and a walk along
the order skips at most about one number for each that is present. Takes 8 bytes for each message.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Container, Iterator, Sequence

CHUNK = 4096
"""Numbers in a chunk when it is made; twice as many at most."""
_SLACK = 64
"""Below this many gone numbers a chunk is not worth sifting."""


class _Chunk:
    __slots__ = ("gone", "numbers")

    def __init__(self, numbers: array[int]) -> None:
        self.numbers = numbers
        self.gone = 0
        """How many of the numbers have no message any more."""


class Order:
    """Numbers that are in `present` (the owner's messages) and some that have gone. Owned by a subqueue."""

    __slots__ = ("_chunks", "_firsts", "_present")

    def __init__(self, present: Container[int], numbers: Sequence[int] = ()) -> None:
        """`numbers` ascend, and each is present."""
        self._present = present
        self._chunks: list[_Chunk] = [_Chunk(array("Q"))]
        self._firsts: list[int] = [0]
        """By chunk: none of its numbers is lower, and all numbers of the chunk before are."""
        if numbers:
            self.extend(numbers)

    def extend(self, numbers: Sequence[int]) -> None:
        """Add numbers behind all others; they ascend."""
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
        """Add a number wherever it belongs. One that has gone may come back."""
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
        """The messages with these numbers have gone: they are not present any more."""
        if not numbers:
            return
        low, high = self._chunk_of(min(numbers)), self._chunk_of(max(numbers))
        if low == high:
            self._leave(low, len(numbers))
            return
        counts: dict[int, int] = {}
        for number in numbers:
            place = self._chunk_of(number)
            counts[place] = counts.get(place, 0) + 1
        for place in sorted(counts, reverse=True):  # a chunk that is dropped moves those behind it
            self._leave(place, counts[place])

    def cut(self, first: int) -> None:
        """Forget all numbers from `first` on; none of them is present."""
        while len(self._chunks) > 1 and self._firsts[-1] >= first:
            self._drop(len(self._chunks) - 1)
        chunk = self._chunks[-1]
        at = bisect_left(chunk.numbers, first)
        chunk.gone -= len(chunk.numbers) - at
        del chunk.numbers[at:]

    def runs(self, from_number: int) -> Iterator[array[int]]:
        """All numbers from one on, in order, in pieces of a chunk at most. Numbers that have gone may be
        among them.

        The order must not change meanwhile.
        """
        place = self._chunk_of(from_number)
        numbers = self._chunks[place].numbers
        yield numbers[bisect_left(numbers, from_number) :]
        for chunk in self._chunks[place + 1 :]:
            yield chunk.numbers

    def numbers(self, from_number: int) -> Iterator[int]:
        """The same, one by one."""
        for run in self.runs(from_number):
            yield from run

    def take(self, from_number: int, count: int) -> array[int]:
        """Up to `count` numbers from one on, as many as stand in one chunk; empty if there are none."""
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
            gone = sum(1 for number in chunk.numbers if number not in self._present)
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

    def _leave(self, place: int, count: int) -> None:
        chunk = self._chunks[place]
        chunk.gone += count
        total = len(chunk.numbers)
        if chunk.gone >= total:
            assert chunk.gone == total, "more numbers have left than there were"
            self._drop(place)
        elif chunk.gone > _SLACK + total // 2:
            chunk.numbers = array("Q", filter(self._present.__contains__, chunk.numbers))
            chunk.gone = 0

    def _drop(self, place: int) -> None:
        """Forget a chunk; the only one is emptied."""
        if len(self._chunks) == 1:
            self._chunks[0].gone = 0
            del self._chunks[0].numbers[:]
        else:
            del self._chunks[place], self._firsts[place]

    def _split(self, place: int) -> None:
        chunk = self._chunks[place]
        behind = _Chunk(chunk.numbers[CHUNK:])
        del chunk.numbers[CHUNK:]
        behind.gone = sum(1 for number in behind.numbers if number not in self._present)
        chunk.gone -= behind.gone
        self._chunks.insert(place + 1, behind)
        self._firsts.insert(place + 1, behind.numbers[0])
