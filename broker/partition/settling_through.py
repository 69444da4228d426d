"""Completes all active messages of a subqueue up to a position, as one record (AMQP contract 7.6.5). Pure.

A reader has done with everything before a position, however many messages that are. They leave memory in
steps, so that nobody waits for the event loop, but all within one cycle: it carries out no other operation
after this one, and one record names all of them in runs of consecutive numbers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from broker.partition import records
from broker.partition.number_runs import runs_of
from broker.partition.records import Mark
from broker.partition.references import ACTIVE
from broker.partition.subqueue import Subqueue
from broker.partition.time_to_live import TimeToLive
from broker.partition.workspace import Workspace

LOOKED_AT_AT_ONCE = 1_024
"""Messages that one step looks at: about a millisecond."""

Done = Callable[[int, int], None]
"""Takes the number of messages that were completed, and of those that stay because they are locked."""


class SettlingThrough:
    """Owned by the state machine."""

    __slots__ = ("_space", "_time_to_live", "rest")

    def __init__(self, space: Workspace, time_to_live: TimeToLive) -> None:
        self._space, self._time_to_live = space, time_to_live
        self.rest: Iterator[None] | None = None
        """What is left for `go_on`; None if nothing is."""

    def start(self, subqueue: Subqueue, end: int, done: Done) -> None:
        """Complete the active messages below a position that nobody has locked, or begin to. Messages whose
        time to live is over stay, for they expire."""
        steps = self._steps(subqueue, end, done)
        if next(steps, self) is self:
            return
        self.rest = steps
        self._space.cycle.work = max(self._space.cycle.work, self._space.bounds.work_max)

    def go_on(self) -> Iterator[None]:
        """Do the rest, in steps. No other operation may be carried out before the last step."""
        if self.rest is not None:
            yield from self.rest
            self.rest = None

    def finish(self) -> None:
        """Do the rest, all at once."""
        if self.rest is not None:
            deque(self.go_on(), maxlen=0)

    def _steps(self, subqueue: Subqueue, end: int, done: Done) -> Iterator[None]:
        space = self._space
        firsts: list[int] = []
        counts: list[int] = []
        locked, place, is_first = 0, 0, True
        while place < end:
            if not is_first:
                yield
            is_first = False
            numbers: list[int] = []
            begin, place = place, end
            for looked_at, reference in enumerate(subqueue.browse(begin)):
                number = reference.sequence_number
                if number >= end:
                    break
                if looked_at == LOOKED_AT_AT_ONCE:
                    place = number
                    break
                if reference.state is not ACTIVE or self._time_to_live.is_overdue(subqueue, reference):
                    continue
                if reference.lease is not None:
                    locked += 1
                else:
                    numbers.append(number)
            if numbers:
                runs_of(numbers, firsts, counts)
                space.messages.apply_mark(Mark(records.REMOVED, subqueue.number, numbers))
                space.cycle.work += len(numbers)
        if firsts:
            space.mark_applied(records.REMOVED_RUNS, records.encode_runs(subqueue.number, firsts, counts))
        done(sum(counts), locked)
