"""Lets one closed partition of an entity after the other be opened for receivers, while memory has no room
for what it holds. So each entity takes little memory beyond what there is, and its receivers always get on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from broker.namespace.health import CLOSED, HEALTHY, OPENING
from broker.operations.message_states import SubqueueCounts

OPENS_WITHIN_S = 1.0
"""After this long, another partition may be opened although the last one has not begun to open."""


class _Partition(Protocol):
    @property
    def health(self) -> str: ...

    def counts(self, only: str | None = None) -> Mapping[str, SubqueueCounts]: ...


class OneAfterAnother:
    """The turns in one entity. Owned by the event loop."""

    __slots__ = ("_latest", "_until_s")

    def __init__(self) -> None:
        self._latest = -1
        """The partition that was let in last."""
        self._until_s = 0.0

    def has_turn(
        self,
        number: int,
        subqueue: str,
        health_of: Callable[[int], str],
        started: Iterable[_Partition],
    ) -> bool:
        """Whether a receiver of this subqueue may open a closed partition: no other one is being opened for
        receivers, or has messages for them."""
        now_s = asyncio.get_running_loop().time()
        if self._latest != number and now_s < self._until_s and health_of(self._latest) == CLOSED:
            return False
        if any(each.health == OPENING or _is_ready(each, subqueue) for each in started):
            return False
        self._latest, self._until_s = number, now_s + OPENS_WITHIN_S
        return True


def _is_ready(partition: _Partition, subqueue: str) -> bool:
    """Whether a partition is open and has messages that no receiver has locked."""
    if partition.health != HEALTHY:
        return False
    held = partition.counts(subqueue).get(subqueue)
    return held is not None and held.active > held.locked
