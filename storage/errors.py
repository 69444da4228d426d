"""The errors of storage.

The caller turns each of them into a state of the partition that owns the log; none of them ends the process.
"""

from __future__ import annotations


class StorageError(Exception):
    """The base class of all errors of this package."""


class CommitFailed(StorageError):
    """A write or a sync failed, and it is unknown how much of it reached the disk (durability rule 4).

    A log is unusable until it is acquired again; after that, nothing of the failed commit is ever read. A
    document of the catalogue may be the old or the new one until a later change of it has succeeded.
    """


class DiskFailed(StorageError):
    """The disk refused something other than a commit: to list, open or read. Nothing stored has changed."""


class DiskHangs(DiskFailed):
    """The disk has not answered an earlier request, so this one was not begun. Nothing stored has changed."""


class UnknownFormat(StorageError):
    """A file has a format version that this release does not know. It was not touched."""


class DiskFull(StorageError):
    """There was no space for the commit. Nothing of it was kept, and the log remains usable (durability
    rule 6)."""


class Fenced(StorageError):
    """Another owner has acquired the log with a higher epoch, so this one must not write to it."""


class CorruptRecord(StorageError):
    """Bytes that were durable have changed. `path` and `position` say where."""

    def __init__(self, path: str, position: int, why: str) -> None:
        super().__init__(f"{path}: damaged at byte {position}: {why}")
        self.path = path
        self.position = position
        self.why = why


class RecordsMissing(CorruptRecord):
    """Records that were durable are missing: a file is gone or was cut off."""

    def __init__(
        self, path: str, position: int, why: str, *, expected: int, found: int, is_damage: bool = False
    ) -> None:
        """`is_damage`: whether `why` says what is wrong with the bytes there. Then positions of the log would
        only confuse, because the message names the byte of the file."""
        super().__init__(
            path, position, why if is_damage else f"{why}: expected position {expected}, found {found}"
        )
        self.expected = expected
        """A position that the log is known to have reached."""
        self.found = found
        """The position that its files show instead."""
