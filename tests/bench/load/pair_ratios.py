"""What a run of pairs found: the values of both versions, and the ratios of each pair.

Knows nothing of how the values were measured.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field

from tests.bench.load.comparison import Comparison, Measure, rounded, shown

BEFORE, AFTER = "the version before", "the version after"


@dataclass(slots=True)
class Pairs(Comparison):
    """A comparison of two versions, whose rounds are pairs."""

    versions: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    """What the JSON lines say of each."""

    @property
    def measured(self) -> list[tuple[str, Measure]]:
        """Rows and measures of which there is a pair."""
        found = ((shape, measure) for shape, measure, broker in self.cells if broker == BEFORE)
        return [each for each in found if (*each, AFTER) in self.cells]

    def rounds(self, shape: str, measure: Measure, broker: str) -> list[float]:
        """The values of one version: those of each pair."""
        return self.cells[shape, measure, broker].rounds

    def ratios(self, shape: str, measure: Measure) -> list[float]:
        """The value after, as a multiple of the one before, for each pair. A pair is left out if the value
        before is 0, as CPU time may be after a very short load."""
        return [new / old for old, new in self._pairs(shape, measure) if old]

    def _pairs(self, shape: str, measure: Measure) -> list[tuple[float, float]]:
        """The values before and after. A run that failed may end with half a pair, which is left out."""
        before, after = (self.rounds(shape, measure, broker) for broker in (BEFORE, AFTER))
        return list(zip(before, after, strict=False))

    def latest(self, row: str) -> str:
        """The ratios of a row's last pair, in words, without those that it does not have."""
        last = (
            (measure, self._pairs(shape, measure)[-1]) for shape, measure in self.measured if shape == row
        )
        return ", ".join(f"{m.value.partition(',')[0]} {new / old:.2f} ×" for m, (old, new) in last if old)

    def as_json(self, run: Mapping[str, object]) -> list[dict[str, object]]:
        """One JSON object for each row and measure; `run` gives the time, machine and the commit of the load
        client."""
        return [
            {
                "shape": shape,
                "measure": measure.value,
                "before": self._side(shape, measure, BEFORE),
                "after": self._side(shape, measure, AFTER),
                **self._compared(self.ratios(shape, measure)),
                **run,
            }
            for shape, measure in self.measured
        ]

    def _side(self, shape: str, measure: Measure, broker: str) -> dict[str, object]:
        values = self.rounds(shape, measure, broker)
        return {
            **self.versions.get(broker, {}),
            "value": rounded(statistics.median(values)),
            "rounds": [rounded(value) for value in values],
        }

    @staticmethod
    def _compared(ratios: list[float]) -> dict[str, object]:
        return {
            "ratio": round(statistics.median(ratios), 3) if ratios else None,
            "quartiles": [round(each, 3) for each in quartiles(ratios)] if ratios else None,
            "ratios": [round(each, 3) for each in ratios],
        }

    def rows(self) -> list[tuple[str, ...]]:
        """The table: medians of both versions, and of the ratios of the pairs with their quartiles."""
        rows: list[tuple[str, ...]] = [("shape", "measure", "before", "after", "ratio", "quartiles")]
        for shape, measure in self.measured:
            ratios = self.ratios(shape, measure)
            values = (statistics.median(self.rounds(shape, measure, each)) for each in (BEFORE, AFTER))
            compared = ("", "")
            if ratios:
                low, high = quartiles(ratios)
                compared = (f"{statistics.median(ratios):.2f}", f"{low:.2f} to {high:.2f}")
            rows.append((shape, measure.value, *map(shown, values), *compared))
        return rows


def quartiles(ratios: list[float]) -> tuple[float, float]:
    """The lower and the upper quartile: a quarter of the values lie below the one, and above the other."""
    ordered, quarter = sorted(ratios), len(ratios) // 4
    return ordered[quarter], ordered[-1 - quarter]
