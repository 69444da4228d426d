"""A link whose attach is answered later: when a session is free, say (AMQP contract 5.4).

What the client says meanwhile keeps its order: its credit takes effect right after the answer. If it
detaches, or its connection ends, the wait is cancelled. A link that loses its permission while it waits is
refused.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from broker.base.errors import Reason, Refused
from broker.frontend.host import Host
from protocol.events import DeliveriesUpdated, MessagesReceived, MessageTooLarge
from protocol.links import Link


@dataclass(slots=True)
class Later:
    """An attach that needs something first."""

    path: str
    rights: tuple[str, ...]
    """One of these rights on the path is needed to go on waiting."""
    wait: Callable[[], Awaitable[Callable[[], None]]]
    """Waits for what is needed; returns what accepts the link and makes its context. Both may raise Refused.

    It is cancelled if the link goes away. It then has to give back what it may have got."""


class DelayedAttach:
    """The context of a link until its attach is answered. Owned by its connection."""

    def __init__(self, host: Host, link: Link, later: Later) -> None:
        self.link, self.path, self.rights = link, later.path, later.rights
        self._host = host
        link.context = self
        self._task = host.services.spawn(self._answer(later), name=f"attach {later.path}")

    async def _answer(self, later: Later) -> None:
        link, host = self.link, self._host
        try:
            accept = await later.wait()
            if link.gone:
                return
            accept()
            assert link.context is not self, "a link that was accepted has a context of its own"
            link.context.credit_granted()  # what the client has granted while it waited
            host.flush_soon()
        except Refused as why:
            host.close_link(link, why)
        except Exception:
            host.fail()

    def credit_granted(self) -> None:
        """The engine keeps the credit until the attach is answered."""

    def received(self, event: MessagesReceived) -> None:
        """Messages, although no credit was granted."""
        self._refuse_messages()

    def refused(self, event: MessageTooLarge | MessagesReceived) -> None:
        """The same, of messages that are too large or belong to a transaction."""
        self._refuse_messages()

    def _refuse_messages(self) -> None:
        text = "A message came on a link whose attach is not answered yet, and which has no credit."
        self._host.close_link(self.link, Refused(Reason.NOT_ALLOWED, text))

    def updated(self, event: DeliveriesUpdated) -> None:
        """There are no deliveries yet."""

    def detached(self) -> None:
        """The link is gone: wait no longer."""
        self._task.cancel()
