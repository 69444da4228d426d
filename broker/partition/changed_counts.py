"""The subqueues whose counts may have changed, so that nobody has to look at the others. Pure."""

from __future__ import annotations


class ChangedCounts:
    """Numbers of subqueues of one partition. Each subqueue enters itself."""

    __slots__ = ("since_handed_out", "since_noted", "since_reported")

    def __init__(self) -> None:
        self.since_noted: set[int] = set()
        """Those whose sums may have changed. `Totals` takes them out."""
        self.since_reported: set[int] | None = None
        """Those whose sums or locks may have changed since the last report; None if there was none, or the
        next one must have all. `Counting` takes them out."""

        self.since_handed_out: set[int] = set()
        """Those whose sums or locks may have changed since messages were last handed out. `Delivering` takes
        them out."""

    def sums(self, number: int) -> None:
        """The sums of a subqueue may have changed."""
        self.since_noted.add(number)
        self.since_handed_out.add(number)
        if self.since_reported is not None:
            self.since_reported.add(number)

    def locks(self, number: int) -> None:
        """Messages of a subqueue were locked or unlocked."""
        self.since_handed_out.add(number)
        if self.since_reported is not None:
            self.since_reported.add(number)
