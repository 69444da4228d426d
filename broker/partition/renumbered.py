"""Messages that the log stores under an earlier number: scheduled ones that have become active. Pure.

Compaction finds the live messages of a frame by the numbers in its records. Messages that have got another
number since are found by this table, which checkpoints keep.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Collection, Iterator, Sequence

from broker.partition.divided_table import DividedTable
from broker.partition.references import Reference

DROPPED_AT_ONCE = 1024
"""Frames that one step of `drop` frees: less than a millisecond."""


class Renumbered:
    """The present numbers of these messages, by the frame that holds them. Owned by `Messages`.

    Numbers of messages that were removed or relocated stay until their frame is forgotten: 8 bytes each.
    """

    __slots__ = ("_by_frame",)

    def __init__(self) -> None:
        self._by_frame: DividedTable[int, array[int]] = DividedTable()
        """Ascending numbers, by the frame's position."""

    def __bool__(self) -> bool:
        return self._by_frame.count > 0

    def add(self, reference: Reference) -> None:
        """Add a message that has just got another number, or was read from a checkpoint."""
        numbers = self._by_frame.get(reference.frame.position)
        if numbers is None:
            numbers = self._by_frame[reference.frame.position] = array("Q")
        if not numbers or reference.sequence_number > numbers[-1]:
            numbers.append(reference.sequence_number)
        elif not self.has(reference):
            numbers.insert(bisect_left(numbers, reference.sequence_number), reference.sequence_number)

    def has(self, reference: Reference) -> bool:
        """Whether the frame that holds this message has it under another number."""
        numbers = self._by_frame.get(reference.frame.position)
        if numbers is None:
            return False
        place = bisect_left(numbers, reference.sequence_number)
        return place < len(numbers) and numbers[place] == reference.sequence_number

    def of_frame(self, position: int) -> Sequence[int]:
        """The numbers of messages in this frame whose records have another one."""
        return self._by_frame.get(position) or ()

    def forget(self, position: int) -> None:
        """Forget a frame that holds no live message any more."""
        self._by_frame.pop(position)

    def drop(self) -> Iterator[None]:
        """Free the memory, in steps."""
        while self._by_frame.pop_some(DROPPED_AT_ONCE):
            yield

    def check(self, frames: Collection[int]) -> None:
        """Assert that only frames at these positions are known, and that their numbers ascend."""
        assert set(self._by_frame) <= set(frames)
        for position in self._by_frame:
            numbers = self._by_frame[position]
            assert list(numbers) == sorted(set(numbers))
