"""Operations of our own on the `$management` node: what users of Service Bus have asked for in vain
(AMQP contract 7.5).

Requests and responses have the form of the service's own operations. All names begin with `partibus:`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from broker.access.addresses import Address
from broker.base.clock import wall_ahead_ms
from broker.base.errors import Reason, Refused
from broker.frontend.connection_view import ConnectionView
from broker.frontend.nodes.bodies import (
    Operations,
    check_fields,
    elements,
    expirations,
    integer,
    integers,
    known_fields_only,
    lock_tokens,
    longs,
    ok,
    uints,
)
from broker.frontend.nodes.request_node import Response
from broker.frontend.nodes.session_requests import deleted_session_of, renew_session_lock
from broker.messaging.asking import renew_locks
from broker.messaging.housekeeping import (
    Exactly,
    Progress,
    check_redrive,
    delete_exactly,
    purge,
    redrive,
    redrive_exactly,
)
from broker.messaging.scheduling import check_schedules, reschedule
from broker.namespace.entity import Entity
from broker.operations.message_states import MessageState, SubqueueCounts
from protocol.codec import Int, Long

MESSAGES_MAX = 4_000
"""Messages that one request deletes or re-drives at most."""
NEVER_MS = 1 << 62
"""Later than all enqueued times."""
STATES: Final[Mapping[str, MessageState]] = {state.name.lower(): state for state in MessageState}
OWN_PAGES = frozenset(("partibus:delete-messages", "partibus:purge-messages", "partibus:redrive-messages"))
"""Operations that may concern thousands of messages; each connection has one served at a time."""
OWN_WITHOUT_BODY = frozenset(("partibus:count-messages",))
"""Operations whose requests may have no body."""
OWN_AT_ONCE = frozenset(("partibus:renew-lock", "partibus:count-messages"))
"""Operations that read or lock, and so are no part of any transaction."""

_SELECTION = ("enqueued-time-utc", "message-count", "from-sequence-number")
FIELDS: Final[Mapping[str, frozenset[str]]] = {
    "partibus:delete-messages": frozenset(("sequence-numbers",)),
    "partibus:purge-messages": frozenset(("states", "session-id", *_SELECTION)),
    "partibus:redrive-messages": frozenset(("sequence-numbers", "deadletter-reason", *_SELECTION)),
    "partibus:renew-lock": frozenset(("lock-tokens", "session-id", "duration")),
    "partibus:count-messages": frozenset(),
    "partibus:reschedule-messages": frozenset(("sequence-numbers", "scheduled-enqueue-time")),
    "partibus:deliver-scheduled-messages": frozenset(("sequence-numbers",)),
}
"""The fields that the request of each operation may have. A misspelt field that narrows a selection must not
widen it, so no other is accepted."""


class OwnOperations:
    """Serves one connection's requests about one subqueue."""

    def __init__(self, connection: ConnectionView, address: Address, entity: Callable[[], Entity]) -> None:
        """`entity` gives the entity as it is found at the time of a request."""
        self._connection, self._entity = connection, entity
        self._name, self._subqueue, self._path = address.entity, address.subqueue, address.path

    async def _delete(self, body: dict[str, Any]) -> Response:
        """Delete the messages with these sequence numbers, in any state but locked."""
        entity = self._entity()
        entity.check_can_receive(self._subqueue)
        result = await delete_exactly(entity, self._subqueue, _numbers(body))
        return ok(
            {
                "deleted": longs(result.done),
                "locked": longs(result.locked),
                "missing": longs(result.missing),
            }
        )

    async def _purge(self, body: dict[str, Any]) -> Response:
        """Delete messages by their state, age and session, a bounded number for each request."""
        entity = self._entity()
        entity.check_can_receive(self._subqueue)
        progress = await purge(
            entity,
            self._subqueue,
            _states(body),
            _before_ms(body),
            _count(body),
            _start(body),
            deleted_session_of(entity, self._subqueue, body),
        )
        return _progress(progress)

    async def _redrive(self, body: dict[str, Any]) -> Response:
        """Send dead letters to their queue again: those with these sequence numbers, or those that match a
        reason and an age."""
        entity = self._entity()
        services = self._connection.services
        # On the node's own path: the token of an official client covers the dead-letter queue alone, and
        # its key has the right or has it not.
        self._connection.authorize(self._path, "Send")
        check_redrive(entity, self._subqueue)
        services.memory.admit(1)
        if "sequence-numbers" in body:
            check_fields(body, frozenset(("sequence-numbers",)), "A request with 'sequence-numbers'")
            numbers = _numbers(body)
            result = await redrive_exactly(entity, self._subqueue, numbers, lambda: services.redrives)
            return _redriven(result)
        reason = body.get("deadletter-reason")
        if reason is not None and not isinstance(reason, str):
            raise Refused(Reason.ARGUMENT, "'deadletter-reason' must be a string.")
        progress = await redrive(
            entity,
            self._subqueue,
            reason,
            _before_ms(body),
            _count(body),
            _start(body),
            lambda: services.redrives,
        )
        return _progress(progress)

    async def _renew_lock(self, body: dict[str, Any]) -> Response:
        """Have locks, or the lock of a session, last for a given time from now, instead of the entity's lock
        duration."""
        tokens = [] if body.get("session-id") is not None else lock_tokens(body)
        duration_ms = integer(body, "duration")
        duration_ms_max = self._connection.services.settings.lock_renewal_ms_max
        if not 0 < duration_ms <= duration_ms_max:
            raise Refused(
                Reason.ARGUMENT,
                f"duration is {duration_ms} ms; it must be from 1 to {duration_ms_max} "
                "(PARTIBUS_LOCK_RENEWAL_MS_MAX).",
            )
        if not tokens:
            session = renew_session_lock(self._connection, self._entity(), self._subqueue, body, duration_ms)
            return ok(await session)
        until_ms = await renew_locks(self._entity(), self._subqueue, tokens, duration_ms)
        return expirations(until_ms, wall_ahead_ms(self._connection.services.clock))

    async def _reschedule(self, body: dict[str, Any]) -> Response:
        """Give scheduled messages another time."""
        at_ms = integer(body, "scheduled-enqueue-time")
        return await self._at(body, at_ms, "rescheduled")

    async def _deliver(self, body: dict[str, Any]) -> Response:
        """Enqueue scheduled messages now."""
        return await self._at(body, 0, "delivered")

    async def _at(self, body: dict[str, Any], at_ms: int, done: str) -> Response:
        """Have scheduled messages enqueued at this time, in wall time; `done` names the field with their
        sequence numbers."""
        check_schedules(self._entity(), self._subqueue)
        numbers = list(dict.fromkeys(_numbers(body)))
        missing = frozenset(await reschedule(self._entity(), numbers, at_ms))
        return ok(
            {
                done: longs([each for each in numbers if each not in missing]),
                "missing": longs([each for each in numbers if each in missing]),
            }
        )

    async def _count(self, body: dict[str, Any]) -> Response:
        """Count the messages of the subqueue by state, over all partitions. Messages kept ready for a
        receiver do not count as locked, and stay ready."""
        await self._connection.served.namespace.runtime(self._name)
        counts = self._entity().counts_of((self._subqueue,)).get(self._subqueue, SubqueueCounts())
        kept_ready = self._entity().kept_ready.get(self._subqueue, 0)
        return ok(
            {
                "active": Long(counts.active),
                "locked": Long(max(0, counts.locked - kept_ready)),  # some locks may have just run out
                "deferred": Long(counts.deferred),
                "scheduled": Long(counts.scheduled),
                "size-in-bytes": Long(counts.bytes),
            }
        )


OWN_OPERATIONS: Operations[OwnOperations] = known_fields_only(
    {
        "partibus:delete-messages": ("Listen", OwnOperations._delete),
        "partibus:purge-messages": ("Listen", OwnOperations._purge),
        "partibus:redrive-messages": ("Listen", OwnOperations._redrive),
        "partibus:renew-lock": ("Listen", OwnOperations._renew_lock),
        "partibus:count-messages": ("Listen", OwnOperations._count),
        "partibus:reschedule-messages": ("Send", OwnOperations._reschedule),
        "partibus:deliver-scheduled-messages": ("Send", OwnOperations._deliver),
    },
    FIELDS,
)


def _redriven(result: Exactly) -> Response:
    return ok(
        {
            "message-count": Int(len(result.done)),
            "redriven": longs(result.done),
            "sequence-numbers": longs(result.new_numbers),
            "missing": longs(result.missing),
        }
    )


def _progress(progress: Progress) -> Response:
    """The response to a walk. Raises the first refusal if nothing was done and nothing is left to do."""
    if progress.refusals and not progress.count and progress.next_sequence_number is None:
        raise next(iter(progress.refusals.values()))
    body: dict[str, Any] = {"message-count": Int(progress.count)}
    if progress.next_sequence_number is not None:
        body["next-sequence-number"] = Long(progress.next_sequence_number)
    if progress.refusals:
        body["unavailable-partitions"] = uints(progress.refusals)
    return ok(body)


def _numbers(body: dict[str, Any]) -> list[int]:
    numbers = integers(body, "sequence-numbers")
    if not numbers:
        raise Refused(Reason.ARGUMENT, "sequence-numbers is empty.")
    return numbers


def _states(body: dict[str, Any]) -> list[int]:
    """The states named in `states`; all of them if there is no such field."""
    if "states" not in body:
        return sorted(STATES.values())
    names = elements(body, "states")
    unknown = [name for name in names if not isinstance(name, str) or name not in STATES]
    if unknown or not names:
        raise Refused(
            Reason.ARGUMENT, f"'states' must hold some of {', '.join(STATES)}, and not {unknown!r:.80}."
        )
    return sorted({STATES[name] for name in names})


def _before_ms(body: dict[str, Any]) -> int:
    return integer(body, "enqueued-time-utc", NEVER_MS)


def _count(body: dict[str, Any]) -> int:
    count = integer(body, "message-count", MESSAGES_MAX)
    if not 0 < count <= MESSAGES_MAX:
        raise Refused(Reason.ARGUMENT, f"message-count is {count}; it must be from 1 to {MESSAGES_MAX}.")
    return count


def _start(body: dict[str, Any]) -> int:
    return integer(body, "from-sequence-number", 0)
