"""Which partition, and how it is: the router of one entity (AMQP contract 10.7).

The key of a message is its session-id, else its partition-key, else its message-id where the entity detects duplicates.
A key pins its messages to one partition by a stable hash; messages without a key go round over the partitions that are
available. A keyed send to a partition that is down is refused, and may be retried.

The hash is part of what we promise (docs/partitioning.md): BLAKE2b with an 8-byte digest over the key's UTF-8 bytes,
read as a big-endian number, modulo the number of partitions. It never changes for an entity.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Protocol

from broker.errors import Reason, Refused
from broker.operations import ClientId, Operation, Sink, partition_of, partition_of_token

RUN_MESSAGES_MAX = 64
EVEN_TO = 16
"""One part in so many is what partitions may differ by."""


class PartitionHandle(Protocol):
    """The one way to reach a partition: operations in, answers to the sink."""

    @property
    def available(self) -> bool:
        """It takes operations now, or will as soon as it is open."""

    def post(self, operation: Operation, client: ClientId, sink: Sink) -> None:
        """Put an operation into the partition's mailbox. Never blocks, never drops."""


def partition_of_key(key: str, partitions: int) -> int:
    """The partition that a key pins its messages to."""
    return int.from_bytes(blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big") % partitions


class Router:
    """Chooses among the partitions of one entity. Owned by the event loop."""

    def __init__(self, handles: Sequence[PartitionHandle]) -> None:
        self.handles = handles
        self._turn = 0
        self._spread = 0
        """Messages without a key so far."""

    def keyed(self, key: str) -> PartitionHandle:
        """The partition of a key. Raises Refused(PARTITION_UNAVAILABLE) while it is down."""
        number = partition_of_key(key, len(self.handles))
        handle = self.handles[number]
        if not handle.available:
            raise Refused(Reason.PARTITION_UNAVAILABLE, f"Partition {number}, where this key belongs, is not available. Please try again.")
        return handle

    def spread(self, count: int) -> list[tuple[PartitionHandle, int, int]]:
        """Where `count` messages without a key go: runs (partition, from, to), each partition in its turn.

        Messages that come one by one go one by one to the partitions. Under load each partition gets a run, for a commit costs
        the same for one message as for thirty: a run is never longer than a sixteenth of what each partition got before, so
        the counts stay even to one part in sixteen (and to one message while they are small), nor than RUN_MESSAGES_MAX
        unless the messages are more than that for every partition.
        Raises Refused(PARTITION_UNAVAILABLE) when no partition is available.
        """
        handles = [handle for handle in self.handles if handle.available]
        if not handles:
            raise Refused(Reason.PARTITION_UNAVAILABLE, "No partition of the entity is available. Please try again.")
        partitions = len(handles)
        run = max(-(-count // partitions), min(RUN_MESSAGES_MAX, self._spread // (partitions * EVEN_TO)))
        self._spread += count
        runs, start, turn = [], 0, self._turn
        while start < count:
            stop = min(start + run, count)
            runs.append((handles[turn % partitions], start, stop))
            start, turn = stop, turn + 1
        self._turn = turn % partitions
        return runs

    def of_sequence_number(self, sequence_number: int) -> PartitionHandle:
        """The partition that gave a sequence number. Raises Refused(MESSAGE_NOT_FOUND) for one that nobody gave."""
        number = partition_of(sequence_number)
        if not 0 <= number < len(self.handles):
            raise Refused(Reason.MESSAGE_NOT_FOUND, f"No message has the sequence number {sequence_number}.")
        return self.handles[number]

    def of_token(self, token: bytes) -> PartitionHandle | None:
        """The partition that gave out a lock token; None for one that nobody gave."""
        number = partition_of_token(token)
        return self.handles[number] if len(token) == 16 and number < len(self.handles) else None
