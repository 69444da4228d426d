"""When something must be done with each of many things: the earliest first, and no call handles more than a
few of them. Pure.

A broker may start with 160,000 appointments, and each partition that is opened or closed changes one. So new
appointments are put in order a few at a time (`put_in_order`), and outdated ones leave the heap a few at a
time (`SiftedHeap`).
"""

from __future__ import annotations

from collections.abc import Iterable

from broker.base.sifted_heap import SiftedHeap

SORTED_AT_ONCE = 1024
"""How many appointments one call of `put_in_order` handles: about a millisecond."""

Key = tuple[str, int]
"""The entity's generation and the partition's number."""
At = tuple[float, Key]


class Appointments:
    """At most one time for each key. Owned by the event loop."""

    def __init__(self) -> None:
        self._at: dict[Key, float] = {}
        self._heap: SiftedHeap[At] = SiftedHeap()
        """The same times, and outdated ones."""
        self._unsorted: list[At] = []
        """Appointments that are not in the heap yet."""

    def __bool__(self) -> bool:
        return bool(self._at or self._heap or self._unsorted)

    def __len__(self) -> int:
        """The number of appointments."""
        return len(self._at)

    def __contains__(self, appointment: object) -> bool:
        """Whether this time and key is an appointment that has not been changed since."""
        assert isinstance(appointment, tuple)
        at, key = appointment
        return bool(self._at.get(key) == at)

    def set(self, key: Key, at: float) -> None:
        """Make or change an appointment."""
        self._at[key] = at
        self._heap.push((at, key))
        self._heap.tidy(self, len(self._at))

    def set_many(self, appointments: Iterable[At]) -> None:
        """Make many appointments. They count once `put_in_order` has put them in order."""
        begin = len(self._unsorted)
        self._unsorted += appointments
        for at, key in self._unsorted[begin:]:
            self._at[key] = at

    def put_in_order(self) -> bool:
        """Put up to SORTED_AT_ONCE new appointments in order; False if there was none."""
        some = self._unsorted[-SORTED_AT_ONCE:]
        del self._unsorted[-SORTED_AT_ONCE:]
        for each in some:
            self._heap.push(each)
        return bool(some)

    def cancel(self, key: Key) -> None:
        """Cancel an appointment, if there is one."""
        self._at.pop(key, None)

    def drop_outdated(self) -> bool:
        """Drop the first of the heap if it is outdated; False if it is not, or if there is none."""
        if self._heap and self._heap.first not in self:
            self._heap.pop()
            return True
        return False

    @property
    def first_at(self) -> float | None:
        """The earliest time; None if none is in order. It may be that of an outdated appointment."""
        return self._heap.first[0] if self._heap else None

    def take(self, until: float) -> Key | None:
        """Take out the first appointment; None if the first one is later than `until` or outdated."""
        if not self._heap or self._heap.first[0] > until or self._heap.first not in self:
            return None
        _, key = self._heap.pop()
        del self._at[key]
        return key

    def count_until(self, at: float) -> int:
        """The number of appointments up to a time. Looks at all of them: for the start only."""
        return sum(each <= at for each in self._at.values())
