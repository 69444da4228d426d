"""What a run of all shapes found for each broker: rows, verdicts, the table and the chart.

Knows nothing of how the values were measured.
"""

from __future__ import annotations

import enum
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.patches import Patch

from tests.bench.load.figure import Verdict
from tests.bench.load.report import markdown_table

OURS = "partibus"


class Measure(enum.Enum):
    """What was measured for a shape. The value is its heading in the table."""

    IN = "in, messages/s"
    OUT = "out, messages/s"
    OUT_CONFIRMED = "out, settlements confirmed, messages/s"
    BESIDE_RECEIVER = "in beside a receiver, messages/s"
    IN_AND_OUT = "in and out at once, messages/s"
    CPU_IN = "CPU in, µs"
    CPU_OUT = "CPU out, µs"
    CPU_IN_AND_OUT = "CPU in and out together, µs"
    P50 = "p50, ms"
    P99 = "p99, ms"
    P999 = "p99.9, ms"
    BATCH_P50 = "a batch p50, ms"
    BATCH_P99 = "a batch p99, ms"
    BATCH_P999 = "a batch p99.9, ms"
    P99_RECEIVING = "p99 beside a receiver, ms"
    ACCEPT_P50 = "accept of a session p50, ms"
    ACCEPT_P99 = "accept of a session p99, ms"
    ON_DISK = "on disk, × the payload"
    ON_DISK_COMPACTED = "on disk after compaction, × the payload"
    COPIES = "copies of a payload after compaction"


RATES = frozenset(
    (Measure.IN, Measure.OUT, Measure.OUT_CONFIRMED, Measure.BESIDE_RECEIVER, Measure.IN_AND_OUT)
)
"""Of these, more is better."""


@dataclass(slots=True, frozen=True)
class Rule:
    """What a value of ours has to be. `floor` and `goal` are multiples of `of`."""

    of: str
    """`peers`: the better of them, with that shape. `plain`: our own value with the plain shape. `1`: plain
    numbers, in the unit of the measure."""
    floor: float
    goal: float


@dataclass(slots=True)
class Cell:
    """The rounds of one measure of one shape at one broker."""

    rounds: list[float] = field(default_factory=list)

    @property
    def value(self) -> float:
        return statistics.median(self.rounds)


@dataclass(slots=True)
class Comparison:
    """All values of a run."""

    rules: Mapping[tuple[str, Measure], Rule]
    """By shape and measure."""
    plain: str
    """The name of the plain shape."""
    cells: dict[tuple[str, Measure, str], Cell] = field(default_factory=dict)
    """By shape, measure and broker."""

    def note(self, shape: str, measure: Measure, broker: str, value: float) -> None:
        """Add one round's value."""
        self.cells.setdefault((shape, measure, broker), Cell()).rounds.append(value)

    def value(self, shape: str, measure: Measure, broker: str = OURS) -> float | None:
        """The median over the rounds; None if it was not measured."""
        cell = self.cells.get((shape, measure, broker))
        return None if cell is None else cell.value

    @property
    def shapes(self) -> list[str]:
        return list(dict.fromkeys(shape for shape, _, _ in self.cells))

    @property
    def brokers(self) -> list[str]:
        return list(dict.fromkeys(broker for _, _, broker in self.cells))

    def rule(self, shape: str, measure: Measure) -> Rule | None:
        return self.rules.get((shape, measure))

    def ratio(self, shape: str, measure: Measure) -> float | None:
        """Our value as a multiple of what its rule compares it with; None without a rule or reference."""
        rule, ours = self.rule(shape, measure), self.value(shape, measure)
        if rule is None or ours is None:
            return None
        if rule.of == "1":
            return ours
        if rule.of == "plain":
            reference = self.value(self.plain, measure)
        else:
            others = (self.value(shape, measure, broker) for broker in self.brokers if broker != OURS)
            known = [other for other in others if other is not None]
            better = max if measure in RATES else min
            reference = better(known) if known else None
        return ours / reference if reference else None

    def verdict(self, shape: str, measure: Measure) -> Verdict:
        """How our value compares with its floor and goal."""
        rule, ratio = self.rule(shape, measure), self.ratio(shape, measure)
        if rule is None:
            return Verdict.UNRATED
        if ratio is None:
            return Verdict.NOT_COMPARED
        if measure in RATES:
            return (
                Verdict.GOAL
                if ratio >= rule.goal
                else Verdict.FLOOR
                if ratio >= rule.floor
                else Verdict.MISSED
            )
        return (
            Verdict.GOAL if ratio <= rule.goal else Verdict.FLOOR if ratio <= rule.floor else Verdict.MISSED
        )

    def missed(self) -> bool:
        """Whether a value is below its floor."""
        return any(
            self.verdict(shape, measure) is Verdict.MISSED
            for shape, measure, broker in self.cells
            if broker == OURS
        )

    def as_json(self, run: Mapping[str, object]) -> list[dict[str, object]]:
        """One JSON object for each cell; `run` gives the time, commit and machine."""
        return [
            {
                "shape": shape,
                "measure": measure.value,
                "broker": broker,
                "value": rounded(cell.value),
                "rounds": [rounded(value) for value in cell.rounds],
                **(self._judged(shape, measure) if broker == OURS else {}),
                **run,
            }
            for (shape, measure, broker), cell in self.cells.items()
        ]

    def _judged(self, shape: str, measure: Measure) -> dict[str, object]:
        rule, ratio = self.rule(shape, measure), self.ratio(shape, measure)
        return {
            "held_against": rule.of if rule else None,
            "ratio": None if ratio is None else round(ratio, 3),
            "floor": rule.floor if rule else None,
            "goal": rule.goal if rule else None,
            "verdict": self.verdict(shape, measure).value,
        }

    def rows(self) -> list[tuple[str, ...]]:
        """The table: a row for each shape and measure, with every broker's value, the ratio and the
        verdict."""
        rows: list[tuple[str, ...]] = [
            ("shape", "measure", *self.brokers, "ratio", "floor", "goal", "stands")
        ]
        for shape in self.shapes:
            for measure in Measure:
                values = [self.value(shape, measure, broker) for broker in self.brokers]
                if not any(value is not None for value in values):
                    continue
                rule, ratio = self.rule(shape, measure), self.ratio(shape, measure)
                rows.append(
                    (
                        shape,
                        measure.value,
                        *("" if value is None else shown(value) for value in values),
                        "" if ratio is None or (rule and rule.of == "1") else f"{ratio:.2f}",
                        f"{rule.floor:g}{'' if rule.of == '1' else ' ×'}" if rule else "",
                        f"{rule.goal:g}{'' if rule.of == '1' else ' ×'}" if rule else "",
                        self.verdict(shape, measure).value if rule else "",
                    )
                )
        return rows

    def markdown(self, run: Mapping[str, object], command: str) -> str:
        """The table in Markdown, with the command, the commit and the machine below it."""
        head, *rows = self.rows()
        return markdown_table(head, rows, run, command)

    def write_chart(self, path: Path) -> None:
        """Bars of messages in and out for each shape, the brokers side by side. Each shape has a scale of its
        own: what matters is the comparison between brokers."""
        shapes = [shape for shape in self.shapes if self.value(shape, Measure.IN) is not None]
        figure = Figure(figsize=(11, 1.1 + 0.85 * len(shapes)), layout="constrained")
        panels = figure.subplots(1, 2, sharey=True)
        height, colors = 0.8 / len(self.brokers), _colors(len(self.brokers))
        for axes, measure in zip(panels, (Measure.IN, Measure.OUT), strict=True):
            for row, shape in enumerate(shapes):
                values = [self.value(shape, measure, broker) for broker in self.brokers]
                best = max((value for value in values if value), default=1.0)
                for number, (value, color) in enumerate(zip(values, colors, strict=True)):
                    if value is None:
                        continue
                    at = row + (number - (len(values) - 1) / 2) * height
                    axes.barh(at, value / best, height * 0.92, color=color)
                    axes.text(value / best + 0.01, at, f"{value:,.0f}", va="center", fontsize=8)
            axes.set_title(measure.value)
            axes.set_xlim(0, 1.2)
            axes.set_xticks([])
            axes.spines[["top", "right", "bottom"]].set_visible(False)
        panels[0].set_yticks(range(len(shapes)), shapes)
        panels[0].invert_yaxis()
        bars = [Patch(color=color, label=name) for name, color in zip(self.brokers, colors, strict=True)]
        figure.legend(handles=bars, loc="outside lower center", ncols=len(bars))
        figure.savefig(path, metadata={"Date": None})


def _colors(count: int) -> Sequence[str]:
    return ("#0b6bcb", "#f0932b", "#8e8e93", "#4caf50")[:count]


def shown(value: float) -> str:
    """A value as tables show it."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


def rounded(value: float) -> float:
    """A value as JSON lines have it."""
    return round(value, 3 if value < 100 else 0)
