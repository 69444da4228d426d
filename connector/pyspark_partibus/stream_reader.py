"""The source of streaming queries: plans batches by position and settles what Spark has committed.

Spark calls everything here except `read` in one process that lives as long as the query, one call after the
other. It calls `latestOffset` some 80 times a second while nothing arrives, so the heads of the partitions
are kept for a while.

Settlement happens twice. `commit(end)` comes only once there is a next batch. `latestOffset(start)` comes
after the batch that ended at `start` was entered in Spark's commit log, also at the end of a run and while
nothing arrives. So both settle; a position that was settled before costs nothing. Settling never fails a
query for a moment's trouble: it is tried again at a later call.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from pyspark_partibus.client.operations import Heads, Node
from pyspark_partibus.cursor_keeper import CursorKeeper
from pyspark_partibus.data_loss import report_loss
from pyspark_partibus.offsets import FIRST, Offset, Positions, ranges_between
from pyspark_partibus.option_values import EARLIEST, LATEST
from pyspark_partibus.options import SourceOptions
from pyspark_partibus.sharing import share_out
from pyspark_partibus.starting import heads_of_all, starting_positions
from pyspark_partibus.task_reader import Task, read_task, tasks

PAUSE_PER_LOOK = 10
"""Heads are kept this many times as long as it took to get them, so that a stream that waits does not occupy
a broker with hundreds of partitions: 30 ms for each look at 256 of them."""
PAUSE_GROWS, PAUSES_MAX = 1.25, 10
"""While nothing arrives, each pause between two looks is PAUSE_GROWS times as long as the last one, but at
most PAUSES_MAX times `headPollMs`: a look costs a throttled namespace ten credits."""


class PartibusStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans, reads and settles one streaming query."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options, self._schema = options, schema
        self._node: Node | None = None
        self._keeper: CursorKeeper | None = None
        self._initial: Offset | None = None
        self._heads: Heads | None = None
        self._heads_age: Callable[[], float] = _stopwatch()
        self._heads_last_s = 0.0
        """For how long the heads are kept."""
        self._pause_s = 0.0
        """The same, before the time that it took to get them is considered."""
        self._frozen: Heads | None = None
        """The heads at the beginning of a run that ends by itself (`Trigger.AvailableNow`)."""
        self._waiting: Callable[[], float] | None = None
        """How long fewer messages than `minMessagesPerTrigger` have been waiting."""
        self._backlog = 0
        """Messages behind the last batch that was planned. Counts some that are gone."""

    # --- where to begin and to end ------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Where a new query begins. Spark asks twice, and messages that come in between must not be
        skipped."""
        if self._initial is None:
            default = EARLIEST if self._options.settle == "complete" else LATEST
            heads, positions = starting_positions(self._connected(), self._options, default)
            self._cursor().check_before_first_batch()
            self._initial = Offset(heads.generation, secrets.token_hex(16), positions, initial=True)
            if self._frozen is not None:  # Spark asked for the end first; a run cannot end before it begins
                self._frozen = self._heads = heads
        return self._initial.to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """The limit of a batch. There is no limit of both rows and bytes, so that of bytes is left to
        `latestOffset`."""
        if self._options.max_messages:
            return ReadMaxRows(self._options.max_messages)
        if self._options.max_bytes:
            return ReadMaxBytes(self._options.max_bytes)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """The end of the next batch: `start` itself if there is nothing to read yet."""
        begin = Offset.from_json(start)
        heads = self._frozen or self._current_heads()
        begins = self._where_to_go_on(begin, heads)
        self._cursor().settle(begin)
        # Numbers before the oldest message have no message, so they do not count as backlog.
        firsts = {each: max(begins.get(each, FIRST), heads.starts[each]) for each in heads.heads}
        shares = {each: head - firsts[each] for each, head in heads.heads.items() if head > firsts[each]}
        self._backlog = sum(shares.values())
        if not isinstance(limit, ReadAllAvailable):
            if self._frozen is None and self._waits_for_more(self._backlog):
                return start
            shares = share_out(shares, self._rows_max(limit, heads))
        self._waiting = None
        self._backlog -= sum(shares.values())
        ends = {each: firsts[each] + share for each, share in shares.items()}
        settled = self._cursor().confirmed(heads.generation)
        return begin.ending({**begins, **ends}, heads.generation, settled).to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """The heads of all partitions and the backlog, for the query's progress."""
        if self._heads is None:
            return None
        heads = self._heads.heads
        positions = {str(each): heads[each] for each in sorted(heads)}
        return {"gen": self._heads.generation, "p": positions, "backlog": self._backlog}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """From now on, messages that arrive later belong to the next run."""
        self._frozen = self._heads = heads_of_all(self._connected(), self._options)

    def _where_to_go_on(self, begin: Offset, heads: Heads) -> Positions:
        """Where the next batch begins: where the last one ended, unless the entity was created again or ends
        before that. Raises DataLoss."""
        recreated = begin.generation != heads.generation
        short = [each for each, head in heads.heads.items() if begin.positions.get(each, FIRST) > head]
        if not recreated and not short:
            return begin.positions
        what = f"'{self._options.address}' was deleted and created again since the last batch"
        if not recreated:
            what = f"'{self._options.address}' ends before the query's position in partition {short[0]}"
        report_loss(self._options, what)
        if recreated:
            return dict.fromkeys(heads.heads, FIRST)
        return {
            each: min(position, heads.heads.get(each, position)) for each, position in begin.positions.items()
        }

    def _waits_for_more(self, waiting: int) -> bool:
        """Whether a batch would be too small, and nobody has waited too long for it."""
        if waiting == 0 or waiting >= self._options.min_messages:
            self._waiting = None
            return False
        if self._waiting is None:
            self._waiting = _stopwatch()
        return self._waiting() < self._options.max_delay_s

    def _rows_max(self, limit: ReadLimit, heads: Heads) -> int:
        """How many messages a batch takes, at most. A limit of bytes counts with the average size of what is
        stored."""
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        size = limit.max_bytes if isinstance(limit, ReadMaxBytes) else self._options.max_bytes
        if size is not None:
            messages = sum(heads.messages.values())
            average = max(1, sum(heads.sizes.values()) // messages) if messages else 1
            by_size = max(1, size // average)
            rows = by_size if rows is None else min(rows, by_size)
        return rows or max(1, sum(heads.heads.values()))

    def _current_heads(self) -> Heads:
        """The heads, at most `headPollMs` old, or more if they take long to get or have not moved. A
        partition that is down ends where it is known to end."""
        if self._heads is None or self._heads_age() >= self._heads_last_s:
            look, before = _stopwatch(), self._heads
            self._heads = self._connected().heads()
            wanted_s = self._options.head_poll_s
            if before is None or before.heads != self._heads.heads:
                self._pause_s = wanted_s
            else:
                self._pause_s = min(self._pause_s * PAUSE_GROWS, wanted_s * PAUSES_MAX)
            self._heads_last_s = wanted_s and max(self._pause_s, PAUSE_PER_LOOK * look())
            self._heads_age = _stopwatch()
        return self._heads

    # --- tasks --------------------------------------------------------------------------------------------

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[Task]:
        """The tasks of a batch. Depends on the offsets and options only, so a batch that is run again has
        the same tasks."""
        begin, behind = Offset.from_json(start), Offset.from_json(end)
        return tasks(self._options, behind.generation, ranges_between(begin, behind))

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        """Read one task's messages."""
        return read_task(self._options, self._schema, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Spark has committed the batch that ended here."""
        self._cursor().settle(Offset.from_json(end))

    # --- the broker ---------------------------------------------------------------------------------------

    def _connected(self) -> Node:
        if self._node is None:
            self._node = Node(self._options.endpoint, self._options.address, self._options.patience)
        return self._node

    def _cursor(self) -> CursorKeeper:
        if self._keeper is None:
            self._keeper = CursorKeeper(self._connected(), self._options)
        return self._keeper


def _stopwatch() -> Callable[[], float]:
    """Tells how many seconds have passed since it was made."""
    started = time.monotonic()
    return lambda: time.monotonic() - started
