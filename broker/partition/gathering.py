"""Decides when messages wait in a partition's mailbox for a lull of the disk, or for a round, while more
gather.

Where messages that are sent wait, what receivers want waits with them if it can: settlements of several
messages, and demand that cannot be met yet. Otherwise each of these would begin a cycle of its own, in
between those of the messages, and the partitions of an entity would fall out of step. A round that gathers
holds them as well. They wait for nothing else: with no messages on their way in, receivers are served at
once.

A lone message waits for a lull, but for no round if it may go ahead (`Rounds.lets_pass`): rounds wait for
senders that have much under way. What waits in its partition goes with it.
"""

from __future__ import annotations

from collections.abc import Callable

from broker.identifiers import ClientId
from broker.operations.interface import Operation
from broker.operations.receiving import Demand
from broker.operations.sending import Send
from broker.operations.settling import Complete
from broker.partition.mailbox import SETTLED_TOGETHER, Mailbox
from broker.partition.rounds import Rounds
from broker.partition.state import Partition
from storage.log import Log


class Gathering:
    """What waits in one partition. Owned by its task."""

    __slots__ = (
        "_goes_ahead",
        "_lulls",
        "_mailbox",
        "_rounds",
        "_wake",
        "is_awaited",
        "is_in_cycle",
        "partition",
    )

    def __init__(
        self, log: Log, mailbox: Mailbox, wake: Callable[[], None], rounds: Rounds | None = None
    ) -> None:
        """`wake` begins the next cycle. `rounds` are those of the partition's entity; by default, it has its
        own."""
        self._lulls, self._mailbox, self._wake = log.lulls, mailbox, wake
        self._rounds = rounds or Rounds()
        self.is_awaited = False
        """A lull or a round was asked for, and has not come."""
        self._goes_ahead = False
        """A lone message that does not wait for the round is in the mailbox."""
        self.is_in_cycle = False
        """A cycle is under way. Whoever ends it looks into the mailbox and calls `begin`."""
        self.partition: Partition | None = None
        """The state of the partition, while it is open."""

    def holds(self, operation: Operation, client: ClientId) -> bool:
        """Whether an operation that was put into the mailbox of an open partition waits there, so that the
        task need not be woken for it."""
        if isinstance(operation, Send):
            self._rounds.arrived(len(operation.messages))
            if operation.is_lone and not self._goes_ahead and self._rounds.lets_pass():
                # A lull or round that was asked for before still comes, to nothing or to what is new then.
                self._goes_ahead, self.is_awaited = True, False
            return self.is_in_cycle or self.begin()
        return self.is_in_cycle or (self._can_wait(client, operation) and self.begin())

    def _can_wait(self, client: ClientId, operation: Operation) -> bool:
        """Whether an operation that sends nothing can wait with messages that are sent."""
        if isinstance(operation, Complete):
            return len(operation.tokens) >= SETTLED_TOGETHER
        return isinstance(operation, Demand) and self._is_patient(client, operation)

    def _is_patient(self, client: ClientId, demand: Demand) -> bool:
        return self.partition is not None and self.partition.is_patient(client, demand)

    def join(self, more: Send, client: ClientId, cookie: object) -> bool:
        """Add messages to a send that waits in the mailbox (`Mailbox.join`). Whoever is to carry it out knows
        of it already."""
        is_added = self._mailbox.join(more, client, cookie)
        if is_added:
            self._rounds.arrived(len(more.messages))
        return is_added

    def begin(self) -> bool:
        """Wait if only a few messages are in the mailbox, and the disk is busy or more messages are expected.
        Returns whether that is so; then the lull, or the round, begins the next cycle. No cycle may be under
        way."""
        if not self.is_awaited and self._mailbox.can_gather(self._is_patient):
            lulls = self._lulls
            if self._mailbox.has_sends:
                self.is_awaited = self._awaits_round() or lulls.at_lull(self._lull_comes)
            elif self._rounds.is_gathering:
                self.is_awaited = self._rounds.awaits(lulls, self._go_on)
        self._goes_ahead &= self.is_awaited
        return self.is_awaited

    def _awaits_round(self) -> bool:
        return not self._goes_ahead and self._rounds.awaits(self._lulls, self._go_on)

    def _lull_comes(self) -> None:
        """The disk is done with its commits, but more messages may be expected now."""
        self.is_awaited = self._mailbox.can_gather(self._is_patient) and self._awaits_round()
        if not self.is_awaited:
            self._go_on()

    def _go_on(self) -> None:
        self.is_awaited = self._goes_ahead = False
        if self._mailbox:  # unless a cycle that could not wait has taken everything
            self._wake()

    def stored(self, messages: int) -> None:
        """A short cycle has ended that has stored so many messages."""
        self.is_in_cycle = False
        self.answered(messages)

    def answered(self, messages: int) -> None:
        """A cycle has stored so many messages, and their senders know."""
        if messages:
            self._rounds.answered(messages)
