"""What can go wrong with records on a disk.

The callers turn each of these into a state of the partition that owns the log; none of them ends the process.
"""

from __future__ import annotations


class StorageError(Exception):
    """The root of all errors of this package."""


class CommitFailed(StorageError):
    """A write or a sync failed, and what of it reached the disk is not known (durability rule 4).

    A log is unusable from here on and wants to be claimed anew; once it has been, nothing of the failed
    commit is ever read again. A document of the catalogue may be the old or the new one until a later change
    of it has returned.
    """


class DiskFailed(StorageError):
    """The disk refused something that is no commit: to list, to open, to read. What is stored is as it
    was."""


class DiskHangs(DiskFailed):
    """The disk has not answered what it was asked before, so this was not begun. What is stored is as it
    was."""


class UnknownFormat(StorageError):
    """A file was written by a version of the format that this program does not know; it was not touched."""


class DiskFull(StorageError):
    """There was no room for the commit. Nothing of it was kept, and the log is as usable as before
    (durability rule 6)."""


class Fenced(StorageError):
    """Another owner claimed the log with a higher epoch: this one may not write any more."""


class CorruptRecord(StorageError):
    """Bytes that were once durable are not what was written: path and position say where."""

    def __init__(self, path: str, position: int, why: str) -> None:
        super().__init__(f"{path}: damaged at byte {position}: {why}")
        self.path = path
        self.position = position
        self.why = why


class RecordsMissing(CorruptRecord):
    """Records that were once durable are not there: a file is gone, or cut off."""

    def __init__(self, path: str, position: int, why: str, *, expected: int, found: int) -> None:
        super().__init__(
            path, position, f"{why}: position {expected} was expected, and position {found} was found"
        )
        self.expected = expected
        """A position that the log is known to have reached."""
        self.found = found
        """The position that its files show instead."""
