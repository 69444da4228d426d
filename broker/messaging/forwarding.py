"""Auto-forwarding: messages of an entity, or its dead letters, go on to another entity by themselves.

`Forwarding` watches all entities. Each subqueue whose messages are forwarded has a *road*, and the road a
*lane* for each partition that may hold some (`forward_lane.py`). Partitions that hold nothing are not opened:
a lane begins when its partition starts. After a restart, the index of partitions says which of them hold
messages; those whose content is unknown are opened anyway.

Entities that forward nothing have no part in any of this.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from broker.base.clock import Clock
from broker.entities.descriptions import DEAD_LETTER, MAIN, key_of
from broker.messaging.forward_lane import Lane
from broker.messaging.transferring import Transfers
from broker.namespace.entity import Entity
from broker.namespace.namespace import Namespace
from broker.throttle.memory_mark import Memory

LOADS_MAX = 8
"""Loads that are in memory at a time, over all entities."""

_Key = tuple[str, str]
"""The generation of the source, and the subqueue."""


class _Road:
    """The forwarding of one subqueue of an entity to one target."""

    def __init__(self, forwarding: Forwarding, source: Entity, subqueue: str, target_name: str) -> None:
        self.source, self.subqueue, self.target_name = source, subqueue, target_name
        self.turns, self.message_id = forwarding.turns, forwarding.message_id
        self._forwarding = forwarding
        self._lanes: dict[int, Lane] = {}

    def start(self) -> None:
        """Forward what the partitions hold, and what comes into them."""
        self.source.at_start.append(self._start_lane)
        for number in range(self.source.description.partitions):
            if self.source.may_hold(number, self.subqueue):
                self._start_lane(number)

    def _start_lane(self, number: int) -> None:
        if number not in self._lanes:
            lane = self._lanes[number] = Lane(self, number)
            asyncio.get_running_loop().call_soon(lane.start)

    def try_now(self) -> None:
        """The target has changed."""
        for lane in self._lanes.values():
            lane.try_now()

    async def stop(self, *, forgets: bool) -> None:
        """Forward nothing more. `forgets`: the target need not remember what came from here."""
        if self._start_lane in self.source.at_start:
            self.source.at_start.remove(self._start_lane)
        await asyncio.gather(*(lane.stop(forgets=forgets) for lane in self._lanes.values()))

    # --- for the lanes --------------------------------------------------------------------------------------

    def target(self) -> Entity:
        namespace = self._forwarding.namespace
        target = namespace.find(self.target_name)
        if target is None:
            raise namespace.missing(self.target_name)
        if target.gone is not None:
            raise target.gone
        target.check_can_send(MAIN)
        return target

    def admit(self, messages: int) -> None:
        self._forwarding.memory.admit(messages)

    def forwarded(self, target: Entity, messages: int, size: int, duplicates: int) -> None:
        target.accessed_at_ms = self._forwarding.clock.now_ms()
        target.meter.incoming_messages += messages
        target.meter.incoming_bytes += size
        target.meter.duplicate_messages += duplicates
        self.source.meter.forwarded_messages += messages

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return self._forwarding.spawn(work, name=f"forward {self.source.name}{self.subqueue}")


class Forwarding:
    """All forwarding of a namespace. Owned by the event loop."""

    def __init__(
        self,
        namespace: Namespace,
        *,
        memory: Memory,
        clock: Clock,
        message_id: Callable[[], str],
        spawn: Callable[..., asyncio.Task[None]],
    ) -> None:
        """`spawn` runs a coroutine under a name, and logs its errors."""
        self.namespace, self.memory, self.clock = namespace, memory, clock
        self.message_id, self.spawn = message_id, spawn
        self.turns = asyncio.Semaphore(LOADS_MAX)
        self.transfers = Transfers(self)
        self._roads: dict[_Key, _Road] = {}
        self._by_target: dict[str, set[_Key]] = {}
        self._ending: dict[_Key, asyncio.Task[None]] = {}
        """Roads that end, before the next one of the same subqueue may begin."""
        self._is_stopped = False

    def start(self) -> None:
        """Begin to forward. Call this once all entities are there."""
        self.namespace.changed = self._changed
        self.transfers.start()
        for entity in list(self.namespace.live_entities()):
            if _roads_of(entity):
                self._changed(entity)

    async def stop(self) -> None:
        """End the loads under way, and forward nothing more."""
        self._is_stopped = True
        self.namespace.changed = lambda entity: None
        for key in list(self._roads):
            self._end(key)
        if self._ending:
            await asyncio.wait(list(self._ending.values()))
        await self.transfers.stop()

    def _changed(self, entity: Entity) -> None:
        """An entity was created, changed or deleted."""
        wanted = _roads_of(entity)
        generation = entity.description.generation
        for subqueue in (MAIN, DEAD_LETTER):
            key = generation, subqueue
            road, target = self._roads.get(key), wanted.get(subqueue)
            if road is not None and road.target_name != target:
                self._end(key)
            if target is not None and key not in self._roads:
                self._begin(key, entity, target)
        for key in self._by_target.get(key_of(entity.name), ()):
            self._roads[key].try_now()
        self.transfers.changed(entity)

    def _begin(self, key: _Key, entity: Entity, target: str) -> None:
        road = self._roads[key] = _Road(self, entity, key[1], target)
        self._by_target.setdefault(key_of(target), set()).add(key)
        if (ending := self._ending.get(key)) is None:
            road.start()
        else:
            ending.add_done_callback(lambda _: self._start_after(key, road))

    def _start_after(self, key: _Key, road: _Road) -> None:
        if self._roads.get(key) is road and not self._is_stopped:
            road.start()

    def _end(self, key: _Key) -> None:
        road = self._roads.pop(key)
        keys = self._by_target[key_of(road.target_name)]
        keys.discard(key)
        if not keys:
            del self._by_target[key_of(road.target_name)]
        before = self._ending.get(key)
        task = self._ending[key] = self.spawn(
            _stop_after(before, road, forgets=not self._is_stopped), name=f"forward {road.source.name} ends"
        )
        task.add_done_callback(partial(self._has_ended, key))

    def _has_ended(self, key: _Key, task: asyncio.Task[None]) -> None:
        if self._ending.get(key) is task:
            del self._ending[key]


async def _stop_after(before: asyncio.Task[None] | None, road: _Road, *, forgets: bool) -> None:
    if before is not None:
        await asyncio.wait([before])
    await road.stop(forgets=forgets)


def _roads_of(entity: Entity) -> dict[str, str]:
    """By subqueue: the entity that its messages go to, as long as the source lets anybody receive them."""
    settings = entity.description.settings
    if entity.gone is not None or not settings.status.can_receive:
        return {}
    targets = zip((MAIN, DEAD_LETTER), settings.forwarding, strict=True)
    return {subqueue: target for subqueue, target in targets if target is not None}
