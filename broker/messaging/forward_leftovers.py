"""Finds what is left of forwarding in a partition that has started: numbers that it keeps of sources, and
messages that are on their way to other entities.

Usually lanes know both. They do not after a crash, if a partition was down when a lane ended, or if one opens
only now because its disk was missing. So each partition is asked once when it starts. If it is down, it is
asked again when it is back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from broker.namespace.entity import Entity, next_client
from broker.operations.general import Detach, Failed, Unavailable
from broker.operations.interface import Answer, Operation
from broker.operations.receiving import Demand
from broker.operations.transfers import FindSources, SourcesFound

_Key = tuple[str, int]
Found = Callable[[Entity, int, SourcesFound], None]


class _Visit:
    """One partition that is asked."""

    def __init__(self, entity: Entity, number: int, ended: Callable[[SourcesFound | None], None]) -> None:
        self._entity, self._number, self._ended = entity, number, ended
        self._client = next_client()
        self._waits = False
        """It was down when it was asked, and will say when it is back."""

    def ask(self) -> None:
        if self._entity.gone is not None:
            self._end(None)
        else:
            self._post(FindSources())

    def stop(self) -> None:
        """Ask no more."""
        self._post(Detach())

    def _post(self, operation: Operation) -> None:
        self._entity.router.handles[self._number].post(operation, self._client, self._heard)

    def _end(self, found: SourcesFound | None) -> None:
        self._post(Detach())
        self._ended(found)

    def _heard(self, answer: Answer) -> None:
        match answer:
            case SourcesFound():
                self._end(answer)
            case Failed() if not self._waits:
                self._waits = True
                subqueues = self._entity.description.subqueues.values()
                plain = next(each.name for each in subqueues if not each.role.has_sessions)
                self._post(Demand(plain, 0))  # no message, so that none is missing when a lane locks some
                self._post(FindSources())  # it may have come back in between
            case Unavailable() if answer.for_good:
                self._end(None)
            case Unavailable():
                self._waits = False
                self.ask()
            case _:
                pass


class Leftovers:
    """Asks partitions. Owned by the event loop."""

    def __init__(self, found: Found) -> None:
        """`found` is called with what a partition has said."""
        self._found = found
        self._visits: dict[_Key, _Visit] = {}
        self._is_stopped = False

    def look(self, entity: Entity, number: int) -> None:
        """Ask a partition, unless it is being asked."""
        key = entity.description.generation, number
        if key in self._visits or self._is_stopped:
            return

        def ended(found: SourcesFound | None) -> None:
            if self._visits.pop(key, None) is not None and found is not None:
                # not within the partition's answer: an error here is none of the partition's
                asyncio.get_running_loop().call_soon(self._tell, entity, number, found)

        visit = self._visits[key] = _Visit(entity, number, ended)
        asyncio.get_running_loop().call_soon(visit.ask)

    def _tell(self, entity: Entity, number: int, found: SourcesFound) -> None:
        if not self._is_stopped:
            self._found(entity, number, found)

    def stop(self) -> None:
        """Ask no more."""
        self._is_stopped = True
        for visit in self._visits.values():
            visit.stop()
        self._visits.clear()
