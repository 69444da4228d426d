"""Reading by position: where messages begin and end, and ranges of active messages. Pure.

A client that reads from head to head must not step over a message. Sent messages get ascending numbers, so
the head of their subqueue is the next number. Dead letters keep the numbers that they had: as long as an
older message may still become one, the head of the dead-letter subqueue stays below it. A scheduled message
gets a new number when it becomes active, so it holds up nothing. A client that reads once, and does not go on
from there, may look beyond that head (`undecided`).

Messages of the current cycle are beyond the head, because they may still be refused (durability rule 3).
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter

from broker.base.errors import Reason, Refused
from broker.entities.roles import KEEPS_FAILED_TRANSFERS
from broker.identifiers import ClientId
from broker.operations.streams import FindPositions, Positions, RangeRead, ReadRange
from broker.partition.changed_properties import MERGED_AT_ONCE, WORK_COST, laying_cost
from broker.partition.references import ACTIVE, DEFERRED, SCHEDULED, Reference
from broker.partition.replaying import REPLAYED_AT_ONCE
from broker.partition.subqueue import Subqueue
from broker.partition.time_to_live import TimeToLive
from broker.partition.workspace import Workspace

LAID_COST = 4_096
"""What laying changed properties over a message costs besides `laying_cost`, in its units. It counts here
because a range has more messages than other answers, and most of them may be small."""
_COLUMNS = tuple(
    map(
        attrgetter,
        (
            "sequence_number",
            "enqueued_at_ms",
            "delivery_count",
            "expires_at_ms",
            "payload",
            "changed",
        ),
    )
)


class Reading:
    """Reads the messages of one partition by position."""

    __slots__ = ("_decided_to", "_space", "_time_to_live")

    def __init__(self, space: Workspace, time_to_live: TimeToLive) -> None:
        self._space, self._time_to_live = space, time_to_live
        self._decided_to: dict[int, int] = {}
        """By subqueue number: below this position, all messages are scheduled or gone. It only rises, because
        scheduled messages become active under higher numbers."""

    def restore(self) -> Iterator[int]:
        """Finish opening, in steps: no head may be lower than it was before the partition was opened."""
        for subqueue in self._space.messages.work.occupied.values():
            if not subqueue.scheduled:
                continue
            for looked_at, reference in enumerate(subqueue.browse(0), 1):
                self._decided_to[subqueue.number] = reference.sequence_number
                if reference.state is not SCHEDULED:
                    break
                if looked_at % REPLAYED_AT_ONCE == 0:
                    yield REPLAYED_AT_ONCE

    def find_positions(self, client: ClientId, find: FindPositions) -> None:
        """Say where the messages of a subqueue begin and end."""
        space = self._space
        subqueue = space.messages.find(find.subqueue)
        head = self._head(subqueue, find.undecided)
        answer = Positions(
            self._start(subqueue, head),
            head,
            subqueue.references.count - subqueue.deferred - subqueue.scheduled,
            subqueue.bytes,
            find.cookie,
        )
        if find.enqueued_from_ms is not None:
            answer.by_time = min(self._by_time(subqueue, find.enqueued_from_ms, head), head)
        if find.backlog_from is not None:
            answer.backlog = self._backlog(subqueue, find.backlog_from, head)
        space.answer(client, answer)

    def read(self, client: ClientId, read: ReadRange) -> None:
        """Read messages from the start of a range, as many as one answer may hold: their bytes are bounded,
        and what it costs to lay changed properties over them."""
        space, cycle = self._space, self._space.cycle
        subqueue = space.messages.find(read.subqueue)
        head = self._head(subqueue, read.undecided)
        start = max(read.start, space.messages.first_number | 1)
        end = head if read.end is None else max(read.end, space.messages.first_number | 1)
        if not start <= end <= head:
            raise Refused(
                Reason.ARGUMENT,
                f"The range from {start} to {end} is not one below the head, which is {head}.",
            )
        found: list[Reference] = []
        left_out = [0, 0, 0]
        next_number, looked_at, room, locked = end, 0, read.bytes_max, 0
        laying = MERGED_AT_ONCE
        for reference in subqueue.browse(start):
            number = reference.sequence_number
            if number >= end:
                break
            if len(found) >= read.count or looked_at >= space.bounds.looks_max:
                next_number = number
                break
            looked_at += 1
            if reference.state is not ACTIVE:
                left_out[0 if reference.state is DEFERRED else 1] += 1
            elif self._time_to_live.is_overdue(subqueue, reference):
                left_out[2] += 1
            else:
                size, cost = reference.size, 0
                if reference.changed is not None:
                    size += len(reference.changed)
                    cost = LAID_COST + laying_cost(reference)
                if found and (size > room or cost > laying):
                    next_number = number
                    break
                found.append(reference)
                room -= size
                laying -= cost
                locked += reference.lease is not None
        cycle.work += looked_at + (MERGED_AT_ONCE - laying) // WORK_COST
        answer = _range_read(found, read.cookie)
        answer.next, answer.end, answer.start = next_number, end, self._start(subqueue, head)
        answer.head, answer.locked, answer.left_out = head, locked, left_out
        absent = next_number - start - len(found) - sum(left_out)
        answer.dead_lettered = self._dead_lettered(subqueue, start, next_number) if absent > 0 else 0
        answer.missing = absent - answer.dead_lettered
        if b"" in answer.messages:
            cycle.holes.append((answer.messages, found))
        space.answer(client, answer)

    def start(self, subqueue: Subqueue) -> int:
        """The position of the oldest message of a subqueue; its head if there is none."""
        return self._start(subqueue, self.head(subqueue))

    def backlog(self, subqueue: Subqueue, position: int) -> int:
        """About how many messages there are from a position on: at most twice as many."""
        return self._backlog(subqueue, position, self.head(subqueue))

    def check_end(self, subqueue: Subqueue, position: int) -> None:
        """Raise Refused if a position is beyond the head."""
        head = self.head(subqueue)
        if position > head:
            raise Refused(
                Reason.ARGUMENT, f"The position {position} is beyond the head of its partition, {head}."
            )

    def head(self, subqueue: Subqueue) -> int:
        """The head of a subqueue."""
        head = self._end()
        for feeder in self._feeders(subqueue):
            head = min(head, self._first_undecided(feeder, head))
        return head

    def _head(self, subqueue: Subqueue, undecided: bool) -> int:
        """The head of a subqueue for a client that wants what is decided only, or what there is."""
        return self._end() if undecided else self.head(subqueue)

    def _end(self) -> int:
        """The position behind all messages of the partition."""
        space, cycle = self._space, self._space.cycle
        return cycle.first_sent if cycle.has_sent else space.messages.next_number

    def _backlog(self, subqueue: Subqueue, position: int, head: int) -> int:
        begin = max(position, self._space.messages.first_number)
        return min(subqueue.count_from(begin), max(head - begin, 0))

    def _feeders(self, subqueue: Subqueue) -> Iterator[Subqueue]:
        """The subqueues whose messages may still move to this one under the numbers that they have."""
        takes_all = subqueue.role is KEEPS_FAILED_TRANSFERS
        for other in self._space.messages.work.occupied.values():
            if other is not subqueue and (takes_all or other.dead_letters_to == subqueue.number):
                yield other

    def _first_undecided(self, subqueue: Subqueue, head: int) -> int:
        """The lowest number of a message that may still move to another subqueue, or one below it; `head` if
        there is none. Looks at a bounded number of messages, and continues from there the next time."""
        place = self._decided_to.get(subqueue.number, 0)
        for looked_at, reference in enumerate(subqueue.browse(place)):
            if reference.state is not SCHEDULED or looked_at >= self._space.bounds.looks_max:
                if looked_at:
                    self._decided_to[subqueue.number] = reference.sequence_number
                return reference.sequence_number
        return head

    def _start(self, subqueue: Subqueue, head: int) -> int:
        first = next(subqueue.browse(0), None)
        return head if first is None else min(first.sequence_number, head)

    def _by_time(self, subqueue: Subqueue, enqueued_from_ms: int, head: int) -> int:
        """The position of the first message enqueued at this time or later. Enqueued times never go back in
        the order of the numbers; a scheduled message has none yet."""

        def is_before(number: int) -> bool | None:
            reference = subqueue.references.get(number)
            if reference is None or reference.state is SCHEDULED:
                return None
            return reference.enqueued_at_ms < enqueued_from_ms

        found = subqueue.find_in_order(is_before)
        return head if found is None else found

    def _dead_lettered(self, subqueue: Subqueue, start: int, end: int) -> int:
        """How many messages of a range are dead letters now; counts a bounded number of them."""
        target, count = subqueue.dead_letters_to, 0
        if target is None:
            return 0
        for reference in self._space.subqueues[target].browse(start):
            if reference.sequence_number >= end or count >= self._space.bounds.looks_max:
                break
            count += 1
        return count


def _range_read(found: list[Reference], cookie: object) -> RangeRead:
    """The answer with these messages. Those that are not in memory are empty."""
    numbers, enqueued, counts, expiries, messages, changed = (list(map(get, found)) for get in _COLUMNS)
    return RangeRead(numbers, enqueued, counts, expiries, messages, changed, cookie)
