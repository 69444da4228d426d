"""What `$management` does for message sessions (AMQP contract 7.3.2, 7.3.8, 7.3.9).

A request that needs the lock of a session is carried out for the link of the same connection that holds the
session. Without such a link, the lock counts as lost.
"""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from typing import Any

from broker.base.clock import wall_ahead_ms
from broker.base.errors import Reason, Refused
from broker.frontend.connection_view import ConnectionView
from broker.frontend.links.termini import no_session
from broker.frontend.nodes.bodies import integer
from broker.identifiers import ClientId, decode_session_id, encode_session_id, partition_of
from broker.message.annotations import peeked_messages
from broker.messaging.asking import answer_of
from broker.messaging.page_places import PagePlaces
from broker.messaging.peeking import LATE_S, PAGE_WITHIN_S, note_unseen, peek_partition
from broker.namespace.entity import Entity, ask
from broker.operations.browsing import Peek, Peeked
from broker.operations.general import Updated
from broker.operations.interface import Answer, Operation
from broker.operations.outlook import outlook_of
from broker.operations.sessions import (
    GetSessionState,
    ListSessions,
    RenewSession,
    SessionList,
    SessionRenewed,
    SessionState,
    SetSessionState,
)
from protocol.codec import Array, Int, Timestamp, TypeCode

SESSIONS_MAX = 10_000
"""Sessions that one page may list."""
SKIPPED_MAX = (1 << 31) - 1 - SESSIONS_MAX
"""Sessions that a request may skip: where the next page begins must fit into an AMQP int."""
LIST_WITHIN_S = 5.0
"""A list waits this long for partitions that are late, all together; then it leaves out those that do not
answer in a moment."""
MOMENT_S = LATE_S + 0.05
"""Enough to find out that a partition is late."""
EVER_MS = 253_402_300_799_999
"""A `last-updated-time` from this one on asks for all sessions. Clients send the end of the year 9999, which
some of them round up."""


def session_of(entity: Entity, subqueue: str, body: dict[str, Any]) -> str | None:
    """The session that a request names; None if it names none. Raises Refused if the entity has no
    sessions."""
    session_id = _given(body)
    if session_id is not None and not entity.requires_session(subqueue):
        raise no_session(entity, subqueue)
    return session_id


def _given(body: dict[str, Any]) -> str | None:
    session_id = body.get("session-id")
    if session_id is not None and not isinstance(session_id, str):
        raise Refused(Reason.ARGUMENT, f"'session-id' must be a string, not {session_id!r:.80}.")
    return session_id


def deleted_session_of(entity: Entity, subqueue: str, body: dict[str, Any]) -> str | None:
    """The session whose messages a request deletes; None if it deletes those of all sessions.

    Dead letters keep their session, so a dead-letter queue can be asked as well. Raises Refused if the entity
    has no sessions, because the request would otherwise delete more than its client meant.
    """
    session_id = _given(body)
    if session_id is None:
        return None
    if not entity.requires_session(entity.description.subqueues.main_of(subqueue)):
        raise Refused(
            Reason.ARGUMENT,
            f"The entity '{entity.path_of(subqueue)}' has no sessions: leave out the session id.",
        )
    return session_id


def needed_session_of(entity: Entity, subqueue: str, body: dict[str, Any]) -> str:
    """As `session_of`, but raises Refused if the request names no session."""
    session_id = _given(body)
    if not entity.requires_session(subqueue):
        raise no_session(entity, subqueue)
    if session_id is None:
        raise Refused(
            Reason.ARGUMENT,
            f"The entity '{entity.path_of(subqueue)}' requires sessions: the request needs a 'session-id'.",
        )
    return session_id


def holder_of(connection: ConnectionView, entity: Entity, subqueue: str, session_id: str) -> ClientId:
    """The link of this connection that holds a session. Raises Refused(SESSION_LOCK_LOST)."""
    holder = connection.session_holders.holding(entity, subqueue, session_id)
    if holder is None:
        raise Refused(
            Reason.SESSION_LOCK_LOST,
            f"No receiver of this connection holds the lock of session '{session_id}'. Accept the session "
            "again.",
        )
    return holder


def session_lock_ended(session_id: str) -> Refused:
    """The refusal of a settlement in a session whose partition went down."""
    return Refused(
        Reason.SESSION_LOCK_ENDED,
        f"The lock of session '{session_id}' has ended, because its partition is not available. Accept the "
        "session again.",
    )


async def _ask_holding(entity: Entity, session_id: str, operation: Operation) -> Answer:
    """Ask the partition of a session that a client holds, even if it is down: then it says that the lock has
    ended. Raises Refused."""
    return await ask(entity.router.handles[entity.router.number_of(session_id)], operation)


async def renew_session_lock(
    connection: ConnectionView,
    entity: Entity,
    subqueue: str,
    body: dict[str, Any],
    duration_ms: int | None = None,
) -> dict[str, Any]:
    """Renew the lock of a session, by the entity's lock duration unless another is given. Raises Refused."""
    session_id = needed_session_of(entity, subqueue, body)
    holder = holder_of(connection, entity, subqueue, session_id)
    operation = RenewSession(subqueue, encode_session_id(session_id), holder, duration_ms=duration_ms)
    answer = await _ask_holding(entity, session_id, operation)
    assert isinstance(answer, SessionRenewed), f"{answer} is not an answer to RenewSession"
    ahead_ms = wall_ahead_ms(connection.services.clock)
    return {"expiration": Timestamp(answer.locked_until_ms + ahead_ms)}


async def set_session_state(
    connection: ConnectionView, entity: Entity, subqueue: str, body: dict[str, Any]
) -> dict[str, Any]:
    """Store the state of a session, or clear it. Raises Refused."""
    session_id = needed_session_of(entity, subqueue, body)
    state = body.get("session-state")
    if "session-state" not in body or not isinstance(state, bytes | None):
        raise Refused(
            Reason.ARGUMENT, f"'session-state' must be binary, or null to clear it, not {state!r:.80}."
        )
    state = state or None  # the Go client sends empty bytes to clear it
    settings = connection.services.settings
    size_max = min(settings.session_state_kb_max * 1024, entity.message_bytes_max)
    if state is not None and len(state) > size_max:
        raise Refused(
            Reason.QUOTA_EXCEEDED,
            f"The state has {len(state)} bytes; the maximum for a session is {size_max}.",
        )
    holder = holder_of(connection, entity, subqueue, session_id)
    operation = SetSessionState(
        subqueue, encode_session_id(session_id), holder, state, settings.session_states_max
    )
    answer = await _ask_holding(entity, session_id, operation)
    assert isinstance(answer, Updated), f"{answer} is not an answer to SetSessionState"
    return {}


async def get_session_state(
    connection: ConnectionView, entity: Entity, subqueue: str, body: dict[str, Any]
) -> dict[str, Any]:
    """Fetch the state of a session. Raises Refused."""
    session_id = needed_session_of(entity, subqueue, body)
    holder = holder_of(connection, entity, subqueue, session_id)
    operation = GetSessionState(subqueue, encode_session_id(session_id), holder)
    answer = await _ask_holding(entity, session_id, operation)
    assert isinstance(answer, SessionState), f"{answer} is not an answer to GetSessionState"
    return {"session-state": answer.state}


async def list_sessions(
    entity: Entity, subqueue: str, body: dict[str, Any], places: PagePlaces
) -> dict[str, Any] | None:
    """One page of the sessions, over all partitions in order; None if there are none.

    Skips partitions that are down or do not answer. Raises Refused, also if only these may have more to show.
    """
    if not entity.requires_session(subqueue):
        raise no_session(entity, subqueue)
    skip, top = integer(body, "skip"), integer(body, "top")
    if not 0 <= skip <= SKIPPED_MAX or not 0 < top <= SESSIONS_MAX:
        raise Refused(
            Reason.ARGUMENT,
            f"skip is {skip} and top is {top}; top must be from 1 to {SESSIONS_MAX}, and skip at most "
            f"{SKIPPED_MAX}.",
        )
    since_ms = integer(body, "last-updated-time")
    found: list[str] = []
    left = skip
    down: list[int] = []
    loop = asyncio.get_running_loop()
    ends_s = loop.time() + LIST_WITHIN_S
    for number, handle in enumerate(entity.router.handles):
        operation = ListSessions(subqueue, left, top - len(found), None if since_ms >= EVER_MS else since_ms)
        answer: Answer | Refused | None = None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(max(ends_s, loop.time() + MOMENT_S)):
                answer = await places.read(entity, subqueue, number, partial(answer_of, handle, operation))
        if answer is None or isinstance(answer, Refused):
            if answer is not None and answer.reason is not Reason.PARTITION_UNAVAILABLE:
                raise answer
            down.append(number)
            note_unseen(entity, number)
            continue
        entity.router.unseen.discard(number)
        assert isinstance(answer, SessionList), f"{answer} is not an answer to ListSessions"
        found += map(decode_session_id, answer.session_ids)
        left -= answer.skipped
        if len(found) == top:
            break
    if not found and down:
        raise Refused(
            Reason.PARTITION_UNAVAILABLE,
            "There are no sessions to list but those that may be in partitions of "
            f"'{entity.path_of(subqueue)}' that are not available: {', '.join(map(str, down))}. "
            f"{entity.outlook(down)}",
        )
    if not found:
        return None
    return {"skip": Int(skip + len(found)), "sessions-ids": Array(TypeCode.STRING, found)}


async def peek_session(
    entity: Entity,
    subqueue: str,
    session_id: str,
    start: int,
    count: int,
    bytes_max: int,
    places: PagePlaces,
) -> list[bytes]:
    """One page of a session's messages, from a sequence number on. Raises Refused."""
    number = entity.router.number_of(session_id)
    if partition_of(start) > number:
        return []
    peek = Peek(subqueue, start, count, bytes_max=bytes_max, session_id=encode_session_id(session_id))
    peeked: Peeked | None = None
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(PAGE_WITHIN_S):
            read = partial(peek_partition, entity, number, peek)
            peeked = await places.read(entity, subqueue, number, read)
    if peeked is None:
        raise Refused(
            Reason.PARTITION_UNAVAILABLE,
            f"Partition {number}, which holds session '{session_id}', {outlook_of(entity.health()[number])}",
        )
    return peeked_messages(peeked, partitioned=entity.description.partitions > 1)
