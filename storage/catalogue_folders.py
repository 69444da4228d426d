"""The folders of a catalogue's files: one for everything, or a second one for the copies. Knows no format."""

from __future__ import annotations

import errno
from dataclasses import dataclass
from pathlib import Path

import structlog

from storage.disk import Disk
from storage.document_file import COPY_DELETED_SUFFIX, COPY_SUFFIX
from storage.errors import DiskFailed
from storage.folder_identity import check_identity

_log = structlog.get_logger("catalogue")


@dataclass(slots=True, frozen=True)
class CatalogueFolders:
    """The folders of one catalogue."""

    disk: Disk
    directory: Path
    copies: Path
    """The folder of the copies; the same as `directory` if there is only one."""
    identities: tuple[str, str] = ("", "")
    """The identities of the data folders that must hold them (`folders.py`)."""
    absent: frozenset[Path] = frozenset()
    """Which of the two count as failed and are not tried."""

    @property
    def are_two(self) -> bool:
        return self.copies != self.directory

    def directories(self) -> list[Path]:
        """Each folder once."""
        return [self.directory, self.copies] if self.are_two else [self.directory]

    def path(self, stem: str, suffix: str) -> Path:
        """The path of a document's file."""
        return self._directory_of(suffix) / f"{stem}{suffix}"

    def _directory_of(self, suffix: str) -> Path:
        return self.copies if suffix in (COPY_SUFFIX, COPY_DELETED_SUFFIX) else self.directory

    def names_in(self, directory: Path, *, tolerant: bool = False) -> set[str]:
        """The names in one folder. With two folders, a tolerant caller accepts that one fails. Raises
        OSError."""
        try:
            if directory in self.absent:
                raise OSError(errno.EIO, "The data folder is missing", str(directory))
            return set(self.disk.names(directory))
        except OSError as error:
            if not (tolerant and self.are_two):
                raise
            if directory not in self.absent:  # the start has reported that
                _log.error("catalogue.folder_failed", directory=str(directory), error=error.strerror)
            return set()

    def names(self, *, tolerant: bool = False) -> set[str]:
        """The names of all files that are in their proper folder. Raises OSError."""
        return {
            name
            for directory in self.directories()
            for name in self.names_in(directory, tolerant=tolerant)
            if self._directory_of(Path(name).suffix) == directory
        }

    def admit(self) -> None:
        """Raise DiskFailed unless both data folders exist: a change made in only one of them would be undone
        when the other one is back."""
        if self.absent:
            raise DiskFailed(f"{next(iter(self.absent))}: the data folder is missing")
        for directory, identity in zip((self.directory, self.copies), self.identities, strict=True):
            check_identity(self.disk, directory.parent, identity)
