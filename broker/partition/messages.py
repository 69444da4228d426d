"""A partition's messages and counters: a fold over the records of its log. Pure.

The `apply…` methods carry out a record, both at replay and when it is appended. This file knows nothing of
clients, locks or the time.

Each live reference is counted in the frame that holds its bytes. `_frames` holds the frames in the order of
the log; dead ones are dropped when they reach the front, so the front shows how far the log may be trimmed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from broker.entities.descriptions import MESSAGE_OVERHEAD_BYTES
from broker.entities.roles import OWN_END, SubqueueTable
from broker.identifiers import PARTITION_SHIFT
from broker.partition import _references, columns, records
from broker.partition._new_references import make as make_references
from broker.partition._untracked import untrack
from broker.partition.blocks import Blocks
from broker.partition.bodies import Bodies
from broker.partition.clock_settings import ClockSettings
from broker.partition.message_sessions import SESSION_BYTES
from broker.partition.payloads import PayloadBudget
from broker.partition.postponing import activate, put_off
from broker.partition.records import (
    Activated,
    Counters,
    Enqueued,
    Mark,
    Relocated,
    Rescheduled,
)
from broker.partition.references import ACTIVE, STATES, Reference, StoredFrame, bytes_of
from broker.partition.renumbered import Renumbered
from broker.partition.replaying import REPLAYED_AT_ONCE, state_of
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
_FORGETTING = 0.9
"""How fast the highest measured size of a packed row is forgotten, with each relocation."""
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
        self.soonest_end_ms = NO_NUMBER
        """No message whose time to live has begun since this was set ends earlier, in monotonic time."""
        self._evicted_to = (0, 0)
        """The subqueue and sequence number where the last eviction stopped."""
        self.clock_settings = clock_settings or ClockSettings()
        self._frames: deque[StoredFrame] = deque()
        untrack([self._frames])
        self.bodies = Bodies()
        """Messages with several references, in topics."""
        self._packed_row_bytes = 1.0
        """About what a RELOCATED record takes for each reference to a message but the first."""
        self.renumbered = Renumbered()
        """Messages that the log stores under an earlier number."""

    def find(self, name: str) -> Subqueue:
        """Find a subqueue by name. Raises Refused(ENTITY_NOT_FOUND)."""
        return self.subqueues.find(name)

    @property
    def live_bytes(self) -> int:
        """The size of all messages as they were sent."""
        return self.work.bytes - self.bodies.shared_bytes

    @property
    def state_bytes(self) -> int:
        """Memory used by everything except the messages' bodies."""
        return self.states.bytes + self.bodies.state_bytes + self._described_bytes

    @property
    def size_bytes(self) -> int:
        """What counts towards the quota: all messages, each once, and all durable state."""
        return self.held_bytes + self.states.bytes

    @property
    def held_bytes(self) -> int:
        """What all messages take in the quota, each once. Costs little, however many subqueues there are."""
        work = self.work
        described = SESSION_BYTES * work.sessions + MESSAGE_OVERHEAD_BYTES * work.messages
        sent = work.bytes - self.bodies.shared_bytes
        return sent + described + work.changed_bytes + work.column_bytes

    @property
    def _described_bytes(self) -> int:
        """What the subqueues know of their messages."""
        work = self.work
        counted = SESSION_BYTES * work.sessions + MESSAGE_OVERHEAD_BYTES * work.messages
        return counted + work.properties.memory_bytes + work.column_bytes

    @property
    def relocatable_bytes(self) -> int:
        """Bytes needed to write every message again, with its changed properties and its row in the tables of
        a RELOCATED record.

        Compaction compares this with the log. The messages' sizes alone would be too low: a message of one
        byte takes forty more in a RELOCATED record, and one record may have given 32 KiB of changed
        properties to each of a thousand messages. The rows of a message that several subscriptions have are
        packed, so all of them but one count with what the last relocations have shown.
        """
        row_bytes = records.RELOCATED_MESSAGE_BYTES
        bodies, work = self.bodies, self.work
        total = -bodies.shared_bytes
        if self._has_columns:
            row_bytes += columns.MESSAGE_BYTES
            total += columns.PART_BYTES
        shared = bodies.shared_count
        total += row_bytes * (work.messages - shared) + int(self._packed_row_bytes * shared)
        return total + work.bytes + work.changed_bytes + work.column_bytes

    @property
    def _has_columns(self) -> bool:
        """Whether some message may have columns, so that records have a column part."""
        return not self.work.columned.keys().isdisjoint(self.work.occupied)

    @property
    def count(self) -> int:
        """How many messages there are."""
        return self.work.messages

    @property
    def stored_count(self) -> int:
        """How many of them the log holds: a message that several subscriptions have counts once."""
        return self.work.messages - self.bodies.shared_count

    @property
    def own_count(self) -> int:
        """How many messages are in the entity's own subqueues, and not in a subscription's."""
        occupied = self.work.occupied
        return sum(len(occupied[number].references) for number in range(OWN_END) if number in occupied)

    def first_live(self) -> Position | None:
        """The oldest frame that holds a live message; None if there is none. Nothing below it will be read
        again.

        Drops the dead frames before it, FRAMES_LOOKED_AT at most. If there are more (`begins_dead`), the
        result is the oldest of these.
        """
        frames, has_renumbered = self._frames, bool(self.renumbered)
        for _ in range(min(FRAMES_LOOKED_AT, len(frames))):
            if frames[0].live:
                break
            frame = frames.popleft()
            if has_renumbered:
                self._leave_behind(frame)
        return frames[0].position if frames else None

    @property
    def begins_dead(self) -> bool:
        """Whether the oldest frame that was not dropped holds no live message."""
        return bool(self._frames) and not self._frames[0].live

    def drop_dead_frames(self) -> Iterator[None]:
        """Drop all dead frames before the oldest with a live message, in steps: there may be millions."""
        while self.begins_dead:
            self.first_live()
            yield

    def oldest_frames(self, count: int, reach: int, below: Position) -> list[Position]:
        """The oldest frames with live messages below a position: at most `count`, and none more than `reach`
        bytes behind the first.

        Looks at FRAMES_LOOKED_AT frames at most, and drops the dead ones among them, so that later searches
        need not skip them again. First call `drop_dead_frames`, or it may find none.
        """
        frames = self._frames
        kept: list[StoredFrame] = []
        looks = 0
        while frames and len(kept) < count and looks < FRAMES_LOOKED_AT:
            frame = frames[0]
            if frame.position >= below or (kept and frame.live and frame.position - kept[0].position > reach):
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
        first, enqueued_ms, sizes, expiries, offset, column_lists, scheduled_ms, _ = enqueued
        count = len(sizes)
        assert first >= self.next_number, "sequence numbers never come back"
        size = sum(sizes)
        keep = messages is not None and self.payloads.take(size)
        self.blocks.touch_run(self.main.number, first, count, position)
        frame = self.frame_at(position)
        frame.live += count
        life_column: list[int | None] | None = None
        lives: dict[int, int | None] = {}
        if expiries is not None and now_ms is not None:
            begun_ms = enqueued_ms - now_ms
            self.clock_settings.add(first, begun_ms)
            lives = {}
            for each in set(expiries):
                lives[each] = each - begun_ms if each else None
            life_column = list(map(lives.__getitem__, expiries))
            if scheduled_ms is not None:  # their time to live has not begun
                life_column = [
                    None if at_ms else until_ms
                    for at_ms, until_ms in zip(scheduled_ms, life_column, strict=True)
                ]
                lives[0] = None
        # The references' number objects are also the table's keys, so each number exists only once.
        references, numbers = make_references(
            columns.class_for(column_lists) if column_lists else Reference,
            first,
            frame,
            offset,
            sizes,
            enqueued_ms,
            expiries,
            life_column,
            messages,
            ACTIVE,
        )
        if column_lists:
            columns.give(references, column_lists)
        self.main.append(references, numbers, size)
        if scheduled_ms is not None:
            self.main.postpone(put_off(references, scheduled_ms))
        if life_column is not None:
            soonest_ms = self.main.watch_lives(first, lives, life_column)
            if soonest_ms is not None and soonest_ms < self.soonest_end_ms:
                self.soonest_end_ms = soonest_ms
        self.next_number = first + count
        self.latest_enqueued_ms = enqueued_ms
        return keep or messages is None

    def apply_activated(self, activated: Activated, now_ms: int | None = None) -> None:
        """Make scheduled messages of the main subqueue active. `now_ms` is monotonic time, None in a
        replay."""
        main, (first, enqueued_ms, old_numbers, _) = self.main, activated
        assert first >= self.next_number, "sequence numbers never come back"
        self.blocks.touch(main.number, old_numbers, self.position)
        self.blocks.touch_run(main.number, first, len(old_numbers), self.position)
        references = main.remove(old_numbers)
        lives = activate(references, activated, now_ms)
        for reference in references:
            self.renumbered.add(reference)
        size = bytes_of(references)
        main.append(references, [reference.sequence_number for reference in references], size)
        if lives and now_ms is not None:
            self.clock_settings.add(first, enqueued_ms - now_ms)
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
        frame = self.frame_at(position)
        frame.live += len(relocated.sequence_numbers)
        offset = relocated.messages_offset
        latest = NO_NUMBER
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
            if relocated.shares_bodies and number == latest:
                offset -= size
            latest = number
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
                    if subqueue_number >= OWN_END:
                        self.bodies.found((reference,))
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

    def frame_at(self, position: Position) -> StoredFrame:
        """The frame at the end of the log, for new references."""
        if not self._frames or self._frames[-1].position != position:
            frame = StoredFrame(position)
            untrack([frame])
            self._frames.append(frame)
        return self._frames[-1]

    def forget(self, removed: list[Reference]) -> None:
        """Release removed references: their frames no longer count them, and their bodies leave memory."""
        in_memory = self.bodies.forget(removed) if self.bodies else 0
        # A lease may keep a reference for as long as any of its other messages is locked.
        in_memory += _references.let_go(removed)
        if in_memory:
            self.payloads.give(in_memory)

    def bring_back(self, subqueue: Subqueue, references: Sequence[Reference]) -> None:
        """Undo `forget` and the removal of messages that this cycle has removed. Their frames must have been
        kept from being dropped. Scheduled ones among them have come due."""
        self.blocks.touch(
            subqueue.number, [reference.sequence_number for reference in references], self.position
        )
        for reference in references:
            reference.frame.live += 1
            subqueue.insert(reference, has_come_due=True)
        if subqueue.number >= OWN_END:
            self.bodies.found(references)

    def evict(self) -> None:
        """Drop some bodies from memory; they stay on the disk. Looks at EVICTED_AT_ONCE messages, and
        continues from there the next time."""
        place, from_number = self._evicted_to
        occupied = self.work.occupied
        subqueue = occupied.get(place)
        if subqueue is None:
            place, from_number = self._occupied_after(place), 0
            subqueue = self.subqueues[place]
        freed = looked_at = 0
        for reference in subqueue.browse(from_number):
            if looked_at >= EVICTED_AT_ONCE:
                self._evicted_to = place, reference.sequence_number
                break
            if reference.sequence_number >= self.evicted_below:
                self._evicted_to = self._occupied_after(place), 0
                break
            looked_at += 1
            if self.bodies and reference.payload:
                freed += self.bodies.evict(reference, occupied.values())
                looked_at += len(occupied)
                continue
            freed += len(reference.payload)
            reference.payload = b""
        else:
            self._evicted_to = self._occupied_after(place), 0
        self.payloads.give(freed)

    def upcoming_beside(self, missing: list[Reference]) -> list[list[Reference]]:
        """Messages that will be handed out soon, and are in the same frames as those that must be read now:
        for each body all references to it. Memory has room for them; `keep` puts them there."""
        read = {reference.frame for reference in missing}
        take, bodies = self.payloads.take, self.bodies
        found: dict[int, list[Reference]] = {}
        for subqueue in self.work.occupied.values():
            for reference in subqueue.upcoming():
                if reference.payload or reference.frame not in read:
                    break
                if bodies and bodies.payload_of(reference):
                    continue
                own = found.setdefault(reference.sequence_number, [])
                if not own and not take(reference.size):
                    del found[reference.sequence_number]
                    break
                own.append(reference)
        return list(found.values())

    def keep(self, upcoming: list[list[Reference]], read: list[bytes]) -> None:
        """Keep the bodies of messages in memory that `upcoming_beside` has found."""
        bodies = self.bodies
        for references, body in zip(upcoming, read, strict=True):
            bodies.take(references[0], body)
            for reference in references[1:]:
                bodies.payload_of(reference)

    def _occupied_after(self, number: int) -> int:
        """The next subqueue that holds messages; after the last one, the first again."""
        occupied = self.work.occupied
        return min((each for each in occupied if each > number), default=min(occupied, default=0))

    def cut(self, first: int) -> None:
        """Undo the latest `apply_enqueued`, as if the messages from `first` on had never come. Their frame is
        the last one."""
        for subqueue in list(self.work.occupied.values()):
            self.forget(subqueue.cut(first))
        self.next_number = first
        assert self._frames and not self._frames[-1].live
        self._frames.pop()

    # --- replay ---------------------------------------------------------------------------------------------

    def finish_steps(self, wall_ahead_ms: int) -> Iterator[int]:
        """After the replay, put the references in order and set their deadlines. Each step handles a bounded
        number of messages.

        `wall_ahead_ms` is how far wall time is ahead of monotonic time now. Times to live counted in wall
        time until this process first read the log; since then they count in monotonic time, even across a
        recovery.
        """
        self.clock_settings.read_back(wall_ahead_ms)
        yield from self.subqueues.finish_steps(self.clock_settings)
        for _ in self.drop_dead_frames():
            yield 0
        frames = iter(self._frames)
        while part := list(islice(frames, REPLAYED_AT_ONCE)):
            untrack(part)
            yield 0

    def drop(self) -> Iterator[int]:
        """Free everything, in steps, because freeing a million references at once would block the event loop.
        This object is no longer used."""
        for subqueue in self.subqueues:
            references = subqueue.references
            while some := references.pop_some(DROPPED_AT_ONCE):
                for reference in some:
                    reference.lease = None
                self.work.messages -= len(some)
                yield len(some)
            for wheel in (subqueue.expiry, subqueue.schedule):
                if wheel is not None:
                    yield from wheel.drop()
            if subqueue.sessions is not None:
                yield from subqueue.sessions.drop()
        for _ in self.bodies.drop():
            yield 0
        for _ in self.states.drop():
            yield 0
        for _ in self.renumbered.drop():
            yield 0
        for _ in self.work.properties.drop():
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
                    numbers = list(dict.fromkeys(records.read_relocated(record).sequence_numbers))
                yield from self._standing_parts(frame, numbers)
            yield from self._standing_parts(frame, self.renumbered.of_frame(frame.position))

    def _standing_parts(self, frame: Frame, numbers: Sequence[int]) -> Iterator[list[tuple[Frame, int]]]:
        at_once = self._looked_at_once(REPLAYED_AT_ONCE)
        for start in range(0, len(numbers), at_once):
            part = numbers[start : start + at_once]
            yield [(frame, number) for number in part if any(self._standing_in(frame, number))]

    def _looked_at_once(self, lookups: int) -> int:
        """How many messages can be looked for in every subqueue, if each has a few. A topic may have many."""
        return max(1, lookups * OWN_END // max(OWN_END, len(self.work.occupied)))

    def _standing_in(self, frame: Frame, number: int) -> Iterator[tuple[Subqueue, Reference]]:
        """The references to a message that is stored in this frame."""
        for subqueue in self.work.occupied.values():
            reference = subqueue.references.get(number)
            if reference is not None and reference.frame.position == frame.position:
                yield subqueue, reference

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
        looks = self._looked_at_once(RELOCATED_AT_ONCE)
        while candidates:
            frame, number = candidates[0]
            standing = list(self._standing_in(frame, number))
            if standing:
                room -= standing[0][1].size
                for _, reference in standing:
                    room -= len(reference.changed or b"") + row_bytes
                    room -= columns.value_bytes((reference,))
                if found and (room < 0 or len(messages) >= looks):
                    break
                found += standing
                messages.append(frame.part(standing[0][1].offset, standing[0][1].size))
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
            len(messages) < len(references),
        )
        began_at = commit.bytes
        relocated = relocated._replace(messages_offset=records.add_relocated(commit, relocated, messages))
        if shared := len(references) - len(messages):
            rows = commit.bytes - began_at - sum(map(len, messages)) - row_bytes * len(messages)
            self._packed_row_bytes = max(rows / shared, _FORGETTING * self._packed_row_bytes)
        return relocated

    def check(self) -> None:
        """Assert that frames and memory agree with the references."""
        self.states.check()
        live: dict[int, int] = {}
        in_memory: dict[int, int] = {}
        for subqueue in self.subqueues:
            subqueue.check()
            self.blocks.check(subqueue.number, subqueue.references)
            for reference in subqueue.references.values():
                assert reference.state in STATES and reference.sequence_number < self.next_number
                assert len(reference.payload) in (0, reference.size)
                live[id(reference.frame)] = live.get(id(reference.frame), 0) + 1
                if reference.payload:
                    in_memory[reference.sequence_number] = len(reference.payload)
        assert sum(in_memory.values()) == self.payloads.used
        work = self.work
        assert SESSION_BYTES * work.sessions == sum(each.session_bytes for each in self.subqueues)
        assert (work.messages, work.bytes, work.changed_bytes, work.column_bytes) == (
            sum(len(each.references) for each in self.subqueues),
            sum(each.bytes for each in self.subqueues),
            sum(each.changed_bytes for each in self.subqueues),
            sum(each.column_bytes for each in self.subqueues),
        )
        references = [each for subqueue in self.subqueues for each in subqueue.references.values()]
        self.bodies.check(references)
        work.properties.check(references)
        assert {id(frame): frame.live for frame in self._frames if frame.live} == live
        positions = [frame.position for frame in self._frames]
        assert positions == sorted(set(positions))
        self.renumbered.check(positions)
