"""Measures what the broker uses of CPU, memory and disk, for the throttling of the premium tier."""

from __future__ import annotations

import resource

from broker.base.clock import Clock
from broker.throttle.memory_mark import Memory
from broker.throttle.resources import Usage


class ProcessMeter:
    """A `ResourceMeter` for this process."""

    def __init__(self, clock: Clock, memory: Memory) -> None:
        self._clock, self._memory = clock, memory
        self._cpu_ms, self._at_ms = _cpu_ms(), clock.monotonic_ms()

    def usage(self) -> Usage:
        """The usage now; of CPU, the average since the last call."""
        cpu_ms, at_ms = _cpu_ms(), self._clock.monotonic_ms()
        used_ms, passed_ms = cpu_ms - self._cpu_ms, max(at_ms - self._at_ms, 1)
        self._cpu_ms, self._at_ms = cpu_ms, at_ms
        memory = self._memory
        return Usage(100 * used_ms / passed_ms, 100 * memory.used / memory.mark, memory.under_way)


def _cpu_ms() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return (used.ru_utime + used.ru_stime) * 1_000
