"""Decides when messages wait in a partition's mailbox for a lull of the disk, while more gather."""

from __future__ import annotations

from collections.abc import Callable

from broker.operations.interface import Operation
from broker.operations.sending import Send
from broker.partition.mailbox import Mailbox
from storage.log import Log


class Gathering:
    """What waits for a lull in one partition. Owned by its task."""

    __slots__ = ("_log", "_mailbox", "_wake", "is_awaited", "is_in_cycle")

    def __init__(self, log: Log, mailbox: Mailbox, wake: Callable[[], None]) -> None:
        """`wake` begins the next cycle."""
        self._log, self._mailbox, self._wake = log, mailbox, wake
        self.is_awaited = False
        """A lull was asked for, and has not come."""
        self.is_in_cycle = False
        """A cycle is under way. At its end, the task looks into the mailbox and calls `begin`."""

    def holds(self, operation: Operation) -> bool:
        """Whether an operation that was put into the mailbox of an open partition waits there, so that the
        task need not be woken for it."""
        return isinstance(operation, Send) and (self.is_in_cycle or self.begin())

    def begin(self) -> bool:
        """Wait for a lull if only a few messages are in the mailbox, and the disk is busy. Returns whether
        the lull is awaited; then it begins the next cycle."""
        if not self.is_awaited and self._mailbox.can_gather():
            self.is_awaited = self._log.at_lull(self._lull_comes)
        return self.is_awaited

    def _lull_comes(self) -> None:
        self.is_awaited = False
        if self._mailbox:  # unless a cycle that could not wait has taken everything
            self._wake()
