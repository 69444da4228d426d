"""Messages that are about to be enqueued, by columns, and their record. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from broker.partition.columns import NO_COLUMNS, Columns, part_of
from broker.partition.records import Enqueued, add_enqueued
from broker.partition.targets import Targets
from storage.log import Commit


class NewMessages(NamedTuple):
    """Messages that are enqueued at the same time; the columns are parallel."""

    enqueued_at_ms: int
    """In wall time."""
    sizes: Sequence[int]
    expires_at_ms: Sequence[int] | None
    """When each expires, in wall time, 0 for never; None if none does."""
    messages: Sequence[bytes]
    """Stored messages; empty for those that are not stored."""
    columns: Columns = NO_COLUMNS
    scheduled_ms: Sequence[int] | None = None
    """When each becomes active, in wall time, 0 for at once; None if all are active at once."""

    def part(self, here: slice) -> NewMessages:
        """Some of the messages."""
        return NewMessages(
            self.enqueued_at_ms,
            self.sizes[here],
            None if self.expires_at_ms is None else self.expires_at_ms[here],
            self.messages[here],
            part_of(self.columns, here),
            None if self.scheduled_ms is None else self.scheduled_ms[here],
        )

    def add_to(self, commit: Commit, first: int, targets: Targets | None = None) -> Enqueued:
        """Append their record, in which they have consecutive sequence numbers from `first` on; `targets` are
        for topics. Returns what a replay reads from it."""
        enqueued_ms, sizes, expiries, messages, columns, scheduled_ms = self
        offset = add_enqueued(
            commit, first, enqueued_ms, sizes, expiries, messages, columns, scheduled_ms, targets
        )
        return Enqueued(first, enqueued_ms, sizes, expiries, offset, columns, scheduled_ms, targets)
