"""Finds the few filters that may match a message among many, without looking at the others.

Each filter is kept under the keys of one of its covers (`covers.py`). Of several covers, the index takes the
one whose keys have the fewest filters at that time, so that `region = 'eu' AND customer = 17` comes to be
kept under the customer where many filters want the same region. The cost of a look-up follows the properties
that a message has and that filters name, and the filters found; not the number of filters.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from broker.rules.covers import Cover, Equal, Key, Property
from broker.rules.message_view import MessageView
from broker.rules.values import key_of

T = TypeVar("T")


@dataclass(slots=True)
class _Slot(Generic[T]):
    """The filters that are kept under one property."""

    equal: dict[object, dict[T, None]] = field(default_factory=dict)
    present: dict[T, None] = field(default_factory=dict)

    def bucket(self, key: Key) -> dict[T, None] | None:
        return self.equal.get(key.value) if isinstance(key, Equal) else self.present


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
            slot = self._slots(key.property).setdefault(key.property.name, _Slot())
            if isinstance(key, Equal):
                slot.equal.setdefault(key.value, {})[item] = None
            else:
                slot.present[item] = None
        return cover

    def remove(self, item: T, cover: Cover | None) -> None:
        """Forget an item that was kept under this cover."""
        if cover is None:
            del self._uncovered[item]
            return
        for key in cover:
            slots = self._slots(key.property)
            slot = slots[key.property.name]
            bucket = slot.bucket(key)
            assert bucket is not None, "the item is kept under each key of its cover"
            del bucket[item]
            if isinstance(key, Equal) and not bucket:
                del slot.equal[key.value]
            if not slot.equal and not slot.present:
                del slots[key.property.name]

    def candidates(self, message: MessageView) -> Iterator[T]:
        """The items whose filters may match the message. One may come several times."""
        yield from self._uncovered
        for name, slot in self._system.items():
            if (value := message.system_property(name)) is not None:
                yield from slot.equal.get(key_of(value), ())
                yield from slot.present
        application = self._application
        if application:
            for name in message.places():
                if (found := application.get(name)) is not None:
                    if found.equal and (value := message.application_property(name)) is not None:
                        yield from found.equal.get(key_of(value), ())
                    yield from found.present

    def _slots(self, property: Property) -> dict[str, _Slot[T]]:
        return self._system if property.is_system else self._application

    def _crowd(self, key: Key) -> int:
        slot = self._slots(key.property).get(key.property.name)
        return len((slot.bucket(key) or ()) if slot else ())
