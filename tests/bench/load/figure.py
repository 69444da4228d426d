"""What a figure is: its floor and goal, and what a run found.

Responsible for medians, ratios, verdicts and the JSON line of a figure. `figures.py` lists the figures.
"""

from __future__ import annotations

import enum
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field


class Reference(enum.Enum):
    """What a figure is compared with; without a reference, its own value is judged."""

    PEER = "the peer, in the same run"
    DISK = "the disk's own write+fdatasync, in the same run"


class Verdict(enum.Enum):
    """How a result compares with its floor and goal."""

    GOAL = "goal"
    FLOOR = "floor"
    MISSED = "below the floor"
    NOT_COMPARED = "no peer"
    UNRATED = "for information"


@dataclass(slots=True, frozen=True)
class Figure:
    """One line of the table. `floor` and `goal` are ratios to the reference if there is one, otherwise values
    in `unit`.
    """

    name: str
    unit: str
    meaning: str
    expected: str
    """What we expected before the first run, and why: a surprising figure tells more than a pleasing one."""
    floor: float | None = None
    goal: float | None = None
    reference: Reference | None = None
    more_is_better: bool = False

    def judge(self, value: float, ratio: float | None) -> Verdict:
        """Judge a value; `ratio` is None if the reference was not measured."""
        if self.floor is None or self.goal is None:
            return Verdict.UNRATED
        if self.reference is not None and ratio is None:
            return Verdict.NOT_COMPARED
        held = value if ratio is None else ratio
        if held >= self.goal if self.more_is_better else held <= self.goal:
            return Verdict.GOAL
        return (
            Verdict.FLOOR
            if (held >= self.floor if self.more_is_better else held <= self.floor)
            else Verdict.MISSED
        )


@dataclass(slots=True)
class Result:
    """The values that the rounds of one run found for a figure."""

    figure: Figure
    settings: Mapping[str, object]
    rounds: list[float] = field(default_factory=list)
    reference_rounds: list[float] = field(default_factory=list)
    stolen_percent: list[float] = field(default_factory=list)
    """For each round: the share of processor time that the host gave to other guests meanwhile."""

    @property
    def value(self) -> float:
        return statistics.median(self.rounds)

    @property
    def reference(self) -> float | None:
        return statistics.median(self.reference_rounds) if self.reference_rounds else None

    @property
    def ratio(self) -> float | None:
        """Ratio of value to reference; None for a figure without a reference."""
        return self.value / self.reference if self.reference and self.figure.reference else None

    @property
    def verdict(self) -> Verdict:
        return self.figure.judge(self.value, self.ratio)

    def as_json(self, run: Mapping[str, object]) -> dict[str, object]:
        """The figure as one JSON object; `run` gives the time, commit and machine."""
        figure = self.figure
        return {
            "figure": figure.name,
            "value": _rounded(self.value),
            "unit": figure.unit,
            "rounds": [_rounded(value) for value in self.rounds],
            "stolen_percent": [_rounded(value) for value in self.stolen_percent],
            "held_against": figure.reference.value if figure.reference else None,
            "reference": _rounded(self.reference),
            "reference_rounds": [_rounded(value) for value in self.reference_rounds],
            "ratio": round(self.ratio, 3) if self.ratio is not None else None,
            "floor": figure.floor,
            "goal": figure.goal,
            "verdict": self.verdict.value,
            "settings": dict(self.settings),
            **run,
        }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3 if value < 100 else 0)
