"""Keeps a partition's log in proportion: checkpoints, trimming, compaction. Policy only; what a record means is `messages.py`'s.

*Checkpoint*: saved whenever so many bytes were written since the last one, so that a replay stays short.

*Trim*: the log is given back up to the oldest frame that holds a live message. First a COUNTERS record is made durable above
that place, then a checkpoint, then the log is trimmed. A crash between any two steps leaves a log that says all: after
the first nothing was taken away, and after the last a replay needs neither the trimmed part (see `messages.py`) nor the checkpoint.

*Compaction*: when the log is mostly garbage but a few old messages keep its oldest segments, these are appended again
(RELOCATED), in batches, and what they stood in is trimmed. Only when that commit is durable does a reference point to the
new place; a crash before, or on the way, leaves some messages where they were.

Bound: compaction starts when the garbage exceeds twice the live bytes (and a minimum), and each step moves at least as many
bytes as were appended since the step before; so one round over the live messages is done before the log has grown by
them once more. Each byte that stays is written again at most once per round, and a round frees twice as much.
"""

from __future__ import annotations

from dataclasses import dataclass

from structlog.typing import FilteringBoundLogger

from broker.partition import records, snapshot
from broker.partition.messages import Messages
from broker.partition.records import Counters
from storage.errors import DiskFull, StorageError
from storage.log import Checkpoint, Frame, Log, Position

MIB = 1024 * 1024
_FRAMES_AT_ONCE = 8


LOOKS_PER_DUE = 256
"""How often the log is looked at while as much is written as makes something due: after every commit would be in the way."""


@dataclass(slots=True, frozen=True)
class UpkeepLimits:
    """When which upkeep is due."""

    checkpoint_bytes: int = 64 * MIB
    """Log written since the last checkpoint."""
    garbage_bytes_min: int = 64 * MIB
    """Log that holds nothing live, before compaction is worth while …"""
    garbage_per_live: int = 2
    """… and so many times the live bytes."""
    relocation_bytes: int = MIB
    """Read from the oldest frames in one step, at least."""
    relocation_bytes_max: int = 8 * MIB
    """The same, at most; one frame may exceed it."""
    pause_ms: int = 1000
    """After the disk refused something."""


class Upkeep:
    """Called by the partition's task between batches; owns nothing but the marks of what was done."""

    def __init__(
        self, log: Log, messages: Messages, limits: UpkeepLimits, output: FilteringBoundLogger, *, checkpoint_at: Position | None
    ) -> None:
        self._log, self._messages, self._limits, self._output = log, messages, limits, output
        self._checkpoint_at = checkpoint_at
        self._counters_at: Position | None = None
        self._relocated_at = log.end
        self._paused_until_ms = 0
        self._look_bytes = min(limits.checkpoint_bytes, limits.garbage_bytes_min) // LOOKS_PER_DUE
        self._look_at: int = log.end
        """When the log ends here, it is looked at again."""

    async def step(self, now_ms: int) -> bool:
        """Do what is due; True if there is more of it. Raises CommitFailed, CorruptRecord, Fenced; a full disk is waited out."""
        if now_ms < self._paused_until_ms or (self._log.end < self._look_at and self._messages.count):
            return False
        try:
            more = await self._compact()
            self._look_at = self._log.end if more else self._log.end + self._look_bytes
            await self._trim(now_ms)
            if self._log.end - (self._checkpoint_at or self._log.start) >= self._limits.checkpoint_bytes:
                await self.save_checkpoint(now_ms)
            return more
        except DiskFull:
            self._paused_until_ms = now_ms + self._limits.pause_ms
            return False

    async def save_checkpoint(self, now_ms: int) -> bool:
        """Save a checkpoint of the state as it is; False if the disk refused."""
        position = self._log.end
        if position == self._checkpoint_at:
            return True
        try:
            await self._log.save_checkpoint(Checkpoint(position, snapshot.save(self._messages)))
        except StorageError as error:
            self._output.warning("checkpoint.failed", error=str(error))
            self._paused_until_ms = now_ms + self._limits.pause_ms
            return False
        self._checkpoint_at = position
        return True

    async def _trim(self, now_ms: int) -> None:
        log = self._log
        first_live = self._messages.first_live()
        target = log.end if first_live is None else first_live
        place = max((point for point in log.trim_points if point <= target), default=None)
        if place is None:
            return
        if self._counters_at is None or self._counters_at < place:
            commit = log.begin()
            counters = Counters(self._messages.next_number, self._messages.latest_enqueued_ms)
            commit.add(records.COUNTERS, [records.encode_counters(counters)], records.VERSION)
            await log.append(commit, urgent=True)
            self._counters_at = commit.start
        if (self._checkpoint_at is None or self._checkpoint_at < place) and not await self.save_checkpoint(now_ms):
            return
        await log.trim(place)
        self._output.info("log.trimmed", start=log.start, end=log.end, live_bytes=self._messages.live_bytes)

    async def _compact(self) -> bool:
        """Append the oldest live messages again, where that lets a part of the log go."""
        log, messages, limits = self._log, self._messages, self._limits
        live_bytes = messages.live_bytes
        if log.end - log.start - live_bytes <= max(limits.garbage_bytes_min, limits.garbage_per_live * live_bytes):
            return False
        last = max(log.trim_points, default=log.start)
        budget = min(max(limits.relocation_bytes, log.end - self._relocated_at), limits.relocation_bytes_max)
        frames: list[Frame] = []
        oldest = [position for position in messages.oldest_frames(1024) if position < last]
        while oldest and budget > 0:
            fetched = await log.fetch(oldest[:_FRAMES_AT_ONCE])
            del oldest[:_FRAMES_AT_ONCE]
            frames += fetched
            budget -= sum(len(frame.data) for frame in fetched)
        commit = log.begin()
        relocated = messages.relocate(frames, commit)
        if relocated is None:
            return False
        await log.append(commit)
        messages.apply_relocated(commit.start, relocated)
        self._relocated_at = log.end
        return True
