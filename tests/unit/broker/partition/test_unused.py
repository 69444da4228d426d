"""A partition is unused a while after it has come to rest, if nothing keeps it open then."""

from __future__ import annotations

from broker.base.clock import ManualClock
from broker.partition.unused import Unused


def test_a_partition_at_rest_is_looked_at_again_and_again_until_nothing_keeps_it_open() -> None:
    clock = ManualClock()
    unused = Unused(clock, 1_000)
    assert not unused.look(is_at_rest=False, is_held=False) and unused.look_at_ms is None
    assert not unused.look(is_at_rest=True, is_held=False)
    assert unused.look_at_ms == clock.monotonic_ms() + 1_000
    clock.advance(1_000)
    assert not unused.look(is_at_rest=True, is_held=True), "somebody uses it"
    assert unused.look_at_ms == clock.monotonic_ms() + 1_000
    clock.advance(1_000)
    assert unused.look(is_at_rest=True, is_held=False)
    assert not unused.look(is_at_rest=False, is_held=False) and unused.look_at_ms is None
