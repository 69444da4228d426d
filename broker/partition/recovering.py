"""Makes the state of a partition from its log: the newest usable checkpoint, and the records after it, in
slices."""

from __future__ import annotations

from dataclasses import dataclass

from broker.base.slices import Slices
from broker.partition.disk_timeout import Patience
from broker.partition.messages import Messages
from broker.partition.snapshot import Snapshot
from storage.log import Frame, Log, Position

REPLAYED_BYTES = 256 * 1024
"""So much of the log is read before it is replayed."""


@dataclass(slots=True, frozen=True)
class Replay:
    """What was replayed."""

    snapshot: Snapshot
    """Knows what the checkpoint held, for the next one."""
    since: Position
    """Where the checkpoint stands, or the log begins."""
    bytes: int
    """How much of the log was read after it."""


async def replay_log(
    log: Log, messages: Messages, slices: Slices, patience: Patience, wall_ahead_ms: int
) -> Replay:
    """Bring `messages`, which are new, to the log's end. `patience` begins anew whenever the disk has
    answered.

    `wall_ahead_ms`: how far wall time is ahead of monotonic time, for the deadlines. Raises StorageError:
    CorruptRecord for what is damaged or missing.
    """
    snapshot = Snapshot(messages)
    checkpoint = await log.load_checkpoint()
    since = log.start
    if checkpoint is not None and checkpoint.position >= since:
        await slices.run(snapshot.load_steps(checkpoint))
        since = checkpoint.position
    patience.again()
    replayed, size = 0, 0
    frames: list[Frame] = []
    async for frame in log.replay(since):
        frames.append(frame)
        size += len(frame.data)
        if size >= REPLAYED_BYTES:
            await slices.run(messages.replay_steps(frames))
            patience.again()
            replayed += size
            frames, size = [], 0
    await slices.run(messages.replay_steps(frames))
    await slices.run(messages.finish_steps(wall_ahead_ms))
    if (needed := snapshot.needed_from()) is not None and needed < log.start:
        await log.fetch([needed])  # raises RecordsMissing, which says what is not there
    messages.payloads.count_state(messages.state_bytes)
    return Replay(snapshot, since, replayed + size)
