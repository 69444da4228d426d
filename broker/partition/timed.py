"""The timer wheels of one partition's subqueues, by which one comes due first. Pure.

A topic has thousands of subqueues, and each cycle asks when the next message expires. So a heap has, for each
wheel, a time before which nothing in it comes due. That time is looked at again only when it is the earliest
one of all.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush, heapreplace

from broker.partition.timers import TimerWheel

_SLACK = 64
"""With fewer stale entries than this, the heap stays as it is."""


class Timed:
    """Owned by the partition's `Work`."""

    __slots__ = ("_entries", "_first", "_wheels")

    def __init__(self) -> None:
        self._wheels: dict[int, TimerWheel] = {}
        """By number of the subqueue: those that may hold keys."""
        self._first: dict[int, int] = {}
        """Before this time, nothing comes due in a wheel."""
        self._entries: list[tuple[int, int]] = []
        """A heap of these times and the numbers. An entry with another time than `_first` is stale."""

    def enter(self, number: int, wheel: TimerWheel, due_ms: int) -> None:
        """A subqueue's wheel has got keys, the first of which comes due at this time."""
        first = self._first
        known_ms = first.get(number)
        if known_ms is not None and known_ms <= due_ms:
            return
        self._wheels[number] = wheel
        first[number] = due_ms
        heappush(self._entries, (due_ms, number))
        if len(self._entries) > _SLACK + 2 * len(first):
            self._entries = [(each_ms, each) for each, each_ms in first.items()]
            heapify(self._entries)

    def next_due(self) -> tuple[int, int, TimerWheel] | None:
        """When the first wheel comes due, the number of its subqueue, and the wheel; None if no key waits.
        May be too early if a great many keys were cancelled."""
        entries, first = self._entries, self._first
        while entries:
            known_ms, number = entries[0]
            if first.get(number) != known_ms:
                heappop(entries)
                continue
            wheel = self._wheels[number]
            due_ms = wheel.next_due_ms()
            if due_ms is None:
                heappop(entries)
                del first[number], self._wheels[number]
            elif due_ms <= known_ms:
                return due_ms, number, wheel
            else:
                first[number] = due_ms
                heapreplace(entries, (due_ms, number))
        return None

    def check(self, number: int, wheel: TimerWheel) -> None:
        """Assert that a subqueue's wheel is known if it has keys."""
        due_ms = wheel.next_due_ms()
        if due_ms is not None:
            assert self._wheels[number] is wheel and self._first[number] <= due_ms
            assert (self._first[number], number) in self._entries
