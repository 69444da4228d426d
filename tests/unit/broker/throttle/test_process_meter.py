"""What the process uses."""

from __future__ import annotations

from pytest import MonkeyPatch

from broker.base.clock import ManualClock
from broker.throttle import process_meter
from broker.throttle.memory_mark import Memory
from broker.throttle.process_meter import ProcessMeter
from broker.throttle.resources import Usage


def test_cpu_is_the_average_since_the_last_look(monkeypatch: MonkeyPatch) -> None:
    clock, used_ms = ManualClock(), [500.0]
    monkeypatch.setattr(process_meter, "_cpu_ms", lambda: used_ms[0])
    memory = Memory(1_000, lambda: 250, lambda: 0)
    memory.look()
    memory.under_way = 7
    meter = ProcessMeter(clock, memory)
    clock.advance(1_000)
    used_ms[0] += 1_500
    assert meter.usage() == Usage(150, 25, 7)
    clock.advance(2_000)
    used_ms[0] += 100
    assert meter.usage() == Usage(5, 25, 7)


def test_the_process_has_used_some_cpu() -> None:
    assert process_meter._cpu_ms() > 0
