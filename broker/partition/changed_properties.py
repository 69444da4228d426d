"""The properties that settlements have changed, for all messages of one partition. Pure.

A settlement may change 64 KiB of properties, and thousands of messages at once. So messages with the same
changed properties hold the same bytes: whether one client changed them together or several did one after the
other, before a restart and after it. What these bytes take in memory is counted here, each value once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple, TypeVar

from broker.message.changes import count_of, merge_changes
from broker.message.property_sizes import METADATA_BYTES_MAX
from broker.partition import _references
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
REASON_COST = VALUE_BYTES + 2 * PROPERTY_COST
"""What a reason of the broker adds to that, about."""
OWN_COST = 2
"""What laying changed properties over a message costs for each byte of the message: it is copied several
times, and may have as many properties of its own as fit into METADATA_BYTES_MAX."""
WORK_COST = 2_048
"""The cost that counts as one unit of a cycle's work."""
ANY_ROOM = 1 << 62
"""Room for what cannot be divided."""
V = TypeVar("V")

_references.set_costs(PROPERTY_COST, OWN_COST, METADATA_BYTES_MAX)


class Merging(NamedTuple):
    """What it takes to change properties of several messages together."""

    fitting: int
    """How many of them one cycle may change, from the first one on."""
    memory: int = 0
    """The memory that these may take at most, in bytes."""
    cost: int = 0
    """What these cost, in units of about a nanosecond."""
    is_all: bool = True
    """Whether these are all."""


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

    def merging(
        self,
        references: Iterable[Reference],
        changed: bytes | None,
        spent_from: int | None = None,
        room: int = MERGED_AT_ONCE,
        least: int = 1,
    ) -> Merging:
        """What it takes to `change` these messages, of which at least `least` fit into the room.

        Those that had `spent_from` failed deliveries or more are given a reason of the broker as well, or
        only that if `changed` is None.
        """
        count = memory = cost = 0
        seen: set[tuple[bytes | None, int]] = set()
        later_bytes, later_cost = len(changed or b""), cost_of(changed)
        for each in references:
            before = each.changed
            kind = before, each.delivery_count
            if kind not in seen:
                is_spent = spent_from is not None and each.delivery_count >= spent_from
                if before is not None and (is_spent or changed is not None):
                    room -= (merged := cost_of(before) + later_cost + is_spent * REASON_COST)
                    if room < 0 and count >= least:
                        return Merging(count, memory, cost, is_all=False)
                    cost += merged
                if is_spent or changed is not None:
                    memory += VALUE_BYTES + later_bytes + len(before or b"")
                seen.add(kind)
            count += 1
        return Merging(count, memory, cost)

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


class MergingRoom:
    """What one cycle may spend on merging the broker's reasons with changed properties. Lock expiry
    (`delivery_count.py`) and the time to live (`time_to_live.py`) share it; what does not fit waits for the
    next cycles."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = MERGED_AT_ONCE

    def take(
        self,
        properties: ChangedProperties,
        references: Iterable[Reference],
        changed: bytes | None,
        spent_from: int | None = None,
    ) -> Merging:
        """As `ChangedProperties.merging`, of the first messages that still fit. The first message that a
        cycle merges always fits; later ones only if there is room left."""
        least = 1 if self.left == MERGED_AT_ONCE else 0
        merging = properties.merging(references, changed, spent_from, self.left, least)
        self.left -= merging.cost
        return merging


def cost_of(changed: bytes | None) -> int:
    """What it costs to merge changed properties with others, in units of about a nanosecond."""
    return 0 if changed is None else len(changed) + PROPERTY_COST * count_of(changed)


def laying_cost(reference: Reference) -> int:
    """What it costs to lay changed properties over a message that is delivered."""
    changed = reference.changed
    return 0 if changed is None else cost_of(changed) + OWN_COST * min(reference.size, METADATA_BYTES_MAX)


def laying_costs(references: list[Reference]) -> int:
    """As `laying_cost`, for several messages. Costs little for those without changed properties."""
    return _references.laying_costs(references)


def _counted(values: list[V]) -> Mapping[V, int]:
    """How often each of them occurs."""
    return Counter(values) if len(values) != 1 else {values[0]: 1}  # the usual case, in a quarter of the time


def _total(counts: Mapping[bytes, int]) -> int:
    return sum([len(value) * count for value, count in counts.items()])
