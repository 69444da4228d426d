"""Tracks which blocks of a section have changed since a checkpoint. Pure.

A checkpoint is written in blocks (`snapshot.py`), and only changed blocks are written. For each block,
`ChangedBlocks` keeps the position of the latest frame that changed it. A checkpoint that builds on an earlier
one writes the blocks changed since the earlier one's position, whatever was saved, or failed to be saved, in
between. `Blocks` maps messages to blocks: a block holds BLOCK_MESSAGES consecutive sequence numbers of one
subqueue. `InBlocks` is the part of a section that is the same for all kinds of state that are kept in blocks.

The dictionary is ordered by these positions. Changed blocks are at its end, so finding them does not touch
the others.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence, Set
from typing import Any, TypeVar

from broker.identifiers import PARTITION_SHIFT
from broker.partition import _references
from broker.partition.block_content import Content, content_of
from broker.partition.divided_table import DividedTable
from broker.partition.gradual_sort import sort_gradually
from storage.log import Block, Position

BLOCK_SHIFT = 10
BLOCK_MESSAGES = 1 << BLOCK_SHIFT
"""Large enough to keep the table of all blocks small (40 bytes per block in a checkpoint), and small enough
to encode a block in half a millisecond."""

SUBQUEUE_SHIFT = PARTITION_SHIFT - BLOCK_SHIFT
"""The subqueue's number starts at this bit of a block's number. The bits below hold the place of the block's
sequence numbers in the partition."""
_PLACE_MASK = (1 << SUBQUEUE_SHIFT) - 1
_LENGTH = struct.Struct("<I")
LENGTH_BYTES = _LENGTH.size
"""What each of several joined bodies takes besides its own bytes."""
DROPPED_AT_ONCE = 64
"""Blocks that one step of `drop_steps` frees: less than a millisecond."""
K = TypeVar("K", bound=Hashable)


def block_of(subqueue: int, sequence_number: int) -> int:
    """The number of the block that holds a message."""
    return subqueue << SUBQUEUE_SHIFT | sequence_number >> BLOCK_SHIFT & _PLACE_MASK


def place_of(block: int) -> tuple[int, int]:
    """A block's subqueue, and its first sequence number without the partition's bits."""
    return block >> SUBQUEUE_SHIFT, (block & _PLACE_MASK) << BLOCK_SHIFT


class ChangedBlocks:
    """Records when each block of one section changed. The owner chooses the blocks' numbers."""

    __slots__ = ("_changed_at",)

    def __init__(self) -> None:
        self._changed_at: dict[int, Position] = {}
        """In ascending order of positions. Holds every non-empty block, and each emptied block until a
        checkpoint has recorded that it is empty."""

    def __len__(self) -> int:
        return len(self._changed_at)

    def touch_blocks(self, blocks: Iterable[int], position: Position) -> None:
        """The frame at `position`, which may not be written yet, changes these blocks. Call this before
        changing them."""
        changed_at = self._changed_at
        for block in blocks:
            if changed_at.get(block) != position:
                changed_at.pop(block, None)  # so that it moves to the end
                changed_at[block] = position

    def changed_since(self, base: Position | None) -> list[int]:
        """The blocks changed by frames from `base` on; all blocks if it is None."""
        if base is None:
            return list(self._changed_at)
        changed: list[int] = []
        for block, position in reversed(self._changed_at.items()):
            if position < base:
                break
            changed.append(block)
        return changed

    def count_since(self, base: Position | None) -> int:
        """The number of blocks in `changed_since`."""
        return len(self._changed_at) if base is None else len(self.changed_since(base))

    def adopt(self, taken: Mapping[int, Position]) -> Iterator[None]:
        """Adopt blocks read from a checkpoint, in steps. `taken`: the position of the checkpoint that each
        block was written for. None has changed since."""
        assert not self._changed_at
        for part in sort_gradually(taken, taken.__getitem__):
            for block in part:
                # The last change was in some frame below that position.
                self._changed_at[block] = Position(taken[block] - 1)
            yield

    def forget(self, blocks: Sequence[int]) -> None:
        """Forget blocks that are empty, once a checkpoint says so."""
        for block in blocks:
            del self._changed_at[block]

    def check_blocks(self, blocks: Set[int]) -> None:
        """Assert that all these non-empty blocks are known, and that the order is right."""
        assert blocks <= self._changed_at.keys()
        positions = list(self._changed_at.values())
        assert positions == sorted(positions)


class InBlocks:
    """What the sections of state in blocks have in common (`durable_state.Section`). They do not refer to the
    log."""

    def __init__(self) -> None:
        self._changed = ChangedBlocks()

    def changed_since(self, base: Position | None) -> Sequence[int]:
        """See `Section`."""
        return self._changed.changed_since(base)

    def decoded(self, taken: Mapping[int, Position]) -> Iterator[None]:
        """See `Section`."""
        return self._changed.adopt(taken)

    def saved(self, gone: Sequence[int]) -> None:
        """See `Section`."""
        self._changed.forget(gone)

    def needed_from(self) -> Position | None:
        """See `Section`."""
        return None


def block_by_name(name: bytes, blocks: int) -> int:
    """The number of the block, of so many, that holds what has this name."""
    return zlib.crc32(name) % blocks


def drop_steps(
    by_block: dict[int, dict[K, Any]], entries: dict[K, Any] | DividedTable[K, Any]
) -> Iterator[None]:
    """Free what is kept by keys, in steps. `by_block` has all keys, by their blocks."""
    while by_block:
        for _ in range(min(DROPPED_AT_ONCE, len(by_block))):
            for key in by_block.popitem()[1]:
                del entries[key]
        yield


def length_bytes(length: int) -> bytes:
    """What comes before a joined body of this length."""
    return _LENGTH.pack(length)


def joined(bodies: Iterable[bytes]) -> bytes:
    """Bodies of records, one after the other, each behind its length."""
    parts: list[bytes] = []
    for body in bodies:
        parts += length_bytes(len(body)), body
    return b"".join(parts)


def split(data: Block | Content, what: str) -> Iterator[bytes]:
    """The bodies that were joined. Raises UnreadableRecord, about a block of `what`, if they end early."""
    content = data if isinstance(data, Content) else content_of(data)
    while not content.is_at_end():
        (length,) = _LENGTH.unpack(content.take(_LENGTH.size, what))
        yield content.take(length, what)


class Blocks(ChangedBlocks):
    """Records when each block of messages of one partition changed."""

    __slots__ = ()

    def touch(self, subqueue: int, sequence_numbers: Collection[int], position: Position) -> None:
        """Call `touch_blocks` for the blocks of these messages."""
        above = subqueue << SUBQUEUE_SHIFT
        places = _references.shifted(list(sequence_numbers), BLOCK_SHIFT)
        self.touch_blocks({place & _PLACE_MASK | above for place in places}, position)

    def touch_run(self, subqueue: int, first: int, count: int, position: Position) -> None:
        """Call `touch_blocks` for the blocks of consecutive sequence numbers."""
        above = subqueue << SUBQUEUE_SHIFT
        begin, end = first >> BLOCK_SHIFT & _PLACE_MASK, first + count - 1 >> BLOCK_SHIFT & _PLACE_MASK
        self.touch_blocks(range(above | begin, (above | end) + 1), position)

    def check(self, subqueue: int, sequence_numbers: Iterable[int]) -> None:
        """Assert that every message is in a known block, and that the order is right."""
        self.check_blocks({block_of(subqueue, number) for number in sequence_numbers})
