"""Links on which clients receive from a message session (AMQP contract 5.4).

The filter of the attach names a session, or asks for the next one that is free. The attach is answered once
the session is locked, with its id and the end of its lock, or refused before the client stops waiting. From
then on the link is an outgoing link for the session's messages. It closes when the session is lost.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from broker.access.addresses import Address
from broker.base.clock import wall_ahead_ms
from broker.base.errors import Reason, Refused
from broker.base.ticks import EPOCH_TICKS, TICKS_PER_MS
from broker.frontend.connection_view import ConnectionView
from broker.frontend.links.delayed_attach import Later
from broker.frontend.links.outgoing import OutgoingLink
from broker.frontend.links.receive_watch import ReceiveWatch
from broker.frontend.links.termini import SESSION_FILTERS, filters_of, generation_of, no_session
from broker.identifiers import ClientId
from broker.message.stored import KEY_CHARACTERS_MAX
from broker.messaging.accepting_sessions import HeldSession, accept_named
from broker.namespace.entity import Entity
from protocol.codec import Described, Long, Symbol, ULong, encode
from protocol.links import Link

LOCKED_UNTIL = Symbol("com.microsoft:locked-until-utc")
TIMEOUT = "com.microsoft:timeout"
NON_EXCLUSIVE = 0x0000_0013_7000_000E
"""The descriptor of the filter with which clients share a session."""
NON_EXCLUSIVE_NAME = "com.microsoft:non-exclusive-session-filter:list"


@dataclass(slots=True, frozen=True)
class SessionFilter:
    """What a client asks for."""

    key: str
    """The key of the filter, which the answer repeats."""
    session_id: str | None
    """None for the next free session."""
    is_shared: bool = False
    """Whether other receivers may join."""
    token: bytes | None = None
    """The token of the lock to join."""
    descriptor: Any = None
    """The descriptor of the session-id, if it has one."""

    def answer(self, held: HeldSession) -> bytes:
        """The filter of the answer, with the session that was accepted, in the form in which the client
        asked: JavaScript's reads a plain string only, and Go's a described one only."""
        value: Any = held.session_id
        if self.is_shared:
            fields = [held.session_id, uuid.UUID(bytes=held.accepted.token)]
            value = Described(ULong(NON_EXCLUSIVE), fields)
        elif self.descriptor is not None:
            value = Described(self.descriptor, value)
        return encode({Symbol(self.key): value})


def session_filter_of(connection: ConnectionView, link: Link) -> SessionFilter | None:
    """The session filter of an attach; None if it has none. Raises Refused if it cannot be read."""
    filters = filters_of(connection.engine, link)
    key = next((key for key in SESSION_FILTERS if key in filters), None)
    if key is None:
        return None
    value = filters[key]
    descriptor = None
    if isinstance(value, Described):
        descriptor, value = value.descriptor, value.value
    token: Any = None
    is_shared = descriptor in (NON_EXCLUSIVE, NON_EXCLUSIVE_NAME)
    if is_shared:
        fields = [*value, None, None] if isinstance(value, list | tuple) else [b"", None]
        value, token = fields[:2]
        if not isinstance(token, uuid.UUID | None):
            raise Refused(Reason.ARGUMENT, f"The lock token of the filter '{key}' is no uuid.")
    if value is not None and not isinstance(value, str):
        raise Refused(Reason.ARGUMENT, f"The filter '{key}' must hold a session-id, a string, or null.")
    if value is not None and len(value) > KEY_CHARACTERS_MAX:
        raise Refused(
            Reason.ARGUMENT,
            f"The session-id has {len(value)} characters; {KEY_CHARACTERS_MAX} are the maximum.",
        )
    return SessionFilter(key, value, is_shared, token.bytes if token is not None else None, descriptor)


class SessionLink(OutgoingLink):
    """A link on which a client receives from a session that it holds. Owned by its connection."""

    @classmethod
    def ask(cls, connection: ConnectionView, link: Link, queue: Entity, address: Address) -> Later:
        """Ask for the session that the link wants; then accept the link. Raises Refused."""
        queue.check_can_receive(address.subqueue)
        asked = session_filter_of(connection, link)
        assert asked is not None, "the link asks for a session"
        if not queue.requires_session(address.subqueue):
            raise no_session(queue, address.subqueue)
        generation = generation_of(connection.engine, link, queue)

        async def wait() -> Callable[[], None]:
            watch = ReceiveWatch(connection, link, queue, address.subqueue)
            try:
                held = await _accept(connection, link, queue, address, asked)
            except Refused as why:
                if why.reason is not Reason.TIMEOUT:  # which only says that there is no free session yet
                    queue.meter.refused(why.reason, 1)
                raise
            finally:
                watch.end()
            return lambda: cls(connection, link, queue, address, held)._answer(asked, held, generation)

        return Later(address.path, cls.rights, wait)

    def __init__(
        self, connection: ConnectionView, link: Link, queue: Entity, address: Address, session: HeldSession
    ) -> None:
        super().__init__(connection, link, queue, address, session)
        self.session_id = session.session_id
        self.client: ClientId = session.client
        """Holds the session."""

    def _answer(self, asked: SessionFilter, held: HeldSession, generation: dict[Any, Any]) -> None:
        """Answer the attach."""
        link, connection = self.link, self._connection
        until_ms = held.accepted.locked_until_ms + wall_ahead_ms(connection.services.clock)
        link.context = self
        connection.engine.accept_link(
            link,
            properties={
                LOCKED_UNTIL: Long(EPOCH_TICKS + TICKS_PER_MS * until_ms),
                **generation,
            },
            source_filter=asked.answer(held),
        )
        connection.session_holders.enter(self)
        held.on_lost(self.session_lost)

    def detached(self) -> None:
        """As other outgoing links. Management requests find the session no more."""
        self._connection.session_holders.leave(self)
        super().detached()

    def session_lost(self) -> None:
        """Close the link: the session's lock has ended."""
        self._connection.close_link(
            self.link,
            Refused(
                Reason.SESSION_LOCK_LOST,
                f"The session lock for session '{self.session_id}' has ended. Accept the session again.",
            ),
        )


async def _accept(
    connection: ConnectionView, link: Link, queue: Entity, address: Address, asked: SessionFilter
) -> HeldSession:
    """Lock the session. Raises Refused."""
    if asked.session_id is not None:
        held = await accept_named(
            queue, address.subqueue, asked.session_id, is_shared=asked.is_shared, token=asked.token
        )
    else:
        settings = connection.services.settings
        timeout_ms = connection.engine.link_properties(link).get(TIMEOUT)
        if not isinstance(timeout_ms, int) or isinstance(timeout_ms, bool):
            timeout_ms = settings.session_wait_ms_max
        timeout_ms = min(max(timeout_ms, 0), settings.session_wait_ms_max)
        held = await connection.services.session_finders.accept_next(
            queue, address.subqueue, timeout_ms / 1000, is_shared=asked.is_shared
        )
    if link.gone:
        held.give_up(queue)
    return held
