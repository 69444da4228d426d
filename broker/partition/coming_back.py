"""Opens or recovers a partition: acquires its log and rebuilds its state from it.

The state is the newest usable checkpoint plus the records after it, replayed in slices. If the log cannot be
opened, the next attempt follows a pause that doubles each time. The previous state is freed in slices too.

While the log is read, the size of the state so far is compared with what was expected. If it is larger, and
memory has no room for it, the attempt ends, and the partition waits for its turn again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain

from broker.base.clock import Clock, wall_ahead_ms
from broker.base.slices import Slices
from broker.entities.descriptions import EntityDescription
from broker.operations.interface import Operation
from broker.partition.clock_settings import ClockSettings
from broker.partition.disk_timeout import Patience
from broker.partition.messages import Messages
from broker.partition.opening_room import OPENING_BYTES
from broker.partition.openings import NoRoom, Opening, Openings, Urgency, urgency_of
from broker.partition.payloads import PayloadBudget
from broker.partition.replay import LogReplay
from broker.partition.snapshot import Snapshot
from broker.partition.state import Partition
from broker.partition.task_limits import TaskLimits
from storage.errors import StorageError
from storage.log import Frame, Log, Position, bytes_in

REPLAYED_BYTES = 256 * 1024
"""Bytes of the log to read before replaying them."""


@dataclass(slots=True, frozen=True)
class Replay:
    """The result of a replay."""

    snapshot: Snapshot
    """Knows what the checkpoint held; the next checkpoint builds on it."""
    since: Position
    """Where the replay began: at the checkpoint's position, or at the start of the log."""
    bytes: int
    """Bytes of the log read from there on."""


async def replay_log(
    log: Log,
    messages: Messages,
    slices: Slices,
    patience: Patience,
    wall_ahead_ms: int,
    takes: Callable[[int, int, int], None],
) -> Replay:
    """Replay the log into `messages`, which must be new. Restarts `patience` whenever the disk has answered,
    and stops it while nothing waits for the disk.

    `wall_ahead_ms`: how far wall time is ahead of monotonic time, for the deadlines. `takes` is called
    after each step with how many bytes `messages` will take at least, how many they take by now, and how many
    in the end if the rest of the log is like what was read; if it raises an error, so does this. Raises
    StorageError; CorruptRecord for damaged or missing records.
    """
    snapshot, replay = Snapshot(messages), LogReplay(messages)
    read = stored = 0

    def takes_more(size: int = 0) -> None:
        come = messages.state_bytes
        takes(come + size, come, come * stored // max(read, 1))

    def counted(steps: Iterable[object]) -> Iterator[None]:
        for _ in steps:
            takes_more()
            yield

    checkpoint = await log.load_checkpoint()
    since = log.start
    if checkpoint is not None and checkpoint.position >= since:
        stored = sum(checkpoint.block_sizes) + log.end - checkpoint.position
        takes_more(max(checkpoint.block_sizes, default=0))
        async for part in log.checkpoint_parts(checkpoint):
            blocks = chain.from_iterable([section.blocks.values() for section in part.sections])
            read += sum(map(bytes_in, blocks))
            with patience.at_rest():
                await slices.run(counted(snapshot.load_steps(part)))
        with patience.at_rest():
            await slices.run(snapshot.loaded_steps(checkpoint))
        since = checkpoint.position
    else:
        stored = log.end - since
    patience.again()
    replayed, size = 0, 0
    frames: list[Frame] = []
    async for frame in log.replay(since):
        frames.append(frame)
        size, read = size + len(frame.data), read + len(frame.data)
        if size >= REPLAYED_BYTES:
            with patience.at_rest():
                await slices.run(counted(replay.steps(frames)))
            replayed += size
            frames, size = [], 0
    with patience.at_rest():
        await slices.run(counted(replay.steps(frames)))
        await slices.run(messages.finish_steps(wall_ahead_ms))
    if (needed := snapshot.needed_from()) is not None and needed < log.start:
        await log.fetch([needed])  # raises RecordsMissing, which names the missing records
    messages.payloads.opened_with(messages.state_bytes)
    return Replay(snapshot, since, replayed + size)


class ComingBack:
    """Builds the state of one partition each time it is opened. Owned by the partition's task."""

    __slots__ = (
        "_bounds",
        "_clock",
        "_clock_settings",
        "_delay_ms",
        "_delay_ms_max",
        "_delay_ms_min",
        "_entity",
        "_is_stopped",
        "_late",
        "_log",
        "_number",
        "_opening",
        "_openings",
        "_patience",
        "_payloads",
        "_slices",
        "dropped",
        "epoch",
        "has_failed",
        "retry_at_ms",
    )

    def __init__(
        self,
        number: int,
        entity: str,
        log: Log,
        clock: Clock,
        patience: Patience,
        late: Callable[[], None],
        openings: Openings,
        payloads: PayloadBudget,
        slices: Slices,
        limits: TaskLimits,
    ) -> None:
        """`number`: the partition's. `entity`: the generation of its entity. `late` is called if it has
        waited too long in `openings`. The pause after the first failed attempt is `recovery_delay_ms`; it
        doubles with each further failure, up to `recovery_delay_ms_max`."""
        self._number, self._log, self._clock, self._patience = number, log, clock, patience
        self._payloads, self._slices, self._bounds = payloads, slices, limits.bounds
        self._openings, self._entity, self._late = openings, entity, late
        self._opening: Opening | None = None
        """The partition's turn, or its place in the line."""
        self._is_stopped = False
        """Whether the partition is stopped, and waits for no other turn."""
        self._delay_ms_min, self._delay_ms_max = limits.recovery_delay_ms, limits.recovery_delay_ms_max
        self._delay_ms = 0
        self.has_failed = False
        """Whether a commit, or an attempt to open the log, has failed since the partition was last open. One
        that merely opens late has not."""
        self.retry_at_ms = 0
        """When the next attempt is due, in monotonic time."""
        self.epoch = 0
        """The log's epoch since it was last acquired."""
        self._clock_settings = ClockSettings()
        """Outlives the state, so that a recovery restores the deadlines that were in force before it."""
        self.dropped: list[Partition | Messages] = []
        """Discarded states that still have to be freed."""

    async def in_turn(
        self,
        load: Callable[[], Awaitable[None]],
        urgency: Callable[[Urgency], Urgency],
        size: int,
        is_wanted: bool,
        was_open: bool,
        is_hung: bool,
    ) -> bool:
        """Carry out `load` when the partition's turn comes, and again if it turns out that there is no room
        for its messages. False if the turn does not come, because the partition is stopped.

        `urgency` gives the urgency, from the one that counts if only receivers want it. `size`: about what
        the messages take, in bytes. `is_wanted`: somebody wants it open whatever it holds. `was_open`: its
        messages are in memory already, so it need not wait until there is room. `is_hung`: its disk is known
        to hang, so nobody waits for it. Raises what `load` raises.
        """
        openings = Openings() if is_hung else self._openings
        while True:
            needed = 0 if was_open else OPENING_BYTES + size
            how_urgent = urgency(Urgency.MESSAGES if size or is_wanted else Urgency.EMPTY)
            try:
                with openings.place(self._entity, how_urgent, self._late, needed) as opening:
                    self._opening = opening
                    if not await opening.has_turn():
                        return False
                    try:
                        await load()
                        return True
                    except NoRoom as error:
                        size = error.size - OPENING_BYTES
                        await self._close_again()
            finally:
                self._opening = None
            if self._is_stopped:
                return False

    async def _close_again(self) -> None:
        """Free what was read, and what the log takes while it is open."""
        await self.free_dropped()
        with contextlib.suppress(StorageError), self._patience:
            await self._log.close()

    def _takes(self, size: int, come: int, likely: int) -> None:
        """Messages that are being read take `size` bytes at least, of which `come` are in memory. Raises
        NoRoom."""
        if self._opening is not None and self._opening.size:  # otherwise they were in memory before
            self._opening.takes(*(OPENING_BYTES + each for each in (size, come, likely)))

    def hasten(self, operation: Operation | None = None) -> None:
        """Somebody wants the partition to be opened, for an operation if there is one."""
        if (opening := self._opening) is not None:
            for_receivers = opening.urgency  # they have not changed what it holds
            opening.hasten(
                Urgency.MESSAGES if operation is None else urgency_of(operation, for_receivers=for_receivers)
            )

    def wake_soon(self, wake: Callable[[], None], operation: Operation) -> None:
        """The partition is closed, and somebody wants it for an operation: call `wake` soon, so that it joins
        the line. Many may be wanted at once, so few are woken in a turn of the event loop."""
        is_urgent = urgency_of(operation, for_receivers=Urgency.EMPTY) is Urgency.ANSWER
        self._openings.waking.soon(wake, is_urgent=is_urgent)

    def stop_waiting(self) -> bool:
        """The partition is stopped: if its turn has not come, it does not come. Returns whether it waited."""
        self._is_stopped = True
        if self._opening is None or not self._opening.is_waiting:
            return False
        self._opening.give_up()
        return True

    def is_late(self) -> None:
        """The disk has not answered in time."""
        if self._opening is not None:
            self._opening.is_late()

    async def acquire(self) -> None:
        """Acquire the log. Raises StorageError."""
        self.epoch = await self._log.acquire()
        if self._opening is not None:
            self._opening.acquired()
        self._patience.again()

    async def discard_commit(self) -> None:
        """Make sure that a commit whose outcome is unknown is never read, or wait for the disk in vain
        (durability rule 4)."""
        self._log.fence()
        with contextlib.suppress(StorageError), self._patience:
            await self._log.acquire()

    async def load(self, description: EntityDescription, first_nonce: int = 0) -> tuple[Partition, Replay]:
        """Build the state from the log. Raises StorageError, UnreadableRecord; NoRoom if memory has no room
        for it.

        `first_nonce`: how many leases earlier states have made since the log was acquired.
        """
        with self._patience.at_rest():
            await self.free_dropped()
        messages = Messages(
            self._number, description.subqueues, self._payloads, self._bounds.tick_ms, self._clock_settings
        )
        try:
            replay = await replay_log(
                self._log, messages, self._slices, self._patience, wall_ahead_ms(self._clock), self._takes
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
            disk=self._log,
        )
        with self._patience.at_rest():
            await self._slices.run(partition.restore(wall_ahead_ms(self._clock)))
        if self._opening is not None:
            self._opening.share = messages.payloads
        return partition, replay

    def try_later(self) -> int:
        """Count a failed attempt. Returns the pause before the next one, in ms."""
        self.has_failed = True
        self._delay_ms = min(max(2 * self._delay_ms, self._delay_ms_min), self._delay_ms_max)
        self.retry_at_ms = self._clock.monotonic_ms() + self._delay_ms
        return self._delay_ms

    def succeeded(self) -> bool:
        """Reset the pauses: the partition is open again. Returns whether that is after a failure."""
        had_failed, self.has_failed, self._delay_ms = self.has_failed, False, 0
        return had_failed

    async def free_dropped(self) -> None:
        """Free discarded states, in slices."""
        while self.dropped:
            await self._slices.run(self.dropped.pop().drop())
