"""The state in a checkpoint of format version 1: all references of a partition in one piece. Decodes only; pure.

Releases before blocks (`snapshot.py`) wrote it, and it is read so that their data folders open. Tables as in `records.py`, little endian.

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
         …    4n  frames, by their place in the table above
         …    4n  offsets in the frame
         …    4n  sizes
         …    4n  delivery counts
         …    2n  states
         …    4c  which messages have changed properties, by their place
         …    4c  sizes of the changed properties
         …     …  changed properties, one after the other
"""

from __future__ import annotations

import struct
from itertools import repeat

from broker.partition.messages import Messages
from broker.partition.records import UnreadableRecord, read_table
from broker.partition.subqueue import Reference, StoredFrame, Subqueue
from storage.log import Position

_MAGIC = b"PbS1"
_HEAD = struct.Struct("<4sIQQII")
_SUBQUEUE = struct.Struct("<II")


def load(messages: Messages, state: bytes) -> None:
    """Bring back the durable state into fresh `Messages`; `finish_replay` has to follow. Raises UnreadableRecord."""
    view = memoryview(state)
    if len(view) < _HEAD.size or view[:4] != _MAGIC:
        raise UnreadableRecord("a checkpoint does not begin as one of this release")
    _, frame_count, messages.next_number, messages.latest_enqueued_ms, subqueue_count, _ = _HEAD.unpack_from(view)
    if subqueue_count > len(messages.subqueues):
        raise UnreadableRecord(f"a checkpoint holds {subqueue_count} subqueues, this release knows {len(messages.subqueues)}")
    positions, end = read_table("Q", view, _HEAD.size, frame_count)
    frames = [StoredFrame(Position(position)) for position in positions]
    for subqueue in messages.subqueues[:subqueue_count]:
        end = _load_subqueue(subqueue, frames, view, end)
    if end != len(view):
        raise UnreadableRecord(f"a checkpoint has {len(view)} bytes, its tables speak of {end}")
    messages.adopt_frames(frames)


def _load_subqueue(subqueue: Subqueue, frames: list[StoredFrame], view: memoryview, end: int) -> int:
    if end + _SUBQUEUE.size > len(view):
        raise UnreadableRecord(f"a checkpoint ends at byte {len(view)}, before its subqueue {subqueue.number}")
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
    # Equal times and sizes become one object each: a table makes one per message.
    shared: dict[int, int] = {}
    share = shared.setdefault
    expiry_column = [share(each, each) or None for each in expiries] if any(expiries) else repeat(None, count)
    references = list(
        map(
            Reference,
            numbers,
            map(frames.__getitem__, places),
            offsets,
            map(share, sizes, sizes),
            map(share, enqueued, enqueued),
            expiry_column,
        )
    )
    for place in places:
        frames[place].live += 1
    for place, delivery_count in enumerate(deliveries):
        if delivery_count:
            references[place].delivery_count = delivery_count
    for place, state in enumerate(states):
        if state:
            references[place].state = state
    for place, size in zip(changed_places, changed_sizes, strict=True):
        references[place].changed = bytes(view[end : end + size])
        end += size
    subqueue.references.update((reference.sequence_number, reference) for reference in references)
    return end
