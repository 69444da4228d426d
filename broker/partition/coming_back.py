"""A partition is opened, or comes back: its log is acquired and its state is made from it.

The state is that of the newest usable checkpoint, and the records after it, replayed in slices. A log that
cannot be opened is tried again, after a pause that doubles. What was the state before is freed in slices as
well.
"""

from __future__ import annotations

from dataclasses import dataclass

from broker.base.clock import Clock, wall_ahead_ms
from broker.base.slices import Slices
from broker.entities.descriptions import QueueDescription
from broker.partition.batch_bounds import Bounds
from broker.partition.clock_settings import ClockSettings
from broker.partition.disk_timeout import Patience
from broker.partition.messages import Messages
from broker.partition.payloads import PayloadBudget
from broker.partition.snapshot import Snapshot
from broker.partition.state import Partition
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


class ComingBack:
    """Makes the state of one partition, as often as it is opened. Owned by the partition's task."""

    __slots__ = (
        "_bounds",
        "_clock",
        "_clock_settings",
        "_delay_ms",
        "_delay_ms_max",
        "_delay_ms_min",
        "_log",
        "_number",
        "_patience",
        "_payloads",
        "_slices",
        "dropped",
        "epoch",
        "retry_at_ms",
    )

    def __init__(
        self,
        number: int,
        log: Log,
        clock: Clock,
        patience: Patience,
        payloads: PayloadBudget,
        slices: Slices,
        *,
        bounds: Bounds,
        delay_ms: int,
        delay_ms_max: int,
    ) -> None:
        """`number`: the partition's. `delay_ms`: the pause after the first attempt that failed; doubled with
        each one, up to `delay_ms_max`."""
        self._number, self._log, self._clock, self._patience = number, log, clock, patience
        self._payloads, self._slices, self._bounds = payloads, slices, bounds
        self._delay_ms_min, self._delay_ms_max = delay_ms, delay_ms_max
        self._delay_ms = 0
        self.retry_at_ms = 0
        """When the next attempt is due, in monotonic time."""
        self.epoch = 0
        """The log's, since it was acquired last."""
        self._clock_settings = ClockSettings()
        """Outlives the state: a recovery goes on with the deadlines that counted before it."""
        self.dropped: list[Messages] = []
        """State that nobody uses any more, and that takes time to be freed."""

    async def acquire(self) -> None:
        """Make the log this process's own. Raises StorageError."""
        self.epoch = await self._log.claim()
        self._patience.again()

    async def load(self, description: QueueDescription, first_nonce: int = 0) -> tuple[Partition, Replay]:
        """The state as the log has it. Raises StorageError, UnreadableRecord.

        `first_nonce`: how many leases an earlier state has made since the log was acquired.
        """
        await self.free_dropped()
        messages = Messages(self._number, self._payloads, self._bounds.tick_ms, self._clock_settings)
        try:
            replay = await replay_log(
                self._log, messages, self._slices, self._patience, wall_ahead_ms(self._clock)
            )
        except BaseException:
            self.dropped.append(messages)
            raise
        partition = Partition(
            self._number,
            description,
            messages,
            epoch=self.epoch,
            first_nonce=first_nonce,
            bounds=self._bounds,
        )
        return partition, replay

    def try_later(self) -> int:
        """An attempt has failed: gives the pause before the next one, in ms."""
        self._delay_ms = min(max(2 * self._delay_ms, self._delay_ms_min), self._delay_ms_max)
        self.retry_at_ms = self._clock.monotonic_ms() + self._delay_ms
        return self._delay_ms

    def succeeded(self) -> None:
        """The partition is back: the pauses begin anew."""
        self._delay_ms = 0

    async def free_dropped(self) -> None:
        """Free what was discarded, in slices."""
        while self.dropped:
            await self._slices.run(self.dropped.pop().drop())
