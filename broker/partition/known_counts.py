"""What is known of a partition's counts, whether it is open or not. Pure."""

from __future__ import annotations

from collections.abc import Callable

from broker.entities.roles import OWN_END, SubqueueTable
from broker.operations.message_states import SubqueueCounts
from broker.partition.state import Partition
from broker.partition.summary import Summary, named


class KnownCounts:
    """Owned by the partition's task. Each method is given the state, or None while there is none that counts:
    then what was last known to be durable stands."""

    def __init__(
        self, subqueues: SubqueueTable, at_rest: Summary | None, on_news: Callable[[], None] | None
    ) -> None:
        """`subqueues` are the entity's. `at_rest`: what the partition holds according to the index. `on_news`
        is called when `report` has something new."""
        self._on_news = on_news
        self._known: dict[str, SubqueueCounts] | None = None
        self._at_rest: tuple[SubqueueTable, Summary | None] | None = subqueues, at_rest
        """What `_last` is made of when it is first asked for."""
        self._reported: object = None
        """Where the latest report came from: the state, or `_last`."""

    @property
    def _last(self) -> dict[str, SubqueueCounts]:
        """The counts as last known to be durable. Replaced, not changed."""
        if self._known is None:
            assert self._at_rest is not None
            subqueues, at_rest = self._at_rest
            own = [each.name for number, each in subqueues.items() if number < OWN_END]
            held = {} if at_rest is None else named(at_rest.counts, subqueues)
            self._known = {name: SubqueueCounts() for name in own} | held
            self._at_rest = None
        return self._known

    def _keep(self, counts: dict[str, SubqueueCounts]) -> None:
        self._known, self._at_rest = counts, None

    def counts(self, partition: Partition | None, only: str | None = None) -> dict[str, SubqueueCounts]:
        """What each subqueue holds, or last held; or at least one of them."""
        if partition is None:
            return self._last
        return partition.counting.counts() if only is None else partition.counting.of_one(only)

    def size(self, partition: Partition | None) -> int:
        """How many bytes all subqueues take in the quota, or took."""
        if partition is None:
            return sum([each.bytes for each in self._last.values()])
        return partition.messages.held_bytes

    def report(self, partition: Partition | None) -> tuple[dict[str, SubqueueCounts], bool]:
        """Those of the `counts` that may have changed since the last report, and whether these are all there
        are, so that the others must be forgotten."""
        source = self._last if partition is None else partition
        is_new, self._reported = source is not self._reported, source
        if partition is not None:
            return partition.counting.report(whole=is_new)
        return (self._last if is_new else {}), is_new

    def tell(self, partition: Partition) -> None:
        """A cycle of the partition is over, or it has just been opened."""
        if self._on_news is not None and partition.counting.has_news:
            self._on_news()

    def note(self, partition: Partition, *, is_in_doubt: bool, summary: Summary | None = None) -> None:
        """Keep the counts of what is durable, for the state is about to be discarded. `is_in_doubt`: without
        the current cycle. `summary` says what the state holds, if that was counted already."""
        if summary is not None:
            self._keep(partition.counting.of_all(summary.counts))
        else:
            self._keep(partition.counting.counts(as_noted=is_in_doubt))
        self._reported = None
