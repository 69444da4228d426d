"""Catalogue: a durable set of named small documents, such as the broker's entities and settings.

Each document is kept twice, in two files (`document_file.py`) that are replaced as a whole or not at all:
`….document` and `….copy`. With several data folders the copies are in the second one (`folders.py`). Then
either folder is enough to read all documents, and both are needed to change one.

*A change* is acknowledged once both files are durable. So a crash leaves two old files, two new ones or one
of each; `catalogue_recovery.py` says which counts at the next start.

*A deletion* renames both files, to `….deleted` and `….copy-deleted`, which needs no room on a full disk. The
renamed files record that the document was deleted and not lost, until the owner has removed what belonged to
it (`forget`). A deletion is acknowledged once neither file has its old name. If one still has, the document
exists: it was put again later, or the deletion was cut short.

*An unknown outcome.* If a folder cannot be synced, its last change may or may not be on the disk. The change
is then made again, so that the next sync has something new to write; repeating only the sync would prove
nothing (durability rule 4).

*A disk that hangs.* A change that takes longer than the timeout also has an unknown outcome. It counts as
under way until the disk has answered. Meanwhile every other change is refused at once, without being begun
(DiskHangs).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from dataclasses import replace
from pathlib import Path

import structlog

from storage.catalogue_folders import CatalogueFolders
from storage.catalogue_recovery import Damaged, deleted_documents, read_document, recover
from storage.disk import Disk, disk_error, make_directories, publish_together
from storage.document_file import DELETED, LIVE, encode_document, file_name_of
from storage.errors import CommitFailed, DiskFailed, DiskFull, DiskHangs
from storage.threads import UnderWay, mark_retrieved, run_to_end, within

TIMEOUT_MS = 5_000
"""How long a change may take before it is given up."""
ATTEMPTS = 3
"""How often a change with an unknown outcome is made before the caller is told."""

_log = structlog.get_logger("catalogue")


class Catalogue:
    """The documents in one folder, whose parent must exist. One caller at a time; others wait."""

    def __init__(
        self,
        directory: Path,
        disk: Disk,
        copies: Path | None = None,
        identities: tuple[str, str] = ("", ""),
        *,
        absent: Iterable[Path] = (),
        timeout_ms: int = TIMEOUT_MS,
        executor: Executor | None = None,
    ) -> None:
        """`copies`: the folder of the copies, if they have their own. Then `identities` are those of the data
        folders that must hold the two. Loading skips the folders in `absent`, whose disks did not answer at
        the start; changes try them again.

        `executor`: its threads do the work; the event loop's own by default.
        """
        self._folders = CatalogueFolders(disk, directory, copies or directory, identities)
        self._folders_at_start = replace(self._folders, absent=frozenset(absent))
        self._directory = directory
        self._disk = disk
        self._timeout_s = timeout_ms / 1_000
        self._executor = executor
        self._one_at_a_time = asyncio.Lock()
        self._under_way = UnderWay()
        self._is_late = False
        """The change under way has not ended in time."""
        self._unknown: set[str] = set()
        """Documents whose last change has an unknown outcome."""
        self._numbers: dict[str, int] = {}
        """The highest number read or written for each document."""
        self._has_directory = False
        """Whether the folders exist, because the last document was written there."""
        self.damaged: list[Damaged] = []
        """The documents that the last `load_all` could not read."""

    async def load_all(self) -> dict[str, bytes]:
        """All documents by name, durable as read. Repairs what a crash has left (`catalogue_recovery.py`).

        Documents that cannot be read are in `damaged` afterwards. Raises UnknownFormat, DiskFailed.
        """
        async with self._one_at_a_time:
            self.damaged = []
            self._numbers.clear()
            found = await run_to_end(self._executor, lambda: recover(self._folders_at_start), self._under_way)
            self.damaged, self._numbers = found.damaged, found.numbers
            return found.documents

    async def load_deleted(self) -> list[str]:
        """The names of the documents that were deleted and not yet forgotten. Call `load_all` first. Raises
        what it raises."""
        async with self._one_at_a_time:
            return await run_to_end(
                self._executor, lambda: deleted_documents(self._folders_at_start), self._under_way
            )

    async def put(self, name: str, document: bytes) -> None:
        """Store the document, replacing the one of that name. Durable when it returns.

        Raises DiskFull or DiskFailed if nothing happened, CommitFailed if the outcome is unknown: until a
        `put` or `delete` of that name has returned, reading may give the old document or the new one, even
        after a restart.
        """
        await self._change(lambda: self._until_known(name, lambda: self._put(name, document)))

    async def delete(self, name: str) -> None:
        """Delete the document, if it exists, and record that it was deleted. Durable when it returns.

        Raises DiskFailed if nothing happened, CommitFailed if the outcome is unknown, as with `put`.
        """
        await self._change(lambda: self._until_known(name, lambda: self._delete(name)))

    async def forget(self, name: str) -> None:
        """Stop recording that a document was deleted. After a crash the record may still exist. Raises
        DiskFailed, CommitFailed."""
        await self._change(lambda: self._forget(name))

    async def close(self) -> None:
        """Wait for the change under way, unless the disk hangs: the process may end without its answer."""
        try:
            if not self._is_late:
                await within(self._timeout_s, self._under_way.ended())
        except TimeoutError:
            self._is_late = True
        if self._under_way.let_go():
            _log.error(
                "catalogue.left",
                path=str(self._directory),
                reason="The disk does not answer: the last change may be lost.",
            )

    async def _change(self, change: Callable[[], None]) -> None:
        """Make a change in a thread, after those before it. Raises what `change` raises; DiskHangs, or
        CommitFailed if it takes too long."""
        if self._is_late:
            raise DiskHangs(f"{self._directory}: the disk has not answered an earlier change yet")
        has_begun = False

        async def alone() -> None:
            nonlocal has_begun
            async with self._one_at_a_time:
                has_begun = True
                try:
                    await run_to_end(self._executor, change, self._under_way)
                finally:
                    self._is_late = False

        task = asyncio.create_task(alone(), name="catalogue-change")
        task.add_done_callback(mark_retrieved)
        try:
            await asyncio.wait([task], timeout=self._timeout_s)
        finally:
            if not has_begun:
                task.cancel()
        if task.done():
            task.result()
        elif has_begun:
            self._is_late = True
            _log.error(
                "catalogue.hangs",
                path=str(self._directory),
                reason="Nothing can be changed until the disk answers.",
            )
            raise CommitFailed(f"{self._directory}: the disk has not answered within {self._timeout_s:g} s")
        else:
            raise DiskHangs(f"{self._directory}: the disk has not answered earlier changes in time")

    def _put(self, name: str, document: bytes) -> None:
        self._folders.admit()
        try:
            if not self._has_directory:
                for directory in self._folders.directories():
                    make_directories(self._disk, directory.parent, [directory.name])
            number = self._numbers[name] = self._last_number(name) + 1
        except OSError as error:
            raise CommitFailed(f"{self._directory}: {error.strerror}") from error
        stem = Path(file_name_of(name)).stem
        paths = [self._folders.path(stem, suffix) for suffix in LIVE]
        self._has_directory = False
        self._publish(paths, encode_document(name, number, document))
        self._has_directory = True

    def _publish(self, paths: list[Path], content: list[bytes]) -> None:
        """Write both files of a document. Raises DiskFull (nothing happened), CommitFailed."""
        if not self._folders.are_two:
            publish_together(self._disk, paths, content)
            return
        publish_together(self._disk, paths[:1], content)
        try:
            publish_together(self._disk, paths[1:], content)
        except DiskFull as error:
            raise CommitFailed(f"{paths[0]} was replaced, but not its copy: {error}") from error

    def _last_number(self, name: str) -> int:
        """The highest number of the document so far. Raises OSError."""
        if name not in self._numbers:
            stem = Path(file_name_of(name)).stem
            # Open by name: listing the folder would take longer with each document.
            paths = [self._folders.path(stem, suffix) for suffix in LIVE]
            found = [read_document(self._folders, path) for path in paths if self._exists(path)]
            self._numbers[name] = max((each.number for each in found if each is not None), default=0)
        return self._numbers[name]

    def _exists(self, path: Path) -> bool:
        """Whether this file exists. Raises OSError."""
        try:
            self._disk.close(self._disk.open_read(path))
        except FileNotFoundError:
            return False
        return True

    def _delete(self, name: str) -> None:
        stem = Path(file_name_of(name)).stem
        is_changed = False
        self._folders.admit()
        try:
            for live, deleted in zip(
                *([self._folders.path(stem, each) for each in suffixes] for suffixes in (LIVE, DELETED)),
                strict=True,
            ):
                if not self._exists(live):
                    if name not in self._unknown or not self._exists(deleted):
                        continue
                    # Durability rule 4: the next sync writes only what has changed since the failed one.
                    self._disk.rename(deleted, live)
                self._disk.rename(live, deleted)
                is_changed = True
            if is_changed:
                for directory in self._folders.directories():
                    self._disk.sync_directory(directory)
        except OSError as error:
            raise CommitFailed(f"{self._directory}: {error.strerror}") from error

    def _until_known(self, name: str, change: Callable[[], None]) -> None:
        """Make a change, and repeat it while its outcome is unknown. Raises DiskFull and DiskFailed (nothing
        happened), CommitFailed."""
        for _ in range(ATTEMPTS):
            try:
                change()
            except (DiskFull, DiskFailed) as refused:
                if name not in self._unknown:
                    raise
                failure = CommitFailed(f"{refused}; the outcome of an earlier attempt is unknown")
            except CommitFailed as error:
                self._unknown.add(name)
                failure = error
            else:
                self._unknown.discard(name)
                return
        raise failure

    def _forget(self, name: str) -> None:
        stem = Path(file_name_of(name)).stem
        self._folders.admit()
        try:
            for suffix in DELETED:
                self._disk.remove(self._folders.path(stem, suffix))
        except OSError as error:
            raise disk_error(error, self._directory) from error
