"""`GET /health`: whether the broker serves, in the emulator's words, with the state of each entity and partition beside them.

200 while it serves, also with a partition down (then `availability` of that entity says `Limited`): restarting the
container would help nobody. 503 before it serves and while it stops. No authentication: tests and orchestrators wait on it.
"""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web

from broker.namespace import Namespace

HEALTHY = {"status": "healthy", "message": "Service is healthy."}
UNHEALTHY = {"status": "unhealthy", "message": "Service not available. Please try after some time."}


class HealthHandler:
    """Reports on the namespace; `serving` says whether the broker takes messages now."""

    def __init__(self, namespace: Namespace, serving: Callable[[], bool]) -> None:
        self._namespace, self._serving = namespace, serving

    async def handle(self, request: web.Request) -> web.Response:
        if not self._serving():
            return web.json_response(UNHEALTHY, status=503)
        entities = {
            queue.name: {"availability": "Available" if queue.available else "Limited", "partitions": queue.health()}
            for queue in self._namespace.live_queues()
        }
        return web.json_response({**HEALTHY, "namespace": self._namespace.name, "entities": entities})
