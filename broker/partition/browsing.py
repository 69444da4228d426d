"""Looking at messages without locking them: peek, and watch for arrivals. Pure.

Messages sent in the current cycle are not shown, because they may still be refused (durability rule 3).
Messages whose time to live is over are not shown either.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from broker.identifiers import ClientId
from broker.operations.browsing import Arrived, Peek, Watch
from broker.operations.selecting import CameBack, WatchReturned
from broker.partition.changed_properties import cost_of
from broker.partition.cycle import peeked
from broker.partition.references import Reference
from broker.partition.subqueue import Subqueue
from broker.partition.time_to_live import TimeToLive
from broker.partition.waiting_clients import WaitingClients
from broker.partition.workspace import Workspace


class Browsing:
    """Shows the messages of one partition."""

    __slots__ = ("_returned", "_space", "_telling", "_time_to_live", "_watches")

    def __init__(self, space: Workspace, time_to_live: TimeToLive) -> None:
        self._space, self._time_to_live = space, time_to_live
        self._watches = WaitingClients()
        """Clients to tell of the next arrival."""
        self._telling: dict[ClientId, dict[int, None]] = {}
        """Clients with arrivals to report, in the order in which they are told, and in which subqueues."""
        self._returned = WaitingClients()
        """Clients to tell of messages that come back."""

    @property
    def has_more(self) -> bool:
        """Some clients have not been told yet."""
        return bool(self._telling)

    @property
    def is_idle(self) -> bool:
        """Whether no client waits to be told of messages."""
        return not (self._watches or self._returned or self._telling)

    def peek(self, client: ClientId, peek: Peek) -> bool:
        """Show messages. Returns False if it passed over so many that it must continue in the next cycle."""
        space = self._space
        subqueue = space.messages.find(peek.subqueue)
        found: list[Reference] = []
        room, more = space.bounds.peeked_bytes_max, False
        if peek.bytes_max is not None:
            room = max(min(room, peek.bytes_max), 1)
        for number, reference in self._visible(subqueue, peek.from_sequence_number, peek.session_id):
            if len(found) >= peek.count:
                break
            if reference is None and not found:
                peek.from_sequence_number = number
                return False
            if reference is None or room <= 0:
                more = True
                break
            found.append(reference)
            room -= reference.size + cost_of(reference.changed)
        space.cycle.work += len(found)
        answer = peeked(found, peek.cookie, more)
        if b"" in answer.messages:
            space.cycle.holes.append((answer.messages, found))
        space.answer(client, answer)
        return True

    def watch(self, client: ClientId, watch: Watch) -> bool:
        """Tell the client when a message with this sequence number or a later one can be seen. Returns False
        as `peek` does."""
        space = self._space
        subqueue = space.messages.find(watch.subqueue)
        number, reference = next(self._visible(subqueue, watch.from_sequence_number), (None, None))
        if number is None:
            self._watches.add(client, subqueue.number)
        elif reference is None:
            watch.from_sequence_number = number
            return False
        else:
            space.answer(client, Arrived(space.number, subqueue.name))
        return True

    def watch_returned(self, client: ClientId, watch: WatchReturned) -> None:
        """Tell the client from now on which messages come back."""
        subqueue = self._space.messages.find(watch.subqueue)
        self._returned.add(client, subqueue.number)
        if subqueue.came_back is None:
            subqueue.came_back = []

    def _tell_of_returned(self) -> None:
        space = self._space
        for number in self._returned.numbers:
            subqueue = space.subqueues[number]
            if subqueue.came_back:
                for client in self._returned.clients(number):
                    space.answer(client, CameBack(space.number, subqueue.name, subqueue.came_back))
                subqueue.came_back = []

    def tell_watchers(self) -> None:
        """Report arrivals. The answers leave with the cycle, so a client that then peeks sees what this cycle
        brought."""
        space = self._space
        if self._returned:
            self._tell_of_returned()
        for number in space.cycle.arrived_in & self._watches.numbers:
            for client in self._watches.take(number):
                self._telling.setdefault(client, {})[number] = None
        for client in list(islice(self._telling, space.bounds.told_max)):
            for number in self._telling.pop(client):
                space.answer(client, Arrived(space.number, space.subqueues[number].name))

    def forget(self, client: ClientId) -> None:
        """Drop the watches of a client that has detached."""
        self._watches.forget(client)
        for number in self._returned.forget(client):
            if number not in self._returned.numbers:
                self._space.subqueues[number].came_back = None
        self._telling.pop(client, None)

    def _visible(
        self, subqueue: Subqueue, from_number: int, session_id: bytes | None = None
    ) -> Iterator[tuple[int, Reference | None]]:
        """Messages that a client may see, of all sessions or of one. Leaves out messages sent in this cycle,
        because they may still be refused (durability rule 3).

        Ends with a number and no message if it has passed over as many messages as one cycle may look at.
        Continue from that number.
        """
        space, cycle = self._space, self._space.cycle
        passed_over = 0
        for reference in subqueue.browse(max(from_number, 0)):
            number = reference.sequence_number
            if cycle.has_sent and number >= cycle.first_sent:
                return
            if session_id is not None and reference.session_id != session_id:
                pass
            elif not self._time_to_live.is_overdue(subqueue, reference):
                yield number, reference
                continue
            passed_over += 1
            if passed_over >= space.bounds.looks_max:
                cycle.work += passed_over
                yield number, None
                return
