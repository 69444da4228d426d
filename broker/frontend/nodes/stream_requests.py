"""Requests of clients that read and write by position (AMQP contract 7.6): Spark's source and sink above all.

Requests and responses have the form of the service's own operations. All names begin with `partibus:`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from broker.access.addresses import Address
from broker.base.errors import Reason, Refused
from broker.base.plurals import counted
from broker.frontend.connection_view import ConnectionView
from broker.frontend.nodes.bodies import (
    Operations,
    elements,
    integer,
    integers,
    known_fields_only,
    longs,
    ok,
    uints,
)
from broker.frontend.nodes.request_node import Response
from broker.messaging.cursors import (
    CursorParts,
    advance_cursor,
    ask_each,
    create_cursor,
    delete_cursor,
    get_cursor,
    list_cursors,
)
from broker.messaging.positions import by_partition, find_positions
from broker.messaging.storing import (
    commit_sink_batch,
    home_of,
    store_all,
    store_sink_batch,
    to_store,
)
from broker.namespace.entity import Entity, ask
from broker.operations.streams import (
    EARLIEST,
    LATEST,
    CreateCursor,
    GetSinkBatch,
    SettledThrough,
    SettleThrough,
    SinkBatch,
)
from protocol.codec import Long, UInt

NAME_BYTES_MAX = 128
"""The longest name of a cursor, of its owner or of a sink."""
EXPIRES_AFTER_MS_MAX = 10 * 365 * 24 * 3600 * 1000
STARTS: Final = {"earliest": EARLIEST, "latest": LATEST}
BATCH_MAX = (1 << 63) - 1
STREAM_PAGES = frozenset(("partibus:send-messages",))
"""Operations that may concern thousands of messages; each connection has one served at a time."""
STREAM_WITHOUT_BODY = frozenset(("partibus:get-positions", "partibus:list-cursors"))
"""Operations whose requests may have no body."""
STREAM_AT_ONCE = frozenset(
    ("partibus:get-positions", "partibus:get-cursor", "partibus:list-cursors", "partibus:get-batch")
)
"""Operations that only read, and so are no part of any transaction."""
FIELDS: Final = {
    "partibus:get-positions": frozenset(("enqueued-time", "positions", "cursor", "undecided")),
    "partibus:create-cursor": frozenset(
        ("cursor", "owner", "start", "positions", "take-over", "expires-after")
    ),
    "partibus:get-cursor": frozenset(("cursor",)),
    "partibus:advance-cursor": frozenset(("cursor", "owner", "positions", "complete")),
    "partibus:list-cursors": frozenset(),
    "partibus:delete-cursor": frozenset(("cursor", "owner")),
    "partibus:settle-through": frozenset(("positions",)),
    "partibus:send-messages": frozenset(("messages", "sink", "batch")),
    "partibus:commit-batch": frozenset(("sink", "batch", "partition")),
    "partibus:get-batch": frozenset(("sink", "partition", "will-commit")),
}
"""The fields that the request of each operation may have."""


class StreamRequests:
    """Serves one connection's requests about one subqueue."""

    def __init__(self, connection: ConnectionView, address: Address, entity: Callable[[], Entity]) -> None:
        """`entity` gives the entity as it is found at the time of a request."""
        self._connection, self._entity, self._subqueue = connection, entity, address.subqueue

    async def _get_positions(self, body: dict[str, Any]) -> Response:
        """Where the messages of all partitions begin and end, and how many there are."""
        entity = self._entity()
        entity.check_can_receive(self._subqueue)
        enqueued_from_ms = integer(body, "enqueued-time") if "enqueued-time" in body else None
        backlogs_from = by_partition(entity, integers(body, "positions")) if "positions" in body else None
        if "cursor" in body:
            if backlogs_from is not None:
                raise Refused(Reason.ARGUMENT, "A request has 'positions' or a 'cursor', not both.")
            cursor = await get_cursor(entity, self._subqueue, name_of(body, "cursor"))
            backlogs_from = {number: part.position for number, part in cursor.parts.items()}
        found, refusals = await find_positions(
            entity, self._subqueue, enqueued_from_ms, backlogs_from, undecided=flag(body, "undecided")
        )
        if refusals and not found:
            raise next(iter(refusals.values()))
        positions = found.values()
        response: dict[str, Any] = {
            "generation": entity.description.generation,
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

    async def _create_cursor(self, body: dict[str, Any]) -> Response:
        """Create a cursor, or give one that exists to its owner again."""
        entity = self._entity()
        entity.check_can_receive(self._subqueue)
        begin, begins = _begin(entity, body)
        expires_after_ms = integer(body, "expires-after", 0)
        if not 0 <= expires_after_ms <= EXPIRES_AFTER_MS_MAX:
            raise Refused(
                Reason.ARGUMENT,
                f"expires-after is {expires_after_ms} ms; it must be from 0 to {EXPIRES_AFTER_MS_MAX}.",
            )
        create = CreateCursor(
            self._subqueue,
            name_of(body, "cursor"),
            name_of(body, "owner"),
            begin,
            flag(body, "take-over"),
            expires_after_ms,
            self._connection.services.settings.cursors_max,
        )
        cursor = await create_cursor(entity, create, begins)
        return ok({"created": cursor.first.is_new, **_cursor(entity, cursor)})

    async def _get_cursor(self, body: dict[str, Any]) -> Response:
        """Where a cursor stands."""
        entity = self._entity()
        return ok(_cursor(entity, await get_cursor(entity, self._subqueue, name_of(body, "cursor"))))

    async def _advance_cursor(self, body: dict[str, Any]) -> Response:
        """Move a cursor forward, and complete what is before it if asked to."""
        entity, completes = self._entity(), flag(body, "complete")
        if completes:
            entity.check_can_receive(self._subqueue)
        positions = _positions(entity, body)
        name, owner = name_of(body, "cursor"), name_of(body, "owner")
        moved = await advance_cursor(entity, self._subqueue, name, owner, positions, completes)
        response = {
            "partitions": uints(moved),
            "positions": longs(each.position for each in moved.values()),
        }
        if completes:
            response["completed"] = longs(each.completed for each in moved.values())
            response["locked"] = longs(each.locked for each in moved.values())
        return ok(response)

    async def _list_cursors(self, body: dict[str, Any]) -> Response:
        """All cursors of the subqueue."""
        entity = self._entity()
        return ok({"cursors": [_cursor(entity, each) for each in await list_cursors(entity, self._subqueue)]})

    async def _delete_cursor(self, body: dict[str, Any]) -> Response:
        """Delete a cursor."""
        name, owner = name_of(body, "cursor"), name_of(body, "owner")
        return ok({"deleted": await delete_cursor(self._entity(), self._subqueue, name, owner)})

    async def _settle_through(self, body: dict[str, Any]) -> Response:
        """Complete everything before some positions that nobody has locked."""
        entity = self._entity()
        entity.check_can_receive(self._subqueue)
        positions = _positions(entity, body)
        answers = await ask_each(
            entity, {number: SettleThrough(self._subqueue, each) for number, each in positions.items()}
        )
        settled = [each for each in answers.values() if isinstance(each, SettledThrough)]
        assert len(settled) == len(answers), f"{answers} are not answers to SettleThrough"
        return ok(
            {
                "partitions": uints(answers),
                "completed": longs(each.completed for each in settled),
                "locked": longs(each.locked for each in settled),
            }
        )

    async def _send(self, body: dict[str, Any]) -> Response:
        """Store messages, with an outcome for each of them."""
        entity, services = self._entity(), self._connection.services
        self._check_takes_sends(entity)
        payloads = _payloads(body)
        has_batch = "sink" in body or "batch" in body
        sink, batch = (name_of(body, "sink"), _batch(body)) if has_batch else (b"", 0)
        collected = to_store(entity, payloads, memory=services.memory, message_id=services.message_id)
        if has_batch:
            sinks_max = services.settings.sinks_max
            outcomes, sent = await store_sink_batch(entity, collected, sink, batch, sinks_max)
            committed = {"committed": sent.is_new, "batch": Long(sent.batch)}
        else:
            outcomes, committed = await store_all(entity, collected), {}
            if outcomes.refusals:
                raise outcomes.refusals[0]
        return ok(
            {
                "accepted": UInt(len(payloads) - len(outcomes.duplicates)),
                "duplicates": uints(outcomes.duplicates),
                "sequence-numbers": longs(outcomes.numbers),
                **committed,
            }
        )

    async def _commit_batch(self, body: dict[str, Any]) -> Response:
        """Note that a sink has committed a batch."""
        entity, sink = self._entity(), name_of(body, "sink")
        self._check_takes_sends(entity)
        sinks_max = self._connection.services.settings.sinks_max
        number = _ledger(entity, body, sink)
        sent = await commit_sink_batch(entity, number, sink, _batch(body), sinks_max)
        return ok({"committed": sent.is_new, "batch": Long(sent.batch)})

    async def _get_batch(self, body: dict[str, Any]) -> Response:
        """Which batch a sink has committed; a refusal if it has none, means to, and there is no room."""
        entity, sink = self._entity(), name_of(body, "sink")
        self._check_takes_sends(entity)
        sinks_max = self._connection.services.settings.sinks_max if flag(body, "will-commit") else None
        get = GetSinkBatch(sink, sinks_max)
        answer = await ask(entity.router.handles[_ledger(entity, body, sink)], get)
        assert isinstance(answer, SinkBatch), f"{answer} is not an answer to GetSinkBatch"
        return ok({"batch": None if answer.batch is None else Long(answer.batch)})

    def _check_takes_sends(self, entity: Entity) -> None:
        if not entity.description.subqueues.takes_sends(self._subqueue):
            raise Refused(Reason.NOT_ALLOWED, "Messages cannot be sent here.")


STREAM_OPERATIONS: Operations[StreamRequests] = known_fields_only(
    {
        "partibus:get-positions": ("Listen", StreamRequests._get_positions),
        "partibus:create-cursor": ("Listen", StreamRequests._create_cursor),
        "partibus:get-cursor": ("Listen", StreamRequests._get_cursor),
        "partibus:advance-cursor": ("Listen", StreamRequests._advance_cursor),
        "partibus:list-cursors": ("Listen", StreamRequests._list_cursors),
        "partibus:delete-cursor": ("Listen", StreamRequests._delete_cursor),
        "partibus:settle-through": ("Listen", StreamRequests._settle_through),
        "partibus:send-messages": ("Send", StreamRequests._send),
        "partibus:commit-batch": ("Send", StreamRequests._commit_batch),
        "partibus:get-batch": ("Send", StreamRequests._get_batch),
    },
    FIELDS,
)


def _payloads(body: dict[str, Any]) -> list[bytes]:
    """The encoded messages of a request. Raises Refused."""
    payloads = elements(body, "messages")
    if not payloads or not all(isinstance(each, bytes) and each for each in payloads):
        raise Refused(Reason.ARGUMENT, "'messages' must hold at least one binary, each an encoded message.")
    return payloads


def _begin(entity: Entity, body: dict[str, Any]) -> tuple[int, dict[int, int]]:
    """Where a new cursor begins: EARLIEST or LATEST; and in which partitions at another position. Raises
    Refused."""
    start = body.get("start")
    if "positions" not in body:
        if start not in STARTS:
            raise Refused(
                Reason.ARGUMENT,
                f"'start' must be {' or '.join(STARTS)}, not {start!r:.80}, or give 'positions'.",
            )
        return STARTS[start], {}
    begins = by_partition(entity, integers(body, "positions"))
    if start is not None or len(begins) < entity.description.partitions:
        raise Refused(
            Reason.ARGUMENT,
            "'positions' must have one position for each of "
            f"{counted(entity.description.partitions, 'partition')}, and no 'start' beside it.",
        )
    return LATEST, begins


def _batch(body: dict[str, Any]) -> int:
    """The number of a batch. Raises Refused."""
    batch = integer(body, "batch")
    if not 0 <= batch <= BATCH_MAX:
        raise Refused(Reason.ARGUMENT, f"batch is {batch}; it must not be negative.")
    return batch


def _ledger(entity: Entity, body: dict[str, Any], sink: bytes) -> int:
    """The partition whose ledger a request is about. Raises Refused."""
    number = integer(body, "partition", home_of(entity, sink))
    if not 0 <= number < entity.description.partitions:
        raise Refused(
            Reason.ARGUMENT, f"There is no partition {number}: there are {entity.description.partitions}."
        )
    return number


def _positions(entity: Entity, body: dict[str, Any]) -> dict[int, int]:
    """At least one position. Raises Refused."""
    positions = by_partition(entity, integers(body, "positions"))
    if not positions:
        raise Refused(Reason.ARGUMENT, "positions is empty.")
    return positions


def _cursor(entity: Entity, cursor: CursorParts) -> dict[str, Any]:
    """A cursor in a response."""
    first, parts = cursor.first, cursor.parts
    return {
        "cursor": first.name.decode(),
        "owner": first.owner.decode(),
        "generation": entity.description.generation,
        "expires-after": Long(first.expires_after_ms),
        "partitions": uints(parts),
        "positions": longs(each.position for each in parts.values()),
        "backlogs": longs(each.backlog for each in parts.values()),
    }


def name_of(body: dict[str, Any], key: str) -> bytes:
    """A name: 1 to NAME_BYTES_MAX bytes in UTF-8. Raises Refused(ARGUMENT)."""
    value = body.get(key)
    name = value.encode() if isinstance(value, str) else b""
    if not 0 < len(name) <= NAME_BYTES_MAX:
        raise Refused(
            Reason.ARGUMENT, f"'{key}' must be a string of 1 to {NAME_BYTES_MAX} bytes, not {value!r:.80}."
        )
    return name


def flag(body: dict[str, Any], key: str) -> bool:
    """A boolean, false if it is missing. Raises Refused(ARGUMENT)."""
    value = body.get(key, False)
    if not isinstance(value, bool):
        raise Refused(Reason.ARGUMENT, f"'{key}' must be a boolean, not {value!r:.80}.")
    return value
