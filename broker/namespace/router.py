"""Choose the partition for each message: the router of one entity (AMQP contract 10.7).

The key of a message is its session-id, else its partition-key, else its message-id if the entity detects
duplicates. A key pins its messages to one partition by a stable hash. Messages without a key go round robin
over the partitions that are available and not known to be full, and whose disk answers. A keyed send to a
partition that is down is refused, and may be retried.

The hash is documented for clients (docs/partitioning.md): BLAKE2b with an 8-byte digest over the key's UTF-8
bytes, read as a big-endian number, modulo the number of partitions. It never changes for an entity. The
native code (`broker/native/placing.c`) divides a whole run of messages in one call.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Sequence
from hashlib import blake2b
from typing import Any, Protocol

from broker.base.errors import Reason, Refused
from broker.identifiers import ClientId, partition_of, partition_of_token
from broker.namespace._placing import divide
from broker.operations.interface import Operation, Sink
from broker.operations.outlook import outlook_of, outlook_of_all
from broker.operations.sending import Send

RUN_MESSAGES_MAX = 128
EVEN_TO = 16
"""Partitions' message counts differ by at most one part in this many."""
FULL_S = 1.0
"""After a partition was full, prefer others for this many seconds. Then try it again, since it may have been
emptied."""


class PartitionHandle(Protocol):
    """The one way to reach a partition: operations in, answers to the sink."""

    @property
    def available(self) -> bool:
        """Whether it takes operations now, or will as soon as it is open."""

    def post(self, operation: Operation, client: ClientId, sink: Sink) -> None:
        """Put an operation into the partition's mailbox. Never blocks, never drops."""


class RoutedPartition(PartitionHandle, Protocol):
    """A partition among which a router chooses."""

    @property
    def health(self) -> str:
        """The partition's state, as people read it."""

    @property
    def awaits_more(self) -> bool:
        """Whether it has nothing to do, or messages wait there for others to go with them. False if that is
        not known."""

    def join(self, more: Send, client: ClientId, cookie: object) -> bool:
        """Add messages to the client's send with this cookie if it waits in the mailbox, and nothing has come
        after it; then they are stored or refused together, with one answer. Returns whether they were
        added."""


def partition_of_key(key: str, partitions: int) -> int:
    """The partition that a key pins its messages to."""
    return (
        int.from_bytes(blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")
        % partitions
    )


class Router:
    """Chooses among the partitions of one entity. Owned by the event loop."""

    def __init__(
        self, handles: Sequence[RoutedPartition], slow: Callable[[bool], Collection[int]] = lambda anew: ()
    ) -> None:
        """`slow` gives the partitions that get messages without a key only if there are no others, because
        their disk has left something unanswered. Its argument says whether to look at the disks anew."""
        self.handles, self._slow = handles, slow
        self._given = [0] * len(handles)
        """Messages without a key so far, by partition."""
        self._passed: set[int] = set()
        """Partitions that the last spread passed over: unavailable or full."""
        self._full_until: dict[int, float] = {}
        """Recently full partitions, and when to try each again."""
        self.unseen: set[int] = set()
        """Partitions that browsers skip because they are down, for which this has been logged."""
        self.late: set[int] = set()
        """Partitions that were late for a browser and have not answered since. Browsers ask others first."""
        self._next = 0
        self._last = self._run_left = 0
        """The partition that got a run last, and how many more messages the run may have."""

    def keyed(self, key: str) -> PartitionHandle:
        """The partition of a key. Raises Refused(PARTITION_UNAVAILABLE) while it is down."""
        return self.pinned(self.number_of(key))

    def number_of(self, key: str) -> int:
        """The number of the partition that a key pins its messages to."""
        return partition_of_key(key, len(self.handles))

    def divide(
        self, keys: Sequence[str | None], lists: Sequence[Sequence[Any]]
    ) -> list[tuple[int | None, Sequence[Sequence[Any]]]]:
        """Divide lists with one value for each message by the partitions that the messages' keys pin them
        to. Gives the number of each partition, None for the messages without a key, with its part of each
        list. A list may also be empty."""
        return [(number, parts) for number, *parts in divide(keys, len(self.handles), lists)]

    def pinned(self, number: int) -> RoutedPartition:
        """A partition that messages are pinned to. Raises Refused(PARTITION_UNAVAILABLE) while it is down."""
        handle = self.handles[number]
        if not handle.available:
            raise Refused(
                Reason.PARTITION_UNAVAILABLE,
                f"Partition {number}, where this key belongs, {outlook_of(handle.health)}",
            )
        return handle

    def spread(self, count: int, now: float) -> list[tuple[int, int, int]]:
        """Divide `count` messages without a key into runs (partition, from, to), each for the partition that
        has received the fewest.

        `now` is in seconds, from any clock that does not run backwards.

        The first messages that arrive one at a time go round robin over the partitions. Under load each
        partition gets a run, because a commit costs the same for one message as for thirty. A run is at most
        a sixteenth of what each partition got before, so the counts stay even to one part in sixteen (and to
        one message while they are small). It is also at most RUN_MESSAGES_MAX, unless there are more messages
        than that for every partition. Messages that come while the partition of the last run awaits more join
        that run, within these bounds: if it gathers, they share a commit, and if it has nothing to do, what
        it used last is still in the processor's caches. Raises Refused(PARTITION_UNAVAILABLE) if no partition
        is available.
        """
        given, handles = self._given, self.handles
        if count <= self._run_left:
            last = handles[self._last]
            if last.awaits_more and last.available:
                self._run_left -= count
                given[self._last] += count
                return [(self._last, 0, count)]
        numbers = [number for number, handle in enumerate(handles) if handle.available]
        if not numbers:
            raise Refused(
                Reason.PARTITION_UNAVAILABLE,
                "No partition of the entity is available. "
                + outlook_of_all({number: handle.health for number, handle in enumerate(handles)}),
            )
        numbers = self._usual(numbers, now)
        if self._passed or len(numbers) < len(handles):
            self._keep_pace(numbers)
        least = min(map(given.__getitem__, numbers))
        even = min(RUN_MESSAGES_MAX, least // EVEN_TO)
        run = max(-(-count // len(numbers)), even)
        first = bisect_left(numbers, self._next)
        numbers = numbers[first:] + numbers[:first]
        runs, start = [], 0
        while start < count:
            stop = min(start + run, count)
            number = min(numbers, key=given.__getitem__)  # on a tie, the next in order
            given[number] += stop - start
            runs.append((number, start, stop))
            self._last, self._run_left = number, even - (stop - start)
            start, self._next = stop, number + 1
        return runs

    def full(self, number: int, now: float) -> None:
        """A partition has refused messages because it is full: prefer others for a while."""
        self._run_left = 0
        self._full_until[number] = now + FULL_S

    def another(self, refused_by: Collection[int], count: int, now: float) -> int | None:
        """Choose a partition for `count` messages that others have refused; None if no other one is
        available."""
        numbers = [
            number
            for number, handle in enumerate(self.handles)
            if handle.available and number not in refused_by
        ]
        if not numbers:
            return None
        number = min(self._usual(numbers, now, anew=True), key=self._given.__getitem__)
        self._given[number] += count
        return number

    def _usual(self, numbers: list[int], now: float, *, anew: bool = False) -> list[int]:
        """Partitions that are neither slow nor known to be full. If none is left, those that are not slow; if
        none of these, all."""
        if slow := self._slow(anew):
            numbers = [number for number in numbers if number not in slow] or numbers
        return self._with_room(numbers, now) if self._full_until else numbers

    def _with_room(self, numbers: list[int], now: float) -> list[int]:
        """Partitions not known to be full; all of them if that leaves none, because a message too large for
        one may fit in another."""
        for number in [number for number, until in self._full_until.items() if until <= now]:
            del self._full_until[number]
        return [number for number in numbers if number not in self._full_until] or numbers

    def _keep_pace(self, taking: Sequence[int]) -> None:
        """Do not give a returning partition everything it missed."""
        back = self._passed.intersection(taking)
        others = [self._given[number] for number in taking if number not in back]
        for number in back:
            self._given[number] = max(self._given[number], min(others, default=0))
        self._passed = set(range(len(self.handles))).difference(taking)

    def of_sequence_number(self, sequence_number: int) -> PartitionHandle:
        """The partition that assigned a sequence number. Raises Refused(MESSAGE_NOT_FOUND) if none can have
        assigned it."""
        number = partition_of(sequence_number)
        if not 0 <= number < len(self.handles):
            raise Refused(Reason.MESSAGE_NOT_FOUND, f"No message has the sequence number {sequence_number}.")
        return self.handles[number]

    def of_token(self, token: bytes) -> PartitionHandle | None:
        """The partition that issued a lock token; None if none can have issued it."""
        number = partition_of_token(token)
        return self.handles[number] if len(token) == 16 and number < len(self.handles) else None
