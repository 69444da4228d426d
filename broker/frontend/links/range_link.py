"""Reading a range: a receiver whose source says `distribution-mode: copy` and has the filter
`partibus:range` (AMQP contract 7.6.2).

Each delivery is an envelope of many active messages of one partition, read by one operation. The link keeps
nothing but its place in the range, so any number of readers can read the same range, and one that has lost
its connection goes on where its last envelope ended. The broker reads only a few pages at a time
(`PagePlaces`), and each connection one, so the memory for envelopes is bounded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Self

from broker.access.addresses import Address
from broker.base.errors import Reason, Refused
from broker.frontend.connection_view import ConnectionView
from broker.frontend.links.copies import CopyLink
from broker.frontend.links.termini import RANGE, SESSION_FILTERS, filters_of, generation_of
from broker.identifiers import partition_of
from broker.message.range_envelope import range_envelope
from broker.namespace.entity import Entity, ask
from broker.operations.streams import RangeRead, ReadRange
from protocol.codec import Described
from protocol.links import Link

DESCRIPTOR: Final = "partibus:range:map"
MESSAGES, MESSAGES_MAX = 1_000, 4_096
BYTES_MAX = 1024 * 1024
_FIELDS = frozenset(("from", "to", "messages", "bytes", "undecided"))


@dataclass(slots=True, frozen=True)
class Range:
    """What a client wants to read."""

    partition: int
    begin: int
    end: int | None
    messages: int
    """In an envelope, at most."""
    bytes: int
    """Of messages in an envelope, at most, but for a first message that is larger."""
    undecided: bool
    """Also what is beyond the head."""

    @classmethod
    def of(cls, value: Any, partitions: int) -> Self:
        """Read the value of the filter. Raises Refused(ARGUMENT)."""
        if isinstance(value, Described):
            if value.descriptor != DESCRIPTOR:
                raise _wrong(f"is described as {value.descriptor!r:.80}, not as {DESCRIPTOR!r}")
            value = value.value
        if not isinstance(value, dict):
            raise _wrong("must be a map")
        given = {str(key): each for key, each in value.items()}
        if unknown := [key for key in given if key not in _FIELDS]:
            raise _wrong(
                f"has no field {str(unknown)[1:-1]:.200}; its fields are {', '.join(sorted(_FIELDS))}"
            )
        undecided = given.pop("undecided", False)
        if not isinstance(undecided, bool):
            raise _wrong(f"has the field 'undecided', which must be a boolean, not {undecided!r:.80}")
        for key, number in given.items():
            if not isinstance(number, int) or isinstance(number, bool) or number < 0:
                raise _wrong(f"has the field {key!r}, which must be an integer, not {number!r:.80}")
            given[key] = int(number)  # partitions are told plain numbers, not AMQP's types of them
        if "from" not in given:
            raise _wrong("needs the field 'from'")
        begin, end = given["from"], given.get("to")
        partition = partition_of(begin)
        if partition >= partitions:
            raise _wrong(f"begins in partition {partition}; there are {partitions}")
        if end is not None and (partition_of(end) != partition or end < begin):
            raise _wrong(f"ends at {end}, which does not follow {begin} in partition {partition}")
        messages, size = given.get("messages", MESSAGES), given.get("bytes", BYTES_MAX)
        if not 0 < messages <= MESSAGES_MAX or not 0 < size <= BYTES_MAX:
            raise _wrong(
                f"asks for envelopes of {messages} messages and {size} bytes; they hold from 1 to "
                f"{MESSAGES_MAX} messages and {BYTES_MAX} bytes"
            )
        return cls(partition, begin, end, messages, size, undecided)


class RangeLink(CopyLink):
    """A link on which a client reads a range. Owned by its connection."""

    @classmethod
    def attach(cls, connection: ConnectionView, link: Link, queue: Entity, address: Address) -> None:
        """Accept the link. Raises Refused."""
        queue.check_can_receive(address.subqueue)
        filters = filters_of(connection.engine, link)
        if other := filters.keys() & set(SESSION_FILTERS):
            raise Refused(
                Reason.NOT_IMPLEMENTED,
                f"A range has messages of all sessions: '{min(other)}' cannot be applied.",
            )
        wanted = Range.of(filters[RANGE], queue.description.partitions)
        connection.engine.accept_link(link, properties=generation_of(connection.engine, link, queue))
        link.context = cls(connection, link, queue, address, wanted)

    def __init__(
        self, connection: ConnectionView, link: Link, queue: Entity, address: Address, wanted: Range
    ) -> None:
        super().__init__(connection, link, queue, address)
        self._range = wanted
        self._next, self._end = wanted.begin, wanted.end
        """Where the next envelope begins, and the end of the range: None until the partition has said where
        its head is."""
        self._has_ended = self._is_reading = False

    def credit_granted(self) -> None:
        """Read on: the client's credit has changed, or the wire takes bytes again."""
        if self.link.gone or self._is_reading:
            return
        if self._has_ended:
            self._answer_drain()
        elif self._wanted() > 0:
            self._is_reading = True
            self._connection.spawn(self._read(), name=f"range of {self.queue.name}", size=0)

    async def _read(self) -> None:
        """Send envelope after envelope, until nothing more is wanted or the range ends."""
        connection = self._connection
        try:
            while not self.link.gone and not self._has_ended and self._wanted() > 0:
                async with connection.browse_page:
                    await connection.services.pages.read(
                        self.queue, self.subqueue, self._range.partition, self._read_part
                    )
        except Refused as why:  # the partition is down, or the range is beyond its head
            connection.close_link(self.link, why)
        except Exception:
            connection.fail()
        finally:
            self._is_reading = False
        if not self.link.gone and self._has_ended:
            self._answer_drain()

    async def _read_part(self) -> None:
        """Read a part of the range and send its envelope. If there is no room for it any more, it is read
        again later."""
        if self.link.gone or self._wanted() <= 0:
            return
        wanted = self._range
        size_max = max(min(wanted.bytes, self._connection.services.output.allowance), 1)
        handle = self.queue.router.handles[wanted.partition]
        operation = ReadRange(
            self.subqueue,
            self._next,
            self._end,
            wanted.messages,
            size_max,
            undecided=wanted.undecided,
        )
        read = await ask(handle, operation)
        assert isinstance(read, RangeRead), f"{read} is not an answer to ReadRange"
        if self.link.gone or self._wanted() <= 0:
            return
        description = self.queue.description
        envelope = range_envelope(
            read,
            self._next,
            wanted.partition,
            description.generation,
            partitioned=description.partitions > 1,
        )
        self._next, self._end, self._has_ended = read.next, read.end, read.next == read.end
        self._deliver([envelope], len(read.messages))


def _wrong(what: str) -> Refused:
    return Refused(Reason.ARGUMENT, f"The filter '{RANGE}' {what}.")
