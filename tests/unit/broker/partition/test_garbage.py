"""broker/partition/garbage.py: how much garbage is tolerated, and when to look."""

from __future__ import annotations

from broker.partition.garbage import PER_LOOK, GarbageBound

AT_REST, AT_MOST, EVERY_MS = 1_000, 100_000, 50


def test_the_bound_follows_what_is_written() -> None:
    bound = GarbageBound(lambda: AT_REST, AT_MOST, EVERY_MS, end=7, live_bytes=lambda: 0)
    assert not bound.look(1_000, 7) and bound.due_ms == 1_050, "a log that was opened is looked at soon"
    assert bound.bytes == AT_MOST
    assert bound.look(1_050, 10_007) and bound.bytes == PER_LOOK * 10_000
    assert not bound.look(1_099, 10_007)
    assert bound.look(1_100, 1_010_007) and bound.bytes == AT_MOST
    assert bound.look(1_150, 1_010_107) and bound.bytes == AT_REST


def test_a_log_that_is_not_written_to_is_looked_at_once_more_and_no_more() -> None:
    bound = GarbageBound(lambda: AT_REST, AT_MOST, EVERY_MS, end=0, live_bytes=lambda: 0)
    bound.look(0, 0)
    assert bound.look(1_000, 5_000) and bound.due_ms == 1_050
    assert bound.look(1_050, 5_000) and bound.due_ms is None and bound.bytes == AT_REST
    assert not bound.look(9_999, 5_000)
    assert not bound.look(10_000, 5_001) and bound.due_ms == 10_050


def test_what_upkeep_writes_itself_is_no_traffic() -> None:
    bound = GarbageBound(lambda: AT_REST, AT_MOST, EVERY_MS, end=0, live_bytes=lambda: 0)
    bound.look(0, 0)
    assert bound.look(1_000, 0)
    bound.discount(3_000)
    assert not bound.look(2_000, 3_000) and bound.due_ms is None


def test_a_small_bound_for_any_load_holds_at_rest_too() -> None:
    bound = GarbageBound(lambda: AT_REST, 10, EVERY_MS, end=0, live_bytes=lambda: 0)
    bound.look(0, 0)
    assert bound.look(1_000, 0) and bound.bytes == 10


def test_consumers_that_empty_a_queue_are_traffic_though_they_write_little() -> None:
    live_bytes = 20_000
    bound = GarbageBound(lambda: AT_REST, AT_MOST, EVERY_MS, end=0, live_bytes=lambda: live_bytes)
    bound.look(0, 0)
    live_bytes = 15_000
    assert bound.look(1_000, 10) and bound.bytes == PER_LOOK * 5_010
    live_bytes = 15_500  # the live bytes now grow by what is written
    assert bound.look(2_000, 510) and bound.bytes == PER_LOOK * 500
    assert bound.look(3_000, 510) and bound.bytes == AT_REST and bound.due_ms is None
