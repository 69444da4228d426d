"""Finds the few filters that may match a message among many, without looking at the others.

Each filter is kept under the keys of one of its covers (`covers.py`). Of several covers, the index takes the
one whose keys have the fewest filters at that time, so that `region = 'eu' AND customer = 17` comes to be
kept under the customer where many filters want the same region. The cost of a look-up follows the properties
that a message has and that filters name, and the filters found; not the number of filters.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from operator import itemgetter
from typing import Generic, TypeVar

from broker.rules.covers import Cover, Equal, Key, Prefix, Present, Property, Within
from broker.rules.message_view import MessageView
from broker.rules.values import NUMBERS, Value, is_nan, key_of

T = TypeVar("T")

_LOW = itemgetter(0)
_RANGES_OF_WORK = 16
"""How many ranges are looked through in the time that looking at a filter takes."""


@dataclass(slots=True)
class _Slot(Generic[T]):
    """The filters that are kept under one property."""

    equal: dict[object, dict[T, None]] = field(default_factory=dict)
    present: dict[T, None] = field(default_factory=dict)
    prefixes: dict[str, dict[T, None]] = field(default_factory=dict)
    lengths: dict[int, int] = field(default_factory=dict)
    """How many of the prefixes have each length."""
    ranges: list[tuple[float | Decimal, float | Decimal, T]] = field(default_factory=list)
    """Lowest and highest number, in the order of the lowest."""

    def add(self, key: Key, item: T) -> None:
        match key:
            case Equal():
                self.equal.setdefault(key.value, {})[item] = None
            case Present():
                self.present[item] = None
            case Prefix():
                if key.text not in self.prefixes:
                    self.prefixes[key.text] = {}
                    self.lengths[len(key.text)] = self.lengths.get(len(key.text), 0) + 1
                self.prefixes[key.text][item] = None
            case Within():
                insort(self.ranges, (key.low, key.high, item), key=_LOW)

    def remove(self, key: Key, item: T) -> None:
        match key:
            case Equal():
                del self.equal[key.value][item]
                if not self.equal[key.value]:
                    del self.equal[key.value]
            case Present():
                del self.present[item]
            case Prefix():
                del self.prefixes[key.text][item]
                if not self.prefixes[key.text]:
                    del self.prefixes[key.text]
                    self.lengths[len(key.text)] -= 1
                    if not self.lengths[len(key.text)]:
                        del self.lengths[len(key.text)]
            case Within():
                self.ranges.remove((key.low, key.high, item))

    def crowd(self, key: Key) -> int:
        """How many items a message that has this key finds, at most."""
        match key:
            case Equal():
                return len(self.equal.get(key.value, ()))
            case Present():
                return len(self.present)
            case Prefix():
                return len(self.prefixes.get(key.text, ()))
            case Within():
                return len(self.ranges)

    def found(self, value: Value) -> Iterator[T]:
        """The items under this value, which is not null, without those that only want the property."""
        yield from self.equal.get(key_of(value), ())
        if self.lengths and isinstance(value, str):
            for length in self.lengths:
                yield from self.prefixes.get(value[:length], ())
        if self.ranges and type(value) in NUMBERS and not is_nan(value):
            assert isinstance(value, int | float | Decimal)
            for _, high, item in self.ranges[: bisect_right(self.ranges, value, key=_LOW)]:
                if value <= high:
                    yield item

    @property
    def work(self) -> int:
        """What `found` costs at most besides what it finds, in filters."""
        return len(self.lengths) + len(self.ranges) // _RANGES_OF_WORK

    @property
    def is_empty(self) -> bool:
        return not (self.equal or self.present or self.prefixes or self.ranges)


class FilterIndex(Generic[T]):
    """Things that belong to filters, by the covers of these."""

    def __init__(self) -> None:
        self._application: dict[str, _Slot[T]] = {}
        self._system: dict[str, _Slot[T]] = {}
        self._uncovered: dict[T, None] = {}

    def add(self, item: T, covers: Sequence[Cover]) -> Cover | None:
        """Keep an item under one of its covers, or for every message if it has none. Gives the cover, which
        `remove` wants."""
        if not covers:
            self._uncovered[item] = None
            return None
        cover = min(covers, key=lambda cover: sum(map(self._crowd, cover)))
        for key in cover:
            self._slots(key.property).setdefault(key.property.name, _Slot()).add(key, item)
        return cover

    def remove(self, item: T, cover: Cover | None) -> None:
        """Forget an item that was kept under this cover."""
        if cover is None:
            del self._uncovered[item]
            return
        for key in cover:
            slots = self._slots(key.property)
            slot = slots[key.property.name]
            slot.remove(key, item)
            if slot.is_empty:
                del slots[key.property.name]

    def candidates(self, message: MessageView) -> Iterator[T]:
        """The items whose filters may match the message. One may come several times."""
        yield from self._uncovered
        for name, slot in self._system.items():
            if (value := message.system_property(name)) is not None:
                message.work += slot.work
                yield from slot.found(value)
                yield from slot.present
        application = self._application
        if application:
            for name in message.places():
                if (found := application.get(name)) is not None:
                    if (value := message.application_property(name)) is not None:
                        message.work += found.work
                        yield from found.found(value)
                    yield from found.present

    def _slots(self, property: Property) -> dict[str, _Slot[T]]:
        return self._system if property.is_system else self._application

    def _crowd(self, key: Key) -> int:
        slot = self._slots(key.property).get(key.property.name)
        return 0 if slot is None else slot.crowd(key)
