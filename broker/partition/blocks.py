"""Which blocks of a section have changed since a checkpoint. Pure.

A checkpoint is written in blocks (`snapshot.py`), and only those that have changed. `ChangedBlocks` keeps,
for each block, the position of the latest frame that changed it. A checkpoint that builds on an earlier one
writes the blocks that were changed from that one's position on, whatever was saved, or failed to be saved, in
between. `Blocks` says which block a message is in: a block is what one subqueue holds of BLOCK_MESSAGES
consecutive sequence numbers.

The dictionary is kept in the order of these positions: the changed blocks are at its end, and finding them
does not look at the others.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set

from broker.operations import PARTITION_SHIFT
from broker.partition.gradual_sort import sort_gradually
from storage.log import Position

BLOCK_SHIFT = 10
BLOCK_MESSAGES = 1 << BLOCK_SHIFT
"""Enough that the table of all blocks is small (40 bytes for each in a checkpoint), and few enough to encode
one in half a millisecond."""

SUBQUEUE_SHIFT = PARTITION_SHIFT - BLOCK_SHIFT
"""A block's number is its subqueue's number above this bit, and the place of its sequence numbers in the
partition below."""
_PLACE_MASK = (1 << SUBQUEUE_SHIFT) - 1


def block_of(subqueue: int, sequence_number: int) -> int:
    """The number of the block in which a message stands."""
    return subqueue << SUBQUEUE_SHIFT | sequence_number >> BLOCK_SHIFT & _PLACE_MASK


def place_of(block: int) -> tuple[int, int]:
    """A block's subqueue, and its first sequence number but for the partition's bits."""
    return block >> SUBQUEUE_SHIFT, (block & _PLACE_MASK) << BLOCK_SHIFT


class ChangedBlocks:
    """When each block of one section has changed. The owner chooses the blocks' numbers."""

    __slots__ = ("_changed_at",)

    def __init__(self) -> None:
        self._changed_at: dict[int, Position] = {}
        """In ascending order of positions. Every block that is not empty is here, and an empty one until a
        checkpoint has recorded that."""

    def __len__(self) -> int:
        return len(self._changed_at)

    def touch_blocks(self, blocks: Iterable[int], position: Position) -> None:
        """The frame at `position`, or one to be written there, changes these blocks. Called before they
        change."""
        changed_at = self._changed_at
        for block in blocks:
            if changed_at.get(block) != position:
                changed_at.pop(block, None)  # to the end
                changed_at[block] = position

    def changed_since(self, base: Position | None) -> list[int]:
        """The blocks that frames from `base` on have changed; all of them for None."""
        if base is None:
            return list(self._changed_at)
        changed: list[int] = []
        for block, position in reversed(self._changed_at.items()):
            if position < base:
                break
            changed.append(block)
        return changed

    def count_since(self, base: Position | None) -> int:
        """How many they are."""
        return len(self._changed_at) if base is None else len(self.changed_since(base))

    def adopt(self, taken: Mapping[int, Position]) -> Iterator[None]:
        """These blocks come from a checkpoint; each was written for one at this position, and has not changed
        since. In steps."""
        assert not self._changed_at
        for part in sort_gradually(taken, taken.__getitem__):
            for block in part:
                # Some frame below that position was the one.
                self._changed_at[block] = Position(taken[block] - 1)
            yield

    def forget(self, blocks: Sequence[int]) -> None:
        """These are gone, and a checkpoint says so."""
        for block in blocks:
            del self._changed_at[block]

    def check_blocks(self, blocks: Set[int]) -> None:
        """Assert that all blocks that are not empty are known, and that the order is right."""
        assert blocks <= self._changed_at.keys()
        positions = list(self._changed_at.values())
        assert positions == sorted(positions)


class Blocks(ChangedBlocks):
    """When each block of messages of one partition has changed."""

    __slots__ = ()

    def touch(self, subqueue: int, sequence_numbers: Collection[int], position: Position) -> None:
        """`touch_blocks` for the blocks of these messages."""
        above = subqueue << SUBQUEUE_SHIFT
        self.touch_blocks(
            {number >> BLOCK_SHIFT & _PLACE_MASK | above for number in sequence_numbers}, position
        )

    def touch_run(self, subqueue: int, first: int, count: int, position: Position) -> None:
        """`touch_blocks` for consecutive sequence numbers."""
        self.touch_blocks(
            range(block_of(subqueue, first), block_of(subqueue, first + count - 1) + 1), position
        )

    def check(self, subqueue: int, sequence_numbers: Iterable[int]) -> None:
        """Assert that every message stands in a known block, and that the order is right."""
        self.check_blocks({block_of(subqueue, number) for number in sequence_numbers})
