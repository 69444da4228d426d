"""The requests of one connection that run as tasks, and how many of them may wait for others.

Each counts as work under way of its connection. A request that may be taken out of that count while it waits
for its client (`nodes/request_node.py`) is counted here as well.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from broker.frontend.connection_view import ConnectionView
from broker.frontend.nodes.request_node import QUEUED_BYTES_FREE


class RequestTasks:
    """The requests of one connection. Owned by it."""

    __slots__ = ("_connection", "_queued_bytes", "_tasks")

    def __init__(self, connection: ConnectionView) -> None:
        self._connection = connection
        self._queued_bytes = 0
        """Bytes of requests that wait for others."""
        self._tasks: set[asyncio.Task[None]] = set()

    def may_queue(self, size: int) -> bool:
        """Return whether a request of `size` bytes may wait for others. Each connection may keep a few;
        beyond that, bounds for the connection and for all connections apply."""
        services, queued = self._connection.services, self._queued_bytes + size
        return queued <= QUEUED_BYTES_FREE or (
            queued <= services.settings.connection_inflight_bytes_max
            and services.queued_bytes + size <= services.inflight.bytes_max // 4
        )

    def run(self, work: Coroutine[Any, Any, None], *, name: str, size: int, queued: bool) -> None:
        """Run a request of `size` bytes as a task. `queued`: it counts for `may_queue` until it has ended."""
        task = self._connection.services.spawn(work, name=name)
        self._tasks.add(task)
        self._connection.took(size, 1)
        if queued:
            self._queue(size)

        def done(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            self._connection.finished_with(size, 1)
            if queued:
                self._queue(-size)

        task.add_done_callback(done)

    def cancel(self) -> None:
        """Cancel them all: the connection is lost."""
        for task in self._tasks:
            task.cancel()

    def _queue(self, size: int) -> None:
        self._queued_bytes += size
        self._connection.services.queued_bytes += size
