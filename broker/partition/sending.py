"""Sends to a partition: messages get sequence numbers and times, and become records and references. Pure.

Messages that a client sends as one batch are stored in one commit, so either all of them are stored or none.
A long batch is enqueued in steps, between which the task lets others use the event loop; the commit begins
after the last step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from broker.entities.descriptions import MESSAGE_OVERHEAD_BYTES, EntityDescription
from broker.operations import Send
from broker.partition import records
from broker.partition.batch import Batch
from broker.partition.batch_bounds import Bounds
from broker.partition.columns import Columns, list_bytes, part_of
from broker.partition.duplicates import MEMORY_BYTES, check_count
from broker.partition.durable_state import NewRecord
from broker.partition.enqueued_times import EnqueuedTimes, expiries
from broker.partition.messages import Messages
from broker.partition.quotas import check_size
from broker.partition.records import Enqueued
from broker.partition.schedule import later_expiries, times_of


class Sending:
    """Enqueues sent messages. Owned by the state machine."""

    __slots__ = ("_at_once", "_duplicates", "_ids_max", "_messages", "_number", "_record", "_rest", "_times")

    def __init__(
        self,
        number: int,
        messages: Messages,
        bounds: Bounds,
        times: EnqueuedTimes,
        record: Callable[[NewRecord], None],
    ) -> None:
        """`number` is the partition's; `record` writes and applies a record of durable state that belongs to
        a send."""
        self._number, self._messages, self._times, self._record = number, messages, times, record
        self._at_once, self._ids_max = bounds.work_max, bounds.message_ids_max
        self._duplicates = messages.states.duplicates
        self._rest: Iterator[None] | None = None
        """The remaining steps of a long `Send`."""

    def send_new(
        self, batch: Batch, description: EntityDescription, send: Send, freed: int = 0
    ) -> tuple[int, list[int]]:
        """As `send`, but without duplicates, if the send says what makes one. Remembers the others.

        Also returns the places of the duplicates. Raises Refused.
        """
        identities = send.identities
        if identities is None:
            return self.send(batch, description, send, freed), []
        duplicates, window_ms = self._duplicates, description.settings.duplicate_detection_window_ms
        known = duplicates.known(identities, batch.now_ms, window_ms)
        if known:
            dropped = set(known)
            places = [place for place in range(len(identities)) if place not in dropped]
            send = _some_of(send, places)
            identities = [identities[place] for place in places]
        check_count(
            description.name,
            self._number,
            duplicates.count if identities else 0,
            len(identities),
            self._ids_max,
        )
        first = self.send(batch, description, send, freed - MEMORY_BYTES * len(identities))
        for record in duplicates.records_of(
            identities, batch.now_ms, batch.wall_ms, window_ms, batch.commit.start
        ):
            self._record(record)
        return first, known

    def send(self, batch: Batch, description: EntityDescription, send: Send, freed: int = 0) -> int:
        """Enqueue the messages, or only the first of many: the caller must then call `go_on`. `freed` is how
        many bytes the same operation is going to remove.

        Returns the first sequence number. Raises Refused.
        """
        messages, first = send.messages, self._messages.next_number
        if not messages:
            return first
        sizes = list(map(len, messages))
        check_size(
            description,
            self._number,
            self._messages.work.occupied.values(),
            self._messages.states.bytes,
            sum(sizes) + MESSAGE_OVERHEAD_BYTES * len(sizes) + list_bytes(send.columns) - freed,
        )
        if min(sizes) == max(sizes):
            sizes = [sizes[0]] * len(sizes)  # one number object for all
        enqueued_ms = self._times.stamp(self._messages.latest_enqueued_ms, batch.now_ms, batch.wall_ms)
        expire = expiries(
            send.time_to_live_ms, description.settings.default_time_to_live_ms, len(sizes), enqueued_ms
        )
        scheduled_ms = times_of(send.scheduled_ms, batch.wall_ms)
        if scheduled_ms is not None:
            expire = later_expiries(expire, scheduled_ms, enqueued_ms)
        batch.has_sent = True
        batch.arrived_in.add(self._messages.main.number)
        batch.work += len(sizes)
        if len(sizes) <= self._at_once:
            self._enqueue(batch, enqueued_ms, sizes, expire, messages, send.columns, scheduled_ms)
        else:
            self._rest = self._enqueue_many(
                batch, enqueued_ms, sizes, expire, messages, send.columns, scheduled_ms
            )
            next(self._rest)
        return first

    def go_on(self) -> Iterator[None]:
        """Enqueue the rest of a long `Send`, in steps. No other operation may be carried out before the last
        step."""
        if self._rest is not None:
            yield from self._rest
            self._rest = None

    def _enqueue_many(
        self,
        batch: Batch,
        enqueued_ms: int,
        sizes: list[int],
        expire: list[int] | None,
        messages: Sequence[bytes],
        columns: Columns,
        scheduled_ms: list[int] | None,
    ) -> Iterator[None]:
        for start in range(0, len(sizes), self._at_once):
            here = slice(start, start + self._at_once)
            self._enqueue(
                batch,
                enqueued_ms,
                sizes[here],
                None if expire is None else expire[here],
                messages[here],
                part_of(columns, here),
                None if scheduled_ms is None else scheduled_ms[here],
            )
            yield

    def _enqueue(
        self,
        batch: Batch,
        enqueued_ms: int,
        sizes: list[int],
        expire: list[int] | None,
        messages: Sequence[bytes],
        columns: Columns,
        scheduled_ms: list[int] | None,
    ) -> None:
        first = self._messages.next_number
        offset = records.add_enqueued(
            batch.commit, first, enqueued_ms, sizes, expire, messages, columns, scheduled_ms
        )
        enqueued = Enqueued(first, enqueued_ms, sizes, expire, offset, columns, scheduled_ms)
        if not self._messages.apply_enqueued(batch.commit.start, enqueued, messages, batch.now_ms):
            batch.passing += map(self._messages.main.references.__getitem__, range(first, first + len(sizes)))


def _some_of(send: Send, places: Sequence[int]) -> Send:
    """Some of the messages of a send, without their identities."""
    lives, scheduled = send.time_to_live_ms, send.scheduled_ms
    return Send(
        [send.messages[place] for place in places],
        None if lives is None else [lives[place] for place in places],
        columns={name: [values[place] for place in places] for name, values in send.columns.items()},
        scheduled_ms=None if scheduled is None else [scheduled[place] for place in places],
    )
