"""Publishing scheduled messages of a topic when they become active. Pure.

They are matched then, so rules that were changed meanwhile count. That needs their bytes, which may have to
be read from the log: the cycle in which they come due asks for those that are not in memory, and the next one
goes on with them. A cycle publishes only as many as its work allows, in steps that come before its
operations. All partitions take turns at these steps, because many of them have messages for the same time.

Most only get targets (ACTIVATED), and their bytes stay where they are. A message of which some rule makes a
changed copy is enqueued as a new one together with its copies, and the old one is removed in the same commit.
So are those behind it in the same cycle, which keeps their order. On a full disk, all this is undone, and
tried again some time later. Messages that many subscriptions get wait as well while there is too little
memory for that; those that one subscription gets take no more than before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from broker.operations.columns import ColumnLists
from broker.partition import records
from broker.partition.columns import of_references
from broker.partition.new_messages import NewMessages
from broker.partition.published import distributed_steps
from broker.partition.publishing import REASONS_AT_ONCE, Destinations, Publishing, targets_of
from broker.partition.records import Activated, Mark
from broker.partition.references import SCHEDULED, Reference
from broker.partition.workspace import Workspace

PAUSE_MS = 1_000
"""How long to wait after the disk was full, or memory scarce."""


class PublishingLater:
    """Owned by the state machine."""

    __slots__ = ("_matching_max", "_paused_until_ms", "_publishing", "_read", "_space", "_waiting")

    def __init__(self, space: Workspace, publishing: Publishing) -> None:
        self._space, self._publishing = space, publishing
        self._matching_max = min(space.bounds.matching_max, space.bounds.work_max)
        self._read: tuple[list[bytes], Sequence[Reference]] = [], ()
        """Bodies that the latest cycle has asked for, and their messages."""
        self._waiting: list[tuple[Reference, bytes]] = []
        """Messages that the latest cycle has left, with their bodies."""
        self._paused_until_ms = 0
        """The end of the pause, in wall time; 0 if there is none."""

    @property
    def has_more(self) -> bool:
        """Whether the next cycle has messages whose bodies are there."""
        return bool(self._read[1]) or self.is_behind

    @property
    def is_behind(self) -> bool:
        """Whether the messages that have been taken so far are enough for the next cycle."""
        return bool(self._waiting)

    def pause(self) -> list[int]:
        """The disk is full, and nothing was published in this cycle. Returns the sequence numbers of the
        messages that are due again after the pause."""
        cycle, main = self._space.cycle, self._space.messages.main.number
        self._paused_until_ms = cycle.wall_ms + PAUSE_MS
        undone = [each for number, moved in cycle.redriven if number == main for each in moved]
        return [reference.sequence_number for reference in undone] + self._give_up()

    def give_up(self) -> list[int]:
        """Memory was scarce in this cycle. Returns the sequence numbers of the messages that are due again
        after the pause."""
        return self._give_up()

    def start_again(self) -> list[int]:
        """The clock was set back: end the pause. Returns the sequence numbers of the messages that have been
        taken, which may have to wait for their times again."""
        self._paused_until_ms = 0
        return self._give_up()

    def _give_up(self) -> list[int]:
        """Forget the messages that have been taken and not published; returns their sequence numbers."""
        taken = [*(reference for reference, _ in self._waiting), *self._read[1]]
        self._read, self._waiting = ([], ()), []
        return [reference.sequence_number for reference in taken]

    def end_pause(self) -> None:
        """End the pause if it is over. Call this at the beginning of each cycle."""
        if self._space.cycle.wall_ms >= self._paused_until_ms:
            self._paused_until_ms = 0

    def next_due_ms(self, due_ms: int) -> int:
        """When messages that come due at `due_ms` are published, in wall time."""
        return max(due_ms, self._paused_until_ms)

    @property
    def is_paused(self) -> bool:
        """The disk was full a moment ago, or memory scarce."""
        return self._paused_until_ms > 0

    def publish(self, due: Sequence[Reference]) -> Iterator[None]:
        """Publish messages that have come due, in this order and in steps, or ask for their bodies and
        publish them in the next cycle. Those whose bodies were read come first. Nothing else may happen to
        the partition before the last step."""
        cycle = self._space.cycle
        bodies, asked = self._read
        waiting, self._waiting = self._waiting, []
        self._read = [], ()
        main = self._space.messages.main
        here = {
            reference.sequence_number: (reference, body)
            for reference, body in (*waiting, *zip(asked, bodies, strict=True))
            if main.references.get(reference.sequence_number) is reference
            and reference.state is SCHEDULED
            and reference.enqueued_at_ms <= cycle.wall_ms
        }
        here |= {each.sequence_number: (each, each.payload) for each in due if each.payload}
        missing = [each for each in due if each.sequence_number not in here]
        if missing:
            self._read = [b""] * len(missing), missing
            cycle.holes.append(self._read)
        if here:
            yield from self._publish(list(here.values()))

    def _publish(self, due: Sequence[tuple[Reference, bytes]]) -> Iterator[None]:
        space, cycle, publishing = self._space, self._space.cycle, self._publishing
        messages = space.messages
        enqueued_ms = space.times.stamp(messages.latest_enqueued_ms, cycle.now_ms, cycle.wall_ms)
        found: list[Destinations] = []
        effort_max = self._matching_max
        until = publishing.effort + effort_max
        for reference, body in due:
            has_session = reference.session_id is not None
            steps = publishing.destinations(body, has_session, enqueued_ms, effort_max=effort_max)
            destinations = yield from steps
            if not messages.payloads.take_room(destinations.memory):
                self._paused_until_ms = cycle.wall_ms + PAUSE_MS
                break
            found.append(destinations)
            if publishing.effort >= until:  # this also bounds what their copies take
                break
        due, self._waiting = due[: len(found)], list(due[len(found) :])
        if not due:
            return
        references = [reference for reference, _ in due]
        first_copied = next((place for place, each in enumerate(found) if each.copies), len(found))
        if first_copied:
            yield from self._activate(references[:first_copied], found[:first_copied], enqueued_ms)
        cycle.first_sent = messages.next_number
        if first_copied < len(found):  # and all that follow, so that they keep their order
            yield from self._enqueue_anew(due[first_copied:], found[first_copied:], enqueued_ms)

    def _activate(
        self, references: Sequence[Reference], found: Sequence[Destinations], enqueued_ms: int
    ) -> Iterator[None]:
        space, cycle = self._space, self._space.cycle
        first = space.messages.next_number
        targets = targets_of(found)
        numbers = [reference.sequence_number for reference in references]
        activated = Activated(first, enqueued_ms, numbers, targets)
        body = records.encode_activated(activated)
        cycle.commit.add(records.ACTIVATED, [body], records.VERSION_FOR_TOPICS)
        cycle.marks.append((records.ACTIVATED, body, records.VERSION_FOR_TOPICS))
        cycle.work += len(numbers)
        for set_ in targets.sets:
            cycle.arrived_in.update([target.subqueue for target in set_])
            cycle.work += len(set_)
        yield from distributed_steps(space.messages, activated, cycle.now_ms)
        for number, each in enumerate(found, first):
            for subqueue, changed in each.dead:
                cycle.dead_lettered += 1
                space.mark(Mark(records.CHANGED, subqueue, [number], changed))
                if cycle.dead_lettered % REASONS_AT_ONCE == 0:
                    yield

    def _enqueue_anew(
        self, due: Sequence[tuple[Reference, bytes]], found: Sequence[Destinations], enqueued_ms: int
    ) -> Iterator[None]:
        space, cycle = self._space, self._space.cycle
        references = [reference for reference, _ in due]
        cycle.has_sent = True
        cycle.redriven.append((space.messages.main.number, references))
        for reference in references:
            reference.frame.live += 1  # until the cycle is durable, so that the frame is kept
        columns: ColumnLists = of_references(references)
        expire = [
            0 if each.expires_at_ms is None else each.expires_at_ms + enqueued_ms - each.enqueued_at_ms
            for each in references
        ]
        new = NewMessages(
            enqueued_ms,
            [len(body) for _, body in due],
            expire if any(expire) else None,
            [body for _, body in due],
            columns,
        )
        yield from self._publishing.write(cycle, new, found)
        mark = Mark(records.REMOVED, space.messages.main.number, [r.sequence_number for r in references])
        # Not `Workspace.mark`: on a full disk, this record must not outlive the new messages.
        cycle.commit.add(mark.kind, [records.encode_mark(mark)], records.VERSION)
        space.messages.apply_mark(mark)
