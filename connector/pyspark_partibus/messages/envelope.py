"""An envelope: many messages of one partition in one delivery, with columns of what the broker knows of them
(AMQP contract 7.6.2)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from pyspark_partibus.client.values import decode
from pyspark_partibus.errors import BadMessage
from pyspark_partibus.messages.sections import ANNOTATIONS, DATA, sections

NOT_ONE_SECTION = 0xFFFFFFFF
"""The body size of a message whose body is not one data section."""


@dataclass(frozen=True, slots=True)
class Report:
    """Which numbers of a range have no message to read, by cause."""

    deferred: int = 0
    scheduled: int = 0
    expired: int = 0
    dead_lettered: int = 0
    missing: int = 0

    def __add__(self, other: Report) -> Report:
        return Report(
            self.deferred + other.deferred,
            self.scheduled + other.scheduled,
            self.expired + other.expired,
            self.dead_lettered + other.dead_lettered,
            self.missing + other.missing,
        )

    def __str__(self) -> str:
        return (
            f"{self.deferred} deferred, {self.scheduled} scheduled, {self.expired} expired, "
            f"{self.dead_lettered} dead-lettered, {self.missing} missing (completed, deleted or never there)"
        )


@dataclass(frozen=True, slots=True)
class Envelope:
    """What one delivery holds. Positions are sequence numbers."""

    generation: str
    partition: int
    start: int
    next: int
    last: bool
    report: Report
    data: memoryview
    """All messages, one after the other."""
    ends: Sequence[int]
    sequence_numbers: Sequence[int]
    enqueued_times: Sequence[int]
    """In ms since the epoch."""
    delivery_counts: Sequence[int]
    body_offsets: Sequence[int]
    body_sizes: Sequence[int]

    def bounds(self) -> Iterator[tuple[int, int]]:
        """Where each message begins and ends in the data."""
        return pairwise((0, *self.ends))


def read_envelope(delivery: bytes) -> Envelope:
    """Take an envelope apart. Raises BadMessage."""
    annotations: dict[str, Any] | None = None
    data = memoryview(b"")
    for code, start, end in sections(delivery, 0, len(delivery)):
        if code == ANNOTATIONS:
            annotations = decode(delivery, start)[0]
        elif code == DATA:
            data = memoryview(delivery)[start + (2 if delivery[start] == 0xA0 else 5) : end]
    if not isinstance(annotations, dict):
        raise BadMessage("an envelope without annotations")
    try:
        envelope = _envelope(annotations, data)
    except KeyError as error:
        raise BadMessage(f"an envelope without {error}") from None
    columns = (
        envelope.ends,
        envelope.enqueued_times,
        envelope.delivery_counts,
        envelope.body_offsets,
        envelope.body_sizes,
    )
    if any(len(column) != len(envelope.sequence_numbers) for column in columns):
        raise BadMessage("an envelope with columns of different lengths")
    if (envelope.ends[-1] if envelope.ends else 0) != len(data):
        raise BadMessage("an envelope whose messages do not end where its data ends")
    return envelope


def _envelope(annotations: dict[str, Any], data: memoryview) -> Envelope:
    return Envelope(
        str(annotations["generation"]),
        annotations["partition"],
        annotations["from"],
        annotations["next"],
        annotations["last"],
        Report(
            annotations["deferred"],
            annotations["scheduled"],
            annotations["expired"],
            annotations["dead-lettered"],
            annotations["missing"],
        ),
        data,
        annotations["ends"],
        annotations["sequence-numbers"],
        annotations["enqueued-times"],
        annotations["delivery-counts"],
        annotations["body-offsets"],
        annotations["body-sizes"],
    )
