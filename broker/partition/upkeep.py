"""Keeps a partition's log in proportion: checkpoints, trimming, compaction. Policy only; `messages.py` knows
what records mean.

*Checkpoints* keep replays short: one is saved whenever enough bytes were written since the last one.

*Trimming* releases the log up to the lowest position that the state still needs (`Snapshot.needed_from`), but
never above the older of two checkpoints. First a COUNTERS record is made durable above that position, then
any missing checkpoints are saved, then the log is trimmed. A crash between any two steps leaves a complete
log: after the first step nothing has been removed, and after the last a replay of messages needs neither the
trimmed part (see `messages.py`) nor a checkpoint.

*Damage*: if one of the two checkpoints turns out to be damaged, the next one is due at once.

*Compaction*: if most of the log is garbage but a few old messages keep its oldest segments, compaction
appends these messages again (RELOCATED) and trims the segments that held them. If most of the garbage is in
the current segment, a new segment is begun first. A reference points to the new place only once that commit
is durable; a crash before or during the commit leaves some messages where they were.

*Timing*: a timer checks a log after its traffic, and leaves about a MiB of garbage at most. Under load, the
more is written, the more garbage upkeep tolerates (`garbage.py`).

*Messages do not wait* while a checkpoint is being written or files are being removed: that happens beside the
cycles (`beside_cycles.py`). Only taking the snapshot, appending and compaction happen between two cycles.

*A full disk* (durability rule 6) makes upkeep urgent. One partition at a time first trims, then compacts one
segment after another, until nothing more can be freed. The disk must have room for what a compaction writes,
so a segment waits until enough of its messages are gone. A timer continues this when no operations arrive;
each partition comes back at a time of its own (`RoomLock`), because there may be thousands. Garbage of up to
an eighth of the live bytes stays, so freeing a byte writes at most eight. The room for twice as much was kept
while messages were accepted (`drain_need.py`), so settlements that free nothing for long, such as those of a
topic's first subscriptions, find room. A partition with more garbage waits for its turn before it goes on, so
the others keep theirs. When what no need foresees has taken as much as half of the lasting needs of all logs
on the disk (`DrainRoom.is_scarce`), no garbage stays beyond 4 KiB, and every partition with more waits for
its turn. So abandons, which write a record each and free nothing, can go on for ever, and settlements find
room for longer when other programs fill the disk. Segments before the older of two checkpoints cost almost
nothing to release, so these go at once.

*A disk with little room*: as soon as a lack of room makes segments shorter, a checkpoint is due after every
two of them, so that the first segments can go at once when they are empty. When the disk is full, every log
that has messages gets its two checkpoints: the room for them was kept, and from then on it is known what they
take, from a fiftieth to half of the log.

*Frames are bounded.* Reading one message reads and checks its whole frame, so a relocation writes frames of
at most `relocated_frame_bytes_max`, or of one message if that is larger. Messages that were read but do not
fit wait for the next commit; their frames stay in memory until then.

*Bound on what compaction writes.* The live bytes are the bytes needed to write every message again
(`Messages.relocatable_bytes`), not the sizes of the messages. Compaction starts when the rest of the log, the
garbage, exceeds twice the live bytes (and a minimum). A round over the log writes each live message once and
frees all the garbage, so compaction writes at most half as many bytes as come in. Each step reads or writes
at least as many bytes as were appended since the step before, so a round ends before the log has doubled.

*What a checkpoint holds can end without much being written*: states of sessions are cleared, properties go
with their messages. So if most of the checkpoints' bytes are such garbage, both are replaced.

*Bound on what checkpoints write.* A checkpoint writes the blocks that changed since the checkpoint that it
replaces, the one before the last (`Snapshot.cost`). Neither a long replay nor a trim makes a checkpoint due
before as many bytes as it writes were appended since the replaced one.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_right
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass
from itertools import pairwise

from structlog.typing import FilteringBoundLogger

from broker.base.slices import Slices
from broker.partition import records
from broker.partition.beside_cycles import BesideCycles
from broker.partition.disk_timeout import Hung, PatientLog
from broker.partition.drain_need import (
    GARBAGE_BYTES_MIN,
    LIVE_PER_CHECKPOINT_GARBAGE,
    LIVE_PER_GARBAGE,
    Need,
    need_of,
)
from broker.partition.garbage import GarbageBound
from broker.partition.messages import Messages
from broker.partition.records import Counters
from broker.partition.snapshot import Snapshot, Taking
from storage.errors import DiskFull, StorageError
from storage.log import Commit, Frame, Log, Position

MIB = 1024 * 1024
_FRAMES_AT_ONCE = 64
"""Frames read together while compacting, all within `relocation_bytes_max` bytes of each other."""


LOOKS_PER_DUE = 256
"""How many checks of the log happen while the bytes that make some upkeep due are written. A check after
every commit would cost too much."""


@dataclass(slots=True, frozen=True)
class UpkeepLimits:
    """When upkeep is due."""

    checkpoint_bytes: int = 64 * MIB
    """Bytes of log written since the last checkpoint."""
    tail_bytes_at_stop: int = 0
    """With at most this many bytes of log after the last checkpoint, a stop saves none, and the next start
    replays them."""
    garbage_bytes_max: int = 64 * MIB
    """Bytes of garbage in the log that make trimming or compaction worthwhile under any load."""
    garbage_bytes_at_rest: int = 3 * MIB // 4
    """Bytes of garbage that make it worthwhile when nothing is being written."""
    garbage_per_live: int = 2
    """The multiple of the live bytes that garbage must also reach before a compaction."""
    look_ms: int = 2_500
    """Time between two checks of the log for garbage while it is being written."""
    relocation_bytes: int = MIB
    """The least that one step of compaction reads or writes."""
    relocation_bytes_max: int = 8 * MIB
    """The most that one step of compaction reads or writes; a single frame may exceed it."""
    relocated_frame_bytes_max: int = MIB
    """The most that a relocation writes in one commit; a single message may exceed it."""
    garbage_bytes_on_full_disk: int = GARBAGE_BYTES_MIN
    """Bytes of garbage always tolerated on a full disk: the room for them is always kept."""
    live_per_garbage_on_full_disk: int = 2 * LIVE_PER_GARBAGE
    """On a full disk, garbage up to the live bytes divided by this is tolerated as well. That is half of what
    room is kept for, so the other half is left while garbage is compacted."""
    live_per_checkpoint_garbage: int = LIVE_PER_CHECKPOINT_GARBAGE
    """The same for checkpoints, and for what is live in them: as much as room is kept for."""
    confined_segments: int = 2
    """On a disk with little room, a checkpoint is due after this many segments."""
    confined_garbage_bytes: int = 32 * 1024
    """On a disk with little room, bytes of garbage that make upkeep worthwhile when nothing is being
    written: the sixteen partitions of a queue keep half a MiB."""
    confined_look_bytes: int = 16 * 1024
    """On a disk with little room, the log is checked each time this many bytes were written."""
    pressed_ms: int = 5_000
    """How long a disk counts as full after it was found full, if the log does not report it."""
    pause_ms: int = 1000
    """Pause after the disk refused something, and between two attempts to make room."""
    replace_pause_ms_max: int = 64_000
    """On a full disk, the longest pause between two replacements of the checkpoints. It doubles from
    `pause_ms` while they free nothing."""
    next_pause_ms: int = 20
    """Pause while another partition makes room, and between two partitions that come back to make room."""


class Upkeep:
    """Called by the partition's task between cycles. Keeps no state but its own progress."""

    def __init__(
        self,
        log: Log,
        messages: Messages,
        snapshot: Snapshot,
        slices: Slices,
        beside: BesideCycles,
        limits: UpkeepLimits,
        output: FilteringBoundLogger,
    ) -> None:
        """A snapshot is taken in `slices`; `beside` runs `step` and lets cycles go on meanwhile."""
        self._log = PatientLog(log, beside.patience)
        self._messages, self._snapshot, self._slices = messages, snapshot, slices
        self._beside = beside
        self._limits, self._output = limits, output
        self._counters_at: Position | None = None
        self._relocated_at = log.end
        self._appended = 0
        """Bytes that this step has appended."""
        self._candidates: deque[tuple[Frame, int]] = deque()
        """Messages read for compaction but not written yet: frame and sequence number."""
        self._paused_until_ms = self._pressed_until_ms = self._starved_until_ms = 0
        self._replace_from_ms = self._replace_pause_ms = 0
        """On a full disk, checkpoints are replaced again from this time on at the earliest; the pause before
        it, 0 unless the last replacement has freed nothing."""
        self._garbage_left = 0
        """Garbage of the checkpoints that replacing both of them has not freed."""
        self._back_at_ms: int | None = None
        """When to come back to make room on a full disk, in monotonic time."""
        self._look_bytes = min(limits.checkpoint_bytes, limits.garbage_bytes_max) // LOOKS_PER_DUE
        self._look_at: int = log.end
        """The log is checked again once its end reaches this position."""
        self._measured: tuple[Position, Position, int] | None = None
        """Where the log's first and last segments begin, and how large the largest of the full ones is."""
        self._bound = GarbageBound(
            lambda: self._garbage_bytes_at_rest,
            limits.garbage_bytes_max,
            limits.look_ms,
            log.end,
            lambda: messages.relocatable_bytes,
        )
        self._keep_room()

    def _keep_room(self) -> None:
        self._log.keep_room(*self.need())

    def need(self) -> Need:
        """How much room draining needs."""
        log, messages = self._log, self._messages
        return need_of(
            deliveries=messages.count,
            messages=messages.stored_count,
            live_bytes=messages.relocatable_bytes,
            log_bytes=log.end - log.start,
            checkpoint_bytes=self._snapshot.size(),
            checkpoint_bytes_stored=log.checkpoint_bytes,
            checkpoints=len(log.checkpoints),
            segments=len(log.trim_points) + 1,
            segment_bytes=self._largest(),
        )

    def _largest(self) -> int:
        """The size of the log's largest segment."""
        log = self._log
        points = log.trim_points
        last = points[-1] if points else log.start
        if self._measured is None or self._measured[:2] != (log.start, last):
            sizes = [after - before for before, after in pairwise([log.start, *points])]
            self._measured = log.start, last, max(sizes, default=0)
        return max(self._measured[2], log.end - last)

    @property
    def _garbage_bytes_at_rest(self) -> int:
        limits = self._limits
        return (
            min(limits.garbage_bytes_at_rest, limits.confined_garbage_bytes)
            if self._log.is_confined
            else limits.garbage_bytes_at_rest
        )

    @property
    def due_ms(self) -> int | None:
        """When `step` must be called even if nothing was written, in monotonic time; None for never."""
        due_ms, back_at_ms = self._bound.due_ms, self._back_at_ms
        if back_at_ms is not None and (due_ms is None or back_at_ms < due_ms):
            due_ms = back_at_ms
        return None if due_ms is None else max(due_ms, self._paused_until_ms)

    def is_due(self, now_ms: int) -> bool:
        """Whether `step` has something to do. Called after each cycle while no step is under way."""
        if now_ms < self._paused_until_ms:
            return False
        end = self._log.end
        must_look, is_pressed = self._bound.look(now_ms, end), self._is_pressed(now_ms)
        if self._back_at_ms is not None and (now_ms >= self._back_at_ms or not is_pressed):
            must_look, self._back_at_ms = True, None
        if is_pressed:
            self._keep_room()
            return True
        must_look |= end >= self._look_at
        if must_look:
            self._keep_room()
        elif self._messages.count:
            return False
        place = self._trim_place()
        if (
            self._garbage_to_compact(place) is not None
            or self._is_trim_due(place)
            or self._is_checkpoint_due()
            or self._is_replacement_due()
            or self._messages.begins_dead  # so the log may have more garbage
        ):
            return True
        self._look_at = end + self._bytes_to_next_look()
        return False

    def _is_pressed(self, now_ms: int) -> bool:
        return self._log.is_full or now_ms < self._pressed_until_ms

    async def step(self, now_ms: int) -> bool:
        """Do what is due. True if there is more to do. Raises CommitFailed, CorruptRecord, Fenced; a full
        disk is waited out."""
        log = self._log
        try:
            await self._drop_dead_frames()
            if self._is_pressed(now_ms):
                return await self._make_room(now_ms)
            more = await self._compact()
            self._look_at = log.end if more else log.end + self._bytes_to_next_look()
            await self._trim(now_ms)
            if self._is_replacement_due():
                await self._replace_checkpoints(now_ms)
            elif self._is_checkpoint_due():
                await self._save_another(now_ms)
            return more
        except DiskFull:
            self._paused_until_ms = now_ms + self._limits.pause_ms
            return False
        finally:
            self._bound.discount(self._appended)
            self._appended = 0
            if now_ms < self._paused_until_ms:
                self._come_back(self._paused_until_ms)

    async def _drop_dead_frames(self) -> None:
        if self._messages.begins_dead:
            await self._slices.run(self._messages.drop_dead_frames())

    async def _append(self, commit: Commit, *, urgent: bool = False) -> None:
        """Append records of upkeep. Raises what `Log.append` raises."""
        began_at = self._log.end
        await self._log.append(commit, urgent, frees=True)
        self._appended += self._log.end - began_at

    @property
    def has_garbage(self) -> bool:
        """Whether upkeep would free some of the log if the partition were left at rest."""
        live_bytes = self._messages.relocatable_bytes
        garbage = self._log.end - self._log.start - live_bytes
        limits = self._limits
        return (
            garbage > max(self._garbage_bytes_at_rest, limits.garbage_per_live * live_bytes)
            or self._garbage_in_checkpoints(self._garbage_bytes_at_rest, limits.garbage_per_live) > 0
        )

    def press(self, now_ms: int, *, is_starved: bool = False) -> None:
        """Make room on a full disk, with the next cycle or when this partition comes back.

        `is_starved`: not even settlements find room, so no garbage is tolerated for now.
        """
        self._pressed_until_ms = now_ms + self._limits.pressed_ms
        if is_starved:
            self._starved_until_ms = self._pressed_until_ms
        if (
            self._garbage_on_full_disk(now_ms)
            or self._cheap_place() is not None
            or self._lacks_checkpoint_on_full_disk()
            or self._is_trim_due(self._trim_place())
            or self._is_replacement_due_on_full_disk(now_ms)
        ):
            self._come_back(now_ms)

    def _come_back(self, earliest_ms: int) -> None:
        """Schedule a call of `step` at `earliest_ms`, or somewhat later if other partitions on the disk come
        back as well.

        Does nothing if a call is already scheduled: traffic may ask for it again and again.
        """
        if self._back_at_ms is None:
            self._back_at_ms = self._log.making_room.next_ms(earliest_ms, self._limits.next_pause_ms)

    def _garbage_on_full_disk(self, now_ms: int) -> int:
        """The bytes of garbage in the log; 0 if freeing them is not worthwhile even on a full disk."""
        live_bytes, limits = self._messages.relocatable_bytes, self._limits
        garbage = self._log.end - self._log.start - live_bytes
        tolerated = limits.garbage_bytes_on_full_disk
        if now_ms >= self._starved_until_ms and not self._log.is_scarce:
            tolerated = max(tolerated, live_bytes // limits.live_per_garbage_on_full_disk)
        return garbage if garbage > tolerated else 0

    def _cheap_place(self) -> Position | None:
        """The position up to which the log can be trimmed without another checkpoint; None if nothing can be
        trimmed."""
        return self._trim_place(self._checkpoints(2))

    async def save_last_checkpoint(self, now_ms: int) -> None:
        """Save a checkpoint before the log is closed, unless the newest one has nearly this state, or the
        disk refuses or hangs."""
        is_short = self._log.end - self._checkpoints(1) <= self._limits.tail_bytes_at_stop
        if not is_short or self._lacks_checkpoint():
            with contextlib.suppress(Hung):
                await self._save_another(now_ms)

    async def _save_another(
        self, now_ms: int, earlier: Taking | None = None, *, is_complete: bool = False
    ) -> Taking | None:
        """Save a checkpoint and return what it holds. `earlier` is the content of the newest one, which is
        used if the state is the same. If it `is_complete`, it shares no file with an earlier one. None if the
        disk refused. Raises Hung."""
        log = self._log
        async with self._one_by_one():
            is_same_state = log.end == self._checkpoints(1)
            base = None if is_complete else log.checkpoint_base
            taking = self._snapshot.take(base, earlier if is_same_state else None)
            await self._slices.run(taking.steps())
            checkpoint = taking.checkpoint(log.end)
        try:
            async with self._beside.waiting():
                await log.save_checkpoint(checkpoint, is_complete=is_complete)
        except Hung:
            raise
        except StorageError as error:
            self._output.warning("checkpoint.failed", error=str(error))
            self._paused_until_ms = now_ms + self._limits.pause_ms
            return None
        self._snapshot.saved(checkpoint)
        return taking

    @contextlib.asynccontextmanager
    async def _one_by_one(self) -> AsyncIterator[None]:
        """Hold up the cycles while no other partition does so for the same. Until the others are done, the
        cycles go on, so the state may have changed."""
        async with contextlib.AsyncExitStack() as held:
            async with self._beside.waiting():
                await held.enter_async_context(self._slices.one_by_one)
            yield

    def _bytes_to_next_look(self) -> int:
        return (
            min(self._look_bytes, self._limits.confined_look_bytes)
            if self._log.is_confined
            else self._look_bytes
        )

    def _checkpoints(self, count: int) -> Position:
        """The position of the `count`-th newest usable checkpoint; the log's start if there are fewer."""
        positions = self._log.checkpoints
        return positions[count - 1] if len(positions) >= count else self._log.start

    def _is_checkpoint_due(self) -> bool:
        log = self._log
        if self._lacks_checkpoint():
            return True
        newest, points = self._checkpoints(1), log.trim_points
        is_due = log.end - newest >= self._limits.checkpoint_bytes
        if log.is_confined and not is_due:
            is_due = len(points) - bisect_right(points, newest) >= self._limits.confined_segments
        return is_due and self._is_checkpoint_paid()

    def _garbage_in_checkpoints(self, tolerated: int, per_live: float) -> int:
        """The bytes in the checkpoints that two new ones would not hold; 0 if replacing the present ones
        would change nothing, or they have little garbage: `tolerated`, or what is live times `per_live`."""
        log = self._log
        stored = log.checkpoint_bytes
        if stored <= tolerated or self._checkpoints(2) == log.end:
            return 0
        live_bytes = 2 * self._snapshot.cost(None)
        garbage = stored - live_bytes
        return garbage if garbage > max(tolerated, per_live * live_bytes) else 0

    def _is_replacement_due(self) -> bool:
        """Whether both checkpoints should be replaced to free their garbage. What that could not free the
        last time must have doubled."""
        tolerated = max(self._bound.bytes, 2 * self._garbage_left)
        return self._garbage_in_checkpoints(tolerated, self._limits.garbage_per_live) > 0

    def _is_replacement_due_on_full_disk(self, now_ms: int) -> bool:
        """Whether both checkpoints should be replaced. As long as that has freed nothing, it waits for a
        pause, or until the garbage has doubled."""
        tolerated = self._limits.garbage_bytes_on_full_disk
        if now_ms < self._replace_from_ms:
            if not self._replace_pause_ms:
                return False
            tolerated = max(tolerated, 2 * self._garbage_left)
        per_live = 1 / self._limits.live_per_checkpoint_garbage
        return self._garbage_in_checkpoints(tolerated, per_live) > 0

    async def _replace_checkpoints(self, now_ms: int) -> None:
        """Save two checkpoints, so that none is left of those that have garbage."""
        log = self._log
        saved: Taking | None = None
        for _ in range(2):
            saved = await self._save_another(now_ms, saved, is_complete=True)
            if saved is None:
                return
        self._garbage_left = max(log.checkpoint_bytes - 2 * self._snapshot.cost(None), 0)

    def _lacks_checkpoint(self) -> bool:
        """Whether one of the two checkpoints was damaged, or an earlier release kept only one of a trimmed
        log."""
        log = self._log
        return log.has_damaged_checkpoint or (log.start > 0 and len(log.checkpoints) < 2)

    def _lacks_checkpoint_on_full_disk(self) -> bool:
        """Whether the log could not be trimmed if all messages were gone. Besides, only checkpoints show how
        much room the messages take in them."""
        return self._messages.count > 0 and len(self._log.checkpoints) < 2

    def _is_checkpoint_paid(self, freed: int = 0) -> bool:
        """Whether the bytes appended since the checkpoint to be replaced, plus the bytes freed, make up for
        the cost of a new one."""
        return self._log.end - self._checkpoints(2) + freed >= self._snapshot.cost(self._log.checkpoint_base)

    def _trim_place(self, limit: Position | None = None) -> Position | None:
        """The position up to which nothing in the log is needed any more, at most `limit`; None if nothing
        can be trimmed."""
        needed_from = self._snapshot.needed_from()
        points = self._log.trim_points
        place = bisect_right(
            points, min(each for each in (self._log.end, needed_from, limit) if each is not None)
        )
        return points[place - 1] if place else None

    async def _trim(self, now_ms: int, is_urgent: bool = False) -> None:
        place = self._trim_place()
        if place is not None and (is_urgent or self._is_trim_due(place)):
            await self._trim_to(place, now_ms)

    def _is_trim_due(self, place: Position | None) -> bool:
        """Whether it is worthwhile to trim the log up to the place where that is possible."""
        if place is None or place - self._log.start < self._bound.bytes // 2:
            return False
        return self._checkpoints(2) >= place or self._is_checkpoint_paid(freed=place - self._log.start)

    async def _trim_to(self, place: Position, now_ms: int) -> None:
        log = self._log
        if self._counters_at is None or self._counters_at < place:
            commit = log.begin()
            counters = Counters(self._messages.next_number, self._messages.latest_enqueued_ms)
            commit.add(records.COUNTERS, [records.encode_counters(counters)], records.VERSION)
            await self._append(commit, urgent=True)
            self._counters_at = commit.start
        saved: Taking | None = None
        while self._checkpoints(2) < place:  # twice at most, because each one is at the log's end
            saved = await self._save_another(now_ms, saved)
            if saved is None:
                return
        async with self._beside.waiting():
            await log.trim(place)
        self._output.debug("log.trimmed", start=log.start, end=log.end, live_bytes=self._messages.live_bytes)

    async def _make_room(self, now_ms: int) -> bool:
        """On a full disk, trim, or else compact the oldest segment if there is room for it. True if something
        was freed."""
        log, limits = self._log, self._limits
        garbage, cheap = self._garbage_on_full_disk(now_ms), self._cheap_place()
        is_replacement_due = self._is_replacement_due_on_full_disk(now_ms)
        lacks_checkpoint = self._lacks_checkpoint_on_full_disk()
        is_trim_due = self._is_trim_due(self._trim_place())
        if not (garbage or cheap is not None or lacks_checkpoint or is_replacement_due or is_trim_due):
            if self._replace_pause_ms:
                self._come_back(now_ms + limits.pause_ms)
            return False
        if log.making_room.locked() and not self._must_wait(garbage):
            self._come_back(now_ms + limits.next_pause_ms)
            return False
        async with log.making_room:
            start, checkpoint_bytes = log.start, log.checkpoint_bytes
            if lacks_checkpoint:
                await self._replace_checkpoints(now_ms)
                self._keep_room()
            if cheap is not None:
                await self._trim_to(cheap, now_ms)
            elif garbage:
                await self._free_oldest(now_ms, garbage)
            elif is_trim_due:
                await self._trim(now_ms)
            if is_replacement_due and log.start == start:
                await self._replace_on_full_disk(now_ms)
        freed = log.start > start or log.checkpoint_bytes < checkpoint_bytes
        freed |= lacks_checkpoint and not self._lacks_checkpoint_on_full_disk()
        if freed and self._replace_pause_ms:
            self._replace_from_ms, self._replace_pause_ms = now_ms + limits.pause_ms, 0
        if not freed:
            self._come_back(now_ms + limits.pause_ms)
        return freed

    def _must_wait(self, garbage: int) -> bool:
        """Whether this partition must not write more before it has had its turn to make room."""
        return garbage > self._messages.relocatable_bytes // LIVE_PER_GARBAGE or self._log.is_scarce

    async def _replace_on_full_disk(self, now_ms: int) -> None:
        """Replace both checkpoints if there is room for that."""
        log, limits = self._log, self._limits
        self._replace_from_ms = now_ms + limits.pause_ms
        if self._snapshot.cost(None) > await log.room():
            return
        before = log.checkpoint_bytes
        await self._replace_checkpoints(now_ms)
        self._garbage_left = max(log.checkpoint_bytes - 2 * self._snapshot.cost(None), 0)
        if log.checkpoint_bytes >= before:
            pause_ms = min(max(2 * self._replace_pause_ms, limits.pause_ms), limits.replace_pause_ms_max)
            self._replace_from_ms, self._replace_pause_ms = now_ms + pause_ms, pause_ms

    async def _free_oldest(self, now_ms: int, garbage: int) -> None:
        """On a full disk, trim; if that frees nothing, compact the oldest segment if there is room for it."""
        log, limits, start = self._log, self._limits, self._log.start
        await self._trim(now_ms, is_urgent=True)
        if log.end - max(log.trim_points, default=log.start) > garbage // 2:
            await log.roll()
            await self._trim(now_ms, is_urgent=True)
        if log.trim_points and log.start == start:
            first = log.trim_points[0]
            if min(first - start, self._messages.relocatable_bytes) <= await log.room():
                while await self._move(limits.relocation_bytes, limits.relocation_bytes, first):
                    pass
                await self._trim(now_ms, is_urgent=True)

    def _garbage_to_compact(self, place: Position | None) -> int | None:
        """The bytes of garbage that only compaction would free, while the next trim frees the log up to
        `place`; None if that is not worthwhile."""
        log, live_bytes = self._log, self._messages.relocatable_bytes
        garbage = log.end - (place or log.start) - live_bytes
        if garbage <= max(self._bound.bytes, self._limits.garbage_per_live * live_bytes):
            self._candidates.clear()
            return None
        return garbage

    async def _compact(self) -> bool:
        """Append the oldest live messages again, so that the beginning of the log can be trimmed. True if
        something was moved."""
        log, limits, garbage = self._log, self._limits, self._garbage_to_compact(self._trim_place())
        if garbage is None:
            return False
        last = max(log.trim_points, default=log.start)
        if log.end - last > garbage // 2:  # more than this round can have moved there
            await log.roll()
            last = log.end
        size = min(max(limits.relocation_bytes, log.end - self._relocated_at), limits.relocation_bytes_max)
        moved = await self._move(size, size, last)
        self._relocated_at = log.end
        return moved

    async def _move(self, to_read: int, to_write: int, below: Position) -> bool:
        """Append the oldest live messages below a position again, about this many bytes. True if something
        was moved."""
        moved = False
        while to_write > 0:
            if not self._candidates:
                await self._drop_dead_frames()
                positions = (
                    self._messages.oldest_frames(_FRAMES_AT_ONCE, to_read, below) if to_read > 0 else []
                )
                if not positions:
                    break
                frames = await self._log.fetch(positions)
                to_read -= sum(frame.size for frame in frames)
                async for parts in self._slices.of(self._messages.living_steps(frames)):
                    for part in parts:
                        self._candidates += part
            to_write -= await self._relocate()
            moved = True
        return moved

    async def _relocate(self) -> int:
        """Write some of the candidates again, in one commit. Returns the commit's size."""
        commit = self._log.begin()
        relocated = self._messages.relocate(self._candidates, commit, self._limits.relocated_frame_bytes_max)
        if relocated is None:
            return 0
        await self._append(commit)
        self._messages.apply_relocated(commit.start, relocated)
        return commit.bytes
