"""`GET /health`: whether the broker serves, in the emulator's words, with the state of each entity and
partition.

It answers 200 while the broker serves, even with a partition down (that entity's `availability` is then
`Limited`) or while messages are refused for lack of memory (`memory` is then `limited`), because restarting
the container would not help. It answers 503 before the broker serves and while it stops. It needs no
authentication: tests and orchestrators wait on it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence

from aiohttp import web

from broker.base.slices import Slices
from broker.http.answer_portions import answer_whole
from broker.namespace.entity import Entity
from broker.namespace.namespace import Namespace
from broker.namespace.namespaces import Namespaces
from broker.throttle.memory_mark import Memory

HEALTHY = {"status": "healthy", "message": "Service is healthy."}
UNHEALTHY = {"status": "unhealthy", "message": "Service not available. Please try after some time."}
_ENTITIES_PER_STEP = 16


class HealthHandler:
    """Reports on the namespaces. `serving` says whether the broker takes messages now; `folders` gives the
    state of each data folder, by number."""

    def __init__(
        self,
        namespaces: Namespaces,
        serving: Callable[[], bool],
        slices: Slices,
        memory: Memory,
        folders: Callable[[], Sequence[str]],
    ) -> None:
        self._namespaces, self._serving, self._slices, self._memory = namespaces, serving, slices, memory
        self._folders = folders

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if not self._serving():
            return web.json_response(UNHEALTHY, status=503)
        memory = {
            "state": "limited" if self._memory.limited else "ok",
            "used_bytes": self._memory.used,
            "mark_bytes": self._memory.mark,
        }
        first, *others = (served.namespace for served in self._namespaces)
        summary = {**HEALTHY, "namespace": first.name, "memory": memory, "data_folders": self._folders()}
        pieces = [json.dumps(summary)[:-1].encode(), b", ", *await self._state(first)]
        for number, namespace in enumerate(others):
            pieces.append(b', "other_namespaces": {' if number == 0 else b", ")
            pieces += [f"{json.dumps(namespace.name)}: {{".encode(), *await self._state(namespace), b"}"]
        pieces.append(b"}}" if others else b"}")
        return await answer_whole(request, pieces, "application/json; charset=utf-8")

    async def _state(self, namespace: Namespace) -> list[bytes]:
        """The members of the object about a namespace: its partitions, entities and damage."""
        states: dict[str, int] = {}
        entities = [text async for texts in self._slices.of(_entities(namespace, states)) for text in texts]
        summary = json.dumps({"partitions": states, "damaged_entities": sorted(namespace.damaged)})
        return [f'{summary[1:-1]}, "entities": {{'.encode(), *entities, b"}"]


def _entities(namespace: Namespace, states: dict[str, int]) -> Iterator[bytes]:
    """The members of the object `entities` with commas between them, a few entities per step. Adds all
    partitions to `states`, by their state."""
    entities = list(namespace.live_entities())
    for start in range(0, len(entities), _ENTITIES_PER_STEP):
        some = {entity.name: _entity(entity) for entity in entities[start : start + _ENTITIES_PER_STEP]}
        for entity in entities[start : start + _ENTITIES_PER_STEP]:
            entity.count_health(states)
        yield (", " if start else "").encode() + json.dumps(some)[1:-1].encode()


def _entity(entity: Entity) -> dict[str, object]:
    about: dict[str, object] = {
        "availability": "Available" if entity.available else "Limited",
        "partitions": entity.health(),
        "size_bytes_max": entity.size_bytes_max,
    }
    if uncounted := entity.uncounted():
        about["uncounted_partitions"] = uncounted
    return about
