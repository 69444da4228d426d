"""What a link or a node may ask of its connection, and what the connection asks of a link.

`Connection` (`connection.py`) is a `ConnectionView`. Links know it only as that, so they do not import it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, Protocol

from broker.access.sas import Claim
from broker.base.errors import Refused
from broker.frontend.services import Services
from broker.frontend.session_holders import SessionHolders
from broker.frontend.slow_readers import Output
from broker.messaging.receive_cache import ReceiveCache
from broker.messaging.transactions import Transactions
from broker.namespace.namespaces import ServedNamespace
from protocol.engine import Engine
from protocol.links import Link


class Waiting(Protocol):
    """A link that has found no room for output."""

    @property
    def link(self) -> Link:
        """The link itself."""

    def credit_granted(self) -> None:
        """Room or credit may have changed: try again."""


class ServedLink(Waiting, Protocol):
    """What every link has in common: the rights it needs, and its end."""

    @property
    def paths(self) -> Sequence[str]:
        """The paths of the link's entities, as claims name them: mostly one."""

    @property
    def rights(self) -> tuple[str, ...]:
        """The client needs one of these rights on each path to stay attached; if empty, every client may."""

    def detached(self) -> None:
        """The link is gone, with or without its connection."""


class ConnectionView(Output, Protocol):
    """A connection, as its links and nodes see it."""

    services: Services
    engine: Engine
    peer: str
    container_id: str
    cache: ReceiveCache
    """The bound that all receivers of the connection share."""
    session_holders: SessionHolders
    browse_page: asyncio.Semaphore
    """Held while a page of messages is read for this client to look at."""
    transactions: Transactions
    """The transactions that the client has declared."""
    response_bytes: int
    """Bytes of responses that wait for credit. Written by the response links."""
    settling: int
    """Messages whose settlement has no outcome yet, though the client waits for it. Written by the links."""

    @property
    def served(self) -> ServedNamespace:
        """The namespace to which the client has come. Fixed once the connection is open."""

    @property
    def claims(self) -> Mapping[str, Claim]:
        """The client's claims, by the audience they were put for."""

    @property
    def is_late(self) -> bool:
        """Whether this client's time slice is used up."""

    @property
    def allowance(self) -> int:
        """How many bytes may wait for this client."""

    def room_for(self, link: Waiting) -> int:
        """Return how many more messages the link may hand to the engine; at 0, its `credit_granted` is called
        when it may hand over some."""

    def may_answer_drain(self, link: Waiting) -> bool:
        """Whether a drain of the link may be answered (§2.6.7). False while something of the link waits in
        the engine; its `credit_granted` is called when that may have gone."""

    def room_above_mark(self, link: Waiting, unsettled: int) -> int:
        """How many more deliveries the link may hold unsettled while the memory mark is exceeded; at 0, its
        `credit_granted` is called after each settlement, and when memory has recovered."""

    def sent(self, size: int) -> None:
        """A link has handed `size` bytes to the engine."""

    def flush_if_done(self) -> None:
        """Write now if nothing more of this client is under way; otherwise at the end of the turn."""

    def took(self, size: int, messages: int) -> None:
        """Count messages of `size` bytes as waiting for their outcome."""

    def took_changes(self, size: int) -> None:
        """Count properties of `size` bytes that a settlement changes as under way."""

    def finished_with(self, size: int, messages: int) -> None:
        """Stop counting messages, or a settlement's changes, of `size` bytes: they have their outcome."""

    def may_queue(self, size: int) -> bool:
        """Return whether a request of `size` bytes may wait for others."""

    def spawn(self, work: Coroutine[Any, Any, None], *, name: str, size: int, queued: bool = False) -> None:
        """Run a request of `size` bytes as a task of the connection; losing the connection cancels it."""

    def authorize(self, path: str, *rights: str) -> None:
        """Raise Refused(UNAUTHORIZED) unless an unexpired claim grants one of the rights."""

    def put_claim(self, audience: str, claim: Claim) -> None:
        """Store the claim of a token put for an audience. Raises Refused beyond the maximum."""

    def close_link(self, link: Link, why: Refused) -> None:
        """Close a link with an error; messages that its client has not seen go back."""

    def close(self, why: Refused) -> None:
        """Close the connection with an error."""

    def turn_away(self, why: Refused) -> None:
        """Close the connection, and count it as open no more."""

    def fail(self) -> None:
        """End the connection after an unexpected exception, with a traceback in the log."""
