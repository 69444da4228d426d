"""A namespace: its entities, found by name, kept in the catalogue.

A broker may have several. They share data folders: catalogue, logs and index of partitions. The identifiers
of entities (`descriptions.new_generation`) say which namespace they belong to.

*A damaged entry* (both of its files, or their content) puts only its own entity out of service. It is
reported, and its logs are kept. If its name is still legible, clients are told to try again, not that the
entity does not exist. Deleting the entity discards its messages. If the name is not legible, the entity could
have any name: until the files are readable again or have been moved away, no entity is created, because it
could take the place of one that still has its messages.

An entity exists on all its partitions or on none: writing or deleting its catalogue entry, which is atomic,
creates or deletes it. Its partitions' logs are created on first use, and deleted after the entry. The next
start clears what a crash leaves in between, but only logs whose entry is known to be deleted, because any
other logs may hold messages that are still wanted.

`catalogue_changes.py` carries changes out, and knows the names whose last change may be on the disk or not.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import replace

import structlog

from broker.base.clock import Clock
from broker.base.errors import Reason, Refused, not_found_text
from broker.base.plurals import counted
from broker.entities.descriptions import (
    NAMESPACE,
    AuthorizationRule,
    EntityDescription,
    EntitySettings,
    key_of,
    shared,
)
from broker.entities.documents import encode_description
from broker.entities.kinds import describe
from broker.entities.subscription_validation import TopicLimits
from broker.entities.tiers import UNLIMITED, Tier
from broker.entities.topics import TopicDescription
from broker.entities.validation import (
    AUTO_DELETE_ON_IDLE_MS_MIN,
    check_effect,
    check_settings,
    check_update,
    without_effect,
)
from broker.namespace.catalogue_changes import CatalogueChanges, not_confirmed
from broker.namespace.damaged_entries import DamagedEntries
from broker.namespace.entity import Entity
from broker.namespace.idle_deletion import Candidate, IdleDeletion
from broker.namespace.keys_in_order import KeysInOrder
from broker.namespace.resting import Resting
from broker.namespace.runtime import EntityRuntime
from broker.namespace.stored_entities import StoredEntities, has_no_logs
from broker.namespace.subscriptions import Subscriptions
from broker.throttle.throttle import Throttling
from storage.catalogue import Catalogue
from storage.errors import StorageError
from storage.log import EntityLogs
from storage.spread_store import folders_of_new
from storage.threads import OwnerFailed, mark_retrieved, report_to_loop, start_background, within

log = structlog.get_logger("namespace")

OPENING_MAX = 32
"""How many partitions are opened at a time to be counted, so that listing a thousand entities does not take
all threads and descriptors."""

COUNTED_WITHIN_S = 8.0
"""How long, in seconds, a count of all entities waits for what is unknown after a crash. Prometheus gives up
after 10 s."""
OPENED_WITHIN_S = 4.0
"""How long, in seconds, a list then waits for the partitions of its own entities. Together with the wait
above it stays below the 15 s after which clients give up."""


class Namespace:
    """All entities of one namespace. Owned by the event loop; changes to one entity are made one at a
    time."""

    def __init__(
        self,
        name: str,
        *,
        catalogue: Catalogue,
        store: EntityLogs,
        clock: Clock,
        make_entity: Callable[[EntityDescription], Entity],
        resting: Resting,
        partitions_default: int,
        entities_max: int,
        tier: Tier = UNLIMITED,
        throttle: Throttling | None = None,
        idle_ms_min: int = AUTO_DELETE_ON_IDLE_MS_MIN,
        folders: int = 1,
        topic_limits: TopicLimits = TopicLimits(),  # noqa: B008 - immutable
        stored_name: str = NAMESPACE,
        confirm_retry_ms: int = 1_000,
        disk_timeout_ms: int = 5_000,
        failed: OwnerFailed = report_to_loop,
    ) -> None:
        """`stored_name`: the name of the namespace on disk, a part of the identifiers of its entities.

        `folders`: over how many data folders the partitions of new entities are spread.

        `confirm_retry_ms`: how long to wait between attempts to confirm an unconfirmed name.

        `disk_timeout_ms`: how long a deletion waits for a disk that does not answer while it removes the
        entity's files.

        `failed` is called if a background task dies. The namespace can no longer be relied on then.
        """
        self.name, self.stored_name = name, stored_name
        self._catalogue, self._store, self._clock, self._make_entity, self._resting = (
            catalogue,
            store,
            clock,
            make_entity,
            resting,
        )
        self._partitions_default, self._entities_max = partitions_default, entities_max
        self.tier, self.throttle = tier, throttle
        self._idle_ms_min = idle_ms_min
        self._entities: dict[str, Entity] = {}
        self._keys = KeysInOrder()
        self._opening = asyncio.Semaphore(OPENING_MAX)
        self._folders = folders
        self.subscriptions = Subscriptions(self, topic_limits, idle_ms_min)
        self._changes = CatalogueChanges(self._confirm, confirm_retry_ms, failed)
        self._disk_timeout_s = disk_timeout_ms / 1_000
        self._failed = failed
        self._checking: asyncio.Task[None] | None = None
        self.idle_deletion = IdleDeletion(clock, self._delete_idle, self._keep_idle)
        self._deleting_idle: asyncio.Task[None] | None = None
        self._damaged = DamagedEntries()
        self.when_rules_change: list[Callable[[], None]] = []
        """Called when authorization rules have changed, or were deleted with their entity. Whoever keeps
        claims adds a function."""
        self.changed: Callable[[Entity], None] = lambda entity: None
        """Called when an entity was created, changed or deleted. Set by `Forwarding`."""
        self.partition_started: Callable[[Entity, int], None] = lambda entity, number: None
        """Called when a partition has started. Set by `Forwarding`."""

    async def load(self, *others: Namespace) -> None:
        """Load the entities of this namespace, and of `others` in the same data folders. Entities of
        namespaces that are not among them are kept. Raises StorageError if the folder cannot be read or
        another process uses it, and as `StoredEntities.check_first`."""
        stored = await StoredEntities.read(self._catalogue, self._store)
        namespaces = (self, *others)
        stored.check_first(self.name, [each.name for each in others])
        for each in namespaces:
            await each._take(stored)
        for generation in stored.to_clear:
            await self._clear(generation)
        await stored.keep_first(self.name, self._catalogue)
        stored.report([each.stored_name for each in namespaces])
        live = [description for each in namespaces for description in each.descriptions()]
        await self._resting.load(
            dict.fromkeys(stored.kept, 0) | {each.generation: each.partitions for each in live},
            self._store,
            stored.with_logs,
        )
        self._resting.start()
        for each in namespaces:
            each._start()

    async def _take(self, stored: StoredEntities) -> None:
        """Take the namespace's own entities."""
        namesakes, damaged = stored.of(self.stored_name)
        for key, found in namesakes.items():
            self._entities[key] = self._make_entity(
                found[0] if len(found) == 1 else await self._choose(found, stored.with_logs)
            )
        self._keys = KeysInOrder(entity.description for entity in self._entities.values())
        for entity in self._entities.values():
            self.idle_deletion.note(entity)
        for each, why in damaged:
            self._damaged.note(each, why, self._entities)
        for description in self.descriptions():
            if inactive := without_effect(description.settings):
                log.warning("entity.settings_without_effect", entity=description.name, settings=inactive)

    def _start(self) -> None:
        """Start the background tasks."""
        self._checking = start_background(self._open_missing(), "namespace-check", self._failed)
        self._deleting_idle = start_background(self.idle_deletion.run(), "namespace-idle", self._failed)

    async def _open_missing(self) -> None:
        """Open the partitions whose logs are missing, in the background. Each partition finds the damage,
        reports it and stays down."""
        try:
            missing = await self._store.missing()
        except StorageError as error:  # none of the folders can be listed
            log.error("entity.logs_not_checked", error=str(error))
            return
        if not missing:
            return
        for entity in [each for each in self._entities.values() if each.description.generation in missing]:
            numbers = missing[entity.description.generation]
            with contextlib.suppress(Refused):  # it was deleted meanwhile
                await entity.opened(
                    [number for number in numbers if number < entity.description.partitions], self._opening
                )

    async def _choose(self, found: list[EntityDescription], with_logs: Collection[str]) -> EntityDescription:
        """Of several entries with one name, choose the newest that has logs, else the newest. Delete those
        without logs, since they hold nothing.

        Such entries come from earlier versions of the broker, or from a folder that was assembled by hand.
        """
        newest_last = sorted(
            found, key=lambda each: (each.generation in with_logs, each.created_at_ms, each.generation)
        )
        chosen = newest_last.pop()
        for other in newest_last:
            if other.generation in with_logs or not await has_no_logs(self._store, other.generation):
                log.error(
                    "entity.name_taken_twice",
                    entity=chosen.name,
                    live=chosen.generation,
                    kept=other.generation,
                )
            else:
                await self._catalogue.delete(other.generation)
                await self._clear(other.generation)
                log.warning(
                    "entity.entry_without_logs_deleted",
                    entity=chosen.name,
                    live=chosen.generation,
                    deleted=other.generation,
                )
        return chosen

    # --- looking up -----------------------------------------------------------------------------------------

    def find(self, name: str) -> Entity | None:
        """The entity of this name, in any case."""
        return self._entities.get(key_of(name))

    def describe(self, name: str) -> EntityDescription | None:
        """The description of the entity of this name."""
        entity = self.find(name)
        return entity.description if entity else None

    def missing(self, name: str) -> Refused:
        """Why no entity of this name is live: its entry is damaged, or it does not exist."""
        not_found = Refused(Reason.ENTITY_NOT_FOUND, not_found_text(f"sb://{self.name}/{name}"))
        return self._damaged.why_missing(name) or not_found

    @property
    def damaged(self) -> Collection[str]:
        """Queues out of service because their entries cannot be read: by lower-case name if known, else by
        generation."""
        return self._damaged.names()

    def may_be_damaged(self, name: str) -> bool:
        """Whether an entity that is not live may still exist: its entry cannot be read, or there is a damaged
        entry whose name is unknown."""
        return self._damaged.may_have(name)

    def may_exist(self, generation: str) -> bool:
        """Whether an entity of this generation is live, damaged or unconfirmed."""
        live = (each.description.generation for each in self._entities.values())
        unconfirmed = self._changes.unconfirmed.values()
        kept: tuple[Iterable[str] | DamagedEntries, ...] = (live, self._damaged, unconfirmed)
        return any(generation in each for each in kept)

    def descriptions(self) -> Sequence[EntityDescription]:
        """All entities, by name."""
        return [self._entities[key].description for key in sorted(self._entities)]

    def entities_between(self, kind: type[EntityDescription], start: int, stop: int) -> Sequence[Entity]:
        """A slice of all entities of a kind, sorted by name."""
        return [self._entities[key] for key in self._keys.of(kind)[start:stop]]

    def entity_count(self, kind: type[EntityDescription]) -> int:
        """The number of entities of a kind."""
        return len(self._keys.of(kind))

    def live_entities(self) -> Iterable[Entity]:
        """All entities, in no particular order."""
        return self._entities.values()

    def rules_of(self, path: str) -> Sequence[AuthorizationRule]:
        """The SAS rules of an entity; none if it does not exist."""
        entity = self.find(path)
        return entity.description.settings.authorization_rules if entity else ()

    async def runtime(self, name: str) -> EntityRuntime:
        """Counts and health, once every partition that has a log is open or has failed to open. Raises
        Refused(ENTITY_NOT_FOUND).

        A partition without a log holds nothing and is left alone: reading the counts creates no files for it.
        While memory is scarce, closed partitions are left alone, too: the index knows what they hold.
        """
        entity = self._existing(name)
        try:
            with_logs: Collection[int] = await self._store.partitions(entity.description.generation)
        except StorageError:  # opening the partitions turns any failure into a state
            with_logs = range(entity.description.partitions)
        await entity.opened(with_logs, self._opening, sparing=True)
        return entity.runtime()

    async def counted(self, within_s: float = COUNTED_WITHIN_S) -> None:
        """Return once `Entity.runtime` is exact for all entities, or after `within_s`; then it is not exact
        for entities with `Entity.unknown`."""
        until_s = asyncio.get_running_loop().time() + within_s
        if self._checking is not None and not self._checking.done():
            await asyncio.wait([self._checking], timeout=within_s)
        await self._resting.all_known(max(0.0, until_s - asyncio.get_running_loop().time()))

    async def opened(self, entities: Iterable[Entity], within_s: float = OPENED_WITHIN_S) -> None:
        """Open all partitions of these entities whose content is unknown, without waiting for those that
        the background opens first. Returns after `within_s` at the latest, however many there are; what is
        still unknown then stays `Entity.unknown`."""
        tasks = [
            asyncio.create_task(entity.opened(entity.unknown, self._opening), name=f"count {entity.name}")
            for entity in entities
            if entity.unknown
        ]
        if not tasks:
            return
        for task in tasks:
            task.add_done_callback(mark_retrieved)  # Refused if the entity is deleted meanwhile
        try:
            await asyncio.wait(tasks, timeout=within_s)
        finally:
            for task in tasks:
                task.cancel()

    @property
    def unknown_count(self) -> int:
        """Partitions that were open when the broker last ended and have not been opened yet."""
        return self._resting.unknown_count

    # --- changing -------------------------------------------------------------------------------------------

    async def create_entity(
        self,
        name: str,
        settings: EntitySettings,
        partitions: int | None = None,
        *,
        file_settings: EntitySettings | None = None,
    ) -> EntityDescription:
        """Create an entity, durably. Pass `file_settings` if the configuration file asks for it.

        Settings without effect are refused, except those from the file: the emulator's own file must start,
        with a warning. Raises Refused: ENTITY_EXISTS, ARGUMENT, NOT_IMPLEMENTED, QUOTA_EXCEEDED, and as
        `carry_out`.
        """
        name = name.strip("/")
        settings = check_settings(name, settings, self._idle_ms_min)
        settings = shared(self.tier.admit(self.name, settings, partitions))
        if file_settings is None:
            check_effect(settings)
        async with self._changes.lock(key_of(name)):
            await self._changes.confirm(key_of(name))
            self._check_new(name, settings)
            count = partitions or self.tier.partitions or self._partitions_default
            description = describe(
                name,
                settings,
                partitions=count if settings.enable_partitioning else 1,
                now_ms=self._clock.now_ms(),
                file_settings=file_settings,
                folders=self._folders_of_new(),
                namespace=self.stored_name,
            )
            await self._keep(description)
            entity = self._entities[key_of(name)] = self._make_entity(description)
            self._keys.add(description)
            log.info("entity.created", namespace=self.name, entity=name, partitions=description.partitions)
            if description.folders < self._folders:
                log.warning(
                    "entity.in_fewer_folders", entity=name, folders=description.folders, of=self._folders,
                    advice="A data folder is missing, so the entity has no partitions in it and in those "
                    "after it, for good. Delete the entity and create it again once all folders are there, "
                    "if you want it in all of them.",
                )  # fmt: skip
            self._note(entity)
            return description

    def _folders_of_new(self) -> int:
        """Over how many data folders an entity is spread that is created now."""
        self._resting.look_at_folders()
        return folders_of_new(self._folders, self._resting.lost_folders)

    def _check_new(self, name: str, settings: EntitySettings) -> None:
        """Check that there may be one more entity, with this name and these settings. Raises Refused:
        ENTITY_EXISTS, QUOTA_EXCEEDED, PARTITION_UNAVAILABLE."""
        if self.find(name) is not None:
            raise Refused(
                Reason.ENTITY_EXISTS,
                f"Conflict. You're requesting an operation that isn't allowed: the entity '{name}' exists "
                "already.",
            )
        if self.may_be_damaged(name):
            raise self.missing(name)
        if len(self._entities) >= self._entities_max:
            raise Refused(
                Reason.QUOTA_EXCEEDED,
                f"The namespace holds {counted(len(self._entities), 'entity', 'entities')}; the limit is "
                f"{self._entities_max}.",
            )
        self.tier.check_count(settings, (each.description.settings for each in self._entities.values()))

    async def update_entity(
        self, name: str, settings: EntitySettings, *, file_settings: EntitySettings | None = None
    ) -> EntityDescription:
        """Replace an entity's settings, durably, on all partitions. Pass `file_settings` if the configuration
        file asks for it.

        Settings without effect are refused as in `create_entity`, unless they are already stored. Raises
        Refused: ENTITY_NOT_FOUND, ARGUMENT, NOT_IMPLEMENTED, and as `carry_out`.
        """

        def change(description: EntityDescription, now_ms: int) -> EntityDescription:
            before = description.settings
            after = check_update(description.name, before, settings, self._idle_ms_min)
            after = shared(self.tier.admit(self.name, after, previous=before))
            if file_settings is None:
                check_effect(after, before)
            return description.updated(after, now_ms, file_settings)

        return await self.change_entity(name, change)

    async def change_entity(
        self,
        name: str,
        change: Callable[[EntityDescription, int], EntityDescription],
        first: Callable[[], Awaitable[None]] | None = None,
    ) -> EntityDescription:
        """Replace an entity's description, durably, on all partitions.

        `change` makes the new description from the present one and the time in ms, or returns the present
        one; no other change of the entity is under way then. `first` is awaited before the new description is
        kept. Raises Refused: ENTITY_NOT_FOUND, what `change` or `first` raises, and as `carry_out`.
        """
        async with self._changes.lock(key_of(name)):
            await self._changes.confirm(key_of(name))
            entity = self._existing(name)
            before = entity.description
            description = change(before, self._clock.now_ms())
            if first is not None:
                await first()
            if description is before:
                return before
            await self._keep(description)
            try:
                await entity.update(description)
            finally:  # it has the description, even if the caller is cancelled before all partitions have it
                self.idle_deletion.note(entity)
                if description.settings.authorization_rules != before.settings.authorization_rules:
                    self.rules_changed()
            log.info("entity.updated", namespace=self.name, entity=description.name)
            self._note(entity)
            return description

    def rules_changed(self) -> None:
        """Tell everybody who keeps claims that authorization rules have changed."""
        for tell in self.when_rules_change:
            tell()

    async def delete_entity(self, name: str) -> None:
        """Delete an entity and everything in it, durably. Raises Refused: ENTITY_NOT_FOUND, and as
        `carry_out`.

        The entity is deleted as soon as its entry is; the next start clears any files left behind.
        """
        key = key_of(name)
        async with self._changes.lock(key):
            if key not in self._entities:
                await self._changes.confirm(key)
                if (generation := self._damaged.take(name)) is not None:
                    await self._changes.carry_out(key, generation, self._catalogue.delete(generation))
                    log.warning(
                        "entity.deleted", entity=name, generation=generation, reason="Its entry was damaged."
                    )
                    await self._clear(generation)
                    return
            await self._delete(key, self._existing(name))

    async def _delete_idle(self, candidate: Candidate, is_idle: Callable[[], bool]) -> None:
        """Delete an entity or a subscription if it is still live, and idle, once no other change of the name
        is under way. Raises Refused, as `carry_out`."""
        entity = candidate.entity
        if candidate.subscription is not None:
            await self.subscriptions.delete_idle(entity.name, candidate.subscription, is_idle)
            return
        async with self._changes.lock(key_of(entity.name)):
            if self.find(entity.name) is entity and entity.gone is None and is_idle():
                await self._delete(key_of(entity.name), entity)

    async def _delete(self, key: str, entity: Entity) -> None:
        """Delete a live entity. The caller holds the lock of the name. Raises Refused, as
        `carry_out`."""
        try:
            await self._changes.carry_out(
                key, entity.description.generation, self._catalogue.delete(entity.description.generation)
            )
        except BaseException:
            if key in self._changes.unconfirmed:
                await entity.end(not_confirmed(entity.description.name))
                self._note(entity)
            raise
        del self._entities[key]
        self._keys.remove(entity.description)
        if entity.description.settings.authorization_rules:
            self.rules_changed()
        await entity.end(
            Refused(Reason.ENTITY_NOT_FOUND, not_found_text(entity.description.name)), is_deleted=True
        )
        log.info("entity.deleted", namespace=self.name, entity=entity.description.name)
        self._note(entity)
        await self._clear(entity.description.generation)

    async def _clear(self, generation: str) -> None:
        """Remove the files of a deleted entity. If the disk refuses, the next start does it; a disk that
        hangs is not waited for."""
        self._resting.forget(generation)
        with contextlib.suppress(TimeoutError):
            await within(self._disk_timeout_s, self._remove(generation))

    async def _remove(self, generation: str) -> None:
        try:
            await self._store.delete(generation)
            await self._catalogue.forget(generation)
            log.info("entity.cleared", generation=generation)
        except StorageError as error:
            log.warning("entity.not_cleared", generation=generation, error=str(error))

    async def close(self, *others: Namespace) -> None:
        """Stop all partitions of this namespace and of `others`, which were loaded with it; each finishes
        what it has begun."""
        namespaces = (self, *others)
        for each in namespaces:
            await each._stop_background()
        await self._resting.stop()
        for each in namespaces:
            await each._changes.confirm_each()
        entities = [entity for each in namespaces for entity in each.live_entities() if entity.started]
        await asyncio.gather(*(entity.stop() for entity in entities))
        await asyncio.gather(self._resting.close(), self._catalogue.close())

    async def _stop_background(self) -> None:
        for task in (self._changes.confirming, self._checking, self._deleting_idle):
            if task is not None:
                task.cancel()
                await asyncio.wait([task], timeout=self._disk_timeout_s)

    async def _keep(self, description: EntityDescription) -> None:
        entry = self._catalogue.put(description.generation, encode_description(description))
        await self._changes.carry_out(key_of(description.name), description.generation, entry)

    async def _keep_idle(self, candidate: Candidate, idle_ms: int) -> None:
        """Keep how long an entity or a subscription has been idle. Raises Refused, as `carry_out`."""
        entity = candidate.entity
        async with self._changes.lock(key_of(entity.name)):
            if self.find(entity.name) is entity:
                description = _with_idle(entity.description, candidate.subscription, idle_ms)
                await self._keep(description)
                entity.description = description

    # --- changes that have failed ---------------------------------------------------------------------------

    @property
    def unconfirmed(self) -> Collection[str]:
        """The keys of the names whose last change failed but may be on the disk."""
        return self._changes.unconfirmed.keys()

    async def _confirm(self, key: str, generation: str) -> None:
        """Make the entry of an unconfirmed name match the live entity. Raises StorageError."""
        entity = self._entities.get(key)
        if entity is None:
            await self._catalogue.delete(generation)
            await self._clear(generation)
            return
        await self._catalogue.put(generation, encode_description(entity.description))
        if entity.gone is not None:
            # End links attached since then, and close its logs before they are acquired again.
            await entity.end(entity.gone)
            again = self._entities[key] = self._make_entity(entity.description)
            for watcher in list(entity.watchers):
                watcher.queue_ended(entity.gone)
            self._note(entity)
            self._note(again)

    # --- helpers --------------------------------------------------------------------------------------------

    def _note(self, entity: Entity) -> None:
        """An entity was created, changed or deleted."""
        self.idle_deletion.note(entity)
        self.changed(entity)

    def _existing(self, name: str) -> Entity:
        entity = self.find(name)
        if entity is None:
            why = self.missing(name)
            raise (
                why
                if why.reason is Reason.PARTITION_UNAVAILABLE
                else Refused(Reason.ENTITY_NOT_FOUND, not_found_text(name))
            )
        return entity


def _with_idle(description: EntityDescription, subscription: int | None, idle_ms: int) -> EntityDescription:
    """A description that says how long the entity, or the subscription with this number, has been idle."""
    if subscription is None:
        return replace(description, idle_ms=idle_ms)
    assert isinstance(description, TopicDescription), "only topics have subscriptions"
    found = description.numbered(subscription)
    return description if found is None else description.with_changed(replace(found, idle_ms=idle_ms))
