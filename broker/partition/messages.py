"""A partition's messages and counters: a fold over the records of its log. Pure.

The `apply…` methods carry out a record, both at replay and when it is appended. This file knows nothing of
clients, locks or the time.

A replay needs no checkpoint and nothing from before `Log.start`. The log is trimmed only below the oldest
frame that holds a live message, and below a COUNTERS record. So for each live message, a replay finds the
ENQUEUED or RELOCATED record that holds its bytes, and every later record about it. A replay skips records
about messages in trimmed frames: such a message was either removed later, or a later RELOCATED record carries
its whole state. The numbers of these messages are lower than the first one replayed as ENQUEUED, unless they
became active under a higher one; any other unknown number is a contradiction and ends the replay. A
checkpoint only shortens the replay: it holds the result of the same fold up to its position (`snapshot.py`).

Each live reference is counted in the frame that holds its bytes. `_frames` holds the frames in the order of
the log; dead ones are dropped when they reach the front, so the front shows how far the log may be trimmed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, islice, repeat

from broker.entities.descriptions import MESSAGE_OVERHEAD_BYTES
from broker.entities.roles import SubqueueTable
from broker.operations import PARTITION_SHIFT
from broker.partition import columns, records
from broker.partition._untracked import untrack
from broker.partition.blocks import Blocks
from broker.partition.clock_settings import ClockSettings
from broker.partition.payloads import PayloadBudget
from broker.partition.postponing import activate, put_off
from broker.partition.records import (
    Activated,
    Counters,
    Enqueued,
    Mark,
    Relocated,
    Rescheduled,
    UnreadableRecord,
)
from broker.partition.references import ACTIVE, STATES, Reference, StoredFrame
from broker.partition.renumbered import Renumbered
from broker.partition.replaying import REPLAYED_AT_ONCE, parts_of, relocated_parts, shared, state_of
from broker.partition.state_kinds import DurableStates
from broker.partition.subqueue import Subqueue
from broker.partition.subqueues import Subqueues
from storage.log import Commit, Frame, Position

NO_NUMBER = 1 << 64
"""Above all sequence numbers."""
EVICTED_AT_ONCE = 1024
"""Messages that one eviction looks at: about 100 microseconds."""
RELOCATED_AT_ONCE = 2048
"""Messages that one commit of a compaction moves: a few milliseconds."""
FRAMES_LOOKED_AT = 8192
"""Frames that one search for the oldest frames looks at: about a millisecond."""
DROPPED_AT_ONCE = 2048
"""References and frames that one step of `drop` frees: less than a millisecond."""


class Messages:
    """The messages of one partition. Owned by its state machine."""

    def __init__(
        self,
        number: int,
        subqueues: SubqueueTable,
        payloads: PayloadBudget,
        tick_ms: int,
        clock_settings: ClockSettings | None = None,
    ) -> None:
        """`subqueues` are the entity's. `clock_settings` are this partition's from before a recovery within
        this process."""
        self.subqueues = Subqueues(subqueues, tick_ms)
        self.work = self.subqueues.work
        self.main = self.subqueues[0]
        """The subqueue that receives sent messages."""
        self.first_number = number << PARTITION_SHIFT
        """Lower than all sequence numbers of the partition: only the partition's bits are set."""
        self.next_number = self.first_number | 1
        """The sequence number for the next message."""
        self.position = Position(0)
        """Position of the frame whose records are being applied. Set by the caller before it applies any."""
        self.blocks = Blocks()
        """Which blocks of messages have changed, and in which frame."""
        self.states = DurableStates()
        """The durable state other than messages."""
        self.latest_enqueued_ms = 0
        self.payloads = payloads.share(self.evict)
        self.evicted_below = NO_NUMBER
        """Bodies from this sequence number on are not evicted: the current cycle has sent them, and not all
        of them are counted in the budget. Another partition may ask for room while the cycle lasts."""
        self._evicted_to = (0, 0)
        """The subqueue and sequence number where the last eviction stopped."""
        self._clock_settings = clock_settings or ClockSettings()
        self._frames: deque[StoredFrame] = deque()
        untrack([self._frames])
        self.renumbered = Renumbered()
        """Messages that the log stores under an earlier number."""
        self._first_replayed: int | None = None
        self._absent: set[int] = set()
        """During a replay, the new numbers of messages that became active and are in trimmed frames."""

    def find(self, name: str) -> Subqueue:
        """Find a subqueue by name. Raises Refused(ENTITY_NOT_FOUND)."""
        return self.subqueues.find(name)

    @property
    def live_bytes(self) -> int:
        """The size of all messages as they were sent."""
        total = 0
        for subqueue in self.work.occupied.values():
            total += subqueue.bytes
        return total

    @property
    def state_bytes(self) -> int:
        """Memory used by everything except the messages' bodies."""
        total = self.states.bytes
        for subqueue in self.work.occupied.values():
            total += (
                subqueue.changed_bytes
                + subqueue.column_bytes
                + subqueue.session_bytes
                + MESSAGE_OVERHEAD_BYTES * len(subqueue.references)
            )
        return total

    @property
    def relocatable_bytes(self) -> int:
        """Bytes needed to write every message again, with its changed properties and its row in the tables of
        a RELOCATED record.

        Compaction compares this with the log. The messages' sizes alone would be too low: a message of one
        byte takes forty more in a RELOCATED record, and one record may have given 32 KiB of changed
        properties to each of a thousand messages.
        """
        row_bytes = records.RELOCATED_MESSAGE_BYTES
        total = 0
        if self._has_columns:
            row_bytes += columns.MESSAGE_BYTES
            total += columns.PART_BYTES
        for subqueue in self.work.occupied.values():
            total += (
                subqueue.bytes
                + subqueue.changed_bytes
                + subqueue.column_bytes
                + row_bytes * len(subqueue.references)
            )
        return total

    @property
    def _has_columns(self) -> bool:
        """Whether some message may have columns, so that records have a column part."""
        return any(subqueue.has_columns for subqueue in self.work.occupied.values())

    @property
    def count(self) -> int:
        """How many messages there are."""
        total = 0
        for subqueue in self.work.occupied.values():
            total += len(subqueue.references)
        return total

    def first_live(self) -> Position | None:
        """The oldest frame that holds a live message; None if there is none. Nothing below it will be read
        again."""
        frames = self._frames
        while frames and not frames[0].live:
            self._leave_behind(frames.popleft())
        return frames[0].position if frames else None

    def oldest_frames(self, count: int, reach: int, below: Position) -> list[Position]:
        """The oldest frames with live messages below a position: at most `count`, and none more than `reach`
        bytes behind the first.

        Looks at FRAMES_LOOKED_AT frames at most, and drops the dead ones among them, so that later searches
        need not skip them again.
        """
        first = self.first_live()
        frames = self._frames
        kept: list[StoredFrame] = []
        looks = 0
        while frames and first is not None and len(kept) < count and looks < FRAMES_LOOKED_AT:
            frame = frames[0]
            if frame.position >= below or (frame.live and kept and frame.position - first > reach):
                break
            frames.popleft()
            looks += 1
            if frame.live:
                kept.append(frame)
            else:
                self._leave_behind(frame)
        frames.extendleft(reversed(kept))
        return [frame.position for frame in kept]

    def _leave_behind(self, frame: StoredFrame) -> None:
        if self.renumbered:
            self.renumbered.forget(frame.position)

    def live_frames(self) -> list[StoredFrame]:
        """All frames that hold live messages, in the order of the log."""
        return [frame for frame in self._frames if frame.live]

    def adopt_frames(self, frames: Iterable[StoredFrame]) -> None:
        """Add some of a checkpoint's frames. They must come in the order of the log, after all frames added
        before."""
        self._frames.extend(frames)

    # --- what records do ------------------------------------------------------------------------------------

    def apply_enqueued(
        self,
        position: Position,
        enqueued: Enqueued,
        messages: Sequence[bytes] | None = None,
        now_ms: int | None = None,
    ) -> bool:
        """Add new messages to the main subqueue. Returns False if there is no room in memory to keep their
        bodies beyond this cycle.

        `messages` and `now_ms` (monotonic time) are None in a replay: bodies are read when needed, and
        `finish_steps` sets the deadlines.
        """
        first, enqueued_ms, sizes, expiries, offset, column_lists, scheduled_ms = enqueued
        count = len(sizes)
        assert first >= self.next_number, "sequence numbers never come back"
        size = sum(sizes)
        keep = messages is not None and self.payloads.take(size)
        self.blocks.touch_run(self.main.number, first, count, position)
        frame = self._frame_at(position)
        frame.live += count
        numbers = range(first, first + count)
        expiry_column: Iterable[int | None] = repeat(None)
        life_column: list[int | None] = []
        lives: dict[int, int | None] = {}
        if expiries is not None:
            expiry_column = [each or None for each in expiries]
            if now_ms is not None:
                begun_ms = enqueued_ms - now_ms
                self._clock_settings.add(first, begun_ms)
                lives = {each: each - begun_ms if each else None for each in set(expiries)}
                life_column = list(map(lives.__getitem__, expiries))
                if scheduled_ms is not None:  # their time to live has not begun
                    life_column = [
                        None if at_ms else until_ms
                        for at_ms, until_ms in zip(scheduled_ms, life_column, strict=True)
                    ]
                    lives[0] = None
        references = list(
            map(
                columns.class_for(column_lists),
                numbers,
                repeat(frame),
                accumulate(sizes[:-1], initial=offset),
                sizes,
                repeat(enqueued_ms),
                expiry_column,
                messages if messages is not None else repeat(b"", count),
                *([life_column] if lives else []),
            )
        )
        untrack(references)
        columns.give(references, column_lists)
        # The references' number objects are also the dictionary's keys, so each number exists only once.
        self.main.append(references, [reference.sequence_number for reference in references], size)
        if scheduled_ms is not None:
            self.main.postpone(put_off(references, scheduled_ms))
        if lives:
            self.main.watch_lives(first, lives, life_column)
        self.next_number = first + count
        self.latest_enqueued_ms = enqueued_ms
        return keep or messages is None

    def apply_activated(self, activated: Activated, now_ms: int | None = None) -> None:
        """Make scheduled messages of the main subqueue active. `now_ms` is monotonic time, None in a
        replay."""
        main, (first, enqueued_ms, old_numbers) = self.main, activated
        assert first >= self.next_number, "sequence numbers never come back"
        self.blocks.touch(main.number, old_numbers, self.position)
        self.blocks.touch_run(main.number, first, len(old_numbers), self.position)
        references = main.remove(old_numbers)
        lives = activate(references, activated, now_ms)
        for reference in references:
            self.renumbered.add(reference)
        size = sum(reference.size for reference in references)
        main.append(references, [reference.sequence_number for reference in references], size)
        if lives and now_ms is not None:
            self._clock_settings.add(first, enqueued_ms - now_ms)
            main.watch_lives(first, lives, [reference.lives_until_ms for reference in references])
        self.next_number, self.latest_enqueued_ms = first + len(references), enqueued_ms

    def apply_rescheduled(self, rescheduled: Rescheduled) -> None:
        """Give scheduled messages of the main subqueue another time."""
        main, (at_ms, numbers) = self.main, rescheduled
        self.blocks.touch(main.number, numbers, self.position)
        main.reschedule([main.references[number] for number in numbers], at_ms)

    def apply_mark(self, mark: Mark) -> None:
        """Apply a change to some messages of one subqueue; none of them is locked."""
        subqueue = self.subqueues[mark.subqueue]
        self.blocks.touch(mark.subqueue, mark.sequence_numbers, self.position)
        if mark.kind == records.REMOVED:
            self.forget(subqueue.remove(mark.sequence_numbers))
            return
        references = [subqueue.references[number] for number in mark.sequence_numbers]
        if mark.changed is not None:
            subqueue.change(references, mark.changed)
        if mark.kind == records.RETURNED or mark.counts_delivery:
            for reference in references:
                reference.delivery_count += 1
        if mark.kind == records.DEFERRED:
            subqueue.defer(references)
        elif mark.kind == records.MOVED:
            target = self.subqueues[mark.target]
            self.blocks.touch(mark.target, mark.sequence_numbers, self.position)
            for reference in subqueue.remove(mark.sequence_numbers):
                reference.state = ACTIVE
                target.insert(reference)

    def apply_counters(self, counters: Counters) -> None:
        """Continue with these sequence numbers and times."""
        assert counters.next_sequence_number >= self.next_number
        self.next_number, self.latest_enqueued_ms = counters

    def apply_relocated(self, position: Position, relocated: Relocated, *, are_new: bool = False) -> None:
        """Point messages to their new place in the log. A replay may meet unknown messages here; then the
        record is all that is known of them. `are_new`: they are scheduled ones of the main subqueue that did
        not exist before (`promises.py`)."""
        frame = self._frame_at(position)
        frame.live += len(relocated.sequence_numbers)
        offset = relocated.messages_offset
        found: list[Reference] = []
        new: list[Reference] = []
        make = columns.class_for(relocated.columns)
        for (
            number,
            enqueued_ms,
            expires_ms,
            size,
            deliveries,
            subqueue_number,
            state,
            changed,
        ) in relocated.rows():
            subqueue = self.subqueues[subqueue_number]
            self.blocks.touch(subqueue_number, (number,), position)
            reference = subqueue.references.get(number)
            if reference is None:
                reference = make(number, frame, offset, size, enqueued_ms, expires_ms or None)
                reference.delivery_count, reference.state = deliveries, state_of(state)
                reference.changed = changed
                untrack([reference])
                if are_new:
                    new.append(reference)
                else:
                    subqueue.bring_back((reference,))
            else:
                assert (
                    reference.size == size
                    and reference.delivery_count == deliveries
                    and reference.state == state
                )
                reference.frame.live -= 1
                reference.frame, reference.offset = frame, offset
            found.append(reference)
            offset += size
        columns.give(found, relocated.columns)
        for reference in new:
            self.main.insert(reference)

    def _frame_at(self, position: Position) -> StoredFrame:
        if not self._frames or self._frames[-1].position != position:
            frame = StoredFrame(position)
            untrack([frame])
            self._frames.append(frame)
        return self._frames[-1]

    def forget(self, removed: Iterable[Reference]) -> None:
        """Release removed references: their frames no longer count them, and their bodies leave memory."""
        in_memory = 0
        for reference in removed:
            reference.frame.live -= 1
            payload = reference.payload
            if payload:
                in_memory += len(payload)
                # A lease may keep the reference for as long as any of its other messages is locked.
                reference.payload = b""
        if in_memory:
            self.payloads.give(in_memory)

    def bring_back(self, subqueue: Subqueue, references: Sequence[Reference]) -> None:
        """Undo `forget` and the removal of messages that this cycle has removed. Their frames must have been
        kept from being dropped."""
        self.blocks.touch(
            subqueue.number, [reference.sequence_number for reference in references], self.position
        )
        for reference in references:
            reference.frame.live += 1
            subqueue.insert(reference)

    def evict(self) -> None:
        """Drop some bodies from memory; they stay on the disk. Looks at EVICTED_AT_ONCE messages, and
        continues from there the next time."""
        place, from_number = self._evicted_to
        occupied = self.work.occupied
        subqueue = occupied.get(place)
        if subqueue is None:
            place, from_number = self._occupied_after(place), 0
            subqueue = self.subqueues[place]
        freed = 0
        for looked_at, reference in enumerate(subqueue.browse(from_number)):
            if looked_at == EVICTED_AT_ONCE:
                self._evicted_to = place, reference.sequence_number
                break
            if reference.sequence_number >= self.evicted_below:
                self._evicted_to = self._occupied_after(place), 0
                break
            freed += len(reference.payload)
            reference.payload = b""
        else:
            self._evicted_to = self._occupied_after(place), 0
        self.payloads.give(freed)

    def _occupied_after(self, number: int) -> int:
        """The next subqueue that holds messages; after the last one, the first again."""
        occupied = self.work.occupied
        return min((each for each in occupied if each > number), default=min(occupied, default=0))

    def cut(self, first: int) -> None:
        """Undo the latest `apply_enqueued`, as if the messages from `first` on had never come. Their frame is
        the last one."""
        self.forget(self.main.cut(first))
        self.next_number = first
        assert self._frames and not self._frames[-1].live
        self._frames.pop()

    # --- replay ---------------------------------------------------------------------------------------------

    def replay_steps(self, frames: Iterable[Frame]) -> Iterator[int]:
        """Apply all records of some frames, in steps of REPLAYED_AT_ONCE messages at most. Raises
        UnreadableRecord."""
        for frame in frames:
            self.position = frame.position
            for record in frame.records():
                match record.kind:
                    case records.ENQUEUED:
                        enqueued = records.read_enqueued(record)
                        if self._first_replayed is None:
                            self._first_replayed = enqueued.first
                        for part in parts_of(enqueued):
                            self.apply_enqueued(frame.position, shared(part))
                            yield len(part.sizes)
                    case (
                        records.REMOVED
                        | records.REMOVED_RUNS
                        | records.RETURNED
                        | records.DEFERRED
                        | records.MOVED
                        | records.CHANGED
                    ):
                        mark = records.read_mark(record)
                        for start in range(0, len(mark.sequence_numbers), REPLAYED_AT_ONCE):
                            known = self._known(mark, mark.sequence_numbers[start : start + REPLAYED_AT_ONCE])
                            if known:
                                self.apply_mark(mark._replace(sequence_numbers=known))
                            yield len(known)
                    case records.ACTIVATED:
                        for some in self._present_ones(records.read_activated(record)):
                            self.apply_activated(some)
                            yield len(some.sequence_numbers)
                    case records.RESCHEDULED:
                        at_ms, numbers = records.read_rescheduled(record)
                        for start in range(0, len(numbers), REPLAYED_AT_ONCE):
                            some_numbers = numbers[start : start + REPLAYED_AT_ONCE]
                            here = self._known(Mark(record.kind, 0, some_numbers), some_numbers)
                            self.apply_rescheduled(Rescheduled(at_ms, here))
                            yield len(here)
                    case records.COUNTERS:
                        self.apply_counters(records.read_counters(record))
                    case records.RELOCATED:
                        for moved in relocated_parts(records.read_relocated(record)):
                            self.apply_relocated(frame.position, moved)
                            yield len(moved.sizes)
                    case _:
                        self.states.apply(record, frame.position)
                        yield 1
            yield 0

    def finish_steps(self, wall_ahead_ms: int) -> Iterator[int]:
        """After the replay, put the references in order and set their deadlines. Each step handles a bounded
        number of messages.

        `wall_ahead_ms` is how far wall time is ahead of monotonic time now. Times to live counted in wall
        time until this process first read the log; since then they count in monotonic time, even across a
        recovery.
        """
        self._clock_settings.read_back(wall_ahead_ms)
        yield from self.subqueues.finish_steps(self._clock_settings)
        self._absent.clear()
        frames = iter(self._frames)
        while part := list(islice(frames, REPLAYED_AT_ONCE)):
            untrack(part)
            yield 0

    def _known(self, mark: Mark, numbers: Sequence[int]) -> Sequence[int]:
        """The numbers whose messages exist, of those that a mark names. Raises UnreadableRecord."""
        references = self.subqueues[mark.subqueue].references
        known = [number for number in numbers if number in references]
        if len(known) < len(numbers) and self._first_replayed is not None:
            self._check_absent(number for number in numbers if number not in references)
        return known

    def _check_absent(self, numbers: Iterable[int]) -> None:
        """Check that these messages can be in trimmed frames. Raises UnreadableRecord."""
        unknown = max((number for number in numbers if number not in self._absent), default=0)
        if self._first_replayed is not None and unknown >= self._first_replayed:
            raise UnreadableRecord(f"a record refers to message {unknown}, which is not there")

    def _present_ones(self, activated: Activated) -> Iterator[Activated]:
        """The messages that exist, in parts of REPLAYED_AT_ONCE with consecutive new numbers. Raises
        UnreadableRecord."""
        first, enqueued_ms, old_numbers = activated
        references = self.main.references
        for start in range(0, len(old_numbers), REPLAYED_AT_ONCE):
            part: list[int] = []
            for number, old_number in enumerate(old_numbers[start : start + REPLAYED_AT_ONCE], first + start):
                if old_number in references:
                    part.append(old_number)
                    continue
                self._check_absent((old_number,))
                self._absent.add(number)
                if part:
                    yield Activated(number - len(part), enqueued_ms, part)
                    part = []
                self.next_number = number + 1
            if part:
                yield Activated(number + 1 - len(part), enqueued_ms, part)
        self.next_number, self.latest_enqueued_ms = first + len(old_numbers), enqueued_ms

    def drop(self) -> Iterator[int]:
        """Free everything, in steps, because freeing a million references at once would block the event loop.
        This object is no longer used."""
        for subqueue in self.subqueues:
            references = subqueue.references
            while references:
                count = min(len(references), DROPPED_AT_ONCE)
                for _ in range(count):
                    references.popitem()[1].lease = None
                yield count
            if subqueue.expiry is not None:
                yield from subqueue.expiry.drop()
            if subqueue.sessions is not None:
                yield from subqueue.sessions.drop()
        for _ in self.states.drop():
            yield 0
        for _ in self.renumbered.drop():
            yield 0
        frames = self._frames
        while frames:
            count = min(len(frames), DROPPED_AT_ONCE)
            for _ in range(count):
                frames.pop()
            yield count

    # --- compaction -----------------------------------------------------------------------------------------

    def living_in(self, frame: Frame) -> list[tuple[Frame, int]]:
        """The sequence numbers of the live messages in a frame, each with the frame."""
        return [each for part in self.living_steps([frame]) for each in part]

    def living_steps(self, frames: Iterable[Frame]) -> Iterator[list[tuple[Frame, int]]]:
        """The live messages in several frames, in steps of REPLAYED_AT_ONCE messages at most."""
        for frame in frames:
            for record in frame.records():
                numbers: Sequence[int] = ()
                if record.kind == records.ENQUEUED:
                    enqueued = records.read_enqueued(record)
                    numbers = range(enqueued.first, enqueued.first + len(enqueued.sizes))
                elif record.kind == records.RELOCATED:
                    numbers = records.read_relocated(record).sequence_numbers
                yield from self._standing_parts(frame, numbers)
            yield from self._standing_parts(frame, self.renumbered.of_frame(frame.position))

    def _standing_parts(self, frame: Frame, numbers: Sequence[int]) -> Iterator[list[tuple[Frame, int]]]:
        for start in range(0, len(numbers), REPLAYED_AT_ONCE):
            part = numbers[start : start + REPLAYED_AT_ONCE]
            yield [(frame, number) for number in part if self._standing_in(frame, number) is not None]

    def _standing_in(self, frame: Frame, number: int) -> tuple[Subqueue, Reference] | None:
        for subqueue in self.work.occupied.values():
            reference = subqueue.references.get(number)
            if reference is not None and reference.frame.position == frame.position:
                return subqueue, reference
        return None

    def relocate(
        self, candidates: deque[tuple[Frame, int]], commit: Commit, bytes_max: int
    ) -> Relocated | None:
        """Move live messages from the front of `candidates` (from `living_in`) into a commit.

        Takes as many as fit into a frame of `bytes_max` bytes, at least one and at most RELOCATED_AT_ONCE.
        Drops candidates that have since been removed or relocated. The caller must pass the result to
        `apply_relocated` once the commit is durable. Returns None if no candidate is live.
        """
        found: list[tuple[Subqueue, Reference]] = []
        messages: list[bytes] = []
        room = bytes_max - records.RELOCATED_FRAME_BYTES
        row_bytes = records.RELOCATED_MESSAGE_BYTES
        if self._has_columns:
            row_bytes += columns.MESSAGE_BYTES
            room -= columns.PART_BYTES
        while candidates:
            frame, number = candidates[0]
            standing = self._standing_in(frame, number)
            if standing is not None:
                reference = standing[1]
                room -= reference.size + len(reference.changed or b"") + row_bytes
                room -= columns.value_bytes((reference,))
                if found and (room < 0 or len(found) == RELOCATED_AT_ONCE):
                    break
                found.append(standing)
                messages.append(frame.part(reference.offset, reference.size))
            candidates.popleft()
        if not found:
            return None
        references = [reference for _, reference in found]
        relocated = Relocated(
            [reference.sequence_number for reference in references],
            [reference.enqueued_at_ms for reference in references],
            [reference.expires_at_ms or 0 for reference in references],
            [reference.size for reference in references],
            [reference.delivery_count for reference in references],
            [subqueue.number for subqueue, _ in found],
            [reference.state for reference in references],
            [reference.changed for reference in references],
            0,
            columns.of_references(references),
        )
        return relocated._replace(messages_offset=records.add_relocated(commit, relocated, messages))

    def check(self) -> None:
        """Assert that frames and memory agree with the references."""
        self.states.check()
        live: dict[int, int] = {}
        in_memory = 0
        for subqueue in self.subqueues:
            subqueue.check()
            self.blocks.check(subqueue.number, subqueue.references)
            for reference in subqueue.references.values():
                assert reference.state in STATES and reference.sequence_number < self.next_number
                assert len(reference.payload) in (0, reference.size)
                live[id(reference.frame)] = live.get(id(reference.frame), 0) + 1
                in_memory += len(reference.payload)
        assert in_memory == self.payloads.used
        assert {id(frame): frame.live for frame in self._frames if frame.live} == live
        positions = [frame.position for frame in self._frames]
        assert positions == sorted(set(positions))
        self.renumbered.check(positions)
