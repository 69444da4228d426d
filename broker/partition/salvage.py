"""Salvage: rebuilds the state of a partition from what is left of a damaged log, and finds which sequence
numbers are lost. Pure.

Salvage begins with the newest whole checkpoint, if there is one, and applies every whole frame after it, as a
replay does. Unlike a replay, it continues where records contradict each other because records between them
are missing:

- if a later record mentions a message in another subqueue, the record that moved it there is missing;
- a record about an unknown message is skipped.

Other durable state of a partition needs no such care: its records do not depend on each other
(`durable_state.py`). What of it may be older than clients were told, `doubts.py` finds out.

Which messages are lost: sequence numbers rise without a gap, so the numbers between the last one before a gap
in the log and the first one after it were in the gap. Those that a later record removes were settled, and
those that a later record relocates still exist; all others are lost. As nobody knows which subscriptions of a
topic a message in a gap was for, it counts as settled only if it was removed from all of them. A message that
the checkpoint knows is lost if its bytes were in a gap. If nothing follows a gap, all numbers from its first
one on are lost. Settlements in a gap are forgotten, so their messages are delivered again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from broker.entities.roles import OWN_END, SubqueueTable, is_of_same
from broker.partition import records
from broker.partition.doubts import Doubts, Older
from broker.partition.messages import Messages
from broker.partition.payloads import PayloadBudget
from broker.partition.records import Activated, Mark, Relocated, Rescheduled
from broker.partition.references import SCHEDULED, Reference
from broker.partition.replay import activate_again, enqueue_again
from broker.partition.replaying import state_of
from broker.partition.snapshot import Snapshot
from broker.partition.subqueue import Subqueue
from broker.partition.tables import UnreadableRecord
from storage.errors import CorruptRecord
from storage.log import Checkpoint, Frame, Position, Record
from storage.survey import Gap

UNSEEN_NUMBERS = 1 << 32
"""How far sequence numbers jump when the last one given is unknown, so that none is ever given twice."""
_BYTES_PER_MESSAGE_MIN = 4
"""The least that a message takes in a log: its entry in a table of sizes."""


class Range(NamedTuple):
    """A range of sequence numbers, both ends included."""

    first: int | None
    """None if the beginning is unknown."""
    last: int | None
    """None if the end is unknown; then everything from `first` on is lost."""


@dataclass(slots=True)
class Salvage:
    """Salvages one partition. Pass the log's parts in order to `frame` and `gap`, then call `finish`."""

    number: int
    subqueues: SubqueueTable
    """The entity's subqueues."""
    messages: Messages = field(init=False)
    since: Position | None = None
    """The position of the checkpoint that salvage began with; None if there was none."""
    start: int = 0
    """Where the log begins, as far as is known."""
    trimmed_to: Position | None = None
    """Where the log begins according to its extent; None if only the files say so."""
    gone: list[Range] = field(default_factory=list)
    """The lost numbers, ascending; complete after `finish`."""
    gaps: list[Gap] = field(default_factory=list)
    end: int = 0
    """The highest position seen."""
    older: Older | None = None
    """What may be older than clients were told; known after `finish`."""
    _numbers_known: bool = False
    """Whether `messages.next_number` is correct for this place in the log."""
    _in_gap: bool = False
    _missing: list[Range] = field(default_factory=list)
    _doubts: Doubts = field(default_factory=Doubts)
    _subscriptions: set[int] = field(init=False)
    """The numbers of the entity's subscriptions."""
    _settled: set[int] = field(default_factory=set)
    """Unknown messages that records removed everywhere."""
    _removed_from: dict[int, set[int]] = field(default_factory=dict)
    """The subscriptions that records removed unknown messages from, by sequence number."""
    _earlier: dict[int, int] = field(default_factory=dict)
    """The earlier numbers of unknown messages that became active, by their new ones."""

    def __post_init__(self) -> None:
        self.messages = Messages(self.number, self.subqueues, PayloadBudget(0, 0), tick_ms=20)
        self._subscriptions = {number // OWN_END for number in self.subqueues if number >= OWN_END}

    def begin(self, checkpoints: Iterable[Checkpoint], start: Position, *, is_start_known: bool) -> None:
        """Load the first of these checkpoints that can be read.

        `start` is where the log begins; `is_start_known` is True if the log's extent says so.
        """
        self.start = start
        self.trimmed_to = start if is_start_known else None
        self._numbers_known = start == 0
        for checkpoint in checkpoints:
            try:
                snapshot = Snapshot(self.messages)
                deque(snapshot.load_steps(checkpoint), maxlen=0)
                deque(snapshot.loaded_steps(checkpoint), maxlen=0)
            except (UnreadableRecord, CorruptRecord):  # or damaged since it was found whole
                self.__post_init__()
                continue
            self.since = checkpoint.position
            self._numbers_known = True
            return
        if start > 0:  # only a checkpoint would tell of what stood before
            self._in_gap = True
            self._doubts.gap()

    # --- the log --------------------------------------------------------------------------------------------

    def gap(self, gap: Gap) -> None:
        """Add a part of the log that cannot be read."""
        self.gaps.append(gap)
        if gap.end is None or self.since is None or gap.end > self.since:
            self._in_gap = True
            self._doubts.gap()

    def frame(self, frame: Frame) -> None:
        """Apply the next whole frame. Raises UnreadableRecord if a later release wrote it."""
        self.end = frame.position + len(frame.data)
        if self.since is not None and frame.position < self.since:
            return
        self.messages.position = frame.position
        for record in frame.records():
            self._apply(frame.position, record)

    def _apply(self, position: Position, record: Record) -> None:
        match record.kind:
            case records.ENQUEUED:
                enqueued = records.read_enqueued(record)
                self._expect(enqueued.first)
                if enqueued.first < self.messages.next_number:
                    raise UnreadableRecord(f"sequence number {enqueued.first} comes a second time")
                enqueue_again(self.messages, position, enqueued)
            case kind if kind in records.MARKS:
                self._mark(records.read_mark(record))
            case records.COUNTERS:
                counters = records.read_counters(record)
                self._expect(counters.next_sequence_number)
                if counters.next_sequence_number >= self.messages.next_number:
                    self.messages.apply_counters(counters)
            case records.ACTIVATED:
                self._activate(records.read_activated(record))
            case records.RESCHEDULED:
                self._reschedule(records.read_rescheduled(record))
            case records.RELOCATED:
                self._relocated(position, records.read_relocated(record))
            case _:
                self.messages.states.apply(record, position)
                self._doubts.applied(record, self.messages.states)

    def _expect(self, number: int) -> None:
        """`number` is the next sequence number here. After a gap, this tells which numbers were in
        the gap."""
        if self._in_gap and number > self.messages.next_number:
            self._missing.append(
                Range(self.messages.next_number if self._numbers_known else None, number - 1)
            )
        self._in_gap, self._numbers_known = False, True
        self._doubts.goes_on(number)

    def _mark(self, mark: Mark) -> None:
        subqueues = self.messages.subqueues
        known = [number for number in mark.sequence_numbers if self._bring(number, subqueues[mark.subqueue])]
        if mark.kind == records.REMOVED and len(known) < len(mark.sequence_numbers):
            unknown = set(mark.sequence_numbers) - set(known)
            self._note_settled(self._removed_everywhere(unknown, mark.subqueue // OWN_END))
        if known:
            self.messages.apply_mark(mark._replace(sequence_numbers=known))

    def _removed_everywhere(self, numbers: Iterable[int], subscription: int) -> Iterable[int]:
        """Those of these unknown messages that no subscription has any more after they were removed from this
        one, or from the entity itself (0)."""
        if not subscription:
            return numbers
        for number in numbers:
            self._removed_from.setdefault(number, set()).add(subscription)
        return [number for number in numbers if self._removed_from[number] >= self._subscriptions]

    def _note_settled(self, numbers: Iterable[int]) -> None:
        """Unknown messages were removed everywhere, also under their earlier numbers."""
        for number in numbers:
            self._settled.add(number)
            if number in self._earlier:
                self._settled.add(self._earlier[number])

    def _activate(self, activated: Activated) -> None:
        """Make those of the messages active that are known. An unknown one is lost, unless a later record
        relocates or removes it under its new number."""
        self._expect(activated.first)
        if activated.first < self.messages.next_number:
            raise UnreadableRecord(f"sequence number {activated.first} comes a second time")
        references, targets = self.messages.main.references, activated.targets
        for place, earlier in enumerate(activated.sequence_numbers):
            number = activated.first + place
            reference = references.get(earlier)
            if reference is not None and reference.state is SCHEDULED:
                here = None if targets is None else targets.part(slice(place, place + 1))
                activate_again(self.messages, Activated(number, activated.enqueued_at_ms, (earlier,), here))
            else:
                self._earlier[number] = earlier
                self._settled.add(number)
            self.messages.next_number = number + 1

    def _reschedule(self, rescheduled: Rescheduled) -> None:
        """Change the times of those messages that are known and scheduled."""
        references = self.messages.main.references
        for number in rescheduled.sequence_numbers:
            reference = references.get(number)
            if reference is not None and reference.state is SCHEDULED:
                self.messages.apply_rescheduled(Rescheduled(rescheduled.at_ms, (number,)))

    def _bring(self, number: int, subqueue: Subqueue) -> Reference | None:
        """Find a message, and move it to `subqueue` if it is in another one of the same subscription because
        the record that moved it is missing. None if the message is unknown."""
        reference = subqueue.references.get(number)
        if reference is None:
            for other in self.messages.subqueues:
                if number in other.references and is_of_same(other.number, subqueue.number):
                    [reference] = other.remove([number])
                    subqueue.insert(reference)
        return reference

    def _relocated(self, position: Position, relocated: Relocated) -> None:
        """Apply relocated messages with their whole state, because records about them may be missing in a
        gap."""
        for number, _, _, _, deliveries, subqueue, state, changed in relocated.rows():
            reference = self._bring(number, self.messages.subqueues[subqueue])
            if number in self._earlier:
                self._settled.add(self._earlier[number])
            if reference is not None:
                reference.delivery_count, reference.state = deliveries, state_of(state)
                self.messages.subqueues[subqueue].replace_changed(reference, changed)
        self.messages.apply_relocated(position, relocated)

    # --- the end --------------------------------------------------------------------------------------------

    def finish(self, extent_durable: int = 0, numbers_before: int = 0, *, is_end_known: bool = True) -> None:
        """Drop the messages that cannot be read, and determine what is lost.

        `extent_durable` is a position that the log is known to have reached. `numbers_before` is the next
        sequence number after an earlier repair. Without `is_end_known`, nothing says whether more followed.
        """
        if not (is_end_known or self._in_gap):
            self._in_gap = True
            self._doubts.gap()
        for subqueue in self.messages.subqueues:
            trimmed: list[int] = []
            lost: list[int] = []
            for number, reference in subqueue.references.items():
                if self._is_trimmed(reference.frame.position):
                    trimmed.append(number)
                elif self._is_gone(reference.frame.position):
                    lost.append(number)
            self.messages.forget(subqueue.remove([*trimmed, *lost]))
            self.gone += [Range(number, number) for number in lost]
        if self._in_gap:
            first = self.messages.next_number
            self._missing.append(Range(first if self._numbers_known else None, None))
            unseen = UNSEEN_NUMBERS + max(0, extent_durable - self.end) // _BYTES_PER_MESSAGE_MIN
            self.messages.next_number = max(first, numbers_before) + unseen
        for missing in self._missing:
            self.gone += self._without_known(missing)
        self.gone = _joined(self.gone)
        self.older = self._doubts.found(self.messages)

    def _is_trimmed(self, position: Position) -> bool:
        """Whether a message at this position must have been settled by a record in a gap: the log was trimmed
        past the message.

        Without a gap, no missing record can have settled it. In that case the extent was created anew for a
        log whose first segments are missing.
        """
        return self.trimmed_to is not None and position < self.trimmed_to and bool(self.gaps)

    def refers_below(self, position: Position) -> bool:
        """Whether a known message is stored below this position in the log."""
        return any(
            each.frame.position < position
            for subqueue in self.messages.subqueues
            for each in subqueue.references.values()
        )

    def _is_gone(self, position: Position) -> bool:
        if position < self.start:
            return True
        return any(gap.position <= position and (gap.end is None or position < gap.end) for gap in self.gaps)

    def _without_known(self, missing: Range) -> list[Range]:
        """The range without the numbers that were settled, or that a later record relocated."""
        first, last = missing
        known = {
            number
            for subqueue in self.messages.subqueues
            for number in subqueue.references
            if _is_within(number, missing)
        }
        left: list[Range] = []
        for number in sorted(known | {number for number in self._settled if _is_within(number, missing)}):
            if first is None or first < number:
                left.append(Range(first, number - 1))
            first = number + 1
        if last is None or first is None or first <= last:
            left.append(Range(first, last))
        return left


def _is_within(number: int, wanted: Range) -> bool:
    return (wanted.first is None or wanted.first <= number) and (wanted.last is None or number <= wanted.last)


def _joined(ranges: Iterable[Range]) -> list[Range]:
    """The same numbers in as few ranges as possible, ascending."""
    joined: list[Range] = []
    for each in sorted(ranges, key=lambda each: each.first or 0):
        last = joined[-1].last if joined else None
        if joined and last is not None and each.first is not None and each.first <= last + 1:
            joined[-1] = Range(joined[-1].first, None if each.last is None else max(last, each.last))
        else:
            joined.append(each)
    return joined
