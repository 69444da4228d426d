"""Throttling by CPU, memory and disk."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from broker.base.errors import Reason, Refused
from broker.throttle.resources import ResourceThrottle, Thresholds, Usage

CALM = Usage(cpu_percent=10, memory_percent=10, pending=10)


class Meter:
    """A meter that shows what a test sets."""

    def __init__(self) -> None:
        self.shown = CALM

    def usage(self) -> Usage:
        return self.shown


def throttle(meter: Meter, refused: list[int], **thresholds: int) -> ResourceThrottle:
    limits = Thresholds(**({"cpu_percent": 90, "memory_percent": 80, "pending": 1_000} | thresholds))
    return ResourceThrottle("shop", limits, 1, meter, refused.append)


@pytest.mark.parametrize(
    ("usage", "over"),
    [
        (CALM, ()),
        (Usage(90, 80, 2_000), ()),
        (Usage(91, 0, 0), ("cpu",)),
        (Usage(0, 81, 0), ("memory",)),
        (Usage(0, 0, 2_001), ("disk",)),
        (Usage(91, 81, 2_001), ("cpu", "memory", "disk")),
    ],
)
def test_operations_are_refused_while_a_resource_is_above_its_threshold(
    usage: Usage, over: tuple[str, ...]
) -> None:
    meter, refused = Meter(), list[int]()
    busy = throttle(meter, refused)
    meter.shown = usage
    busy.look()
    assert busy.over == over
    if over:
        busy.admit(0)
        with pytest.raises(Refused, match="Error code: 50009") as why:
            busy.admit(10)
        assert why.value.reason is Reason.THROTTLED
        if "memory" in over:
            busy.admit(10, frees_memory=True)
        else:
            with pytest.raises(Refused):
                busy.admit(10, frees_memory=True)
            refused.pop()
        assert busy.admit_some(7, 3) == 0 and refused == [10, 7]
        with pytest.raises(Refused):
            busy.admit_all(4, 3)
        assert refused.pop() == 4
        meter.shown = CALM
        busy.look()
    busy.admit(10)
    busy.admit_all(4, 3)
    assert busy.admit_some(7, 3) == 7 and not busy.over


def test_a_threshold_of_0_is_none() -> None:
    meter = Meter()
    patient = throttle(meter, [], cpu_percent=0, memory_percent=0, pending=0)
    meter.shown = Usage(1_000, 1_000, 1_000_000)
    patient.look()
    assert not patient.over


def test_messaging_units_scale_cpu_and_disk_at_once() -> None:
    meter = Meter()
    busy = throttle(meter, [])
    meter.shown = Usage(170, 0, 2_900)
    with capture_logs() as lines:
        busy.look()
        found = [(busy.cpu_percent, busy.over)]
        for units in (2, 1):
            busy.change_units(units)
            found.append((busy.cpu_percent, busy.over))
    assert found == [(170, ("cpu", "disk")), (85, ()), (170, ("cpu", "disk"))] and busy.units == 1
    changes = ["throttle.resources", "throttle.units_changed", "throttle.ended"]
    assert [line["event"] for line in lines] == [*changes, "throttle.units_changed", "throttle.resources"]


def test_receivers_are_not_throttled() -> None:
    meter = Meter()
    busy = throttle(meter, [])
    meter.shown = Usage(1_000, 1_000, 1_000_000)
    busy.look()
    assert busy.gate(lambda: None, lambda why: None) is None and busy.left_for_receivers() > 1_000_000
    busy.charge(1_000)
