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
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import fields, replace
from typing import Any, Protocol

from broker.base.clock import Clock
from broker.entities.descriptions import MAIN, TRANSFER, key_of
from broker.messaging.forward_lane import Lane
from broker.namespace.entity import Entity
from broker.namespace.namespace import Namespace
from broker.operations import DESTINATION, Locked
from broker.throttle.memory_mark import Memory

LOOKED_AT_ONCE = 64
"""Entities that one turn of the event loop looks at after a start."""


class Shared(Protocol):
    """What all forwarding of a namespace has in common (`forwarding.py`)."""

    namespace: Namespace
    memory: Memory
    clock: Clock
    turns: asyncio.Semaphore
    message_id: Callable[[], str]
    spawn: Callable[..., asyncio.Task[None]]


class _Way:
    """The way from one via entity to one destination (`forward_lane.Road`)."""

    subqueue = TRANSFER

    def __init__(self, shared: Shared, source: Entity, target_name: str) -> None:
        self.source, self.target_name = source, target_name
        self.turns, self.message_id = shared.turns, shared.message_id
        self._shared = shared

    def target(self) -> Entity:
        namespace = self._shared.namespace
        target = namespace.find(self.target_name)
        if target is None:
            raise namespace.missing(self.target_name)
        if target.gone is not None:
            raise target.gone
        target.check_can_send(MAIN)
        return target

    def admit(self, messages: int) -> None:
        self._shared.memory.admit(messages)

    def forwarded(self, target: Entity, messages: int, size: int, duplicates: int) -> None:
        target.accessed_at_ms = self._shared.clock.now_ms()
        target.meter.incoming_messages += messages
        target.meter.incoming_bytes += size
        target.meter.duplicate_messages += duplicates
        self.source.meter.forwarded_messages += messages

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return self._shared.spawn(work, name=f"transfer from {self.source.name}")


class TransferLane(Lane):
    """The transfers of one partition, to all destinations. Each destination has a lane of its own, which only
    hands over what this one has locked."""

    def __init__(self, shared: Shared, source: Entity, number: int) -> None:
        super().__init__(_Way(shared, source, ""), number)
        self._shared, self._source_entity = shared, source
        self._ways: dict[str, Lane] = {}
        """By the destination's key."""

    def goes_to(self, key: str) -> bool:
        """Whether messages have been for the entity with this key."""
        return key in self._ways

    async def _forward(self, locked: Locked) -> None:
        groups: dict[str, list[int]] = {}
        names: dict[str, str] = {}
        for place, destination in enumerate(locked.columns[DESTINATION]):
            assert isinstance(destination, bytes), "every message here has a destination"
            name = destination.decode()
            names.setdefault(key_of(name), name)
            groups.setdefault(key_of(name), []).append(place)
        for key, places in groups.items():
            lane = self._ways.get(key)
            if lane is None:
                way = _Way(self._shared, self._source_entity, names[key])
                lane = self._ways[key] = Lane(way, self._number)
            await lane._forward(part_of(locked, places))
            if lane._waits:
                lane._waits, self._waits = False, True
            if lane._retry_at is not None:
                self._retry_at = min(self._retry_at or lane._retry_at, lane._retry_at)
            if lane._marked:
                self._marked.add(0)

    @property
    def _is_aside_full(self) -> bool:
        return any(lane._is_aside_full for lane in self._ways.values())

    def _release_aside(self) -> None:
        for lane in self._ways.values():
            lane._release_aside()
            lane._retry_at = None

    async def _forget(self) -> None:
        for lane in self._ways.values():
            await lane._forget()
        if not any(lane._marked for lane in self._ways.values()):
            self._marked.clear()


class Transfers:
    """All transfers of a namespace. Owned by the event loop."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._lanes: dict[tuple[str, int], TransferLane] = {}
        """By the generation of the via entity, and the partition."""
        self._stopping = False

    def start(self) -> None:
        """Begin with what is left from before a restart."""
        entities = list(self._shared.namespace.live_entities())
        unknown = self._begin_known(entities[:LOOKED_AT_ONCE])
        if unknown or len(entities) > LOOKED_AT_ONCE:
            self._shared.spawn(self._find(entities[LOOKED_AT_ONCE:], unknown), name="transfers left")

    def passed_on(self, via: Entity, number: int) -> None:
        """A partition of an entity is about to get messages for other entities."""
        key = via.description.generation, number
        if key not in self._lanes and via.gone is None and not self._stopping:
            lane = self._lanes[key] = TransferLane(self._shared, via, number)
            lane.start()

    def changed(self, entity: Entity) -> None:
        """An entity was created, changed or deleted."""
        if entity.gone is not None:
            generation = entity.description.generation
            for key in [key for key in self._lanes if key[0] == generation]:
                self._shared.spawn(self._lanes.pop(key).stop(forgets=False), name="transfers end")
        name = key_of(entity.name)
        for lane in self._lanes.values():
            if lane.goes_to(name):
                lane.try_now()

    async def stop(self) -> None:
        """End the loads under way, and transfer nothing more."""
        self._stopping = True
        await asyncio.gather(*(lane.stop(forgets=False) for lane in self._lanes.values()))

    async def _find(self, entities: Sequence[Entity], unknown: list[Entity]) -> None:
        """Begin the lanes of all other entities, and of those with partitions whose content is unknown."""
        for start in range(0, len(entities), LOOKED_AT_ONCE):
            await asyncio.sleep(0)
            unknown += self._begin_known(entities[start : start + LOOKED_AT_ONCE])
        for entity in unknown:
            for number in sorted(entity.unknown):
                await entity.wake(number)  # it is opened soon in any case
            self._begin_known([entity])

    def _begin_known(self, entities: Sequence[Entity]) -> list[Entity]:
        """Begin the lanes of partitions that are known to hold messages for other entities. Returns the
        entities with other partitions."""
        for entity in entities:
            held = entity.counts().get(TRANSFER) if entity.gone is None else None
            if held is not None and held.active:
                for number in range(entity.description.partitions):
                    if entity.may_hold(number, TRANSFER):
                        self.passed_on(entity, number)
        return [entity for entity in entities if entity.gone is None and entity.unknown]


def part_of(locked: Locked, places: Sequence[int]) -> Locked:
    """Some of the messages that were locked together."""
    if len(places) == len(locked.tokens):
        return locked
    lists: dict[str, Any] = {
        each.name: [value[place] for place in places]
        for each in fields(locked)
        if isinstance(value := getattr(locked, each.name), list)
    }
    columns = {name: [values[place] for place in places] for name, values in locked.columns.items()}
    return replace(locked, **lists, columns=columns)
