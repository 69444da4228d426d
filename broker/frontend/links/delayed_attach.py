"""A link whose attach is answered later, for example when a session becomes free (AMQP contract 5.4).

Whatever the client sends meanwhile keeps its order: its credit takes effect right after the answer. If the
client detaches, or its connection ends, the wait is cancelled. A link that loses its permission while it
waits is refused.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from broker.base.errors import Reason, Refused
from broker.frontend.connection_view import ConnectionView
from protocol.events import DeliveriesUpdated, MessagesReceived, MessageTooLarge
from protocol.links import Link


@dataclass(slots=True)
class Later:
    """An attach that has to wait for something."""

    path: str
    rights: tuple[str, ...]
    """The client needs one of these rights on the path to go on waiting."""
    wait: Callable[[], Awaitable[Callable[[], None]]]
    """Waits, then returns a function that accepts the link and sets its context. Both may raise Refused.

    If the link goes away, the wait is cancelled, and must give back anything it has obtained.
    """


class DelayedAttach:
    """The context of a link until its attach is answered. Owned by its connection."""

    def __init__(self, connection: ConnectionView, link: Link, later: Later) -> None:
        self.link, self.paths, self.rights = link, (later.path,), later.rights
        self._connection = connection
        link.context = self
        self._task = connection.services.spawn(self._answer(later), name=f"attach {later.path}")

    async def _answer(self, later: Later) -> None:
        link, connection = self.link, self._connection
        try:
            accept = await later.wait()
            if link.gone:
                return
            accept()
            assert link.context is not self, "a link that was accepted has a context of its own"
            if not link.gone:
                link.context.credit_granted()  # credit that the client granted while it waited
            connection.flush_soon()
        except Refused as why:
            connection.close_link(link, why)
        except Exception:
            connection.fail()

    def credit_granted(self) -> None:
        """Do nothing: the engine keeps the credit until the attach is answered."""

    def received(self, event: MessagesReceived) -> None:
        """Close the link: the client sent messages without credit."""
        self._refuse_messages()

    def received_in_transaction(self, event: MessagesReceived) -> None:
        """The same, for messages that belong to a transaction."""
        self._refuse_messages()

    def refused(self, event: MessageTooLarge) -> None:
        """The same, for a message that is too large."""
        self._refuse_messages()

    def _refuse_messages(self) -> None:
        text = "A message came on a link whose attach is not answered yet, and which has no credit."
        self._connection.close_link(self.link, Refused(Reason.NOT_ALLOWED, text))

    def updated(self, event: DeliveriesUpdated) -> None:
        """Do nothing: there are no deliveries yet."""

    def detached(self) -> None:
        """Cancel the wait: the link is gone."""
        self._task.cancel()
