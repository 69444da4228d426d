"""Which blocks of a section have changed since a checkpoint."""

from __future__ import annotations

from collections import deque

import pytest

from broker.identifiers import PARTITION_SHIFT
from broker.partition.blocks import BLOCK_MESSAGES, Blocks, block_of, joined, place_of, split
from broker.partition.tables import UnreadableRecord
from storage.log import Position


def test_what_comes_from_a_checkpoint_counts_as_changed_just_below_the_one_for_which_it_was_written() -> None:
    blocks = Blocks()
    deque(blocks.adopt({1: Position(500), 2: Position(300), 3: Position(500)}), maxlen=0)
    assert sorted(blocks.changed_since(Position(500))) == []
    assert sorted(blocks.changed_since(Position(400))) == [1, 3]
    assert sorted(blocks.changed_since(Position(300))) == [1, 3], (
        "the block of 300 was changed by a frame below 300"
    )
    assert sorted(blocks.changed_since(Position(299))) == [1, 2, 3]
    blocks.touch_run(0, 2 * BLOCK_MESSAGES, 1, Position(700))
    assert blocks.changed_since(Position(600)) == [2]


def test_a_message_and_its_block_lead_to_each_other() -> None:
    number = 3 << PARTITION_SHIFT | 5 * BLOCK_MESSAGES + 7
    block = block_of(2, number)
    assert place_of(block) == (2, 5 * BLOCK_MESSAGES)
    assert block_of(2, number + BLOCK_MESSAGES - 8) == block != block_of(2, number + BLOCK_MESSAGES - 7)
    assert block_of(1, number) != block


def test_messages_side_by_side_and_messages_one_by_one_touch_the_same_blocks() -> None:
    run, single = Blocks(), Blocks()
    first, count = 3 << PARTITION_SHIFT | BLOCK_MESSAGES - 2, 2 * BLOCK_MESSAGES
    run.touch_run(1, first, count, Position(10))
    single.touch(1, range(first, first + count), Position(10))
    assert sorted(run.changed_since(None)) == sorted(single.changed_since(None))
    assert len(run) == run.count_since(Position(10)) == 3 and run.count_since(Position(11)) == 0
    run.check(1, range(first, first + count))


def test_a_block_that_changes_again_counts_at_its_latest_change_only() -> None:
    blocks = Blocks()
    blocks.touch_blocks([1, 2], Position(10))
    blocks.touch_blocks([1], Position(20))
    assert blocks.changed_since(Position(20)) == [1] and sorted(blocks.changed_since(Position(10))) == [1, 2]
    blocks.forget([1])
    assert blocks.changed_since(None) == [2]


@pytest.mark.parametrize("bodies", [[], [b"one"], [b"", b"two", b"x" * 300]])
def test_bodies_that_were_joined_are_split_again(bodies: list[bytes]) -> None:
    assert list(split(joined(bodies), "things")) == bodies


def test_a_block_that_is_cut_off_is_unreadable() -> None:
    whole = joined([b"one", b"three"])
    for end in range(1, len(whole)):
        if end != len(joined([b"one"])):
            with pytest.raises(UnreadableRecord, match=f"a block of things ends early, at byte {end}"):
                list(split(whole[:end], "things"))
