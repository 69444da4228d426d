"""The keys of all entities of each kind, kept sorted: a page of a list then takes the same time whatever the
number of entities. To sort ten thousand names when a client asks for a page would hold the event loop for
some 10 ms."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence

from broker.entities.descriptions import EntityDescription, key_of

Kind = type[EntityDescription]


class KeysInOrder:
    """See the module. Owned by the namespace."""

    __slots__ = ("_by_kind",)

    def __init__(self, descriptions: Iterable[EntityDescription] = ()) -> None:
        self._by_kind: dict[Kind, list[str]] = {}
        for description in descriptions:
            self._by_kind.setdefault(type(description), []).append(key_of(description.name))
        for keys in self._by_kind.values():
            keys.sort()

    def of(self, kind: Kind) -> Sequence[str]:
        """The keys of this kind."""
        return self._by_kind.get(kind, ())

    def add(self, description: EntityDescription) -> None:
        """Add the key of a new entity."""
        insort(self._by_kind.setdefault(type(description), []), key_of(description.name))

    def remove(self, description: EntityDescription) -> None:
        """Remove the key of an entity that is deleted."""
        keys, key = self._by_kind[type(description)], key_of(description.name)
        place = bisect_left(keys, key)
        assert keys[place] == key, f"{key} is not among the keys"
        del keys[place]
