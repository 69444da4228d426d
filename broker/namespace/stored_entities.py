"""What the catalogue of a data folder holds at a start: the entities of every namespace, and damage."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import structlog

from broker.base.errors import Reason, Refused
from broker.entities.descriptions import NAMESPACE, EntityDescription, key_of, namespace_of
from broker.entities.documents import decode_description
from broker.entities.first_namespace import FIRST_NAMESPACE, decode_first_namespace, encode_first_namespace
from storage.catalogue import Catalogue
from storage.catalogue_recovery import Damaged, report_copy
from storage.document_file import why_copy
from storage.errors import StorageError
from storage.log import EntityLogs

log = structlog.get_logger("namespace")


@dataclass(slots=True, frozen=True)
class StoredEntities:
    """The documents of the catalogue, and which entities have logs."""

    documents: Mapping[str, bytes]
    damaged: Collection[Damaged]
    """Documents without a readable file."""
    deleted: Collection[str]
    """The generations of entities that are known to be deleted."""
    with_logs: Collection[str]
    """The generations of entities that have logs."""
    first_name: str | None = None
    """What the first namespace was called at the last start; None if that is not known, "" if it cannot be
    read."""

    @classmethod
    async def read(cls, catalogue: Catalogue, store: EntityLogs) -> StoredEntities:
        """Read the catalogue. Raises StorageError if the folder cannot be read or another process uses it."""
        with_logs = await store.entities()  # first of all, because this locks the folder
        documents = await catalogue.load_all()
        deleted = await catalogue.load_deleted()
        damaged = [each for each in catalogue.damaged if each.name != FIRST_NAMESPACE]
        kept = documents.pop(FIRST_NAMESPACE, None if len(damaged) == len(catalogue.damaged) else b"")
        first_name = None if kept is None else decode_first_namespace(kept)
        own = {each.name for each in damaged if not each.is_misnamed}
        kept_damaged: list[Damaged] = []
        for each in damaged:
            why = None
            if each.is_misnamed:
                why = why_copy(
                    each.name,
                    has_files=each.name in own,
                    is_deleted=each.name in deleted,
                    has_logs=not await has_no_logs(store, each.name),
                )
            if why is None:
                kept_damaged.append(each)
            else:
                report_copy(each, why)
        return cls(documents, kept_damaged, deleted, set(with_logs), first_name)

    @property
    def known(self) -> set[str]:
        """The generations of all entities that have an entry, readable or not."""
        return {*self.documents, *(each.name for each in self.damaged)}

    @property
    def to_clear(self) -> set[str]:
        """The generations of deleted entities whose files may still be there."""
        return set(self.deleted) - self.known

    @property
    def kept(self) -> set[str]:
        """The generations of all entities that may have files, and are not known to be deleted."""
        return (self.known | set(self.with_logs)) - set(self.deleted)

    @property
    def namespaces(self) -> set[str]:
        """The names on disk of the namespaces that have entities."""
        return set(map(namespace_of, self.documents))

    def check_first(self, name: str, others: Iterable[str]) -> None:
        """Check that clients find the same entities as before under the names of the first namespace and of
        the others. Raises Refused if another namespace has become the first one, or the first one another."""
        last = (self.first_name or "").casefold()
        if NAMESPACE in self.namespaces and last in map(str.casefold, others):
            raise Refused(
                Reason.ARGUMENT,
                f"The namespace '{self.first_name}' was the first one when the broker last started, and its "
                f"entities would become those of '{name}'. List '{self.first_name}' first in the "
                f"configuration file. To give its entities to '{name}', start once without a namespace "
                f"'{self.first_name}'.",
            )
        if name.casefold() in self.namespaces - {NAMESPACE}:
            raise Refused(
                Reason.ARGUMENT,
                f"The namespace '{name}' was not the first one when its entities were created: it must not "
                "take the place of the first one in the configuration file.",
            )

    async def keep_first(self, name: str, catalogue: Catalogue) -> None:
        """Keep the name of the first namespace for the next start, unless it has it already."""
        if name == (NAMESPACE if self.first_name is None else self.first_name):
            return
        try:
            await catalogue.put(FIRST_NAMESPACE, encode_first_namespace(name))
        except StorageError as error:  # the entities can be served all the same
            log.error("namespace.name_not_kept", namespace=name, error=str(error))

    def of(self, namespace: str) -> tuple[dict[str, list[EntityDescription]], list[tuple[Damaged, str]]]:
        """The entities of a namespace by their keys, and its damaged entries, each with what is wrong."""
        found: dict[str, list[EntityDescription]] = {}
        damaged: list[tuple[Damaged, str]] = []
        for document, content in self.documents.items():
            if namespace_of(document) != namespace:
                continue
            try:
                description = decode_description(content)
                assert document == description.generation, (
                    f"catalogue document {document} holds {description.generation}"
                )
            except Exception as error:  # an error in one entry must not stop the others
                damaged.append((Damaged(document, [], [content]), repr(error)))
                continue
            found.setdefault(key_of(description.name), []).append(description)
        damaged += [
            (each, "none of its files is whole")
            for each in self.damaged
            if namespace_of(each.name) == namespace
        ]
        return found, damaged

    def report(self, served: Collection[str]) -> None:
        """Report what is kept and cannot be used, if these namespaces are served."""
        for generation in sorted(set(self.with_logs) - self.known - set(self.deleted)):
            log.error(
                "entity.logs_without_entry",
                generation=generation,
                reason="Their deletion is not on record, so they are kept.",
            )
        for name in sorted(self.namespaces - set(served)):
            log.error(
                "namespace.not_served",
                namespace=name,
                reason="Neither the settings nor the configuration file name it: its entities are kept, but "
                "cannot be used.",
            )


async def has_no_logs(store: EntityLogs, generation: str) -> bool:
    """Whether an entity certainly has no logs, because every data folder was checked."""
    try:
        return await store.is_without_logs(generation)
    except StorageError:
        return False
