"""A table by any key, divided by the keys' hashes, so that no call takes longer because it has many entries.
Pure.

A dictionary that is full moves all its entries to a larger table: with a million of them, that would block
the event loop for 45 ms. `chunked_table.py` avoids that for dense numbers. This table is for all other keys,
such as session-ids: once it has a few thousand entries, it divides them among PARTS dictionaries. Each of
them grows by itself, in a millisecond at most with ten million entries in the table. It is made smaller once
few entries are left, and a table that is empty is not divided.
"""

from __future__ import annotations

import sys
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

from broker.partition._untracked import untrack

PARTS = 256
FEW = 4096
"""A table with more entries is divided. This many can be copied in less than a millisecond."""
_BYTES_MIN, _BYTES_EACH = 16 * 1024, 512
"""A part up to this size is kept. A dictionary that has only grown takes up to 200 bytes per entry."""

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class DividedTable(Generic[K, V]):
    """Values by key. Iterates in no particular order."""

    __slots__ = ("_parts", "count")

    def __init__(self) -> None:
        self._parts: list[dict[K, V]] = [{}]
        """One, or PARTS of them. The lower bits of a key's hash choose its part."""
        self.count = 0
        """As `len`, for what happens with each operation: reading it calls no code."""
        untrack([self, self._parts, *self._parts])

    # --- looking --------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[K]:
        for part in self._parts:
            yield from part

    def items(self) -> Iterator[tuple[K, V]]:
        """Yield all keys with their values. The table must not change during the iteration."""
        for part in self._parts:
            yield from part.items()

    def __contains__(self, key: object) -> bool:
        parts = self._parts
        return key in parts[hash(key) & len(parts) - 1]

    def __getitem__(self, key: K) -> V:
        parts = self._parts
        return parts[hash(key) & len(parts) - 1][key]

    def get(self, key: K) -> V | None:
        """The value of a key; None if it has none."""
        parts = self._parts
        return parts[hash(key) & len(parts) - 1].get(key)

    def walk(self) -> Iterator[K]:
        """Yield the keys, however the table changes meanwhile: each once at most, and all of those that are
        there from the first step to the last."""
        for part in self._parts:
            yield from list(part)

    # --- coming in and leaving ------------------------------------------------------------------------------

    def __setitem__(self, key: K, value: V) -> None:
        parts = self._parts
        part = parts[hash(key) & len(parts) - 1]
        before = len(part)
        part[key] = value
        self.count += len(part) - before
        if self.count > FEW and len(parts) == 1:
            self._divide()

    def __delitem__(self, key: K) -> None:
        parts = self._parts
        place = hash(key) & len(parts) - 1
        part = parts[place]
        del part[key]
        self.count -= 1
        left = len(part)
        if not left & left - 1:  # zero or a power of two: not each time
            self._shrink(place)

    def pop(self, key: K) -> V | None:
        """Remove a key. Returns its value; None if it had none."""
        value = self.get(key)
        if value is not None or key in self:
            del self[key]
        return value

    def pop_some(self, count: int) -> list[V]:
        """Remove some entries, `count` at most, to free a table that is no longer used. Returns their values;
        none are left if there are none."""
        parts = self._parts
        while len(parts) > 1 and not parts[-1]:
            parts.pop()
        part = parts[-1]
        values = [part.popitem()[1] for _ in range(min(count, len(part)))]
        self.count -= len(values)
        return values

    def check(self) -> None:
        """Assert the invariants above."""
        assert self.count == sum(map(len, self._parts))
        assert len(self._parts) == PARTS or (len(self._parts) == 1 and self.count <= FEW)
        for place, part in enumerate(self._parts):
            assert all(hash(key) & len(self._parts) - 1 == place for key in part)

    def _divide(self) -> None:
        (whole,) = self._parts
        parts: list[dict[K, V]] = [{} for _ in range(PARTS)]
        for key, value in whole.items():
            parts[hash(key) & PARTS - 1][key] = value
        untrack([parts, *parts])  # from Python 3.14 on, every dictionary is tracked when it is made
        self._parts = parts

    def _shrink(self, place: int) -> None:
        """Free the room of entries that have gone."""
        if not self.count:
            self._parts = [{}]  # not the same list, which a walk may be on
            untrack([self._parts, *self._parts])
            return
        part = self._parts[place]
        if sys.getsizeof(part) > _BYTES_MIN + _BYTES_EACH * len(part):
            smaller = self._parts[place] = dict(part)
            untrack([smaller])
