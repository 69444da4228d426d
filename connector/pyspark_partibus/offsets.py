"""Positions in all partitions of an entity, and the JSON that Spark keeps of them.

    {"v":1, "gen":"…", "own":"…", "p":{"0":1200,"1":1187}, "init":1, "base":{"0":1000,"1":1001}, "set":{…}}

A position is the counter of the next message to read; the sequence number has the partition in its upper 16
bits (AMQP contract 10.2), which the key already says. Spark compares offsets as text, so keys have a fixed
order.

`init` marks the value of `initialOffset`, which Spark does not keep: it keeps the end of batch 0 only. So
that end has the positions where the batch began as its `base`, and a batch 0 that is run again begins where
it did the first time.

`set` has the positions of the query's cursor that the broker had confirmed when the batch was planned. A
broker whose data are restored from an older copy gives numbers again, and its cursor is behind these.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

VERSION = 1
COUNTER_BITS = 48
COUNTER_MASK = (1 << COUNTER_BITS) - 1
FIRST = 1
"""The counter of the first message of a partition."""

Positions = dict[int, int]
"""The next counter to read, by partition."""


@dataclass(frozen=True, slots=True)
class Offset:
    """Where a query is."""

    generation: str
    """Of the entity: another one means that sequence numbers began anew (AMQP contract 7.6.1)."""
    owner: str
    """The query's token for its cursor."""
    positions: Positions
    initial: bool = False
    base: Positions | None = field(default=None)
    settled: Positions | None = field(default=None)
    """Where the broker's cursor was, durably, before the batch that ends here."""

    def to_json(self) -> dict[str, Any]:
        """For Spark; equal offsets give equal text."""
        value: dict[str, Any] = {
            "v": VERSION,
            "gen": self.generation,
            "own": self.owner,
            "p": _text_keys(self.positions),
        }
        if self.initial:
            value["init"] = 1
        if self.base is not None:
            value["base"] = _text_keys(self.base)
        if self.settled is not None:
            value["set"] = _text_keys(self.settled)
        return value

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Offset:
        """Read what `to_json` gave, perhaps in an earlier run. Raises ValueError."""
        version = value.get("v") if isinstance(value, Mapping) else None
        if isinstance(version, int) and version != VERSION:
            raise ValueError(
                f"the checkpoint has offsets of version {version}; this version of pyspark-partibus reads "
                f"version {VERSION}"
            )
        try:
            base, settled = value.get("base"), value.get("set")
            return cls(
                str(value["gen"]),
                str(value["own"]),
                _number_keys(value["p"]),
                initial=bool(value.get("init")),
                base=None if base is None else _number_keys(base),
                settled=None if settled is None else _number_keys(settled),
            )
        except (AttributeError, KeyError, TypeError, ValueError):
            raise ValueError(
                f"the checkpoint is damaged or belongs to another source: {str(value)[:200]} is not an offset"
            ) from None

    def ending(self, positions: Positions, generation: str, settled: Positions | None = None) -> Offset:
        """The end of a batch that begins here. settled: where the query's cursor is, durably,
        if that is known."""
        base = dict(self.positions) if self.initial else None
        if positions == self.positions and generation == self.generation:
            return self  # nothing new: Spark must see the same text
        if settled is None and generation == self.generation:
            settled = self.settled
        return replace(
            self, positions=positions, generation=generation, initial=False, base=base, settled=settled
        )


@dataclass(frozen=True, slots=True)
class Range:
    """Messages of one partition: counters from `start` up to `end`, exclusive."""

    partition: int
    start: int
    end: int

    @property
    def first(self) -> int:
        """The sequence number at which the range begins."""
        return sequence_number(self.partition, self.start)

    @property
    def behind(self) -> int:
        """The sequence number behind the range."""
        return sequence_number(self.partition, self.end)

    def __len__(self) -> int:
        return max(0, self.end - self.start)


def ranges_between(start: Offset, end: Offset) -> list[Range]:
    """What the batch from `start` to `end` reads. Depends on nothing but the two, so a replay reads the
    same."""
    begins: Positions = start.positions
    if start.initial and end.base is not None:
        begins = end.base
    if start.generation != end.generation:
        begins = {}  # of an entity that is gone
    ranges = (Range(each, begins.get(each, FIRST), behind) for each, behind in sorted(end.positions.items()))
    return [each for each in ranges if len(each)]


def sequence_number(partition: int, counter: int) -> int:
    """The number on the wire."""
    return partition << COUNTER_BITS | counter


def counter_of(number: int) -> int:
    """The counter within its partition."""
    return number & COUNTER_MASK


def partition_of(number: int) -> int:
    """The partition of a sequence number."""
    return number >> COUNTER_BITS


def on_the_wire(positions: Mapping[int, int]) -> list[int]:
    """Positions as sequence numbers."""
    return [sequence_number(partition, counter) for partition, counter in sorted(positions.items())]


def _text_keys(positions: Mapping[int, int]) -> dict[str, int]:
    return {str(partition): positions[partition] for partition in sorted(positions)}


def _number_keys(positions: Mapping[str, Any]) -> Positions:
    return {int(partition): int(counter) for partition, counter in positions.items()}
