"""How many messages each subqueue of a partition holds: now, before the current cycle, and as reports of what
has changed. Pure.

A report is for the broker if the partition runs in another process. It costs nothing for the subqueues in
which nothing has happened; a topic may have thousands.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping

from broker.base.errors import Refused
from broker.operations.message_states import SubqueueCounts
from broker.partition.messages import Messages
from broker.partition.totals import Totals, totals_of

SUBQUEUES_PER_STEP = 100
"""How many subqueues one step counts."""


class Counting:
    """Owned by the state machine."""

    __slots__ = ("_messages", "_noted", "_reported_ids", "note")

    def __init__(self, messages: Messages) -> None:
        self._messages, self._noted = messages, Totals(messages)
        self.note = self._noted.note
        """Note what is durable, before a cycle."""
        self._reported_ids = 0
        """The message-ids of the last report."""

    def counts(self, *, as_noted: bool = False) -> dict[str, SubqueueCounts]:
        """The message counts and size of each subqueue: now, or as of `note`, without locks."""
        return self.of_all(self.by_number(as_noted=as_noted))

    def of_all(self, counts: Mapping[int, SubqueueCounts]) -> dict[str, SubqueueCounts]:
        """The same counts by name, with all subqueues."""
        empty = {subqueue.name: SubqueueCounts() for subqueue in self._messages.subqueues}
        return empty | self._named(counts)

    def of_one(self, subqueue: str) -> dict[str, SubqueueCounts]:
        """What this subqueue holds now, by its name; nothing if there is none."""
        try:
            number = self._messages.subqueues.number_of(subqueue)
        except Refused:
            return {}
        return {subqueue: self.by_number(only=[number])[number]}

    def by_number(
        self, *, as_noted: bool = False, only: Collection[int] | None = None
    ) -> dict[int, SubqueueCounts]:
        """As `counts`, by number, without subqueues that hold nothing; or of `only` those, whether they do or
        not."""
        now = not as_noted
        messages, counts = self._messages, dict[int, SubqueueCounts]()
        sums = self._noted.sums() if as_noted else totals_of(messages, only)
        for number, (count, deferred, scheduled, size) in sums.items():
            counts[number] = SubqueueCounts(
                active=count - deferred - scheduled,
                locked=messages.subqueues[number].locked if now else 0,
                deferred=deferred,
                scheduled=scheduled,
                bytes=size,
            )
        if now and (ids := messages.states.duplicates.count):
            counts.setdefault(messages.main.number, SubqueueCounts()).message_ids = ids
        return counts

    def by_number_in_steps(self) -> Generator[None, None, dict[int, SubqueueCounts]]:
        """As `by_number` now, in steps. Nothing may change between them."""
        work, counts = self._messages.work, dict[int, SubqueueCounts]()
        # What all share counts as the first one's in each step, so that one's own step is the last.
        numbers = sorted(work.occupied.keys() | work.indexed.keys(), reverse=True)
        for start in range(0, len(numbers), SUBQUEUES_PER_STEP):
            counts |= self.by_number(only=numbers[start : start + SUBQUEUES_PER_STEP])
            yield
        return counts or self.by_number()

    @property
    def has_news(self) -> bool:
        """Whether `report` would have anything new."""
        changed, ids = self._messages.work.changed.since_reported, self._messages.states.duplicates.count
        return changed is None or bool(changed) or ids != self._reported_ids

    def report(self, *, whole: bool) -> tuple[dict[str, SubqueueCounts], bool]:
        """The counts of the subqueues in which anything may have changed since the last report, and whether
        these are all there are: in the first report, after a subqueue was deleted, and if the `whole` is
        asked for."""
        changes = self._messages.work.changed
        changed, changes.since_reported = changes.since_reported, set()
        self._reported_ids = self._messages.states.duplicates.count
        if changed is None or whole:
            return self.counts(), True
        changed.add(self._messages.main.number)  # what subqueues share, and message-ids, count as its own
        return self._named(self.by_number(only=changed)), False

    def _named(self, counts: Mapping[int, SubqueueCounts]) -> dict[str, SubqueueCounts]:
        return {self._messages.subqueues[number].name: each for number, each in counts.items()}

    def check(self) -> None:
        """Assert that what was noted agrees with what there is."""
        self._noted.note()
        assert self._noted.sums() == totals_of(self._messages)
