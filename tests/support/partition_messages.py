"""Messages of one partition, their frames and checkpoints, and what they hold."""

from __future__ import annotations

from collections import deque
from typing import Any

from broker.entities.descriptions import QUEUE_SUBQUEUES
from broker.partition import records
from broker.partition.messages import Messages
from broker.partition.payloads import PayloadBudget
from broker.partition.records import Enqueued, Mark
from broker.partition.references import StoredFrame
from broker.partition.snapshot import Snapshot
from storage.log import FRAME_HEADER_BYTES, Checkpoint, Commit, Frame, Position, whole

NUMBER = 3
"""The partition's number."""


def fresh() -> Messages:
    """New messages that have not been replayed."""
    return Messages(NUMBER, QUEUE_SUBQUEUES, PayloadBudget(0, 0), 20)


def new_messages() -> Messages:
    """New messages, ready for use."""
    messages = fresh()
    deque(messages.finish_steps(0), maxlen=0)
    return messages


def mark(messages: Messages, position: int, each: Mark) -> None:
    """Apply a record at this position."""
    messages.position = Position(position)
    messages.apply_mark(each)


def send(messages: Messages, position: int, count: int) -> int:
    """Enqueue this many messages of 10 bytes in one frame; returns the first sequence number."""
    first = messages.next_number
    messages.apply_enqueued(
        Position(position), Enqueued(first, 1000 + position, [10] * count, None, 64), now_ms=1000
    )
    return first


def loaded(checkpoint: Checkpoint) -> Messages:
    """The messages of a checkpoint."""
    again = fresh()
    snapshot = Snapshot(again)
    deque(snapshot.load_steps(checkpoint), maxlen=0)
    deque(snapshot.loaded_steps(checkpoint), maxlen=0)
    deque(again.finish_steps(0), maxlen=0)
    again.check()
    return again


def taken(snapshot: Snapshot, position: Position, base: Position | None) -> Checkpoint:
    """Take a whole checkpoint."""
    taking = snapshot.take(base)
    for _ in taking.steps():
        pass
    return taking.checkpoint(position)


def describe(reference: Any) -> list[Any]:
    """All values of a reference except its lease."""
    values = [getattr(reference, name) for name in reference.__slots__ if name not in ("frame", "lease")]
    return [*values, reference.frame.position]


def contents(messages: Messages) -> list[Any]:
    """Everything that a checkpoint must bring back."""
    found = [[describe(each) for each in subqueue.browse(0)] for subqueue in messages.subqueues]
    sums = [(each.available, each.deferred, each.bytes, each.changed_bytes) for each in messages.subqueues]
    return [found, sums, messages.next_number, messages.latest_enqueued_ms, messages.first_live()]


def live_frames(messages: Messages) -> list[StoredFrame]:
    """All frames that hold live messages, in the order of the log."""
    return [frame for frame in messages._frames if frame.live]


def changed_blocks(checkpoint: Checkpoint) -> dict[int, bytes]:
    """The blocks of messages in a checkpoint."""
    return {number: whole(block) for number, block in checkpoint.sections[1].blocks.items()}


def varied() -> Messages:
    """Messages of each kind."""
    messages = new_messages()
    first = messages.next_number
    messages.apply_enqueued(
        Position(100), Enqueued(first, 1000, [10, 20, 30, 40], [5000, 0, 6000, 0], 64), now_ms=1000
    )
    messages.apply_enqueued(Position(900), Enqueued(first + 4, 2000, [7], None, 80), now_ms=2000)
    mark(messages, 1000, Mark(records.RETURNED, 0, [first], b"\xc1\x01\x00"))
    mark(messages, 1100, Mark(records.DEFERRED, 0, [first + 1]))
    mark(messages, 1200, Mark(records.MOVED, 0, [first + 2], None, 1, True))
    mark(messages, 1300, Mark(records.REMOVED, 0, [first + 3]))
    return messages


def frame_of(commit: Commit) -> Frame:
    """A commit as the frame that the log makes of it."""
    return Frame(commit.start, bytes(FRAME_HEADER_BYTES) + b"".join(commit.parts))
