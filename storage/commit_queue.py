"""Writes and syncs commits outside the event loop, in native code: two threads that never need the
interpreter lock, and Linux's kernel AIO for syncs (`native/commits.c`).

Belongs to `disk.py`. A write into the page cache usually takes microseconds, but a frozen file system, or one
whose journal is stuck, holds it up for as long as it likes, and no flag makes it return instead. So even a
write that needs no space is not for the event loop. A thread of the interpreter would need the interpreter
lock after every system call, and while the event loop is busy, it gets the lock about once per callback.
Measured with the loop at its limit, 16 logs, commits of 32 KiB: 8,100 commits per second when only kernel AIO
synced, 2,900 with four such threads. io_uring would need no threads of ours, but containers forbid it by
default.

`open_commit_queue` returns None if the system does not support this; `Committer` then uses its threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

CommitShare = tuple[int, int, Sequence[bytes], int, bool]
"""What a queue does for one commit: a number chosen by the caller, the file's descriptor, the buffers to
write one after the other, the offset to write them at, and whether to sync the file then."""


class CommitQueue(Protocol):
    """Writes and syncs that run in the background. Nothing here blocks."""

    @property
    def ready_fd(self) -> int:
        """A descriptor that is readable while `ended` has something to return."""

    def submit(self, shares: Sequence[CommitShare]) -> int:
        """Begin this work. The buffers must not change before it has ended.

        Gives how many shares were begun, counting from the first; the others were not tried.
        """

    def ended(self) -> list[tuple[int, int, bool]]:
        """The shares that ended since the last call: the number of each, its errno, 0 for success, and
        whether everything was written."""

    def take_back(self) -> list[int]:
        """Give up those whose write has not begun, and return their numbers: they do not end. Others hold
        them up."""

    def close(self) -> None:
        """Close the queue. Nothing may be under way."""


def open_commit_queue() -> CommitQueue | None:
    """A queue, if this system supports it: Linux that allows kernel AIO; else None."""
    try:
        from storage._commits import Queue
    except ImportError:  # it is for Linux only
        return None
    try:
        return Queue()
    except OSError:
        return None
