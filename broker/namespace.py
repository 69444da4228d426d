"""The namespace: all entities of the broker, found by name, kept in the catalogue.

An entity exists on all its partitions or on none: its catalogue entry, written atomically, is the moment of its creation
and of its end; its partitions' logs come to life when they are first used, and are deleted after the entry is gone. What a
crash leaves in between (logs without an entry) is cleared at the next start.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any
from weakref import WeakValueDictionary

import structlog

from broker.clock import Clock
from broker.entities import AuthorizationRule, EntityStatus, QueueDescription, QueueSettings, key_of
from broker.entity_rules import check_queue, check_update
from broker.errors import Reason, Refused
from broker.operations import SubqueueCounts
from broker.queue import Queue
from storage.catalogue import Catalogue
from storage.errors import DiskFull, StorageError
from storage.log import LogStore

log = structlog.get_logger("namespace")

CATALOGUE_VERSION = 1
OPENING_MAX = 32
"""Partitions that are opened at a time to be counted: a list of a thousand queues must not take all threads and descriptors."""


@dataclass(slots=True, frozen=True)
class EntityRuntime:
    """What an entity holds now, gathered from all its partitions (HTTP contract 2.6)."""

    active: int
    dead_letter: int
    scheduled: int
    transfer: int
    transfer_dead_letter: int
    message_count: int
    size_bytes: int
    availability: str
    """"Available", or "Limited" while a partition is down."""
    accessed_at_ms: int | None
    partitions: list[str]
    """Each partition's health, by its name."""
    counts: dict[str, SubqueueCounts] = field(default_factory=dict)
    """By subqueue."""


class Namespace:
    """All entities. Owned by the event loop; changes to one entity wait for each other."""

    def __init__(
        self,
        name: str,
        *,
        catalogue: Catalogue,
        store: LogStore,
        clock: Clock,
        make_queue: Callable[[QueueDescription], Queue],
        partitions_default: int,
        entities_max: int,
    ) -> None:
        self.name = name
        self._catalogue, self._store, self._clock, self._make_queue = catalogue, store, clock, make_queue
        self._partitions_default, self._entities_max = partitions_default, entities_max
        self._queues: dict[str, Queue] = {}
        self._changing: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._opening = asyncio.Semaphore(OPENING_MAX)

    async def load(self) -> None:
        """Bring the entities of the catalogue back. Raises storage.errors.CorruptRecord."""
        for document, content in (await self._catalogue.load_all()).items():
            description = decode_description(content)
            assert document == description.generation, f"catalogue document {document} holds {description.generation}"
            self._queues[key_of(description.name)] = self._make_queue(description)
        known = {queue.description.generation for queue in self._queues.values()}
        for generation in await self._store.entities():
            if generation not in known:
                await self._store.delete(generation)
                log.info("entity.cleared", generation=generation)

    # --- looking up -------------------------------------------------------------------------------------------------

    def find(self, name: str) -> Queue | None:
        """The queue of this name, in any case."""
        return self._queues.get(key_of(name))

    def find_queue(self, name: str) -> QueueDescription | None:
        """Its description."""
        queue = self.find(name)
        return queue.description if queue else None

    def queues(self) -> Sequence[QueueDescription]:
        """All queues, by name."""
        return [self._queues[key].description for key in sorted(self._queues)]

    def live_queues(self) -> Iterable[Queue]:
        """All queues, in no order."""
        return self._queues.values()

    def rules_of(self, path: str) -> Sequence[AuthorizationRule]:
        """The SAS rules of an entity, none for one that does not exist."""
        queue = self.find(path)
        return queue.description.settings.authorization_rules if queue else ()

    async def runtime(self, name: str) -> EntityRuntime:
        """Counts and health, once every partition that has a log was opened or has failed to. Raises Refused(ENTITY_NOT_FOUND).

        A partition without a log holds nothing, and stays as it is: nothing is written because somebody looks.
        """
        queue = self._existing(name)
        try:
            with_logs: Collection[int] = await self._store.partitions(queue.description.generation)
        except StorageError:  # whatever it is, opening them will tell, and end in a state
            with_logs = range(queue.description.partitions)
        await queue.opened(with_logs, self._opening)
        return self.runtime_now(queue)

    def runtime_now(self, queue: Queue) -> EntityRuntime:
        """The same without waiting: partitions that nobody has used yet count nothing."""
        counts = queue.counts()
        main, dead, transfer_dead = (counts.get(subqueue, SubqueueCounts()) for subqueue in queue.SUBQUEUES)
        return EntityRuntime(
            active=main.active,
            dead_letter=dead.active + dead.deferred,
            scheduled=main.scheduled,
            transfer=0,
            transfer_dead_letter=transfer_dead.active + transfer_dead.deferred,
            message_count=sum(each.active + each.deferred + each.scheduled for each in counts.values()),
            size_bytes=sum(each.bytes for each in counts.values()),
            availability="Available" if queue.available else "Limited",
            accessed_at_ms=queue.accessed_at_ms,
            partitions=queue.health(),
            counts=counts,
        )

    # --- changing ---------------------------------------------------------------------------------------------------

    async def create_queue(self, name: str, settings: QueueSettings, partitions: int | None = None) -> QueueDescription:
        """Create a queue, durably. Raises Refused: ENTITY_EXISTS, ARGUMENT, QUOTA_EXCEEDED."""
        name = name.strip("/")
        settings = check_queue(name, settings)
        async with self._change(name):
            if self.find(name) is not None:
                raise Refused(
                    Reason.ENTITY_EXISTS,
                    f"Conflict. You're requesting an operation that isn't allowed: the entity '{name}' exists already.",
                )
            if len(self._queues) >= self._entities_max:
                raise Refused(
                    Reason.QUOTA_EXCEEDED, f"The namespace holds {len(self._queues)} entities; {self._entities_max} is the maximum."
                )
            now_ms = self._clock.now_ms()
            count = (partitions or self._partitions_default) if settings.enable_partitioning else 1
            description = QueueDescription(name, uuid.uuid4().hex, count, settings, now_ms, now_ms)
            await self._keep(description)
            self._queues[key_of(name)] = self._make_queue(description)
            log.info("entity.created", entity=name, partitions=count)
            return description

    async def update_queue(self, name: str, settings: QueueSettings) -> QueueDescription:
        """Replace a queue's settings, durably, on all partitions. Raises Refused: ENTITY_NOT_FOUND, ARGUMENT."""
        async with self._change(name):
            queue = self._existing(name)
            settings = check_update(queue.description.name, queue.description.settings, settings)
            description = queue.description.updated(settings, self._clock.now_ms())
            await self._keep(description)
            await queue.update(description)
            log.info("entity.updated", entity=description.name)
            return description

    async def delete_queue(self, name: str) -> None:
        """Delete a queue with all it holds, durably. Raises Refused(ENTITY_NOT_FOUND)."""
        async with self._change(name):
            queue = self._existing(name)
            await _on_disk(self._catalogue.delete(queue.description.generation))
            del self._queues[key_of(name)]
            await queue.end(Refused(Reason.ENTITY_NOT_FOUND, not_found_text(queue.description.name)))
            await self._store.delete(queue.description.generation)
            log.info("entity.deleted", entity=queue.description.name)

    async def close(self) -> None:
        """Stop all partitions; each finishes what it has begun."""
        await asyncio.gather(*(queue.stop() for queue in self._queues.values()))

    async def _keep(self, description: QueueDescription) -> None:
        await _on_disk(self._catalogue.put(description.generation, encode_description(description)))

    def _existing(self, name: str) -> Queue:
        queue = self.find(name)
        if queue is None:
            raise Refused(Reason.ENTITY_NOT_FOUND, not_found_text(name))
        return queue

    def _change(self, name: str) -> asyncio.Lock:
        """One change at a time per name. A lock lives as long as somebody holds it or waits for it."""
        key = key_of(name)
        lock = self._changing.get(key)
        if lock is None:
            lock = self._changing[key] = asyncio.Lock()
        return lock


async def _on_disk(change: Awaitable[None]) -> None:
    """A change of the catalogue; what the disk refuses is refused, and nothing has changed (durability rule 6)."""
    try:
        await change
    except DiskFull as error:
        raise Refused(Reason.DISK_FULL, "The disk is full: the entity was left as it is.") from error
    except StorageError as error:
        log.error("catalogue.failed", error=str(error))
        raise Refused(Reason.INTERNAL, "The catalogue could not be written: the entity was left as it is. Please try again.") from error


def not_found_text(name: str) -> str:
    """What JavaScript and Java recognise a missing entity by (AMQP contract 9.4)."""
    return f"The messaging entity '{name}' could not be found."


def encode_description(description: QueueDescription) -> bytes:
    """A queue as its catalogue document: JSON, so that a person can read it."""
    fields = asdict(description)
    settings = fields["settings"]
    settings["status"] = description.settings.status.value
    for rule in settings["authorization_rules"]:
        rule["rights"] = sorted(rule["rights"])
    return json.dumps({"version": CATALOGUE_VERSION, "kind": "queue", **fields}, indent=1).encode()


def decode_description(content: bytes) -> QueueDescription:
    """The inverse; settings that a later version added keep their defaults."""
    fields: dict[str, Any] = json.loads(content)
    assert fields.pop("version") == CATALOGUE_VERSION and fields.pop("kind") == "queue", "a catalogue document of another version"
    settings = fields.pop("settings")
    rules = tuple(AuthorizationRule(**(rule | {"rights": frozenset(rule["rights"])})) for rule in settings.pop("authorization_rules"))
    status = EntityStatus(settings.pop("status"))
    return QueueDescription(**fields, settings=replace(QueueSettings(**settings), authorization_rules=rules, status=status))
