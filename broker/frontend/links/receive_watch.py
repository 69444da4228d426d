"""Closes a receiving link when its queue no longer lets clients receive, or is gone."""

from __future__ import annotations

from broker.base.errors import Refused
from broker.frontend.connection_view import ConnectionView
from broker.namespace.entity import Entity
from protocol.links import Link


class ReceiveWatch:
    """Watches the queue of one link (`broker.namespace.entity.Watcher`), from its creation until `end`."""

    __slots__ = ("_connection", "_link", "_queue", "subqueue")

    def __init__(self, connection: ConnectionView, link: Link, queue: Entity, subqueue: str) -> None:
        self._connection, self._link = connection, link
        self._queue, self.subqueue = queue, subqueue
        queue.watchers.add(self)
        queue.receivers.add(self)

    def end(self) -> None:
        """Stop watching: the link is gone, or somebody else watches for it."""
        self._queue.watchers.discard(self)
        self._queue.receivers.discard(self)

    def queue_changed(self) -> None:
        """Close the link if the queue's new settings do not allow receiving."""
        try:
            self._queue.check_can_receive(self.subqueue)
        except Refused as why:
            self._connection.close_link(self._link, why)

    def queue_ended(self, why: Refused) -> None:
        """Close the link: the queue was deleted or is out of service."""
        self._connection.close_link(self._link, why)
