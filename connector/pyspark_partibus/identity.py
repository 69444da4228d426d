"""Who writes a batch: the sink's name, the batch's number, and how its rows get their ids.

Spark gives a Python writer neither the query nor the batch, but both are properties of the task that runs
it. They are names of Spark's own and could change, so a stream without them needs the option `sinkId`, and
fails rather than invent a name.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from pyspark_partibus.errors import OptionError
from pyspark_partibus.options import SinkOptions

QUERY_PROPERTY, BATCH_PROPERTY = "sql.streaming.queryId", "streaming.sql.batchId"
"""Local properties of Spark's tasks, seen from 4.0.5 to 4.3.0."""
SOURCE_ID_COLUMNS = ("partition", "sequence_number")
"""What idStrategy=source makes ids of."""


@dataclass(frozen=True, slots=True)
class Identity:
    """How the rows of one task are told apart from all others."""

    sink: str | None
    """The writer's name in the broker's ledger; None if its batches are not noted there."""
    batch: int
    strategy: str
    scope: tuple[str | int, ...]
    """What ids by content depend on besides the content."""
    writer: str
    """What ids of rows that were read from an entity depend on besides their positions there."""
    repeats_only_the_latest: bool = False
    """Batches come in the order of their numbers, and only the latest one is ever written again."""


def choose_strategy(options: SinkOptions, columns: Collection[str]) -> str:
    """How rows get their ids. Raises OptionError."""
    has_column = "message_id" in columns
    chosen = options.id_strategy
    if chosen is None:
        chosen = "column" if has_column else "content"
    if chosen == "column" and not has_column:
        raise OptionError("idStrategy", "is 'column', but there is no column 'message_id'")
    if chosen != "column" and has_column and options.unknown_columns != "ignore":
        raise OptionError(
            "idStrategy",
            f"is '{chosen}', but there is a column 'message_id', whose ids would be lost; drop it, or use "
            "unknownColumns=ignore",
        )
    if chosen == "source" and not set(SOURCE_ID_COLUMNS) <= set(columns):
        raise OptionError(
            "idStrategy", "is 'source', which needs the columns 'partition' and 'sequence_number'"
        )
    if chosen == "none" and options.require_exactly_once:
        raise OptionError("requireExactlyOnce", "cannot be kept with idStrategy=none")
    return chosen


def of_stream(
    options: SinkOptions, strategy: str, partition: int, properties: Mapping[str, str | None]
) -> Identity:
    """The identity of a task of a stream. properties: the task's local properties."""
    batch, query = properties.get(BATCH_PROPERTY), properties.get(QUERY_PROPERTY)
    name = options.sink_id or query
    if batch is None or name is None:
        missing = BATCH_PROPERTY if batch is None else QUERY_PROPERTY
        raise OptionError(
            "sinkId",
            f"this version of Spark does not tell a task its {missing}; "
            + (
                "write from foreachBatch with options writeId and writeVersion"
                if batch is None
                else "give the sink a name of its own"
            ),
        )
    # Another checkpoint counts its batches anew, so a name alone does not say which batch is meant.
    sink = f"{name}/{query}" if options.sink_id and query else name
    scope = _scope(strategy, sink, int(batch), partition)
    return Identity(sink, int(batch), strategy, scope, name, repeats_only_the_latest=True)


def of_batch(options: SinkOptions, strategy: str, partition: int, job: str) -> Identity:
    """The identity of a task of a batch query. job: a name that all attempts of its tasks share."""
    sink = None if options.write_id is None else f"write:{options.write_id}"
    name, version = sink or job, options.write_version
    return Identity(sink, version, strategy, _scope(strategy, name, version, partition), name)


def _scope(strategy: str, name: str, batch: int, partition: int) -> tuple[str | int, ...]:
    return (name, batch) if strategy == "content-global" else (name, batch, partition)
