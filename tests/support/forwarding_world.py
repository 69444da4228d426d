"""Entities that forward to each other, with real partitions on logs in memory, without sockets. They can
crash at any time and start again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import astuple
from functools import partial
from typing import Any, cast

from broker.base.clock import ManualClock
from broker.base.errors import Reason, Refused
from broker.base.metrics import Metrics
from broker.entities.descriptions import MAIN, EntityDescription, QueueDescription, QueueSettings, key_of
from broker.message.stored import MessageIds, store_run
from broker.messaging.forward_lane import Lane
from broker.messaging.forwarding import Forwarding
from broker.namespace.entity import Entity, ask
from broker.namespace.kinds import make_entity
from broker.namespace.meter import EntityMeter
from broker.namespace.namespace import Namespace
from broker.namespace.resting import Resting
from broker.operations.browsing import Peek, Peeked
from broker.operations.message_states import SubqueueCounts
from broker.operations.receiving import Locked
from broker.operations.sending import Send, Sent
from broker.partition.health import Health
from broker.partition.payloads import PayloadBudget
from broker.partition.summary import Summary
from broker.partition.task import PartitionTask
from broker.partition.task_limits import TaskLimits
from broker.throttle.memory_mark import Memory
from storage.log import Log
from tests.support.amqp_messages import message
from tests.support.locked import locked
from tests.support.memory_log import Disk, MemoryLog
from tests.support.waiting import until

LIMITS = TaskLimits(rest_ms=None)
CRASH_TURNS = 4


class _Resting:
    """Says what closed partitions hold, as it was noted when they were closed."""

    def __init__(self) -> None:
        self.noted: dict[tuple[str, int], Summary] = {}
        self.left: dict[str, set[int]] = {}
        """By generation: the partitions that a crash has left open, until they are open again."""
        self.lost_folders: frozenset[int] = frozenset()
        self.slow_folders: frozenset[int] = frozenset()
        self.is_memory_scarce = False

    def ask(self) -> None: ...

    def take_room(self, generation: str, number: int) -> bool:
        return True

    def look_at_folders(self) -> None: ...
    def enter(self, generation: str, sleeper: object) -> None: ...
    def leave(self, generation: str, sleeper: object) -> None: ...

    def counts(self, generation: str, leave_out: Collection[int]) -> dict[int, SubqueueCounts]:
        total: dict[int, SubqueueCounts] = {}
        for (each, number), summary in self.noted.items():
            if each == generation and number not in leave_out:
                for place, counts in summary.counts.items():
                    before = total.get(place, SubqueueCounts())
                    total[place] = SubqueueCounts(
                        *map(sum, zip(astuple(before), astuple(counts), strict=True))
                    )
        return total

    def count_in_steps(
        self, generation: str, leave_out: Collection[int], total: dict[int, SubqueueCounts]
    ) -> Iterator[None]:
        total.update(self.counts(generation, leave_out))
        yield

    def unknown(self, generation: str) -> Collection[int]:
        return self.left.get(generation, ())

    def summary(self, generation: str, number: int) -> Summary | None:
        return self.noted.get((generation, number))


class World:
    """Entities by name. What they have stored survives `crash` and `stop`; `start` begins a new life."""

    def __init__(self, **queues: tuple[int, QueueSettings]) -> None:
        """For each queue, the number of its partitions and its settings."""
        self.clock = ManualClock()
        self.disks: dict[tuple[str, int], Disk] = {}
        self.logs: dict[tuple[str, int], MemoryLog] = {}
        self.descriptions: dict[str, EntityDescription] = {
            name: QueueDescription(name, name.rjust(32, "0"), partitions, settings)
            for name, (partitions, settings) in queues.items()
        }
        self.resting = _Resting()
        self.entities: dict[str, Entity] = {}
        self.changed: Callable[[Entity], None] = lambda entity: None
        self.partition_started: Callable[[Entity, int], None] = lambda entity, number: None
        self.tasks: set[asyncio.Task[Any]] = set()
        self.life = 0
        self.partitions: dict[tuple[str, int], PartitionTask] = {}
        self.forwarding: Forwarding
        self.on_log: Callable[[str, int, MemoryLog], None] = lambda name, number, log: None

    # --- what forwarding needs of a namespace ---------------------------------------------------------------

    def find(self, name: str) -> Entity | None:
        return self.entities.get(key_of(name))

    def missing(self, name: str) -> Refused:
        return Refused(Reason.ENTITY_NOT_FOUND, f"The messaging entity '{name}' could not be found.")

    def live_entities(self) -> Iterable[Entity]:
        return self.entities.values()

    def may_exist(self, generation: str) -> bool:
        return any(each.description.generation == generation for each in self.entities.values())

    # --- lives ----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to forward."""
        self.life += 1
        metrics = Metrics()
        self.entities = {
            name: make_entity(
                description, EntityMeter(metrics, name), self._start_partition, cast(Resting, self.resting)
            )
            for name, description in self.descriptions.items()
        }
        memory = Memory(1 << 40, lambda: 0, lambda: 0)
        self.forwarding = Forwarding(
            cast(Namespace, self),
            memory=memory,
            clock=self.clock,
            message_id=MessageIds(b"12345678"),
            spawn=partial(self.spawn, life=self.life),
        )
        self.forwarding.start()

    def spawn(
        self, work: Coroutine[Any, Any, None], *, name: str = "", life: int | None = None
    ) -> asyncio.Task[None]:
        if life is not None and self.life != life:  # what is left of an earlier life does nothing more
            work.close()
            work = asyncio.sleep(0)
        task = asyncio.create_task(work, name=name)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    def _start_partition(self, entity: Entity, number: int) -> PartitionTask:
        key = entity.name, number
        task = self.partitions[key] = PartitionTask(
            number,
            log=self._make_log(entity, number),
            clock=self.clock,
            description=entity.description,
            payloads=PayloadBudget(1 << 26, 0),
            limits=LIMITS,
            on_health=partial(self._is_known, entity.description.generation),
        )
        self.spawn(task.run())
        self.partition_started(entity, number)
        return task

    def _is_known(self, generation: str, number: int, health: Health) -> None:
        """A partition that has been opened, or could not be, is not unknown any more."""
        if health is not Health.OPENING:
            self.resting.left.get(generation, set()).discard(number)

    def _make_log(self, entity: Entity, number: int) -> Log:
        key = entity.name, number
        log = self.logs[key] = MemoryLog(self.disks.setdefault(key, Disk()))
        self.on_log(entity.name, number, log)
        return log

    async def crash(self) -> None:
        """End everything at once. What is on the disks stays."""
        self.life += 1
        for _ in range(CRASH_TURNS):  # what ends may spawn something, which then does nothing
            tasks = list(self.tasks)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.sleep(0)
        self._forget()
        self.resting.noted.clear()
        self.resting.left.clear()
        for name, number in self.disks:
            self.resting.left.setdefault(self.descriptions[name].generation, set()).add(number)

    async def stop(self) -> None:
        """Stop in order, and note what the partitions hold."""
        await self.forwarding.stop()
        for (name, number), partition in self.partitions.items():
            await partition.stop()
            counts = partition.counts()
            subqueues = self.descriptions[name].subqueues
            held = {number: counts[each.name] for number, each in subqueues.items()}
            self.resting.noted[self.descriptions[name].generation, number] = Summary(held, {})
        await asyncio.gather(*self.tasks, return_exceptions=True)
        self._forget()

    def _forget(self) -> None:
        self.partitions.clear()
        self.logs.clear()
        self.entities.clear()

    async def wake_all(self) -> None:
        """Open what was open before a crash, as the broker does by itself."""
        for name, number in list(self.disks):
            if (entity := self.find(name)) is not None:
                await entity.wake(number)

    # --- clients --------------------------------------------------------------------------------------------

    async def send(
        self,
        name: str,
        *texts: str,
        key: str | None = None,
        partition: int | None = None,
        later_ms: int | None = None,
    ) -> int:
        """Send messages with these ids and bodies, all to one partition: that of the key, or this one. They
        become active so much later. Gives the first one's sequence number."""
        annotations = None if key is None else {"x-opt-partition-key": key}
        run = store_run([message_of(text, annotations) for text in texts], str)
        assert not run.refused
        entity = self.entities[name]
        number = entity.router.number_of(key) if key is not None else partition or 0
        times = None if later_ms is None else [self.clock.now_ms() + later_ms] * len(texts)
        answer = await ask(entity.router.handles[number], Send(run.data, None, scheduled_ms=times))
        assert isinstance(answer, Sent), answer
        return answer.first

    async def held(self, name: str, subqueue: str = MAIN) -> list[Peeked]:
        """What each partition of an entity holds."""
        pages = []
        for handle in self.entities[name].router.handles:
            page = await ask(handle, Peek(subqueue, 0, 10_000))
            assert isinstance(page, Peeked)
            pages.append(page)
        return pages

    async def texts(self, name: str, subqueue: str = MAIN) -> list[str]:
        """The bodies of the messages that an entity holds, by partition and in order."""
        return [
            stored[stored.rindex(b"<") + 1 : -1].decode()
            for page in await self.held(name, subqueue)
            for stored in page.messages
        ]

    async def update(self, name: str, settings: QueueSettings) -> None:
        """Change an entity's settings."""
        entity = self.entities[name]
        await self.describe(name, entity.description.updated(settings, self.clock.now_ms(), None))

    async def describe(self, name: str, description: EntityDescription) -> None:
        """Change an entity's description."""
        entity = self.entities[name]
        self.descriptions[name] = description
        await entity.update(description)
        self.changed(entity)

    async def delete(self, name: str) -> None:
        """Delete an entity."""
        entity = self.entities.pop(name)
        await entity.end(self.missing(name), is_deleted=True)
        self.changed(entity)

    async def until_at(self, name: str, count: int, subqueue: str = MAIN) -> list[str]:
        """Wait until an entity holds this many messages; gives their texts."""
        entity = self.entities[name]
        await until(lambda: held_now(entity, subqueue) >= count)
        return await self.texts(name, subqueue)

    async def until_empty(self, name: str, subqueue: str = MAIN) -> None:
        entity = self.entities[name]
        await until(lambda: held_now(entity, subqueue) == 0)


def locked_of(*messages: bytes) -> Locked:
    """These stored messages as partition 0 would hand them out."""
    given = locked(0, len(messages))
    given.messages = list(messages)
    return given


def is_troubled(lane: Lane) -> bool:
    """Whether a lane, or one of its outlets, has failed and has not succeeded since."""
    retries = [lane._pause, *(outlet.retry for outlet in lane._outlets.values())]
    return any(each.reason is not None for each in retries)


def held_now(entity: Entity, subqueue: str = MAIN) -> int:
    """How many messages the open partitions of an entity hold."""
    return entity.counts().get(subqueue, SubqueueCounts()).active


def message_of(text: str, annotations: dict[str, str] | None = None, session: str | None = None) -> bytes:
    """A message whose id is (the beginning of) a text, and whose body contains it."""
    properties = [text[:128], *[None] * 9, session] if session is not None else [text[:128]]
    return message(annotations=annotations, properties=properties, body=[f"<{text}>".encode()])


@asynccontextmanager
async def world(**queues: tuple[int, QueueSettings]) -> AsyncIterator[World]:
    """A world that has started, and is stopped at the end."""
    made = World(**queues)
    made.start()
    try:
        yield made
    finally:
        await made.crash()
