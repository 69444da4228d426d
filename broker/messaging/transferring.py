"""Transfers: what clients send to an entity through another one, the via entity, goes on to it from there
(AMQP contract 8.3).

A transaction, or a link that names a via entity, leaves messages in the transfer subqueue of a partition of
the via entity, each with the name of its destination. From there they are forwarded as messages of an entity
with auto-forwarding are (`forward_lane.py`), each exactly once. A destination that is missing, disabled or
full, or that refuses a message for good, does not get it; it goes to the transfer dead-letter queue of the
via entity, with the reason.

Lanes begin when the first message is passed on. After a restart, those begin whose partitions hold some: the
index says which do, and the partitions that it does not know are opened anyway. Entities that pass on nothing
have no part in any of this.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from broker.entities.roles import PASSES_ON
from broker.messaging.forward_lane import Lane
from broker.messaging.forward_route import Route, Shared
from broker.namespace.entity import Entity
from broker.throttle.memory_mark import LOOK_S

LOOKED_AT_ONCE = 64
"""Entities that one turn of the event loop looks at after a start."""


class Transfers:
    """All transfers of a namespace. Owned by the event loop."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._lanes: dict[str, dict[int, Lane]] = {}
        """By the generation of the via entity, and by partition."""
        self._finding: asyncio.Task[None] | None = None
        """Looks for what is left from before a restart; it opens partitions."""
        self._stopping = False

    def start(self) -> None:
        """Begin with what is left from before a restart."""
        entities = list(self._shared.namespace.live_entities())
        unknown = self._begin_known(entities[:LOOKED_AT_ONCE])
        if unknown or len(entities) > LOOKED_AT_ONCE:
            self._finding = self._shared.spawn(
                self._find(entities[LOOKED_AT_ONCE:], unknown), name="transfers left"
            )

    def passed_on(self, via: Entity, number: int) -> None:
        """A partition of an entity is about to get messages for other entities."""
        lanes = self._lanes.get(via.description.generation, {})
        if number not in lanes and via.gone is None and not self._stopping:
            number_there = via.description.subqueues.first_with(PASSES_ON)
            assert number_there is not None, "an entity that passes messages on has a subqueue for them"
            route = Route(self._shared, via, number_there, None)
            lane = lanes[number] = Lane(route, number)
            self._lanes[via.description.generation] = lanes
            lane.start()

    def mark(self, via: Entity, partition: int, destination: Entity, number: int) -> None:
        """A partition of a destination keeps numbers of what came from this partition."""
        self.passed_on(via, partition)
        if (lane := self._lanes.get(via.description.generation, {}).get(partition)) is not None:
            lane.mark(destination, number)

    def changed(self, entity: Entity) -> None:
        """An entity was created, changed or deleted."""
        if entity.gone is not None:
            for lane in self._lanes.pop(entity.description.generation, {}).values():
                self._shared.spawn(lane.stop(forgets=entity.is_deleted), name="transfers end")
        else:
            self._begin_known([entity])  # it may have been out of service

    async def stop(self) -> None:
        """End the loads under way, transfer nothing more, and open no more partitions."""
        self._stopping = True
        if self._finding is not None:
            self._finding.cancel()
            await asyncio.wait([self._finding])
        lanes = [lane for each in self._lanes.values() for lane in each.values()]
        await asyncio.gather(*(lane.stop(forgets=False) for lane in lanes))

    async def _find(self, entities: Sequence[Entity], unknown: list[Entity]) -> None:
        """Begin the lanes of all other entities, and of those with partitions whose content is unknown."""
        for start in range(0, len(entities), LOOKED_AT_ONCE):
            await asyncio.sleep(0)
            unknown += self._begin_known(entities[start : start + LOOKED_AT_ONCE])
        for entity in unknown:
            for number in sorted(entity.unknown):
                # What it holds may be why the kernel ended the broker.
                while self._shared.memory.limited:  # noqa: ASYNC110 - memory tells nobody
                    await asyncio.sleep(LOOK_S)
                await entity.wake(number)  # it is opened soon in any case
            self._begin_known([entity])

    def _begin_known(self, entities: Sequence[Entity]) -> list[Entity]:
        """Begin the lanes of partitions that are known to hold messages for other entities, and of those that
        are down, so that nobody knows. Returns the entities with other partitions."""
        for entity in entities:
            subqueues = entity.description.subqueues
            number_there = subqueues.first_with(PASSES_ON)
            if number_there is None or entity.gone is not None:  # not every kind of entity has one
                continue
            name = subqueues[number_there].name
            is_left = entity.active_in(name) > 0
            for number in range(entity.description.partitions) if is_left else entity.uncounted():
                if entity.may_hold(number, name):
                    self.passed_on(entity, number)
        return [entity for entity in entities if entity.gone is None and entity.unknown]
