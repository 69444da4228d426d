"""The properties that settlements have changed, for all messages of one partition. Pure.

A settlement may change 64 KiB of properties, and thousands of messages at once. So messages with the same
changed properties hold the same bytes: whether one client changed them together or several did one after the
other, before a restart and after it. What all of these bytes take is counted here, and so it is known however
they came to be.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TypeVar

from broker.message.changes import count_of, merge_changes
from broker.partition.divided_table import DividedTable
from broker.partition.references import Reference

VALUE_BYTES = 256
"""The memory that each value takes besides its bytes, with a reason that the broker may give, about."""
DROPPED_AT_ONCE = 1024
"""Values that one step of `drop` frees: less than a millisecond."""
MERGED_AT_ONCE = 4 << 20
"""What one cycle may merge, in units of about a nanosecond: some milliseconds."""
PROPERTY_COST = 160
"""What merging costs for each property, besides one unit for each byte."""
WORK_COST = 2_048
"""The cost that counts as one unit of a cycle's work."""
V = TypeVar("V")


class ChangedProperties:
    """Owned by the partition's subqueues."""

    __slots__ = ("_held", "memory_bytes")

    def __init__(self) -> None:
        self._held: DividedTable[bytes, tuple[bytes, int]] = DividedTable()
        """By the value: the object that all messages with it hold, and how many there are."""
        self.memory_bytes = 0
        """What all of them take in memory, about."""

    def hold(self, references: Collection[Reference]) -> int:
        """Messages have come that may have changed properties. Returns the size of these in bytes, summed
        over the messages."""
        values = [each.changed for each in references if each.changed is not None]
        if not values:
            return 0
        counts = _counted(values)
        held = {value: self._take(value, count) for value, count in counts.items()}
        for each in references:
            if each.changed is not None:
                each.changed = held[each.changed]
        return _total(counts)

    def hold_one(self, reference: Reference) -> int:
        """As `hold`, for one message."""
        changed = reference.changed
        if changed is None:
            return 0
        reference.changed = self._take(changed, 1)
        return len(changed)

    def release(self, references: Collection[Reference]) -> int:
        """Messages have gone, which were held. Returns the size of their changed properties in bytes, summed
        over the messages."""
        counts = _counted([each.changed for each in references if each.changed is not None])
        for value, count in counts.items():
            self._give(value, count)
        return _total(counts)

    def change(self, references: Collection[Reference], changed: bytes) -> int:
        """Merge changed properties into those that messages already have. Returns how many bytes that adds,
        summed over the messages."""
        counts = _counted([each.changed for each in references])
        merged: dict[bytes | None, bytes] = {}
        added = 0
        for before, count in counts.items():
            after = merge_changes(before, changed)
            assert after is not None, "it is a change"
            merged[before] = self._take(after, count)
            added += len(after) * count
        for each in references:
            each.changed = merged[each.changed]
        for before, count in counts.items():
            if before is not None:
                self._give(before, count)
                added -= len(before) * count
        return added

    def replace(self, reference: Reference, changed: bytes | None) -> int:
        """Give a message other changed properties, or none. Returns how many bytes that adds."""
        gone = self.release((reference,))
        reference.changed = changed
        return self.hold_one(reference) - gone

    def growth(self, references: Iterable[Reference], changed: bytes) -> tuple[int, int]:
        """How many bytes of memory `change` may take at most, and what it costs, in units. No messages stand
        for some without any. The broker may add a reason of its own for those that had all their
        deliveries."""
        befores = {(each.changed, each.delivery_count) for each in references} or {(None, 0)}
        memory = sum([VALUE_BYTES + len(changed) + len(each or b"") for each, _ in befores])
        return memory, sum([cost_of(each) + cost_of(changed) for each, _ in befores if each is not None])

    def fitting(self, references: Iterable[Reference], changed: bytes) -> int | None:
        """How many of these messages, from the first one on, one step may change, at least one; None if all
        of them, because they have few different changed properties."""
        room, seen = MERGED_AT_ONCE, set[bytes | None]()
        for count, each in enumerate(references):
            if each.changed not in seen:
                seen.add(each.changed)
                room -= cost_of(changed) + cost_of(each.changed)
                if room < 0 and count:
                    return count
        return None

    def drop(self) -> Iterator[None]:
        """Free the memory, in steps. The object is no longer used."""
        while self._held.pop_some(DROPPED_AT_ONCE):
            yield

    def check(self, references: Collection[Reference]) -> None:
        """Assert that exactly what these messages have is held, once each."""
        self._held.check()
        values = [each.changed for each in references if each.changed is not None]
        assert {value: count for value, (_, count) in self._held.items()} == Counter(values)
        assert {id(value) for value in values} == {id(value) for _, (value, _) in self._held.items()}
        assert self.memory_bytes == sum(VALUE_BYTES + len(value) for value in self._held)

    def _take(self, value: bytes, count: int) -> bytes:
        """Count messages with this value. Returns the object that they must hold."""
        found = self._held.get(value)
        if found is None:
            found = value, 0
            self.memory_bytes += VALUE_BYTES + len(value)
        self._held[value] = found[0], found[1] + count
        return found[0]

    def _give(self, value: bytes, count: int) -> None:
        """These messages do not have the value any more."""
        held, before = self._held[value]
        if before == count:
            del self._held[value]
            self.memory_bytes -= VALUE_BYTES + len(value)
        else:
            self._held[value] = held, before - count


def cost_of(changed: bytes | None) -> int:
    """What it costs to merge changed properties with others, in units of about a nanosecond."""
    return 0 if changed is None else len(changed) + PROPERTY_COST * count_of(changed)


def _counted(values: list[V]) -> Mapping[V, int]:
    """How often there is each of them."""
    return Counter(values) if len(values) != 1 else {values[0]: 1}  # as mostly, in a quarter of the time


def _total(counts: Mapping[bytes, int]) -> int:
    return sum([len(value) * count for value, count in counts.items()])
