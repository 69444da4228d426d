"""Auto-forwarding: the broker moves messages of an entity, or its dead letters, on to another entity.

`Forwarding` watches all entities. Each subqueue whose messages are forwarded has a *route*, and the route a
*lane* for each partition that may hold some (`forward_lane.py`). Partitions that hold nothing are not opened:
a lane begins when its partition starts. After a restart, the index of partitions says which of them hold
messages; those whose content is unknown are opened anyway.

Entities that forward nothing have no part in any of this.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from broker.base.clock import Clock
from broker.entities.descriptions import key_of
from broker.entities.roles import PASSES_ON
from broker.messaging.asking import answer_of
from broker.messaging.forward_lane import Lane
from broker.messaging.forward_leftovers import Leftovers
from broker.messaging.forward_route import LOADS_MAX, Route, Shared
from broker.messaging.transferring import Transfers
from broker.namespace.entity import Entity
from broker.namespace.namespace import Namespace
from broker.namespace.router import PartitionHandle
from broker.operations.transfers import HandOver, SourcesFound, parts_of_source
from broker.throttle.memory_mark import Memory

_Key = tuple[str, int]
"""The generation of the source, and the number of the subqueue."""


class ForwardedSubqueue:
    """The forwarding of one subqueue of an entity to one target: a lane for each partition."""

    def __init__(self, shared: Shared, source: Entity, number: int, target_name: str) -> None:
        self.source, self.target_name = source, target_name
        self._route = Route(shared, source, number, target_name)
        self._lanes: dict[int, Lane] = {}

    def start(self) -> None:
        """Forward what the partitions hold, and what comes into them."""
        self.source.at_start.append(self._start_lane)
        for number in range(self.source.description.partitions):
            if self.source.may_hold(number, self._route.subqueue):
                self._start_lane(number)

    def _start_lane(self, number: int) -> None:
        if number not in self._lanes:
            lane = self._lanes[number] = Lane(self._route, number)
            asyncio.get_running_loop().call_soon(lane.start)

    def mark(self, partition: int, target: Entity, number: int) -> None:
        """A partition of the target keeps numbers of what came from this partition."""
        self._start_lane(partition)
        self._lanes[partition].mark(target, number)

    def begin_to_stop(self) -> None:
        """Lock no more messages. `stop` does the rest."""
        if self._start_lane in self.source.at_start:
            self.source.at_start.remove(self._start_lane)
        for lane in self._lanes.values():
            lane.begin_to_stop()

    async def stop(self, *, forgets: bool) -> None:
        """Forward nothing more. `forgets`: the target need not remember what came from here."""
        await asyncio.gather(*(lane.stop(forgets=forgets) for lane in self._lanes.values()))


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
        self._leftovers = Leftovers(self._found)
        look = self._leftovers.look
        turns = asyncio.Semaphore(LOADS_MAX)
        self._shared = Shared(namespace, memory, clock, message_id, spawn, look, turns)
        self._namespace = namespace
        self.transfers = Transfers(self._shared)
        self.rules_left: Callable[[Entity], None] = lambda topic: None
        """Told of topics whose partition has noted changes of rules. Set by the server."""
        self._entities: dict[str, Entity] = {}
        """Those in service, by generation."""
        self._forwarded: dict[_Key, ForwardedSubqueue] = {}
        self._numbers: dict[str, set[int]] = {}
        """By generation, the numbers of the subqueues of `_forwarded`."""
        self._ending: dict[_Key, asyncio.Task[None]] = {}
        """Forwarding that is coming to an end. Forwarding of the same subqueue to another target begins after
        that."""
        self._is_stopped = False

    def start(self) -> None:
        """Begin to forward. Call this once all entities are there."""
        self._namespace.changed = self._changed
        self._namespace.partition_started = self._leftovers.look
        self.transfers.start()
        for entity in list(self._namespace.live_entities()):
            self._note(entity)
            for number in entity.started:
                self._leftovers.look(entity, number)
            if _targets_of(entity):
                self._changed(entity)

    async def stop(self) -> None:
        """End the loads under way, and forward nothing more."""
        self._is_stopped = True
        self._namespace.changed = lambda entity: None
        self._namespace.partition_started = lambda entity, number: None
        self._leftovers.stop()
        for key in list(self._forwarded):
            self._end(key)
        if self._ending:
            await asyncio.wait(list(self._ending.values()))
        await self.transfers.stop()
        self._shared.dead_lettered.close()

    def _note(self, entity: Entity) -> None:
        generation = entity.description.generation
        if entity.gone is None:
            self._entities[generation] = entity
        elif self._entities.get(generation) is entity:
            del self._entities[generation]

    def _changed(self, entity: Entity) -> None:
        """An entity was created, changed or deleted."""
        self._note(entity)
        wanted = _targets_of(entity)
        generation = entity.description.generation
        for number in sorted(self._numbers.get(generation, set()) | wanted.keys()):
            key = generation, number
            forwarded, target = self._forwarded.get(key), wanted.get(number)
            if forwarded is not None and forwarded.target_name != target:
                self._end(key)
            if target is not None and key not in self._forwarded:
                self._begin(key, entity, target)
        self.transfers.changed(entity)
        for lane in list(self._shared.lanes_to.get(key_of(entity.name), ())):
            lane.try_now(entity.name)

    def _found(self, entity: Entity, number: int, found: SourcesFound) -> None:
        """A partition says what is left in it."""
        if found.changes_rules:
            self.rules_left(entity)
        if found.passes_on:
            self.transfers.passed_on(entity, number)
        if not found.sources:
            return
        handle = entity.router.handles[number]
        for source in found.sources:
            if not self._may_go_on(source, entity, number):
                self._shared.spawn(_forget(handle, source), name=f"forward {entity.name} forgets")

    def _may_go_on(self, name: bytes, target: Entity, number: int) -> bool:
        """Whether messages that a partition of this target has stored may still come to it from a source. If
        so, the lane of the source has them forgotten once they cannot."""
        generation, partition, subqueue = parts_of_source(name)
        source = self._entities.get(generation)
        if source is None or source.gone is not None:
            return self._namespace.may_exist(generation)
        described = source.description.subqueues.get(subqueue)
        if described is not None and described.role is PASSES_ON:
            self.transfers.mark(source, partition, target, number)
            return True
        key = generation, subqueue
        forwarded, ending = self._forwarded.get(key), self._ending.get(key)
        if described is None and forwarded is None and ending is None:
            return False  # the subqueue of a subscription that was deleted
        goes_here = forwarded is not None and key_of(forwarded.target_name) == key_of(target.name)
        if ending is not None and (goes_here or described is None):
            # a lane that ends may still hand over messages of this source
            ending.add_done_callback(lambda _: self._leftovers.look(target, number))
        elif forwarded is not None and goes_here:
            forwarded.mark(partition, target, number)
        return True  # it may forward to this target again

    def _begin(self, key: _Key, entity: Entity, target: str) -> None:
        forwarded = ForwardedSubqueue(self._shared, entity, key[1], target)
        self._forwarded[key] = forwarded
        self._numbers.setdefault(key[0], set()).add(key[1])
        if (ending := self._ending.get(key)) is None:
            forwarded.start()
        else:
            ending.add_done_callback(lambda _: self._start_after(key, forwarded))

    def _start_after(self, key: _Key, forwarded: ForwardedSubqueue) -> None:
        if self._forwarded.get(key) is forwarded and not self._is_stopped:
            forwarded.start()

    def _end(self, key: _Key) -> None:
        forwarded = self._forwarded.pop(key)
        numbers = self._numbers[key[0]]
        numbers.discard(key[1])
        if not numbers:
            del self._numbers[key[0]]
        forwarded.begin_to_stop()
        before = self._ending.get(key)
        task = self._ending[key] = self._shared.spawn(
            _stop_after(before, forwarded, forgets=not self._is_stopped),
            name=f"forward {forwarded.source.name} ends",
        )
        task.add_done_callback(partial(self._has_ended, key))

    def _has_ended(self, key: _Key, task: asyncio.Task[None]) -> None:
        if self._ending.get(key) is task:
            del self._ending[key]


async def _stop_after(
    before: asyncio.Task[None] | None, forwarded: ForwardedSubqueue, *, forgets: bool
) -> None:
    if before is not None:
        await asyncio.wait([before])
    await forwarded.stop(forgets=forgets)


async def _forget(handle: PartitionHandle, source: bytes) -> None:
    """Have a partition forget a source. If it refuses, it is asked again when it starts the next time."""
    await answer_of(handle, HandOver(source, (), (), keeps=()))


def _targets_of(entity: Entity) -> dict[int, str]:
    """By number of the subqueue: the entity that its messages go to. Subqueues whose status allows no
    receiving are left out."""
    if entity.gone is not None:
        return {}
    description = entity.description
    wanted = ((number, description.forwarding_of(number)) for number in description.may_forward())
    return {
        number: target
        for number, target in wanted
        if target is not None and description.status_of(number).can_receive
    }
