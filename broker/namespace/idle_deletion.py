"""Deletes entities that have been idle for as long as their AutoDeleteOnIdle says (AMQP contract 10.8).

*In use* is an entity that a client has sent to, received from, peeked at or asked its management node about,
whose description was changed, that has a link attached, or that holds scheduled messages. All other time
counts as idle, but only while the broker runs: time is monotonic.

*Restarts.* Each eighth of the period that has passed is kept in the entity's catalogue entry, and 0 once the
entity is used again. So a restart adds at most an eighth of the period, and idle entities cost eight writes.
If the broker crashes within LOOK_S after an idle entity was used again, its clients still have an eighth of
the period to return.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

import structlog

from broker.base.clock import Clock
from broker.base.errors import Refused
from broker.namespace.entity import Entity

log = structlog.get_logger("namespace")

LOOK_S = 1.0
"""How often to look at the entities."""
PARTS = 8
"""In how many steps the progress of an entity is kept."""
LOOKED_AT_ONCE = 512
"""Entities that one turn of the event loop looks at: less than a millisecond."""


@dataclass(slots=True)
class _Idle:
    """What is known of an entity with AutoDeleteOnIdle."""

    since_ms: int
    """When it was last seen in use, or was first looked at; monotonic time."""
    before_ms: int
    """How long it had been idle before that."""
    accessed_at_ms: int | None
    updated_at_ms: int


class IdleDeletion:
    """Watches the entities of a namespace. Owned by the event loop."""

    def __init__(
        self,
        clock: Clock,
        entities: Callable[[], Iterable[Entity]],
        delete: Callable[[Entity, Callable[[], bool]], Awaitable[None]],
        keep: Callable[[Entity, int], Awaitable[None]],
    ) -> None:
        """`delete` waits until it may change the entity, and deletes it if the function then says that it
        is still idle. `keep` stores how long an entity has been idle, in ms. Both may raise Refused."""
        self._clock, self._entities, self._delete, self._keep = clock, entities, delete, keep
        self._idle: dict[str, _Idle] = {}
        """By generation."""

    async def run(self) -> None:
        """Look at the entities for ever."""
        while True:
            await asyncio.sleep(LOOK_S)
            await self.look()

    async def look(self) -> None:
        """Look at all entities once; delete those whose time has come."""
        known, self._idle = self._idle, {}
        for place, entity in enumerate(list(self._entities())):
            if place % LOOKED_AT_ONCE == LOOKED_AT_ONCE - 1:
                await asyncio.sleep(0)
            period_ms = entity.description.settings.auto_delete_on_idle_ms
            if period_ms is not None and entity.gone is None:
                await self._look_at(entity, period_ms, known.get(entity.description.generation))

    async def _look_at(self, entity: Entity, period_ms: int, idle: _Idle | None) -> None:
        now_ms, description = self._clock.monotonic_ms(), entity.description
        if idle is None:
            idle = _Idle(now_ms, description.idle_ms, entity.accessed_at_ms, description.updated_at_ms)
        is_used = _is_used(entity, idle)
        if is_used:
            idle = _Idle(now_ms, 0, entity.accessed_at_ms, description.updated_at_ms)
        self._idle[description.generation] = idle
        idle_ms = idle.before_ms + now_ms - idle.since_ms
        kept_ms = idle_ms * PARTS // period_ms * period_ms // PARTS
        try:
            if idle_ms >= period_ms:
                await self._delete(entity, lambda: _is_still_idle(entity, idle, idle_ms))
            elif kept_ms > description.idle_ms or (is_used and description.idle_ms):
                await self._keep(entity, kept_ms)
        except Refused as why:  # the disk: the next look tries again
            log.warning("entity.idle_not_handled", entity=entity.name, reason=why.description)


def _is_still_idle(entity: Entity, idle: _Idle, idle_ms: int) -> bool:
    """The last check before an entity is deleted. Log lines appear only for entities that are deleted."""
    if _is_used(entity, idle):
        return False
    log.info("entity.idle", entity=entity.name, idle_ms=idle_ms)
    return True


def _is_used(entity: Entity, idle: _Idle) -> bool:
    """Whether an entity is in use, or was used since it was last seen in use."""
    return (
        (idle.accessed_at_ms, idle.updated_at_ms) != (entity.accessed_at_ms, entity.description.updated_at_ms)
        or bool(entity.watchers)
        or any(held.scheduled for held in entity.counts().values())
    )
