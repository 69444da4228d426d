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
from broker.partition.opening_room import OPENING_BYTES, Reload, Share
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
    snapshot: Snapshot,
    slices: Slices,
    patience: Patience,
    wall_ahead_ms: int,
    takes: Callable[[int, int, int], None],
) -> Replay:
    """Replay the log into `messages`, and note in `snapshot` what its checkpoint held; both must be new.
    Restarts `patience` whenever the disk has answered, and stops it while nothing waits for the disk.

    `wall_ahead_ms`: how far wall time is ahead of monotonic time, for the deadlines. `takes` is called before
    a checkpoint is read, and after each step, with how many bytes `messages` will take at least, how many
    they take by now, and how many in the end if the rest of the checkpoint, or of the records after it, is
    like what was read of it; if it raises an error, so does this. Raises StorageError; CorruptRecord for
    damaged or missing records.
    """
    replay = LogReplay(messages)
    read = stored = before = 0

    def takes_more(size: int = 0) -> None:
        come = messages.state_bytes
        messages.payloads.opened_with(come)  # if it is freed again, that counts as memory that has come free
        takes(come + size, come, before + (come - before) * stored // max(read, 1))

    def counted(steps: Iterable[object]) -> Iterator[None]:
        for _ in steps:
            takes_more()
            yield

    checkpoint = await log.load_checkpoint()
    since = log.start
    if checkpoint is not None and checkpoint.position >= since:
        stored = sum(checkpoint.block_sizes)
        takes_more(max(checkpoint.block_sizes, default=0))
        async for part in log.checkpoint_parts(checkpoint):
            blocks = chain.from_iterable([section.blocks.values() for section in part.sections])
            read += sum(map(bytes_in, blocks))
            with patience.at_rest():
                await slices.run(counted(snapshot.load_steps(part)))
        with patience.at_rest():
            await slices.run(snapshot.loaded_steps(checkpoint))
        since = checkpoint.position
    read, stored, before = 0, log.end - since, messages.state_bytes
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
        "_counted_as",
        "_delay_ms",
        "_delay_ms_max",
        "_delay_ms_min",
        "_dropped_bytes",
        "_dropped_share",
        "_entity",
        "_is_stopped",
        "_late",
        "_log",
        "_name",
        "_number",
        "_opening",
        "_openings",
        "_patience",
        "_payloads",
        "_slices",
        "_to_free",
        "epoch",
        "has_failed",
        "retry_at_ms",
    )

    def __init__(
        self,
        number: int,
        entity: EntityDescription,
        log: Log,
        clock: Clock,
        patience: Patience,
        late: Callable[[], None],
        openings: Openings,
        payloads: PayloadBudget,
        slices: Slices,
        limits: TaskLimits,
    ) -> None:
        """`number`: the partition's. `late` is called if it has waited too long in `openings`. The pause
        after the first failed attempt is `recovery_delay_ms`; it doubles with each further failure, up to
        `recovery_delay_ms_max`."""
        self._number, self._log, self._clock, self._patience = number, log, clock, patience
        self._payloads, self._slices, self._bounds = payloads, slices, limits.bounds
        self._openings, self._late = openings, late
        self._entity, self._name = entity.generation, entity.name
        self._opening: Opening | None = None
        """The partition's turn, or its place in the line."""
        self._counted_as: Opening | None = None
        """What is read in this turn counts as this; None if the partition was open (`Reload`)."""
        self._is_stopped = False
        """Whether the partition is stopped, and waits for no turn."""
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
        self._dropped_share: Share | None = None
        """The closed share of the state that was discarded last, until it is read again."""
        self._dropped_bytes: int | None = None
        """What the messages took when the partition was last open, in bytes; None if it never was."""
        self._to_free: list[Partition | Messages | Snapshot] = []
        """Discarded states, and what was kept of checkpoints, until they are freed in slices."""

    async def in_turn(
        self,
        load: Callable[[], Awaitable[None]],
        urgency: Callable[[Urgency], Urgency],
        size: int,
        *,
        is_wanted: bool,
        was_open: bool,
        is_hung: bool,
    ) -> bool:
        """Carry out `load` when the partition's turn comes, and again if it turns out that there is no room
        for its messages. False if the turn does not come, because the partition is stopped: one that is
        stopped is opened if its turn comes at once, or not at all.

        `urgency` gives the urgency, from the one that counts if only receivers want it. `size`: what the
        messages are expected to take, in bytes, unless that is known from when it was last open. `is_wanted`:
        somebody wants it open whatever it holds. `was_open`: it was open until a commit failed, so it does
        not wait for room (`Reload`). `is_hung`: its disk is known to hang, so no other waits for it. Raises
        what `load` raises.
        """
        openings = self._openings.when_hung if is_hung else self._openings
        size = least = size if self._dropped_bytes is None else self._dropped_bytes
        while True:
            needed = (0, 0) if was_open else (OPENING_BYTES + size, OPENING_BYTES + least)
            how_urgent = urgency(Urgency.MESSAGES if size or is_wanted else Urgency.EMPTY)
            try:
                with openings.place(
                    self._entity, how_urgent, self._late, *needed, name=self._name
                ) as opening:
                    self._opening, self._counted_as = opening, None if was_open else opening
                    if self._is_stopped:
                        opening.give_up()  # nobody else would: `stop_waiting` has been called
                    if not await opening.has_turn():
                        break
                    if is_hung:
                        opening.is_late()
                    try:
                        await load()
                        return True
                    except NoRoom as error:
                        size, least = error.size - OPENING_BYTES, error.least - OPENING_BYTES
                        await self._close_again()
            finally:
                self._opening = self._counted_as = None
        if was_open:
            await self.discard_commit()  # its clients are answered next
        return False

    async def _close_again(self) -> None:
        """Free what was read, and what the log takes while it is open."""
        await self.free_dropped()
        with contextlib.suppress(StorageError), self._patience:
            await self._log.close()

    @contextlib.contextmanager
    def _counted(self) -> Iterator[Opening | Reload]:
        """Count what is read within this block: as the opening, or as a reload if the partition was open."""
        share, self._dropped_share = self._dropped_share, None
        if self._counted_as is not None:
            yield self._counted_as
        else:
            assert share is not None and self._dropped_bytes is not None
            with self._openings.room.reload(share, OPENING_BYTES + self._dropped_bytes) as reload:
                yield reload

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
        with self._counted() as counted:
            return await self._load(description, first_nonce, counted)

    async def _load(
        self, description: EntityDescription, first_nonce: int, counted: Opening | Reload
    ) -> tuple[Partition, Replay]:
        def takes(*sizes: int) -> None:
            counted.takes(*(OPENING_BYTES + size for size in sizes))

        with self._patience.at_rest():
            await self.free_dropped()
        messages = Messages(
            self._number, description.subqueues, self._payloads, self._bounds.tick_ms, self._clock_settings
        )
        snapshot, ahead_ms = Snapshot(messages), wall_ahead_ms(self._clock)
        try:
            replay = await replay_log(
                self._log, messages, snapshot, self._slices, self._patience, ahead_ms, takes
            )
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
        except BaseException:
            messages.payloads.close()
            self._to_free += [messages, snapshot]  # popped first: it shares frames with `messages`
            raise
        counted.share = messages.payloads
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

    def drop(self, partition: Partition) -> None:
        """Discard a state and release its messages. From now on, the partition is expected to take what it
        took."""
        share = partition.messages.payloads
        self._dropped_share, self._dropped_bytes = share, share.state_bytes
        share.close()
        self._to_free.append(partition)

    async def free_dropped(self) -> None:
        """Free discarded states, in slices."""
        while self._to_free:
            await self._slices.run(self._to_free.pop().drop())
