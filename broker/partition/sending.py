"""Sends to a partition: messages get sequence numbers and times, and become records and references. Pure.

Messages that a client sends as one batch are stored in one commit, so either all of them are stored or none.
A long batch is enqueued in steps, between which the task lets others use the event loop; the commit begins
after the last step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from operator import attrgetter

from broker.base.errors import Refused
from broker.entities.descriptions import MESSAGE_OVERHEAD_BYTES, EntityDescription
from broker.operations.sending import Send
from broker.operations.transfers import HandOver
from broker.partition.columns import list_bytes
from broker.partition.cycle import Cycle
from broker.partition.cycle_bounds import Bounds
from broker.partition.duplicates import MEMORY_BYTES, check_count
from broker.partition.durable_state import NewRecord
from broker.partition.enqueued_times import EnqueuedTimes
from broker.partition.expiries import expiries, later_expiries
from broker.partition.messages import Messages
from broker.partition.new_messages import NewMessages
from broker.partition.publishing import Distribution, Publishing, take_memory
from broker.partition.quotas import check_size, room_of
from broker.partition.records import Enqueued
from broker.partition.scheduled_times import times_of
from broker.send_lists import at, merged, part_of

_IDENTITIES_OF = attrgetter("identities")
_TELLS_NUMBERS = attrgetter("tells_numbers")
_ENDED = object()


class Sending:
    """Enqueues sent messages. Owned by the state machine."""

    __slots__ = (
        "_duplicates",
        "_ids_max",
        "_matching_max",
        "_messages",
        "_number",
        "_publishing",
        "_record",
        "_times",
        "_work_max",
        "freed_later",
        "rest",
        "unapplied",
    )

    def __init__(
        self,
        number: int,
        messages: Messages,
        bounds: Bounds,
        times: EnqueuedTimes,
        record: Callable[[NewRecord], None],
        publishing: Publishing | None = None,
    ) -> None:
        """`number` is the partition's; `record` writes and applies a record of durable state that belongs to
        a send. `publishing` is a topic's."""
        self._publishing = publishing
        self._number, self._messages, self._times, self._record = number, messages, times, record
        self._work_max, self._ids_max = bounds.work_max, bounds.message_ids_max
        self._matching_max = min(bounds.matching_max, bounds.work_max)
        self._duplicates = messages.states.duplicates
        self.unapplied: tuple[Cycle, Enqueued, Sequence[bytes]] | None = None
        """Messages whose record is in the commit, while `apply` has not been called."""
        self.rest: Iterator[None] | None = None
        """The remaining steps of a long `Send`, for `go_on`; None if there are none."""
        self.freed_later = 0
        """Bytes that the transactions of this cycle remove once it is durable. They make room already."""

    def send_new(
        self, cycle: Cycle, description: EntityDescription, send: Send, freed: int = 0
    ) -> tuple[int, list[int]]:
        """As `send`, but without duplicates, if the send says what makes one. Remembers the others.

        Also returns the places of the duplicates. Raises Refused.
        """
        if send.identities is None:
            return self.send(cycle, description, send, freed), []
        send, known = self.without_duplicates(cycle, description, send)
        identities = send.identities or ()
        first = self.send(cycle, description, send, freed - MEMORY_BYTES * len(identities))
        self.remember(cycle, description, identities)
        return first, known

    def without_duplicates(
        self, cycle: Cycle, description: EntityDescription, send: Send
    ) -> tuple[Send, list[int]]:
        """The messages of a send that are new, if the send says what makes a duplicate, and the places of the
        others. Raises Refused if too many are remembered."""
        identities = send.identities
        if identities is None:
            return send, []
        known = self._duplicates.known(
            identities, cycle.now_ms, description.settings.duplicate_detection_window_ms
        )
        if known:
            dropped = set(known)
            places = [place for place in range(len(identities)) if place not in dropped]
            send = part_of(send, at(places))
            identities = send.identities or ()
        count = self._duplicates.count if identities else 0
        check_count(description.name, self._number, count, len(identities), self._ids_max)
        return send, known

    def remember(self, cycle: Cycle, description: EntityDescription, identities: Sequence[bytes]) -> None:
        """Remember the identities of messages that this cycle stores."""
        window_ms = description.settings.duplicate_detection_window_ms
        for record in self._duplicates.records_of(
            identities, cycle.now_ms, cycle.wall_ms, window_ms, cycle.commit.start
        ):
            self._record(record)

    def send(
        self,
        cycle: Cycle,
        description: EntityDescription,
        send: Send,
        freed: int = 0,
        only: int | None = None,
    ) -> int:
        """Enqueue the messages, or only the first of many; the caller must then call `go_on` before anything
        else happens to the partition. `freed` is how many bytes the same operation is going to remove.
        `only`: in a topic, the number of the one subqueue that gets them. In a quiet cycle, the caller must
        then call `apply`, or `finish`: what is written may be on its way to the disk before.

        Returns the first sequence number. Raises Refused.
        """
        assert self.rest is None, "the rest of an earlier send comes first"
        assert self.unapplied is None, "an earlier send is applied first"
        messages, first = send.messages, self._messages.next_number
        if not messages:
            return first
        if self._publishing is not None and only != self._messages.main.number:
            return self._publish(self._publishing, cycle, description, send, freed, only)
        sizes = list(map(len, messages))
        size = sum(sizes) + MESSAGE_OVERHEAD_BYTES * len(sizes) - freed
        if send.columns:
            size += list_bytes(send.columns)
        self._check_size(description, size)
        if min(sizes) == max(sizes):
            sizes = [sizes[0]] * len(sizes)  # one number object for all
        new = self._new(cycle, description, send, sizes)
        cycle.has_sent = True
        cycle.arrived_in.add(self._messages.main.number)
        cycle.work += len(sizes)
        if len(sizes) <= self._work_max:
            self._write(cycle, new)
            if not cycle.is_quiet:
                self.apply()
        else:
            self._start(self._enqueue_many(cycle, new))
        return first

    def _new(
        self, cycle: Cycle, description: EntityDescription, send: Send, sizes: Sequence[int]
    ) -> NewMessages:
        """The messages of a send, with their times."""
        enqueued_ms = self._times.stamp(self._messages.latest_enqueued_ms, cycle.now_ms, cycle.wall_ms)
        expire = expiries(
            send.time_to_live_ms, description.settings.default_time_to_live_ms, len(sizes), enqueued_ms
        )
        scheduled_ms = None
        if send.scheduled_ms is not None:
            scheduled_ms = times_of(send.scheduled_ms, cycle.wall_ms)
        if scheduled_ms is not None:
            expire = later_expiries(expire, scheduled_ms, enqueued_ms)
        return NewMessages(enqueued_ms, sizes, expire, send.messages, send.columns, scheduled_ms)

    def _start(self, steps: Iterator[None]) -> None:
        """Take the first of several steps, and keep the others for `go_on`."""
        if next(steps, _ENDED) is not _ENDED:
            self.rest = steps

    def find_ahead(self, cycle: Cycle, sends: Sequence[Send | HandOver]) -> Generator[None, None, int]:
        """In a topic, find out in steps who gets the messages of operations, before they are carried out.
        Returns how many of them may share a commit."""
        assert self._publishing is not None, "only topics publish"
        enqueued_ms = self._times.stamp(self._messages.latest_enqueued_ms, cycle.now_ms, cycle.wall_ms)
        return (yield from self._publishing.find_ahead(cycle, enqueued_ms, sends, self._matching_max))

    def sharing_a_commit(self, over: HandOver) -> int:
        """How many of these messages are enqueued now; the others have to come again. In a topic, only after
        `find_ahead`."""
        return len(over.messages) if self._publishing is None else self._publishing.sharing_a_commit(over)

    def _publish(
        self,
        publishing: Publishing,
        cycle: Cycle,
        description: EntityDescription,
        send: Send,
        freed: int,
        only: int | None,
    ) -> int:
        """As `send`, to subscriptions of a topic."""
        first, sizes = self._messages.next_number, list(map(len, send.messages))
        new = self._new(cycle, description, send, sizes)
        if only is None:
            found = publishing.found_ahead(send, new.scheduled_ms)
        else:
            found = Distribution([publishing.only(only)] * len(sizes))
        room = found.room(sizes)
        self._check_size(description, room + list_bytes(send.columns) - freed)
        take_memory(self._messages.payloads, description, found)
        cycle.has_sent = True
        cycle.work += len(sizes)
        effort_max = self._matching_max
        steps = publishing.write_steps(cycle, new, found, effort_max, keeps_numbers=send.tells_numbers)
        self._start(steps)
        return first

    def check(
        self, cycle: Cycle, description: EntityDescription, send: Send, *others: Send | None, freed: int = 0
    ) -> None:
        """Raise Refused if all these messages together do not fit, or too many message-ids would be
        remembered. In a topic, only those of `send` are published now. `freed` is how many bytes the same
        operation is going to remove."""
        size = ids = 0
        for each in (send, *others):
            if each is not None:
                size += sum(self._rooms(cycle, each) if each is send else map(_room, each.messages))
                size += list_bytes(each.columns) + MEMORY_BYTES * len(each.identities or ())
                ids += len(each.identities or ())
        if size:
            self._check_size(description, size - freed)
        if ids:
            check_count(description.name, self._number, self._duplicates.count, ids, self._ids_max)

    def _rooms(self, cycle: Cycle, send: Send) -> list[int]:
        """What each of these messages takes in the quota."""
        if self._publishing is None:
            return list(map(_room, send.messages))
        found = self._publishing.found_ahead(send, times_of(send.scheduled_ms, cycle.wall_ms))
        return [each.room(len(message)) for each, message in zip(found.each, send.messages, strict=True)]

    def fitting(
        self, cycle: Cycle, description: EntityDescription, send: Send, entity_room: int | None
    ) -> list[int]:
        """The places of the messages that there is room for, each besides those before it. `entity_room` is
        how many bytes the whole entity has left for them; None for as many as they have."""
        identities: Sequence[bytes | None] = send.identities or [None] * len(send.messages)
        window_ms = description.settings.duplicate_detection_window_ms
        known = frozenset(self._duplicates.known(send.identities or (), cycle.now_ms, window_ms))
        left_out: set[bytes | None] = set()
        ids = self._ids_max - self._duplicates.count
        room = room_of(description, self._messages.size_bytes)
        places: list[int] = []
        for place, (size, identity) in enumerate(zip(self._rooms(cycle, send), identities, strict=True)):
            if place not in known or identity in left_out:  # it is no duplicate, and takes room
                columns = {name: values[place : place + 1] for name, values in send.columns.items()}
                whole = size + list_bytes(columns) + (MEMORY_BYTES if identity is not None else 0)
                has_entity_room = entity_room is None or size <= entity_room
                if whole > room or not has_entity_room or (identity is not None and ids <= 0):
                    left_out.add(identity)
                    continue
                left_out.discard(identity)
                room -= whole
                ids -= identity is not None
                if entity_room is not None:
                    entity_room -= size
            places.append(place)
        return places

    def _check_size(self, description: EntityDescription, added: int) -> None:
        used = self._messages.size_bytes - self.freed_later
        check_size(description, self._number, used, added)

    def send_together(
        self, cycle: Cycle, description: EntityDescription, sends: Sequence[Send]
    ) -> list[int] | None:
        """Enqueue the messages of several sends in one go, which costs little more than one send.

        Returns the first sequence number of each; None if nothing was enqueued because they must be sent one
        at a time: they say what makes a duplicate, or there is not enough room for all. In a topic, messages
        whose numbers are told are sent by themselves: changed copies of others could take these numbers.
        """
        self.apply()
        if any(map(_IDENTITIES_OF, sends)):
            return None
        if self._publishing is not None and any(map(_TELLS_NUMBERS, sends)):
            return None
        try:
            number = self.send(cycle, description, merged(sends))
        except Refused:
            return None
        firsts: list[int] = []
        for send in sends:
            firsts.append(number)
            number += len(send.messages)
        return firsts

    def go_on(self) -> Iterator[None]:
        """Enqueue the rest of a long `Send`, in steps. No other operation may be carried out before the last
        step."""
        if self.rest is not None:
            yield from self.rest
            self.rest = None

    def finish(self) -> None:
        """Apply what was written, and enqueue the rest of a long `Send`, all at once."""
        self.apply()
        if self.rest is not None:
            deque(self.go_on(), maxlen=0)

    def _enqueue_many(self, cycle: Cycle, new: NewMessages) -> Iterator[None]:
        at_once = self._work_max
        for start in range(0, len(new.sizes), at_once):
            self._write(cycle, new.part(slice(start, start + at_once)))
            self.apply()
            yield

    def _write(self, cycle: Cycle, new: NewMessages) -> None:
        enqueued = new.add_to(cycle.commit, self._messages.next_number)
        self.unapplied = cycle, enqueued, new.messages

    def apply(self) -> None:
        """Apply what the latest send has written, unless that has been done."""
        if self.unapplied is None:
            return
        (cycle, enqueued, messages), self.unapplied = self.unapplied, None
        if not self._messages.apply_enqueued(cycle.commit.start, enqueued, messages, cycle.now_ms):
            numbers = range(enqueued.first, enqueued.first + len(enqueued.sizes))
            cycle.passing += map(self._messages.main.references.__getitem__, numbers)


def _room(message: bytes) -> int:
    return len(message) + MESSAGE_OVERHEAD_BYTES
