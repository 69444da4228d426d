"""Cycles that await nothing but their commit, carried out without waking the partition's task for them.

Under load, most cycles only store messages, hand them out and settle them. To wake the task for each of them
twice, when the cycle begins and when the disk has answered, and to let it look after everything else, costs
as much as the messages do. So a *short cycle* of messages begins in the call that ends the wait for a lull
(`gathering.py`), together with those of the other partitions. One of receivers that has waited for no
messages begins in the next turn of the event loop, or in a later one if that has no time for it; the task
waits for that turn (`begin_in_turn`). In both cases, the answers are released in the call in which the disk
answers. The task sleeps meanwhile. Whatever goes wrong, and whatever else there is to do, is left to the
task: it takes a cycle over that could not be committed at once, or that needs messages from the log
(`take_over`), and begins no other one before it has ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from broker.base.clock import Clock
from broker.base.pace import Pace
from broker.operations.sending import Send
from broker.partition.cycle import Cycle
from broker.partition.disk_timeout import Patience
from broker.partition.gathering import Gathering
from broker.partition.mailbox import Mailbox, Waiting, sends_from
from broker.partition.state import Partition
from broker.partition.workspace import NO_CYCLE
from storage.errors import StorageError
from storage.log import Log


class Short(NamedTuple):
    """A short cycle whose commit is under way, or could not be made."""

    partition: Partition
    cycle: Cycle
    waiting: list[Waiting]
    """Its operations."""
    error: Exception | None = None
    """Why it was not committed; None if it was not tried."""
    began_s: float = 0.0
    """When it began, by the event loop's clock."""


class ShortCycles:
    """At most one at a time. Owned by the partition's task."""

    __slots__ = (
        "_clock",
        "_durable",
        "_ended",
        "_gathering",
        "_has_turn",
        "_is_late",
        "_left",
        "_log",
        "_mailbox",
        "_pace",
        "_patience",
        "_under_way",
        "_wake",
    )

    def __init__(
        self,
        log: Log,
        mailbox: Mailbox,
        gathering: Gathering,
        clock: Clock,
        patience: Patience,
        pace: Pace,
        durable: Callable[[Short], None],
        ended: Callable[[Short], None],
        wake: Callable[[], None],
    ) -> None:
        """`durable` is called in the event loop when a short cycle is durable, and releases its answers.
        `ended` is called in the next turn, when they have been written, so that no client waits for what is
        done there. `wake` is called when the task is to take a cycle over."""
        self._log, self._mailbox, self._clock, self._patience = log, mailbox, clock, patience
        self._gathering, self._pace = gathering, pace
        self._durable, self._ended, self._wake = durable, ended, wake
        self._under_way: Short | None = None
        self._left: Short | None = None
        self._is_late = False
        """The cycle that was to begin last is for another turn of the event loop."""
        self._has_turn = False
        """This is that turn."""

    @property
    def is_under_way(self) -> bool:
        """Whether the disk has not answered yet, or the answers are being written."""
        return self._under_way is not None

    @property
    def is_left(self) -> bool:
        """Whether there is something to take over."""
        return self._left is not None

    @property
    def is_open(self) -> bool:
        """Whether a cycle has begun that is neither durable nor taken over."""
        return self._under_way is not None or self._left is not None

    async def begin_in_turn(self, begin: Callable[[], bool]) -> bool:
        """Begin a cycle with `begin`, which calls the method of that name here. If this turn of the event
        loop has no time for it, do so in a later one. Returns what `begin` does."""
        self._is_late = False
        if begin():
            return True
        if not self._is_late:
            return False
        self._gathering.is_in_cycle = True  # nobody need wake the task meanwhile
        try:
            await self._pace.begin()
        finally:
            self._gathering.is_in_cycle = False
        self._has_turn = True
        try:
            return begin()
        finally:
            self._has_turn = False

    def begin(self, partition: Partition, operations_max: int, bytes_max: int) -> bool:
        """Begin a cycle if the operations in the mailbox allow a short one. Returns whether it did, or there
        is something to take over. Raises nothing: others begin in the same call."""
        try:
            return self._begin(partition, operations_max, bytes_max)
        except Exception as bug:  # the task ends with it
            self._log.fence()  # the commit may have begun; the task discards it
            self._under_way = self._under_way or Short(partition, NO_CYCLE, [])
            self._leave(bug)
            return True

    def _begin(self, partition: Partition, operations_max: int, bytes_max: int) -> bool:
        mailbox, messages_max = self._mailbox, partition.work_max
        if partition.has_steps:
            return False
        if not mailbox.has_only_sends(operations_max, messages_max):
            if not mailbox.is_short(operations_max, messages_max):
                return False
            if not (self._has_turn or self._pace.may_begin()):
                self._is_late = True
                return False
        try:
            commit = self._log.begin()
        except StorageError:
            return False  # the task finds out as well
        waiting = mailbox.gather(operations_max, bytes_max)
        partition.counting.note()
        clock = self._clock
        cycle = partition.begin(commit, clock.monotonic_ms(), clock.now_ms(), waiting[0][3])
        self._under_way = Short(partition, cycle, waiting, None, asyncio.get_running_loop().time())
        place, is_done = 0, True
        while place < len(waiting) and is_done and not (place and partition.is_full):
            client, operation, sink, arrived_ms = waiting[place]
            if isinstance(operation, Send):
                place += partition.handle_sends(sends_from(waiting, place))
            else:
                mailbox.remember(client, operation, sink)
                is_done = partition.handle(client, operation, arrived_ms)
                place += is_done
        mailbox.put_back(waiting, place)
        self._patience.begin(self._hung)
        append_at_once, told = self._log.append_at_once, self._answered
        if cycle.is_quiet and commit:
            is_begun = append_at_once(commit, told, urgent=False)
            partition.finish(mailbox.since_ms)  # while the disk writes
            if not is_begun:
                self._leave(None)
            return True
        partition.finish(mailbox.since_ms)
        if cycle.holes and cycle.missing:
            self._leave(None)
        elif not commit:  # nothing but locks changes, or all were refused
            told(None)
        elif not append_at_once(commit, told, urgent=not cycle.has_sent):
            self._leave(None)
        return True

    def _answered(self, error: Exception | None) -> bool:
        """The disk has answered. Returns whether more waits."""
        short = self._under_way
        if error is not None or short is None:  # None: it was dropped
            self._leave(error)
            return True
        self._patience.end()
        try:
            self._durable(short)
        except Exception as bug:
            self._leave(bug)
            return True
        asyncio.get_running_loop().call_soon(self._end, short)
        return bool(self._mailbox)

    def _end(self, short: Short) -> None:
        """The answers have been written."""
        if self._under_way is not short:  # it was dropped
            return
        self._under_way = None
        try:
            self._ended(short)
        except Exception as bug:
            self._left = short._replace(error=bug)
            self._wake()

    def _hung(self) -> None:
        """The disk has not answered in time, and the log was fenced."""
        self._leave(self._patience.hung)

    def _leave(self, error: Exception | None) -> None:
        """Leave the cycle to the task."""
        short, self._under_way = self._under_way, None
        if short is not None:
            self._patience.end()
            self._left = short._replace(error=error)
            self._wake()

    def take_over(self) -> Short | None:
        """The cycle that was left to the task, once."""
        left, self._left = self._left, None
        return left

    def drop(self) -> None:
        """Forget the cycle under way: the task has ended."""
        self._under_way = None
