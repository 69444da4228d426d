"""From options such as `startingOffsets` to positions in all partitions."""

from __future__ import annotations

from pyspark_partibus.client.operations import Heads, Node
from pyspark_partibus.client.patience import patiently
from pyspark_partibus.errors import OptionError, Unavailable
from pyspark_partibus.offsets import Positions
from pyspark_partibus.option_values import (
    COMMITTED,
    EARLIEST,
    JSON_EARLIEST,
    JSON_LATEST,
    LATEST,
    Start,
)
from pyspark_partibus.options import SourceOptions


def heads_of_all(
    node: Node, options: SourceOptions, enqueued_time_ms: int | None = None, *, undecided: bool = False
) -> Heads:
    """Where all partitions begin and end. Waits for those that are down, because where to begin in them is
    unknown. Raises Unavailable when patience is at its end. undecided: as in `Node.heads`."""

    def of_all() -> Heads:
        with node.trying_once():
            heads = node.heads(enqueued_time_ms, undecided=undecided)
        if heads.unavailable:
            numbers = ", ".join(map(str, heads.unavailable))
            raise Unavailable(f"partitions {numbers} of '{options.address}' are not available")
        return heads

    return patiently(of_all, options.patience)


def starting_positions(
    node: Node, options: SourceOptions, default: str, *, undecided: bool = False
) -> tuple[Heads, Positions]:
    """Where to begin to read. undecided: as in `Node.heads`."""
    heads = heads_of_all(node, options, options.starting_time_ms, undecided=undecided)
    if options.starting_time_ms is not None:
        return heads, heads.by_time
    starts = _positions(node, heads, options, options.starting or default, "startingOffsets")
    _check_heads("startingOffsets", starts, heads)
    return heads, starts


def ending_positions(node: Node, heads: Heads, options: SourceOptions) -> Positions:
    """Where a batch query ends. Raises OptionError."""
    if options.ending_time_ms is not None:
        return heads_of_all(node, options, options.ending_time_ms, undecided=True).by_time
    ends = _positions(node, heads, options, options.ending or LATEST, "endingOffsets")
    _check_heads("endingOffsets", ends, heads)
    return ends


def _check_heads(option: str, positions: Positions, heads: Heads) -> None:
    """A position beyond the head cannot be read yet. Raises OptionError."""
    for partition, position in positions.items():
        if position > heads.heads[partition]:
            raise OptionError(
                option,
                f"is {position} in partition {partition}, which ends at {heads.heads[partition]} so far",
            )


def _positions(node: Node, heads: Heads, options: SourceOptions, start: Start, option: str) -> Positions:
    if start == LATEST:
        return dict(heads.heads)
    if start == EARLIEST:
        return dict(heads.starts)
    if start == COMMITTED:
        return _committed(node, heads, options)
    assert isinstance(start, dict)
    if unknown := sorted(start.keys() - heads.heads.keys()):
        raise OptionError(option, f"names partition {unknown[0]}; '{options.address}' has {len(heads.heads)}")
    otherwise = heads.starts if option == "startingOffsets" else heads.heads
    named = {JSON_LATEST: heads.heads, JSON_EARLIEST: heads.starts}
    return {
        partition: named[start[partition]][partition] if start[partition] < 0 else start[partition]
        for partition in start
    } | {partition: each for partition, each in otherwise.items() if partition not in start}


def _committed(node: Node, heads: Heads, options: SourceOptions) -> Positions:
    """The positions of the cursor; the earliest messages if there is no such cursor yet, or one of an entity
    that is gone."""
    assert options.cursor is not None
    cursor = node.cursor(options.cursor)
    if cursor is None or cursor.generation != heads.generation:
        return dict(heads.starts)
    return {partition: cursor.positions.get(partition, start) for partition, start in heads.starts.items()}
