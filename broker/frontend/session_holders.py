"""The links of one connection that hold message sessions, by session and by name.

Requests of the management node name a session, or the link that holds it, and a connection may have thousands
of links.
"""

from __future__ import annotations

from typing import Protocol

from broker.identifiers import ClientId
from broker.namespace.entity import Entity
from protocol.links import Link


class HoldingLink(Protocol):
    """A link that holds a session (`links/session_link.py`)."""

    link: Link
    queue: Entity
    subqueue: str
    session_id: str
    client: ClientId


class SessionHolders:
    """Owned by the connection. Links enter and leave by themselves."""

    __slots__ = ("_by_name", "_by_session")

    def __init__(self) -> None:
        self._by_session: dict[str, dict[HoldingLink, None]] = {}
        """By session id: those of one subqueue may share the session, and other subqueues have it, too."""
        self._by_name: dict[str, dict[HoldingLink, None]] = {}

    def enter(self, holder: HoldingLink) -> None:
        """The link holds its session now."""
        self._by_session.setdefault(holder.session_id, {})[holder] = None
        self._by_name.setdefault(holder.link.name, {})[holder] = None

    def leave(self, holder: HoldingLink) -> None:
        """The link is gone. Does nothing if it has not entered."""
        for index, key in ((self._by_session, holder.session_id), (self._by_name, holder.link.name)):
            holders = index.get(key, {})
            holders.pop(holder, None)
            if not holders:
                index.pop(key, None)

    def holding(self, entity: Entity, subqueue: str, session_id: str) -> ClientId | None:
        """Who holds a session of this connection; None if no link does."""
        for holder in self._by_session.get(session_id, ()):
            if not holder.link.gone and holder.queue is entity and holder.subqueue == subqueue:
                return holder.client
        return None

    def session_of(self, entity: Entity, link_name: object) -> str | None:
        """The session that the link of this name holds; None if there is none."""
        for holder in self._by_name.get(link_name, ()) if isinstance(link_name, str) else ():
            if holder.queue is entity:
                return holder.session_id
        return None
