"""Sessions, links and deliveries as the engine's users see them: plain data, made by the engine alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NewType

Delivery = NewType("Delivery", object)
"""A delivery (§2.6.12): opaque and hashable. Users keep it only to give it back to the engine."""

UNSETTLED, SETTLED, MIXED = 0, 1, 2
"""Sender settle modes (§2.8.2)."""


@dataclass(slots=True, eq=False)
class Session:
    """An AMQP session (§2.5), as far as links share something in it."""

    pn: Any
    leaving: int = 0
    """Links whose `LinkDetached` was not consumed yet: until then they, and so the session, are kept."""
    ended: bool = False
    ended_links: Sequence[Link] = ()
    """The links that it had when it ended."""


@dataclass(slots=True, eq=False)
class Link:
    """A link as the peer attached it (§2.7.3)."""

    pn: Any
    session: Session
    incoming: bool
    """The peer sends on it; otherwise it receives."""
    name: str
    source_address: str | None
    target_address: str | None
    target_is_coordinator: bool
    snd_settle_mode: int
    rcv_settle_mode: int
    copies: bool = False
    """Its source asks for distribution-mode copy: what it delivers stays where it is (§3.5.7)."""
    max_message_bytes: int = 0
    """The largest message taken from the peer; set by `Engine.accept_link` and `Engine.limit_messages`."""
    partial_bytes: int = 0
    """What has come of a message whose last frame has not; 0 without one."""
    partial_is_batch: bool = False
    peer_closed: bool = False
    """Once detached: the peer has closed the link, not just detached it."""
    gone: bool = False
    """Neither the link nor its deliveries may be touched any more."""
    freed: bool = False
    """Proton's link was given back."""
    context: Any = None
    """Belongs to whoever serves the link."""
