"""Entities whose catalogue entries cannot be read: which ones they are, as far as that can be known.

If the name is still legible, the entity is out of service under that name, and deleting it discards its
messages. If not, the entity could have any name.
"""

from __future__ import annotations

from collections.abc import Collection

import structlog

from broker.base.errors import Reason, Refused
from broker.entities.descriptions import key_of
from broker.entities.documents import salvage_name
from storage.catalogue_recovery import Damaged

log = structlog.get_logger("namespace")


class DamagedEntries:
    """The damaged entries of a namespace."""

    def __init__(self) -> None:
        self._by_key: dict[str, str] = {}
        """Generations of entries with a legible name, by key."""
        self._illegible: set[str] = set()
        """Generations of entries whose names are not certain."""

    def note(self, damaged: Damaged, why: str, live: Collection[str]) -> None:
        """Report a damaged entry and remember it. `live`: the keys of the entities that can be used."""
        found = list(map(salvage_name, damaged.remains))
        names = sorted({name for name in found if name})
        # A name read from bytes whose checksum does not match counts only if both files have it.
        is_whole = damaged.is_misnamed or not damaged.files
        is_certain = len(names) == 1 and None not in found and (len(found) > 1 or is_whole)
        if not is_certain:
            self._illegible.add(damaged.name)
        log.error(
            "entity.damaged",
            entity=", ".join(names) or None,
            generation=damaged.name,
            files=[str(path) for path in damaged.files],
            why=why,
            reason="It is out of service, and its logs are kept."
            if is_certain
            else "It is out of service, and its logs are kept. Its name is not known, so no entity is "
            "created until the files are readable again, were restored, or were moved out of the folder to "
            "give the entity up.",
        )
        for name in names:
            if key_of(name) not in live:
                self._by_key[key_of(name)] = damaged.name

    def may_have(self, name: str) -> bool:
        """Whether one of the entries may have this name."""
        return bool(self._illegible) or key_of(name) in self._by_key

    def why_missing(self, name: str) -> Refused | None:
        """Why the entity of this name, or the topic of this subscription, cannot be used; None if no damage
        is the reason."""
        topic = f"{key_of(name)}/".partition("/subscriptions/")[0].removesuffix("/")
        if topic in self._by_key:
            return Refused(
                Reason.PARTITION_UNAVAILABLE,
                f"The description of '{name}' is damaged. It is out of service until it is restored or "
                "deleted; its messages are kept.",
            )
        if self._illegible:
            lost = len(self._illegible)
            which = (
                "the description of one entity cannot be read, and it may be that one"
                if lost == 1
                else f"the descriptions of {lost} entities cannot be read, and it may be one of them"
            )
            return Refused(Reason.PARTITION_UNAVAILABLE, f"There is no '{name}', but {which}.")
        return None

    def take(self, name: str) -> str | None:
        """Forget the entry of this name, which is about to be deleted. Returns its generation; None if there
        is none."""
        return self._by_key.pop(key_of(name), None)

    def names(self) -> list[str]:
        """The entries by lower-case name if that is known, else by generation."""
        return [*self._by_key, *(self._illegible - set(self._by_key.values()))]

    def __contains__(self, generation: str) -> bool:
        """Whether the entry of this generation is damaged."""
        return generation in self._illegible or generation in self._by_key.values()
