"""Requests of clients that read and write by position (AMQP contract 7.6): Spark's source and sink above all.

Requests and responses have the form of the service's own operations. All names begin with `partibus:`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from broker.access.addresses import Address
from broker.frontend.connection_view import ConnectionView
from broker.frontend.nodes.bodies import Operation, Operations, integer, integers, ok, with_known_fields
from broker.frontend.nodes.request_node import Response
from broker.messaging.positions import by_partition, find_positions
from broker.namespace.entity import Entity
from protocol.codec import Array, Long, TypeCode, UInt

STREAM_WITHOUT_BODY = frozenset(("partibus:get-positions",))
"""Operations whose requests may have no body."""
STREAM_AT_ONCE = frozenset(("partibus:get-positions",))
"""Operations that only read, and so are no part of any transaction."""
FIELDS: Final = {
    "partibus:get-positions": frozenset(("enqueued-time", "positions")),
}
"""The fields that the request of each operation may have."""


class StreamRequests:
    """Serves one connection's requests about one subqueue."""

    def __init__(self, connection: ConnectionView, address: Address, queue: Callable[[], Entity]) -> None:
        """`queue` gives the entity as it is found at the time of a request."""
        self._connection, self._queue, self._subqueue = connection, queue, address.subqueue
        operations: dict[str, tuple[str, Operation]] = {
            "partibus:get-positions": ("Listen", self._get_positions),
        }
        self.operations: Operations = {
            name: (right, with_known_fields(name, FIELDS[name], operation))
            for name, (right, operation) in operations.items()
        }
        """The right that each operation needs, and the function that carries it out."""

    async def _get_positions(self, body: dict[str, Any]) -> Response:
        """Where the messages of all partitions begin and end, and how many there are."""
        queue = self._queue()
        enqueued_from_ms = integer(body, "enqueued-time") if "enqueued-time" in body else None
        backlogs_from = by_partition(queue, integers(body, "positions")) if "positions" in body else None
        found, refusals = await find_positions(queue, self._subqueue, enqueued_from_ms, backlogs_from)
        if refusals and not found:
            raise next(iter(refusals.values()))
        positions = found.values()
        response: dict[str, Any] = {
            "generation": queue.description.generation,
            "partitions": uints(found),
            "starts": longs(each.start for each in positions),
            "heads": longs(each.head for each in positions),
            "messages": longs(each.messages for each in positions),
            "bytes": longs(each.bytes for each in positions),
        }
        if enqueued_from_ms is not None:
            response["positions-by-time"] = longs(each.by_time or each.head for each in positions)
        if backlogs_from is not None:
            response["backlogs"] = longs(each.backlog or 0 for each in positions)
        if refusals:
            response["unavailable-partitions"] = uints(refusals)
        return ok(response)


def longs(numbers: Iterable[int]) -> Array:
    """An array of long."""
    return Array(TypeCode.LONG, [Long(number) for number in numbers])


def uints(numbers: Iterable[int]) -> Array:
    """An array of uint."""
    return Array(TypeCode.UINT, [UInt(number) for number in numbers])
