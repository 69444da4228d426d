"""Sessions, links and deliveries as the engine's users see them: plain data, made by the engine alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NewType

Delivery = NewType("Delivery", int)
"""A delivery (§2.6.12). Users keep it only to pass it back to the engine. It is the address of proton's
object as a plain number, because Python's object for a pointer costs four times as much."""

UNSETTLED, SETTLED, MIXED = 0, 1, 2
"""Sender settle modes (§2.8.2)."""


@dataclass(slots=True, eq=False)
class Session:
    """An AMQP session (§2.5): what its links share."""

    pn: Any
    handle_max: int
    """The highest handle that the peer lets us use (§2.7.2)."""
    links: int = 0
    """How many links it has, until our answer to the peer's detach of each is written, or the peer has
    answered ours. Each takes a handle of ours."""
    kept_bytes: int = 0
    """The bytes of payloads sent on its links that proton has not written yet. Written by `LargeOutput`."""
    leaving: int = 0
    """How many links have a `LinkDetached` that has not been consumed yet. Until then, they and the session
    are kept."""
    ended: bool = False
    ended_links: Sequence[Link] = ()
    """The links that the session had when it ended."""
    context: Any = None
    """Belongs to the engine's user."""


@dataclass(slots=True, eq=False)
class Link:
    """A link as the peer attached it (§2.7.3)."""

    pn: Any
    session: Session
    incoming: bool
    """Whether the peer sends on it; otherwise the peer receives."""
    name: str
    source_address: str | None
    target_address: str | None
    target_is_coordinator: bool
    snd_settle_mode: int
    rcv_settle_mode: int
    copies: bool = False
    """Whether the source asks for distribution-mode copy: messages stay where they are (§3.5.7)."""
    durable: bool = False
    """Whether the source is to outlast the link (§3.5.5)."""
    max_message_bytes: int = 0
    """The size of the largest message accepted from the peer, in bytes; 0 for no maximum. Set by
    `Engine.accept_link` and `Engine.limit_messages`."""
    partial_bytes: int = 0
    """The bytes held of a message whose last frame is missing; 0 if there is none."""
    partial: list[bytes] = field(default_factory=list)
    """Those bytes."""
    partial_is_batch: bool = False
    """Whether that message is a Service Bus batch."""
    parts: int = 0
    """How many parts it counts as (`parts.py`)."""
    held_back: bool = False
    """Whether it passes on nothing before some of what its session's window holds back has gone. Written by
    `room_in_window`."""
    peer_closed: bool = False
    """Whether the peer has closed the link instead of just detaching it."""
    emptied: bool = False
    """Whether nothing that was sent on it will be written any more, because it was taken back. Written by
    `take_back`."""
    gone: bool = False
    """Whether the link is gone: it and its deliveries must not be used any more."""
    freed: bool = False
    """Whether proton's link has been freed."""
    context: Any = None
    """Belongs to the engine's user that serves the link."""
