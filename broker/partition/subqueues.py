"""The subqueues of one partition, by number. Pure.

A topic may have thousands of subqueues, and most of them are empty in most partitions. So the subqueue of a
subscription is made when something first asks for it, and costs nothing until then.

The set may change while the partition runs (`describe`). A log may hold messages of subqueues that were
deleted since; these subqueues are made too, as *abandoned* ones, so that a replay need not know when one was
deleted. `abandoned.py` removes their messages.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final

from broker.base.errors import Reason, Refused
from broker.entities.roles import OWN_END, CountedAs, Role, SubqueueDescription, SubqueueTable
from broker.partition.clock_settings import ClockSettings
from broker.partition.subqueue import Subqueue
from broker.partition.tables import UnreadableRecord
from broker.partition.timers import TimerWheel
from broker.partition.work import Work

_ABANDONED: Final = Role(
    enforces_time_to_live=False,
    counts_deliveries=False,
    has_sessions=False,
    counted_as=CountedAs.DEAD_LETTER,
)


class Subqueues:
    """Owned by the partition's messages."""

    __slots__ = ("_is_replayed", "_made", "_table", "_tick_ms", "work")

    def __init__(self, table: SubqueueTable, tick_ms: int) -> None:
        self._table, self._tick_ms = table, tick_ms
        self._made: dict[int, Subqueue] = {}
        self._is_replayed = False
        self.work: Work[Subqueue] = Work()
        for number in table:
            if number >= OWN_END:
                break
            self._make(number)

    def __getitem__(self, number: int) -> Subqueue:
        """Raises UnreadableRecord for a number that the entity has never given."""
        return self._made.get(number) or self._make(number)

    def __iter__(self) -> Iterator[Subqueue]:
        """Those that were made so far."""
        return iter(self._made.values())

    def __len__(self) -> int:
        """How many were made so far."""
        return len(self._made)

    def find(self, name: str) -> Subqueue:
        """Find a subqueue by name. Raises Refused(ENTITY_NOT_FOUND)."""
        return self[self.number_of(name)]

    def number_of(self, name: str) -> int:
        """The number of the subqueue with this name. Raises Refused(ENTITY_NOT_FOUND)."""
        number = self._table.number_of(name)
        if number is None:
            raise Refused(Reason.ENTITY_NOT_FOUND, f"There is no subqueue '{name}'.")
        return number

    def describe(self, table: SubqueueTable) -> None:
        """The entity has these subqueues from now on."""
        self._table = table
        for number, subqueue in self._made.items():
            if number not in table and subqueue.name != _deleted_name(number):
                subqueue.name = _deleted_name(number)  # another one may have its name now
                self.work.changed.since_reported = None  # nobody looks for its counts under the earlier name

    def abandoned(self) -> list[Subqueue]:
        """The subqueues that hold messages but were deleted."""
        return [each for number, each in self.work.occupied.items() if number not in self._table]

    def finish_steps(self, clock_settings: ClockSettings) -> Iterator[int]:
        """After the replay, put the references of all subqueues in order, in steps."""
        for subqueue in self._made.values():
            if subqueue.role.enforces_time_to_live:
                subqueue.expiry = TimerWheel(self._tick_ms, subqueue.references.__contains__)
        for subqueue in self._made.values():
            yield from subqueue.rebuild(clock_settings)
        self._is_replayed = True

    def _make(self, number: int) -> Subqueue:
        described = self._table.get(number)
        if described is None:
            if number >= self._table.end:
                raise UnreadableRecord(
                    f"the log refers to subqueue {number}, which is unknown to this release"
                )
            described = SubqueueDescription(_deleted_name(number), _ABANDONED)
        subqueue = self._made[number] = Subqueue(number, described, self.work)
        self.work.changed.sums(number)
        if self._is_replayed:
            if subqueue.role.enforces_time_to_live:
                subqueue.expiry = TimerWheel(self._tick_ms, subqueue.references.__contains__)
            deque(subqueue.rebuild(ClockSettings()), maxlen=0)
        return subqueue


def _deleted_name(number: int) -> str:
    return f"$deleted/{number}"
