"""Which subqueues' counts may have changed."""

from __future__ import annotations

from broker.partition.changed_counts import ChangedCounts


def test_locks_are_no_part_of_the_sums() -> None:
    changed = ChangedCounts()
    changed.sums(4)
    changed.locks(8)
    assert (changed.since_noted, changed.since_reported) == ({4}, None), "nobody wants reports"
    changed.since_reported = set()
    changed.sums(5)
    changed.locks(8)
    assert (changed.since_noted, changed.since_reported) == ({4, 5}, {5, 8})
