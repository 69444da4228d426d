"""What a partition's log still has to write until all its messages are drained (`storage/drain_room.py`).
Pure.

- *Removals*: each delivery takes a record, in a commit of its own at worst. Compaction frees such records
  again, so there is never more garbage than a share of what is live (`LIVE_PER_GARBAGE`). Messages of a
  topic with many subscriptions depend on that: their removals take many times the space of the messages. So
  do messages that are abandoned again and again, each time with a record, which nothing but compaction frees.
- *Compaction*: small messages that were sent together take more when they are written again.
- *Blocks*: files take whole blocks, so each segment takes up to a block more than is in it. Compaction gives
  each large message a segment of its own, and a block is far more than the record that removes the message.
  Messages that are smaller than a block on average share segments, so they have few blocks beside their many
  removals, and no room is kept for these blocks.
- *Checkpoints*: two, as large as they are now at most, and some garbage in them. Those that exist are
  deducted.
- In passing, while room is made: one more checkpoint, because the one that it replaces is removed afterwards,
  and the live messages of one segment.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from broker.operations.message_states import SubqueueCounts
from broker.partition import columns, records
from storage.log import FRAME_HEADER_BYTES, RECORD_HEADER_BYTES
from storage.sizing import SEGMENT_BYTES_MIN

REMOVAL_BYTES = FRAME_HEADER_BYTES + RECORD_HEADER_BYTES + records.MARK_BYTES + 8
"""A commit that removes one message. The last 8 bytes are its sequence number (u64)."""
LIVE_PER_GARBAGE = 4
"""On a full disk, garbage takes at most the live bytes divided by this."""
GARBAGE_BYTES_MIN = 4 << 10
"""That much garbage is always possible, for example from messages that are abandoned again and again."""
BLOCK_BYTES = 4 << 10
"""What a file of one byte takes on most file systems."""
LIVE_PER_CHECKPOINT_GARBAGE = 4
"""On a full disk, garbage in checkpoints takes at most what is live in them divided by this."""
SEGMENTS_FORESEEN_MAX = 8
"""More are not foreseen. Where logs have more, what they leave of their blocks is little beside the room that
is kept for other reasons, and to foresee all of it refused a fifth of the messages that fit."""
_SUMMARY_ROW_BYTES = records.RELOCATED_MESSAGE_BYTES + columns.MESSAGE_BYTES


class Need(NamedTuple):
    """What draining still needs, in bytes; see `DrainRoom`."""

    lasting: int
    passing: int


NO_NEED = Need(0, 0)


def garbage_reserved(deliveries: int, live_bytes: int) -> int:
    """The room for records of settlements."""
    if not deliveries:
        return 0
    return max(min(REMOVAL_BYTES * deliveries, live_bytes // LIVE_PER_GARBAGE), GARBAGE_BYTES_MIN)


def blocks_reserved(messages: int, live_bytes: int, segments: int) -> int:
    """The room for the blocks that the segments of large messages take beyond what is in them, one for each
    segment at most; 0 if the messages are small.

    Draining may write a segment for each message (see `SEGMENTS_FORESEEN_MAX`) and has one more, which is
    being written. The log has `segments` already, whose blocks are on the disk, so only the others count.
    """
    if live_bytes < BLOCK_BYTES * messages:
        return 0
    foreseen = min(messages, live_bytes // SEGMENT_BYTES_MIN, SEGMENTS_FORESEEN_MAX)
    return BLOCK_BYTES * max(foreseen + 1 - segments, 0) if foreseen else 0


def need_of(
    *,
    deliveries: int,
    messages: int,
    live_bytes: int,
    log_bytes: int,
    checkpoint_bytes: int,
    checkpoint_bytes_stored: int,
    checkpoints: int,
    segments: int,
    segment_bytes: int,
) -> Need:
    """The need of an open partition.

    deliveries: how many references there are, over all subqueues, and messages: to how many messages.
    live_bytes: what writing all messages again takes. log_bytes: what the log takes. checkpoint_bytes: what a
    complete checkpoint takes. checkpoint_bytes_stored, checkpoints: what the present ones take, and how many
    these are. segments, segment_bytes: how many segments the log has, and the size of the largest.
    """
    two = 2 * checkpoint_bytes * (LIVE_PER_CHECKPOINT_GARBAGE + 1) // LIVE_PER_CHECKPOINT_GARBAGE
    files = (2 - checkpoints) * BLOCK_BYTES
    return Need(
        garbage_reserved(deliveries, live_bytes)
        + blocks_reserved(messages, live_bytes, segments)
        + max(live_bytes - log_bytes, 0)
        + max(two - checkpoint_bytes_stored, 0)
        + files,
        checkpoint_bytes + min(segment_bytes, live_bytes) + 2 * BLOCK_BYTES,
    )


def need_of_counts(counts: Iterable[SubqueueCounts], segment_bytes: int) -> Need:
    """The need of a partition that has not been opened, from what its subqueues hold: about, and too much if
    they share messages. `segment_bytes`: its largest segment at most."""
    deliveries = live_bytes = 0
    for each in counts:
        deliveries += each.active + each.deferred + each.scheduled
        live_bytes += each.bytes
    if not deliveries:
        return NO_NEED
    rows = _SUMMARY_ROW_BYTES * deliveries
    return need_of(
        deliveries=deliveries,
        messages=deliveries,
        live_bytes=live_bytes + rows,
        log_bytes=live_bytes,
        checkpoint_bytes=rows,
        checkpoint_bytes_stored=0,
        checkpoints=0,
        segments=1,
        segment_bytes=min(live_bytes, segment_bytes),
    )
