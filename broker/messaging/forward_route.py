"""Where the messages of a subqueue are forwarded to, and what all forwarding of a namespace shares."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import structlog

from broker.base.clock import Clock
from broker.base.counted_log import CountedLog
from broker.entities.descriptions import key_of
from broker.entities.roles import KEEPS_DEAD_LETTERS, PASSES_ON
from broker.namespace.entity import Entity
from broker.namespace.namespace import Namespace
from broker.operations.columns import DESTINATION
from broker.operations.receiving import Locked
from broker.throttle.memory_mark import Memory

LOADS_MAX = 8
"""Loads that are in memory at a time, over all entities."""

log = structlog.get_logger("forwarding")


class Waiting(Protocol):
    """A lane, as far as its targets matter to it."""

    def try_now(self, target_name: str) -> None:
        """A target has changed: do not wait any longer."""


@dataclass(slots=True)
class Shared:
    """What all forwarding of a namespace has in common."""

    namespace: Namespace
    memory: Memory
    clock: Clock
    message_id: Callable[[], str]
    spawn: Callable[..., asyncio.Task[None]]
    """Runs a coroutine under a name, and logs its errors."""
    look_again: Callable[[Entity, int], None]
    """Have this partition of a target say of which sources it keeps numbers (`forward_leftovers.py`)."""
    loads: asyncio.Semaphore
    """Bounds how many loads are in memory at a time."""
    lanes_to: dict[str, dict[Waiting, None]] = field(default_factory=dict)
    """By the key of a target's name: the lanes that have forwarded to it of late, or have something that
    waits for it. Each lane enters itself."""
    dead_lettered: CountedLog = field(default_factory=lambda: CountedLog(log, "forward.dead_lettered"))
    """Logs messages that no target takes. One entity may have as many of them as it has messages."""

    def find(self, name: str) -> Entity:
        """The entity of this name, if clients may send to it. Raises Refused."""
        target = self.namespace.find(name)
        if target is None:
            raise self.namespace.missing(name)
        if target.gone is not None:
            raise target.gone
        target.check_can_send(target.description.subqueues[0].name)
        return target


class Route:
    """Where the messages of one subqueue go: to one target, or each to the destination that it names."""

    def __init__(self, shared: Shared, source: Entity, number: int, target_name: str | None) -> None:
        """`number` is the subqueue's; `target_name` is None if the messages name their destinations."""
        self.shared, self.source, self.number, self.target_name = shared, source, number, target_name
        subqueues = source.description.subqueues
        self.subqueue, self.role = subqueues[number].name, subqueues[number].role
        self.dead_letters_to = subqueues[number].dead_letters_to
        """The number of the subqueue for messages that no target will ever take. Without it, they go to
        the transfer dead-letter queue."""
        fails_to = self.dead_letters_to
        if fails_to is None:
            fails_to = subqueues[number].transfers_fail_to
        assert fails_to is not None, "an entity that forwards these has a transfer dead-letter queue"
        self.fails_to = subqueues[fails_to].name
        """The name of that subqueue, or of the transfer dead-letter queue."""

    @property
    def is_of_dead_letters(self) -> bool:
        """Dead letters wait for a target that takes no messages, because they cannot become dead letters."""
        return self.role is KEEPS_DEAD_LETTERS

    @property
    def is_of_transfers(self) -> bool:
        """The messages were sent to their destinations through the source."""
        return self.role is PASSES_ON

    def split(self, locked: Locked) -> dict[str, list[int]]:
        """The places of these messages by the name of their target."""
        if self.target_name is not None:
            return {self.target_name: list(range(len(locked.tokens)))}
        groups: dict[str, list[int]] = {}
        names: dict[str, str] = {}
        for place, destination in enumerate(locked.columns[DESTINATION]):
            assert isinstance(destination, bytes), "every message here has a destination"
            name = destination.decode()
            groups.setdefault(names.setdefault(key_of(name), name), []).append(place)
        return groups

    def forwarded(self, target: Entity, new: Sequence[bytes], duplicates: int) -> None:
        """Count messages that were forwarded."""
        target.accessed_at_ms = self.shared.clock.now_ms()
        target.meter.incoming_messages += len(new)
        target.meter.incoming_bytes += sum(map(len, new))
        target.meter.duplicate_messages += duplicates
        self.source.meter.forwarded_messages += len(new)

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run this in the background."""
        return self.shared.spawn(work, name=f"forward {self.source.name}{self.subqueue}")
