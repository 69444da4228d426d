"""Checkpoint format version 1: all references of a partition in one piece. Decodes only; pure.

Releases before blocks (`snapshot.py`) wrote this format, and it is still read so that their data folders can
be opened. Tables are as in `records.py`, little endian.

    offset  size  field
         0     4  magic "PbS1"
         4     4  frames f
         8     8  next sequence number
        16     8  latest enqueued time
        24     4  subqueues
        28     4  zero
        32    8f  positions of the frames that hold messages, ascending
    then for each subqueue:
         0     4  messages n
         4     4  messages with changed properties c
         8    8n  sequence numbers, ascending
         …    8n  enqueued at
         …    8n  expiries, 0 for never
         …    4n  frames, by index in the table above
         …    4n  offsets in the frame
         …    4n  sizes
         …    4n  delivery counts
         …    2n  states
         …    4c  indices of the messages with changed properties
         …    4c  sizes of the changed properties
         …     …  changed properties, concatenated
"""

from __future__ import annotations

import struct
from collections.abc import Generator, Iterator
from operator import attrgetter

from broker.partition._untracked import untrack
from broker.partition.block_content import STEP_BYTES
from broker.partition.columns import NO_COLUMNS, give
from broker.partition.gradual_sort import AT_ONCE
from broker.partition.messages import Messages
from broker.partition.references import Reference, StoredFrame
from broker.partition.replaying import state_of
from broker.partition.subqueue import Subqueue
from broker.partition.tables import UnreadableRecord, check_places, read_table
from storage.log import Position

_MAGIC = b"PbS1"
_HEAD = struct.Struct("<4sIQQII")
_SUBQUEUE = struct.Struct("<II")


def load(messages: Messages, state: bytes) -> Iterator[None]:
    """Restore the durable state into new `Messages`, in steps. The caller must then run `finish_steps`.
    Raises UnreadableRecord."""
    view = memoryview(state)
    if len(view) < _HEAD.size or view[:4] != _MAGIC:
        raise UnreadableRecord("a checkpoint does not begin as one of this release")
    _, frame_count, messages.next_number, messages.latest_enqueued_ms, subqueue_count, _ = _HEAD.unpack_from(
        view
    )
    positions, end = read_table("Q", view, _HEAD.size, frame_count)
    frames: list[StoredFrame] = []
    for start in range(0, frame_count, AT_ONCE):
        part = [StoredFrame(Position(position)) for position in positions[start : start + AT_ONCE]]
        untrack(part)
        frames += part
        yield
    for subqueue in map(messages.subqueues.__getitem__, range(subqueue_count)):
        end = yield from _load_subqueue(subqueue, frames, view, end)
    if end != len(view):
        raise UnreadableRecord(f"a checkpoint has {len(view)} bytes, but its tables need {end}")
    for start in range(0, frame_count, AT_ONCE):
        messages.adopt_frames(frames[start : start + AT_ONCE])
        yield


def _load_subqueue(
    subqueue: Subqueue, frames: list[StoredFrame], view: memoryview, end: int
) -> Generator[None, None, int]:
    if end + _SUBQUEUE.size > len(view):
        raise UnreadableRecord(
            f"a checkpoint ends at byte {len(view)}, before its subqueue {subqueue.number}"
        )
    count, changed_count = _SUBQUEUE.unpack_from(view, end)
    numbers, end = read_table("Q", view, end + _SUBQUEUE.size, count)
    enqueued, end = read_table("Q", view, end, count)
    expiries, end = read_table("Q", view, end, count)
    places, end = read_table("I", view, end, count)
    offsets, end = read_table("I", view, end, count)
    sizes, end = read_table("I", view, end, count)
    deliveries, end = read_table("I", view, end, count)
    states, end = read_table("H", view, end, count)
    changed_places, end = read_table("I", view, end, changed_count)
    changed_sizes, end = read_table("I", view, end, changed_count)
    yield
    for start in range(0, count, AT_ONCE):
        here = slice(start, start + AT_ONCE)
        # Let equal times and sizes share one object each; reading a table creates one per message.
        shared: dict[int, int] = {}
        share = shared.setdefault
        part_numbers, part_places, part_sizes, part_enqueued = (
            numbers[here],
            places[here],
            sizes[here],
            enqueued[here],
        )
        check_places(part_places, len(frames), "frames")
        references = list(
            map(
                Reference,
                part_numbers,
                map(frames.__getitem__, part_places),
                offsets[here],
                map(share, part_sizes, part_sizes),
                map(share, part_enqueued, part_enqueued),
                [share(each, each) or None for each in expiries[here]],
            )
        )
        untrack(references)
        give(references, NO_COLUMNS)
        for reference, delivery_count, state in zip(references, deliveries[here], states[here], strict=True):
            reference.frame.live += 1
            if delivery_count:
                reference.delivery_count = delivery_count
            if state:
                reference.state = state_of(state)
        subqueue.bring_back(sorted(references, key=attrgetter("sequence_number")))
        yield
    check_places(changed_places, count, "messages")
    given = given_bytes = 0
    for place, size in zip(changed_places, changed_sizes, strict=True):
        subqueue.replace_changed(subqueue.references[numbers[place]], bytes(view[end : end + size]))
        end += size
        given, given_bytes = given + 1, given_bytes + size
        if given == AT_ONCE or given_bytes >= STEP_BYTES:
            given = given_bytes = 0
            yield
    return end
