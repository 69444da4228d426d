"""Replays a log: applies the records of its frames to messages, from the oldest on. Pure.

A replay needs no checkpoint and nothing from before `Log.start`. The log is trimmed only below the oldest
frame that holds a live message, and below a COUNTERS record. So for each live message, a replay finds the
ENQUEUED or RELOCATED record that holds its bytes, and every later record about it. A replay skips records
about messages in trimmed frames: such a message was either removed later, or a later RELOCATED record carries
its whole state. The numbers of these messages are lower than the first one replayed as ENQUEUED, unless they
became active under a higher one; any other unknown number is a contradiction and ends the replay. A
checkpoint only shortens the replay: it holds the result of the same fold up to its position (`snapshot.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from broker.partition import records
from broker.partition.messages import Messages
from broker.partition.published import apply_distributed, apply_published
from broker.partition.records import Activated, Enqueued, Mark, Rescheduled
from broker.partition.replaying import REPLAYED_AT_ONCE, parts_of, relocated_parts, shared
from broker.partition.tables import UnreadableRecord
from storage.log import Frame, Position


class LogReplay:
    """The replay of one log. Every object replays frames once, in their order."""

    def __init__(self, messages: Messages) -> None:
        """`messages` are new, or as of a checkpoint."""
        self._messages = messages
        self._first_replayed: int | None = None
        self._absent: set[int] = set()
        """The new numbers of messages that became active and are in trimmed frames."""

    def steps(self, frames: Iterable[Frame]) -> Iterator[int]:
        """Apply all records of some frames, in steps of REPLAYED_AT_ONCE messages at most. Raises
        UnreadableRecord."""
        messages = self._messages
        for frame in frames:
            messages.position = frame.position
            for record in frame.records():
                match record.kind:
                    case records.ENQUEUED:
                        enqueued = records.read_enqueued(record)
                        if self._first_replayed is None:
                            self._first_replayed = enqueued.first
                        for part in parts_of(enqueued):
                            enqueue_again(messages, frame.position, part)
                            yield len(part.sizes)
                    case kind if kind in records.MARKS:
                        mark = records.read_mark(record)
                        for start in range(0, len(mark.sequence_numbers), REPLAYED_AT_ONCE):
                            known = self._known(mark, mark.sequence_numbers[start : start + REPLAYED_AT_ONCE])
                            if known:
                                messages.apply_mark(mark._replace(sequence_numbers=known))
                            yield len(known)
                    case records.ACTIVATED:
                        for some in self._present_ones(records.read_activated(record)):
                            activate_again(messages, some)
                            yield len(some.sequence_numbers)
                    case records.RESCHEDULED:
                        at_ms, numbers = records.read_rescheduled(record)
                        for start in range(0, len(numbers), REPLAYED_AT_ONCE):
                            some_numbers = numbers[start : start + REPLAYED_AT_ONCE]
                            here = self._known(Mark(record.kind, 0, some_numbers), some_numbers)
                            messages.apply_rescheduled(Rescheduled(at_ms, here))
                            yield len(here)
                    case records.COUNTERS:
                        messages.apply_counters(records.read_counters(record))
                    case records.RELOCATED:
                        for moved in relocated_parts(records.read_relocated(record)):
                            messages.apply_relocated(frame.position, moved)
                            yield len(moved.sizes)
                    case _:
                        messages.states.apply(record, frame.position)
                        yield 1
            yield 0

    def _known(self, mark: Mark, numbers: Sequence[int]) -> Sequence[int]:
        """The numbers whose messages exist, of those that a mark names. Raises UnreadableRecord."""
        references = self._messages.subqueues[mark.subqueue].references
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
        first, enqueued_ms, old_numbers, targets = activated
        messages = self._messages
        references = messages.main.references

        def ending(after: int, part: list[int]) -> Activated:
            here = slice(after - len(part) - first, after - first)
            of_part = None if targets is None else targets.part(here)
            return Activated(after - len(part), enqueued_ms, part, of_part)

        for start in range(0, len(old_numbers), REPLAYED_AT_ONCE):
            part: list[int] = []
            for number, old_number in enumerate(old_numbers[start : start + REPLAYED_AT_ONCE], first + start):
                if old_number in references:
                    part.append(old_number)
                    continue
                self._check_absent((old_number,))
                self._absent.add(number)
                if part:
                    yield ending(number, part)
                    part = []
                messages.next_number = number + 1
            if part:
                yield ending(number + 1, part)
        messages.next_number, messages.latest_enqueued_ms = first + len(old_numbers), enqueued_ms


def enqueue_again(messages: Messages, position: Position, enqueued: Enqueued) -> None:
    """Add the messages of a record that is read back."""
    if enqueued.targets is None:
        messages.apply_enqueued(position, shared(enqueued))
    else:
        apply_published(messages, position, enqueued)


def activate_again(messages: Messages, activated: Activated) -> None:
    """Make messages active, as a record that is read back says."""
    if activated.targets is None:
        messages.apply_activated(activated)
    else:
        apply_distributed(messages, activated, None)
