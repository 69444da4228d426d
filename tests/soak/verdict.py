"""Judges what a soak has measured: that nothing grows, and that no client waits too long. Pure.

`growth` compares the beginning of a run with its end, so it holds on any machine. `slow` holds waits against
a fixed limit, which only means something while the host leaves the machine its processors.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

MEMORY_GROWTH, MEMORY_SLACK_MIB = 0.1, 16.0
"""How much more memory the broker may use at the end than at a comparable moment at the beginning: a tenth,
plus this slack.
"""
DESCRIPTORS_SLACK = 8
DISK_GROWTH, DISK_SLACK_MIB, DISK_SLACK_MIB_MIN = 0.1, 64.0, 8.0
"""The same for the data folder, with the slack divided by the number of stretches in each half. Each log may
hold some garbage at rest, so single stretches differ by some 20 MiB, and the medians of many differ less.
"""
STALL_GROWTH, STALL_SLACK_MS = 3.0, 50.0
STOLEN_PERCENT_MAX = 5.0
"""A stretch during which the host took more of the processors than this says nothing about the broker's own
speed.
"""


@dataclass(slots=True, frozen=True)
class Sample:
    """The broker's resource use at one moment."""

    at_s: float
    memory_mib: float
    descriptors: int
    open_log_files: int
    """Descriptors of partitions' files; included in `descriptors`."""
    disk_mib: float


@dataclass(slots=True)
class Stretch:
    """One stretch of load and the rest that follows it."""

    began_s: float
    rested: Sample
    """Taken at the end of the rest."""
    stalls_ms: list[float]
    """Each wait of another client for the broker during the load, in ms, without delays that the machine
    added."""
    stolen_percent: float = 0.0
    """Share of processor time that the host gave to other guests."""

    @property
    def stall_ms(self) -> float:
        """99th percentile of another client's waits, in ms."""
        return statistics.quantiles(self.stalls_ms, n=100)[98]


def growth(stretches: Sequence[Stretch]) -> list[str]:
    """Everything that grew from the first half of the stretches to the second; empty if everything is flat.

    Memory and descriptors of a stretch are compared with those an even number of stretches later: every
    second one contains a restart, and memory depends on how long ago that was.
    """
    half = len(stretches) // 2
    first, second = stretches[:half], stretches[-half:]
    found = []
    for early, late in zip(stretches, stretches[half + half % 2 :], strict=False):
        was, now = early.rested, late.rested
        if now.memory_mib > was.memory_mib * (1 + MEMORY_GROWTH) + MEMORY_SLACK_MIB:
            found.append(f"memory at rest went from {was.memory_mib:.0f} to {now.memory_mib:.0f} MiB")
        if now.descriptors > was.descriptors + DESCRIPTORS_SLACK:
            found.append(f"descriptors at rest went from {was.descriptors} to {now.descriptors}")
    found += [
        f"{each.rested.open_log_files} files of logs are open at rest"
        for each in stretches
        if each.rested.open_log_files
    ]
    was_mib, now_mib = (statistics.median(each.rested.disk_mib for each in part) for part in (first, second))
    if now_mib > was_mib * (1 + DISK_GROWTH) + max(DISK_SLACK_MIB / half, DISK_SLACK_MIB_MIN):
        found.append(f"the disk at rest went from {was_mib:.0f} to {now_mib:.0f} MiB")
    was_ms, now_ms = (statistics.median(each.stall_ms for each in part) for part in (first, second))
    if now_ms > was_ms * STALL_GROWTH + STALL_SLACK_MS:
        found.append(
            f"the 99th percentile of another client's wait went from {was_ms:.0f} to {now_ms:.0f} ms"
        )
    return found


def undisturbed(stretches: Sequence[Stretch]) -> list[Stretch]:
    """Those during which the host left the machine its processors."""
    return [each for each in stretches if each.stolen_percent <= STOLEN_PERCENT_MAX]


def slow(stretches: Sequence[Stretch], p99_ms_max: float) -> list[str]:
    """What says that another client waits longer than `p99_ms_max` while the load lasts: the median of the
    stretches' 99th percentiles. Empty if it does not, or if most of the stretches were disturbed."""
    judged = undisturbed(stretches)
    if len(judged) < len(stretches) / 2:
        return []
    p99_ms = statistics.median(each.stall_ms for each in judged)
    if p99_ms <= p99_ms_max:
        return []
    return [f"the 99th percentile of another client's wait is {p99_ms:.0f} ms, not {p99_ms_max:.0f}"]
