"""Deletes entities and subscriptions that have been idle for as long as their AutoDeleteOnIdle says (AMQP
contract 10.8).

*In use* is an entity that a client has sent to, received from, peeked at or asked its management node about,
whose description was changed, that has a link attached, or that holds scheduled messages. All other time
counts as idle, but only while the broker runs: time is monotonic. A subscription is in use by what clients do
with it, and its topic is not: messages that are sent to a topic are no use of its subscriptions.

*Restarts.* Each eighth of the period that has passed is kept in the entity's catalogue entry, and 0 once the
entity is used again. So a restart adds at most an eighth of the period, and idle entities cost eight writes.
If the broker crashes within LOOK_S after an idle entity was used again, its clients still have an eighth of
the period to return.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass

import structlog

from broker.base.clock import Clock
from broker.base.errors import Refused
from broker.entities.descriptions import EntityDescription
from broker.entities.topics import SubscriptionDescription, TopicDescription, subscription_path
from broker.namespace.entity import Entity

log = structlog.get_logger("namespace")

LOOK_S = 1.0
"""How often to look at the candidates."""
PARTS = 8
"""In how many steps the progress of an entity is kept."""
LOOKED_AT_ONCE = 64
"""Candidates that one turn of the event loop looks at: less than a millisecond."""


@dataclass(slots=True)
class _Idle:
    """What is known of an entity or a subscription with AutoDeleteOnIdle."""

    since_ms: int
    """When it was last seen in use, or was first looked at; monotonic time."""
    before_ms: int
    """How long it had been idle before that."""
    accessed_at_ms: int | None
    updated_at_ms: int


@dataclass(slots=True)
class Candidate:
    """An entity with AutoDeleteOnIdle, or one of its subscriptions."""

    entity: Entity
    period_ms: int
    subscription: int | None = None
    """The number of the subscription; None for the entity itself."""

    @property
    def key(self) -> tuple[str, int | None]:
        """What identifies it for ever."""
        return self.entity.description.generation, self.subscription

    @property
    def description(self) -> EntityDescription | SubscriptionDescription | None:
        """Its description; None if the subscription is gone."""
        description = self.entity.description
        if self.subscription is None:
            return description
        assert isinstance(description, TopicDescription), "only topics have subscriptions"
        return description.numbered(self.subscription)

    @property
    def name(self) -> str:
        """Its path."""
        found, entity = self.description, self.entity.name
        return subscription_path(entity, found.name) if isinstance(found, SubscriptionDescription) else entity


def candidates(entity: Entity) -> Iterator[Candidate]:
    """The entity and its subscriptions, as far as they are to be deleted when they are idle."""
    description = entity.description
    if (period_ms := description.settings.auto_delete_on_idle_ms) is not None:
        yield Candidate(entity, period_ms)
    if isinstance(description, TopicDescription):
        for each in description.subscriptions:
            if each.settings.auto_delete_on_idle_ms is not None:
                yield Candidate(entity, each.settings.auto_delete_on_idle_ms, each.number)


class IdleDeletion:
    """Watches the entities of a namespace. Owned by the event loop."""

    def __init__(
        self,
        clock: Clock,
        delete: Callable[[Candidate, Callable[[], bool]], Awaitable[None]],
        keep: Callable[[Candidate, int], Awaitable[None]],
    ) -> None:
        """`delete` waits until it may change the entity, and deletes the candidate if the function then says
        that it is still idle. `keep` stores how long a candidate has been idle, in ms. Both may raise
        Refused."""
        self._clock, self._delete, self._keep = clock, delete, keep
        self._idle: dict[tuple[str, int | None], _Idle] = {}
        self._entities: set[Entity] = set()
        """Those with candidates. A look at ten thousand entities without any would take a tenth of the event
        loop's time."""

    def note(self, entity: Entity) -> None:
        """Look at an entity from now on as long as it has candidates. Call this when an entity was loaded,
        created, changed or ended."""
        if entity.gone is None and any(candidates(entity)):
            self._entities.add(entity)
        else:
            self._entities.discard(entity)

    async def run(self) -> None:
        """Look at the candidates for ever."""
        while True:
            await asyncio.sleep(LOOK_S)
            await self.look()

    async def look(self) -> None:
        """Look at all candidates once; delete what has been idle for its time."""
        known, self._idle = self._idle, {}
        self._entities = {entity for entity in self._entities if entity.gone is None}
        found = (candidate for entity in list(self._entities) for candidate in candidates(entity))
        for place, candidate in enumerate(found, start=1):
            if candidate.entity.gone is None:
                await self._look_at(candidate, known.get(candidate.key))
            if place % LOOKED_AT_ONCE == 0:
                await asyncio.sleep(0)

    async def _look_at(self, candidate: Candidate, idle: _Idle | None) -> None:
        now_ms, description = self._clock.monotonic_ms(), candidate.description
        if description is None:
            return
        accessed_at_ms = candidate.entity.accessed_by(candidate.subscription)
        if idle is None:
            idle = _Idle(now_ms, description.idle_ms, accessed_at_ms, description.updated_at_ms)
        is_used = _is_used(candidate, idle)
        if is_used:
            idle = _Idle(now_ms, 0, accessed_at_ms, description.updated_at_ms)
        self._idle[candidate.key] = idle
        idle_ms = idle.before_ms + now_ms - idle.since_ms
        period_ms = candidate.period_ms
        kept_ms = idle_ms * PARTS // period_ms * period_ms // PARTS
        try:
            if idle_ms >= period_ms:
                await self._delete(candidate, lambda: _is_still_idle(candidate, idle, idle_ms))
            elif kept_ms > description.idle_ms or (is_used and description.idle_ms):
                await self._keep(candidate, kept_ms)
        except Refused as why:  # the disk: the next look tries again
            log.warning("entity.idle_not_handled", entity=candidate.name, reason=why.description)


def _is_still_idle(candidate: Candidate, idle: _Idle, idle_ms: int) -> bool:
    """The last check before a candidate is deleted. Log lines appear only for those that are deleted."""
    if _is_used(candidate, idle):
        return False
    log.info("entity.idle", entity=candidate.name, idle_ms=idle_ms)
    return True


def _is_used(candidate: Candidate, idle: _Idle) -> bool:
    """Whether a candidate is in use, or was used since it was last seen in use. One that is gone is not to be
    deleted either."""
    description, entity = candidate.description, candidate.entity
    if description is None:
        return True
    now = (entity.accessed_by(candidate.subscription), description.updated_at_ms)
    return (
        (idle.accessed_at_ms, idle.updated_at_ms) != now
        or entity.is_watched(candidate.subscription)
        or (candidate.subscription is None and entity.runtime().scheduled > 0)
    )
