"""broker/partition/drain_need.py: what must still be written until a partition is drained."""

from __future__ import annotations

import pytest

from broker.operations.message_states import SubqueueCounts
from broker.operations.settling import Complete
from broker.partition.drain_need import (
    BLOCK_BYTES,
    GARBAGE_BYTES_MIN,
    LIVE_PER_GARBAGE,
    NO_NEED,
    REMOVAL_BYTES,
    SEGMENTS_FORESEEN_MAX,
    Need,
    blocks_reserved,
    garbage_reserved,
    need_of,
    need_of_counts,
)
from storage.sizing import SEGMENT_BYTES_MIN
from tests.support.partition_harness import Harness

MIB = 1 << 20


async def test_each_removal_may_take_a_commit_of_its_own() -> None:
    harness = Harness()
    await harness.send(b"x", b"x")
    for _ in range(2):
        tokens = (await harness.receive(1)).tokens
        before = harness.log.end
        await harness.do(1, Complete(tokens))
        assert harness.log.end - before <= REMOVAL_BYTES


@pytest.mark.parametrize(
    ("deliveries", "live_bytes", "reserved"),
    [
        (0, 0, 0),
        (100, 1 << 30, 100 * REMOVAL_BYTES),
        (1, 100, GARBAGE_BYTES_MIN),
        (1, 1 << 30, GARBAGE_BYTES_MIN),
        (1_000_000, 100, GARBAGE_BYTES_MIN),
        (1_000_000, 1 << 20, (1 << 20) // LIVE_PER_GARBAGE),
    ],
)
def test_removals_take_a_share_of_what_is_live_at_most(
    deliveries: int, live_bytes: int, reserved: int
) -> None:
    assert garbage_reserved(deliveries, live_bytes) == reserved


def need(**changes: int) -> Need:
    """The need of a log of 1,000 messages and a MiB, all of it live, with both checkpoints."""
    log = {"deliveries": 1_000, "messages": 1_000, "live_bytes": MIB, "log_bytes": MIB, "segment_bytes": 0}
    saved = {"checkpoint_bytes": 0, "checkpoint_bytes_stored": 0, "checkpoints": 2, "segments": 99}
    return need_of(**(log | saved | changes))


def test_checkpoints_that_are_there_need_no_room() -> None:
    none = need(checkpoint_bytes=40_000, checkpoints=0)
    both = need(checkpoint_bytes=40_000, checkpoint_bytes_stored=80_000)
    assert none.lasting - both.lasting == 80_000 + 2 * BLOCK_BYTES
    large = need(checkpoint_bytes=40_000, checkpoint_bytes_stored=MIB, log_bytes=2 * MIB)
    assert large.lasting == 1_000 * REMOVAL_BYTES
    assert both.passing == none.passing >= 40_000, "a new one is there before the old one goes"


@pytest.mark.parametrize(
    ("messages", "live_bytes", "segments", "blocks"),
    [
        (3, 180_000, 1, 3),  # each message may get a segment of its own, and the commits behind them another
        (3, 180_000, 2, 2),
        (3, 180_000, 4, 0),
        (3, 180_000, 9, 0),
        (10, 4 * SEGMENT_BYTES_MIN, 1, 4),  # some messages share a segment
        (200, MIB, 1, SEGMENTS_FORESEEN_MAX),
        (300, MIB, 1, 0),  # small ones fill it
        (100_000, 1 << 40, 1, SEGMENTS_FORESEEN_MAX),
        (1, SEGMENT_BYTES_MIN - 1, 1, 0),
        (0, 0, 1, 0),
    ],
)
def test_more_segments_take_blocks_that_they_do_not_fill(
    messages: int, live_bytes: int, segments: int, blocks: int
) -> None:
    """Symptom: 24 messages of 60 KB that were abandoned on a full disk used up its reserves."""
    assert blocks_reserved(messages, live_bytes, segments) == blocks * BLOCK_BYTES
    log = {"deliveries": 10 * messages, "messages": messages, "live_bytes": live_bytes}  # of a topic
    sparse, dense = (need(**log, log_bytes=2 * live_bytes, segments=each) for each in (segments, 999))
    assert sparse.lasting - dense.lasting == blocks * BLOCK_BYTES


def test_making_room_needs_what_lives_in_one_segment() -> None:
    small, large = (need(segment_bytes=segment_bytes) for segment_bytes in (10_000, 5 * MIB))
    assert small.passing + MIB - 10_000 == large.passing


def test_messages_that_take_more_when_they_are_written_again_need_that() -> None:
    """Symptom: abandons had so many small messages written again that the log grew by a fifth."""
    packed, loose = (need(log_bytes=log_bytes) for log_bytes in (MIB - 50_000, MIB))
    assert packed.lasting - loose.lasting == 50_000
    assert need(log_bytes=2 * MIB) == loose


def test_a_partition_that_was_not_opened_needs_about_as_much() -> None:
    assert need_of_counts([], MIB) == need_of_counts([SubqueueCounts()], MIB) == NO_NEED
    counts = [SubqueueCounts(active=1_000, bytes=1_000_000), SubqueueCounts(deferred=500)]
    estimate = need_of_counts(counts, 64 * MIB)
    assert estimate.lasting > 1_500 * REMOVAL_BYTES and estimate.passing > 1_000_000


def test_a_large_partition_that_was_not_opened_moves_no_more_than_a_segment() -> None:
    """Symptom: on a disk that is more than half full, messages were refused until it was opened."""
    for segment_bytes in (MIB, 64 * MIB, 1 << 30):
        estimate = need_of_counts([SubqueueCounts(active=1_000, bytes=30 << 30)], segment_bytes)
        assert segment_bytes <= estimate.passing < segment_bytes + MIB
