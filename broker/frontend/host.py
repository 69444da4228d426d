"""What a link or a node may ask of the connection that it belongs to, and what the connection asks of a link.

`Connection` (`connection.py`) is a `Host`; the links know it only as that, so they do not import it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Protocol

from broker.access.sas import Claim
from broker.base.errors import Refused
from broker.frontend.services import Services
from broker.frontend.slow_readers import Output
from broker.messaging.receive_cache import ReceiveCache
from protocol.engine import Engine
from protocol.links import Link


class Waiting(Protocol):
    """A link that has found no room for output."""

    @property
    def link(self) -> Link:
        """The link itself."""

    def credit_granted(self) -> None:
        """There may be room again, or other credit."""


class ServedLink(Waiting, Protocol):
    """What every link has in common: who may use it, and its end."""

    @property
    def path(self) -> str:
        """The path of the entity that it leads to, as claims name it."""

    @property
    def rights(self) -> tuple[str, ...]:
        """One of these rights on the path is needed to stay attached; without any, everybody may."""

    def detached(self) -> None:
        """The link is gone, with its connection or without."""


class Host(Output, Protocol):
    """The connection, as its links and nodes see it."""

    services: Services
    engine: Engine
    peer: str
    container_id: str
    cache: ReceiveCache
    """The bound that all receivers of the connection share."""
    browse_page: asyncio.Semaphore
    """Taken for each page of messages that is read for this client to look at."""
    response_bytes: int
    """Responses that wait for credit; kept by the response links."""

    @property
    def is_late(self) -> bool:
        """The slice of time in which the client's bytes are served is used up."""

    @property
    def room(self) -> int:
        """How many bytes may wait for this client."""

    def has_room_for(self, link: Waiting) -> bool:
        """Whether the link may hand more messages to the engine; if not, its `credit_granted` is called when
        it may."""

    def room_above_mark(self, link: Waiting, unsettled: int) -> int:
        """How many deliveries more the link may hold unsettled while the memory mark is exceeded; at 0, its
        `credit_granted` is called now and then, and after each settlement."""

    def sent(self, size: int) -> None:
        """A link has handed so many bytes to the engine."""

    def flush_if_done(self) -> None:
        """Write at once if nothing more of this client is under way, else at the end of the turn."""

    def took(self, size: int, messages: int) -> None:
        """Messages of `size` bytes wait for their outcome from now on."""

    def took_changes(self, size: int) -> None:
        """Properties of `size` bytes that a settlement changes wait for it from now on."""

    def finished_with(self, size: int, messages: int) -> None:
        """Messages of `size` bytes have their outcome, or settlements."""

    def may_queue(self, size: int) -> bool:
        """Whether a request of `size` bytes may wait for its turn."""

    def spawn(self, work: Coroutine[Any, Any, None], *, name: str, size: int, queued: bool = False) -> None:
        """Run a request of so many bytes beside the connection; it is cancelled when the connection is
        lost."""

    def authorize(self, path: str, *rights: str) -> None:
        """Raises Refused(UNAUTHORIZED) unless a claim that has not run out permits one of the rights."""

    def put_claim(self, audience: str, claim: Claim) -> None:
        """A token was put for an audience. Raises Refused beyond the maximum."""

    def close_link(self, link: Link, why: Refused) -> None:
        """Close a link with an error; whatever it held unseen goes back."""

    def close(self, why: Refused) -> None:
        """Close the connection with an error."""

    def fail(self) -> None:
        """End the connection after an unexpected exception, with a traceback in the log."""
