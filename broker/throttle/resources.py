"""Throttling in the premium tier: by CPU, memory and disk, and not by credits (HTTP contract 6.3).

A meter is read every LOOK_S seconds. While one of the resources is above its threshold, sends and management
requests are refused, in the words of the service. Receivers and their settlements go on, and while memory is
short, deletions too: a backlog that nobody may receive or delete would keep the namespace throttled.

A messaging unit stands for the CPU time of one core. The thresholds of CPU and disk follow the number of
units, which may change while the broker runs. Owned by the event loop; pure, apart from its log lines.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import structlog

from broker.base.errors import Refused
from broker.entities.tiers import MESSAGING_UNITS
from broker.throttle.throttle import Gate, throttled

LOOK_S = 1.0

log = structlog.get_logger("throttle")


@dataclass(slots=True, frozen=True)
class Usage:
    """What the namespace uses."""

    cpu_percent: float
    """Of one core, since the meter was read before."""
    memory_percent: float
    """Of the memory mark."""
    pending: int
    """Messages and requests that wait for their outcome, and so mostly for the disk."""


class ResourceMeter(Protocol):
    """Measures what the broker uses of the machine."""

    def usage(self) -> Usage:
        """The usage now; that of the processor is the average since the last call."""


@dataclass(slots=True, frozen=True)
class Thresholds:
    """A namespace that uses more than these is throttled; 0 for no threshold."""

    cpu_percent: int
    """Of the CPU that the messaging units stand for."""
    memory_percent: int
    """Of the memory mark."""
    pending: int
    """For each messaging unit, and once more for the namespace itself."""


class ResourceThrottle:
    """The throttling of one namespace of the premium tier."""

    def __init__(
        self,
        namespace: str,
        thresholds: Thresholds,
        units: int,
        meter: ResourceMeter,
        counted: Callable[[int], None],
    ) -> None:
        """`counted` gets the credits that each refused operation would have cost."""
        self._namespace, self._thresholds, self._units = namespace, thresholds, units
        self._meter, self._counted = meter, counted
        self.usage = Usage(0, 0, 0)
        """As of the last look."""
        self.over: tuple[str, ...] = ()
        """The resources that are above their thresholds: `cpu`, `memory`, `disk`."""

    @property
    def units(self) -> int:
        """The messaging units of the namespace."""
        return self._units

    @property
    def cpu_percent(self) -> float:
        """The CPU in use, of what the messaging units stand for."""
        return self.usage.cpu_percent / self._units

    def change_units(self, units: int) -> None:
        """Give the namespace another number of messaging units, one of MESSAGING_UNITS."""
        assert units in MESSAGING_UNITS
        log.info("throttle.units_changed", namespace=self._namespace, before=self._units, units=units)
        self._units = units
        self._compare()

    def look(self) -> None:
        """Read the meter, and decide whether operations are refused until the next look."""
        self.usage = self._meter.usage()
        self._compare()

    def _compare(self) -> None:
        limits, usage = self._thresholds, self.usage
        values = (
            ("cpu", self.cpu_percent, limits.cpu_percent),
            ("memory", usage.memory_percent, limits.memory_percent),
            ("disk", usage.pending, limits.pending * (1 + self._units)),
        )
        over = tuple(name for name, value, limit in values if limit and value > limit)
        if over != self.over:
            self.over = over
            log.warning(
                "throttle.resources" if over else "throttle.ended",
                namespace=self._namespace,
                over=over,
                units=self._units,
                **{name: round(value) for name, value, _ in values},
            )

    # --- Throttling -----------------------------------------------------------------------------------------

    def admit(self, cost: int, *, frees_memory: bool = False) -> None:
        """Raises Refused(THROTTLED) while a resource is above its threshold, unless the operation costs
        nothing, as receives do, or memory is short and the operation frees some."""
        if self.over and cost and not (frees_memory and "memory" in self.over):
            self._counted(cost)
            raise throttled()

    def admit_all(self, messages: int, filters: int) -> None:
        """As `admit`: filters cost nothing."""
        self.admit(messages)

    def admit_some(self, messages: int, filters: int) -> int:
        """All of the messages, or none of them."""
        if not self.over:
            return messages
        self._counted(messages)
        return 0

    def gate(self, resume: Callable[[], None], refuse: Callable[[Refused], None]) -> Gate | None:
        """Return None: receivers are not throttled."""
        return None

    def left_for_receivers(self) -> int:
        """As many as they want."""
        return sys.maxsize

    def charge(self, messages: int) -> None:
        """Do nothing: messages are handed out without credits."""
