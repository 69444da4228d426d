"""What a durable cycle reports for the metrics."""

from __future__ import annotations

from broker.partition.cycle import Cycle
from broker.partition.meter import count_cycle
from storage.log import Commit, Position
from tests.support.partition_harness import Lapses


async def test_lapses_are_reported_only_if_there_are_any() -> None:
    meter, cycle = Lapses(), Cycle(Commit(Position(0)), 0, 0, 1)
    count_cycle(None, cycle, 0.0)
    count_cycle(meter, cycle, 0.0)
    assert not meter.locks
    cycle.expired_locks, cycle.expired_messages = 2, 1
    count_cycle(meter, cycle, 0.0)
    assert (meter.locks, meter.messages) == ([2], [1])
