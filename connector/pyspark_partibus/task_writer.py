"""What a task of the sink does: encode its rows, give them ids that a retry repeats, and send them. The same
for batches and streams.

Rows are grouped by the partition of their key, because the broker stores the messages of one request with
one commit for each partition they belong to. What is sent is durable when the broker answers; a request
without an answer is made again, with the same ids, and the broker drops what it has already.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from operator import itemgetter

import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage

from pyspark_partibus.client.operations import Facts, Node
from pyspark_partibus.errors import BadRow, OptionError
from pyspark_partibus.identity import SOURCE_ID_COLUMNS, Identity
from pyspark_partibus.ids import ContentIds, partition_of_key, random_id, source_id
from pyspark_partibus.messages.encoding import Encoder, MakeId
from pyspark_partibus.options import SinkOptions
from pyspark_partibus.worker_memory import tune_garbage_collector

WINDOW_MS_MIN = 3_600_000
"""An outage may last this long before a batch is written again; a shorter window of duplicate detection gets
a warning."""
_log = logging.getLogger("pyspark_partibus")


@dataclass
class Written(WriterCommitMessage):
    """What a task has done; the driver gets one of each task."""

    sink: str | None
    """The writer's name in the ledger; None if there is none."""
    targets: tuple[str, ...]
    rows: int = 0
    size: int = 0
    duplicates: int = 0
    skipped: int = 0
    """Rows of a batch that was committed before."""
    seconds: float = 0.0


class TaskWriter:
    """Writes the rows of one task."""

    def __init__(
        self,
        options: SinkOptions,
        identity: Identity,
        as_properties: Sequence[str],
        connect: Callable[[str], Node] | None = None,
    ) -> None:
        self._options, self._identity = options, identity
        self._encoder = Encoder(as_properties, makes_ids=identity.strategy != "column")
        self._connect = connect or (lambda address: Node(options.endpoint, address, options.patience))
        self._targets: dict[str, Target] = {}
        self._nodes = ExitStack()
        """Closes the nodes of all targets."""
        self._content = ContentIds(*identity.scope)
        self._written = Written(identity.sink, ())

    def write(self, batches: Iterator[pa.RecordBatch]) -> Written:
        """Send all rows. Raises BadRow, Refused, or Unavailable when patience is at its end."""
        if self._options.tune_gc:
            tune_garbage_collector()
        began = time.monotonic()
        with self._nodes:
            if self._options.address is not None:  # also for a task without rows: a query fails at its start
                self._target(self._options.address)
            for batch in batches:
                self._write(batch)
        written = self._written
        written.targets = tuple(sorted(self._targets)) or (
            (self._options.address,) if self._options.address else ()
        )
        written.seconds = time.monotonic() - began
        return written

    def _write(self, batch: pa.RecordBatch) -> None:
        outgoing: dict[str, list[tuple[int, bytes]]] = defaultdict(list)
        for name, key, message in self._encoder.encode(batch, self._make_id(batch)):
            address = self._options.address or name
            if address is None:
                raise BadRow(
                    "a row names no target (column 'entity' is null), and there is no option 'entity'"
                )
            address = address.strip("/")
            target = self._target(address)
            if target.is_done:
                self._written.skipped += 1
                continue
            outgoing[address].append((partition_of_key(key, target.partitions), message))
        for address, messages in outgoing.items():
            messages.sort(key=itemgetter(0))  # stable: the messages of a key keep their order
            self._send(self._targets[address], [message for _, message in messages])

    def _send(self, target: Target, messages: list[bytes]) -> None:
        for chunk in _chunks(messages, self._options.send_messages, self._options.send_bytes):
            sent = target.node.send(chunk)
            self._written.rows += len(chunk)
            self._written.size += sum(map(len, chunk))
            self._written.duplicates += sent.duplicates

    def _target(self, address: str) -> Target:
        """The target's node, and whether the ledger has this batch."""
        target = self._targets.get(address)
        if target is None:
            target = self._targets[address] = self._new_target(address)
        return target

    def _new_target(self, address: str) -> Target:
        node = self._nodes.enter_context(self._connect(address))
        facts, identity = node.facts(), self._identity
        check_guarantee(self._options, address, facts)
        last = None if identity.sink is None else node.last_batch(identity.sink)
        if last is not None and identity.repeats_only_the_latest:
            self._check_order(address, last)
        return Target(node, last is not None and last >= identity.batch, facts.partitions)

    def _check_order(self, address: str, last: int) -> None:
        """Compare a stream's batch with the last one that its target has. Raises OptionError if the stream's
        checkpoint is older than that: its batches would be skipped, whatever they hold now."""
        batch = self._identity.batch
        if last > batch:
            raise OptionError(
                "checkpointLocation",
                f"is older than '{address}', which has batch {last} of this query already, and this is batch "
                f"{batch}: was it restored from a copy, or does the query run twice? Begin with a new "
                "checkpoint, or write all of it again under another sinkId",
            )
        if self._options.address is not None and last < batch - 1:
            _log.warning(
                "'%s' has batch %d of this query and none of the batches up to %d: they are lost there if it "
                "was restored from an older copy",
                address,
                last,
                batch - 1,
            )

    def _make_id(self, batch: pa.RecordBatch) -> MakeId:
        strategy = self._identity.strategy
        if strategy == "source":
            partitions, numbers = (batch.column(name).to_pylist() for name in SOURCE_ID_COLUMNS)
            writer, target = self._identity.writer, self._options.address or ""

            def of_source(row: int, content: Sequence[bytes]) -> str:
                if partitions[row] is None or numbers[row] is None:
                    raise BadRow(
                        "idStrategy=source needs rows with 'partition' and 'sequence_number'; one is null"
                    )
                return source_id(writer, target, partitions[row], numbers[row])

            return of_source
        if strategy == "none":
            return lambda row, content: random_id()
        return lambda row, content: self._content.of(*content)


@dataclass(slots=True)
class Target:
    """An entity that rows are sent to."""

    node: Node
    is_done: bool
    """Whether the ledger says that this batch was committed before."""
    partitions: int


def check_guarantee(options: SinkOptions, address: str, facts: Facts) -> None:
    """Refuse to write to an entity that cannot recognise what is sent again, if that is required. Raises
    OptionError."""
    window_ms = facts.duplicate_window_ms
    if window_ms is None:
        if options.require_exactly_once:
            raise OptionError(
                "requireExactlyOnce", f"cannot be kept, because '{address}' does not detect duplicates"
            )
        _log.info("'%s' does not detect duplicates: rows that are written again are sent again", address)
    elif window_ms < WINDOW_MS_MIN:
        _log.warning(
            "'%s' knows the ids of the last %d s only; a batch that is written again later is sent again",
            address,
            window_ms // 1000,
        )


def _chunks(messages: Sequence[bytes], count_max: int, size_max: int) -> Iterator[Sequence[bytes]]:
    """Messages in requests of at most so many messages and bytes, but at least one message."""
    start = size = 0
    for place, message in enumerate(messages):
        if place > start and (place - start >= count_max or size + len(message) > size_max):
            yield messages[start:place]
            start, size = place, 0
        size += len(message)
    if start < len(messages):
        yield messages[start:]
