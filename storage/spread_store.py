"""SpreadStore: the logs of a broker in several folders.

Each folder is a store with its own committer, threads, reserve and lock.

The log of a partition is in the folder `place(entity, partition, folders)`, where `folders` is how many there
were when the entity was created. So a new folder takes only partitions of new entities, and no log ever has
to be searched for.

A folder's failure affects only the partitions in it. When all folders are asked, those that fail are reported
and left out, as long as at least one answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from typing import Any, TypeVar
from zlib import crc32

import structlog

from storage.errors import DiskFailed, DiskHangs, StorageError
from storage.file_log import FileLog
from storage.file_store import FileLogStore, FolderInUse, FolderState
from storage.threads import mark_retrieved

T = TypeVar("T")

TIMEOUT_MS = 5_000
"""How long a folder may take to list its partitions of an entity, or of a few entities."""

_log = structlog.get_logger("folders")


def place(entity: str, partition: int, folders: int) -> int:
    """The number of the folder that holds a partition. Part of the storage format: it never changes.

    Neighbouring partitions are in different folders, and the first partitions of many entities are spread
    over all of them.
    """
    return (crc32(entity.encode()) + partition) % folders


def folders_of_new(folders: int, lost: Collection[int]) -> int:
    """Over how many folders a new entity is spread if there are so many and some are `lost`: only over those
    before the first lost one, because a number is all that `place` knows. Over all of them if not even the
    first one is there.
    """
    return min((number for number in lost if number < folders), default=folders) or folders


class SpreadStore:
    """See `storage.log.LogStore`."""

    def __init__(
        self,
        stores: Sequence[FileLogStore],
        unknown: FileLogStore,
        *,
        missing: Collection[int] = (),
        timeout_ms: int = TIMEOUT_MS,
    ) -> None:
        """One store for each folder, by number; `unknown` stands for folders that are no longer known.
        `missing`: the numbers of those that were not there at the start, or did not answer."""
        self._timeout_ms, self._timeout_s = timeout_ms, timeout_ms / 1_000
        self._stores = stores
        self._unknown = unknown
        self._missing = frozenset(stores[number] for number in missing)
        self._unanswered: dict[FileLogStore, asyncio.Future[Any]] = {}
        """The latest request that each folder did not answer in time."""
        self._reported: set[int] = set()
        """Folders whose failure was already logged."""

    def folder_states(self) -> list[FolderState]:
        """The state of each folder, by number, as of the last look. Does not ask the disks."""
        return [store.state for store in self._stores]

    def keep_looking(self) -> None:
        """See `FileLogStore.keep_looking`."""
        for store in self._stores:
            store.keep_looking(self._timeout_ms)

    def log(self, entity: str, partition: int, folders: int = 1) -> FileLog:
        """See `LogStore.log`. If the folder is missing, the log raises DiskFailed when it is acquired."""
        number = place(entity, partition, folders)
        store = self._stores[number] if number < len(self._stores) else self._unknown
        return store.log(entity, partition)

    async def entities(self) -> list[str]:
        """See `LogStore.entities`. Folders that were missing at the start are not asked: their disk may
        hang, and the start waits for this."""
        found = await self._of_all(self._entities_in)
        return sorted({entity for entities in found for entity in entities})

    async def _entities_in(self, store: FileLogStore) -> list[str]:
        if store in self._missing:
            raise DiskFailed(f"{store.root}: the data folder was missing at the start")
        return await store.entities()

    async def partitions(self, entity: str) -> list[int]:
        """See `LogStore.partitions`. A folder that does not answer in time counts as failed."""

        answers = await self._of_all(lambda store: self._partitions_in(store, entity))
        return sorted({number for numbers in answers for number in numbers})

    async def is_without_logs(self, entity: str) -> bool:
        """See `LogStore.is_without_logs`. Raises the error of any folder."""
        return not any(await asyncio.gather(*(self._partitions_in(store, entity) for store in self._stores)))

    async def _partitions_in(self, store: FileLogStore, entity: str) -> list[int]:
        """Raises DiskHangs if the folder does not answer in time, and at once while an earlier request is
        unanswered: a thousand entities must not wait for a disk that hangs, one after another."""
        earlier = self._unanswered.get(store)
        if earlier is not None and not earlier.done():
            raise DiskHangs(f"{store.root}: no answer to an earlier question yet")
        asked = asyncio.ensure_future(store.partitions(entity))
        asked.add_done_callback(mark_retrieved)
        if not (await asyncio.wait([asked], timeout=self._timeout_s))[0]:
            self._unanswered[store] = asked
            raise DiskHangs(f"{store.root}: no answer within {self._timeout_s:g} s")
        return asked.result()

    async def missing(self) -> dict[str, list[int]]:
        """See `LogStore.missing`. If a folder does not answer in time, its missing logs are not
        found."""
        missing: dict[str, set[int]] = {}
        for found in await self._of_all(lambda store: store.missing(self._timeout_s)):
            for entity, numbers in found.items():
                missing.setdefault(entity, set()).update(numbers)
        return {entity: sorted(numbers) for entity, numbers in missing.items()}

    def keep_room(self, entity: str, needs: Mapping[int, tuple[int, int]], folder: int = 0) -> None:
        """See `EntityLogs.keep_room`. Keeps none in a folder that is no longer known."""
        if folder < len(self._stores):
            self._stores[folder].keep_room(entity, needs)

    async def delete(self, entity: str) -> None:
        """See `LogStore.delete`. Deletes in all folders that allow it, and then raises the error of any
        other."""
        results = await asyncio.gather(
            *(store.delete(entity) for store in self._stores), return_exceptions=True
        )
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def close(self) -> None:
        await asyncio.gather(*(store.close() for store in (*self._stores, self._unknown)))

    async def _of_all(self, ask: Callable[[FileLogStore], Coroutine[Any, Any, T]]) -> list[T]:
        """The answers of the folders that do not fail. If all fail, raises FolderInUse, or their error."""
        answers: list[T] = []
        errors: list[StorageError] = []
        for number, answer in enumerate(
            await asyncio.gather(*map(ask, self._stores), return_exceptions=True)
        ):
            if isinstance(answer, FolderInUse) or (
                isinstance(answer, BaseException) and not isinstance(answer, StorageError)
            ):
                raise answer
            if isinstance(answer, StorageError):
                errors.append(answer)
                if number not in self._reported and len(self._stores) > 1:
                    self._reported.add(number)
                    _log.error("folder.failed", number=number, error=str(answer))
            else:
                answers.append(answer)
                self._reported.discard(number)
        if not answers:
            raise errors[0]
        return answers
