"""A partition's task on an in-memory log, stepped by hand: no background task, no timer, no waiting."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TypeVar

from broker.base.clock import ManualClock
from broker.base.slices import Slices
from broker.entities.descriptions import (
    DEAD_LETTER,
    MAIN,
    EntityDescription,
    QueueDescription,
    QueueSettings,
)
from broker.identifiers import ClientId
from broker.operations.browsing import Peek, Peeked
from broker.operations.general import Update, Updated
from broker.operations.interface import Answer, Operation
from broker.operations.message_states import SubqueueCounts
from broker.operations.receiving import Demand, Locked
from broker.operations.sending import Send, Sent
from broker.operations.settling import Abandon, DeadLetter
from broker.operations.transfers import FailTransfer
from broker.partition.health import Health
from broker.partition.openings import Openings
from broker.partition.payloads import PayloadBudget
from broker.partition.subqueue import Subqueue
from broker.partition.task import PartitionTask
from broker.partition.task_limits import TaskLimits
from protocol.codec import decode
from tests.support.memory_log import Disk, MemoryLog
from tests.support.waiting import WAIT_S

T = TypeVar("T")

LOCK_MS = QueueSettings().lock_duration_ms
"""How long a lock lasts by default, in ms."""

NUMBER = 3
"""The partition's number. It is not 0, so that sequence numbers have high bits set."""


class ReportedCounts:
    """What is known of a partition's counts to one who hears of changes alone, as the broker does of a
    partition in another process."""

    def __init__(self) -> None:
        self.counts: dict[str, SubqueueCounts] = {}
        self._is_due = True

    def changed(self) -> None:
        """There is something to report."""
        self._is_due = True

    def check(self, task: PartitionTask) -> None:
        """Take the report that is due, if one is, and assert that all counts are known now."""
        if self._is_due:
            counts, is_whole = task.report_counts()
            self.counts = counts if is_whole else self.counts | counts
            self._is_due = False
        assert self.counts == task.counts()


class Harness:
    """One partition of a queue, its disk, its clock, and all answers its clients received."""

    def __init__(
        self,
        settings: QueueSettings | None = None,
        *,
        limits: TaskLimits | None = None,
        payload_bytes: int = 1 << 26,
        reserve_bytes: int = 0,
        segment_bytes: int = 1 << 30,
        number: int = NUMBER,
        kind: type[QueueDescription] = QueueDescription,
        description: EntityDescription | None = None,
        turns: Slices | None = None,
        slices: Slices | None = None,
        openings: Openings | None = None,
    ) -> None:
        self.description = description or kind("orders", "0" * 32, 16, settings or QueueSettings())
        self.clock = ManualClock()
        self.budget = PayloadBudget(payload_bytes, reserve_bytes)
        self.limits = limits or TaskLimits()
        self.number, self.turns, self.slices = number, turns, slices
        self.openings = openings
        self.healths: list[Health] = []
        self.received: defaultdict[int, list[Answer]] = defaultdict(list)
        self.reported = ReportedCounts()
        self.log = MemoryLog(Disk(), segment_bytes)
        self.task = self._new_task()

    def share_with(self, other: Harness) -> None:
        """Share the clock and the budget of another partition. Call this before anything else."""
        self.clock, self.budget = other.clock, other.budget
        self.task = self._new_task()

    def change(self, **settings: object) -> None:
        """Change settings; the partition learns of them through `Update`."""
        self.description = replace(self.description, settings=replace(self.description.settings, **settings))  # type: ignore[arg-type]

    async def describe(self, description: EntityDescription) -> None:
        """Give the entity another description."""
        self.description = description
        one(await self.do(1002, Update(description)), Updated)

    def post(self, client: int, operation: Operation) -> None:
        """Put an operation into the mailbox."""
        self.task.post(operation, ClientId(client), self.received[client].append)

    async def until_quiet(self) -> None:
        """Step until there is nothing left to do now; then all invariants hold."""
        for _ in range(1000):
            await self._begin_as_the_sleeping_task_would()
            more = await self.task.step()
            self.task.check()
            if not more and not self._is_due():
                return
        raise AssertionError("the partition does not come to rest")

    async def _begin_as_the_sleeping_task_would(self) -> None:
        """Carry out a short cycle, if what waits allows it."""
        if not self.task._short.is_under_way:
            self.task._begins_short_cycle()
        while self.task._short.is_under_way:  # noqa: ASYNC110 (the log's own task goes on)
            await asyncio.sleep(0)

    async def do(self, client: int, *operations: Operation) -> list[Answer]:
        """Post operations as one cycle; gives the answers this client receives meanwhile."""
        for operation in operations:
            self.post(client, operation)
        await self.until_quiet()
        return self.take(client)

    def take(self, client: int) -> list[Answer]:
        """Answers the client has received since the last call."""
        answers = list(self.received[client])
        self.received[client].clear()
        return answers

    async def send(self, *messages: bytes, ttl: list[int | None] | None = None) -> int:
        """Send messages; gives the sequence number of the first."""
        answer = one(await self.do(1000, Send(list(messages), ttl)), Sent)
        return answer.first

    async def receive(self, client: int, count: int = 1, subqueue: str = MAIN) -> Locked:
        """Ask for messages that must be available at once."""
        return one(await self.do(client, Demand(subqueue, count)), Locked)

    async def peek(self, subqueue: str = MAIN, start: int = 0, count: int = 1000) -> Peeked:
        """Peek at messages."""
        return one(await self.do(1001, Peek(subqueue, start, count)), Peeked)

    async def advance(self, milliseconds: int) -> None:
        """Advance the clock."""
        self.clock.advance(milliseconds)
        await self.until_quiet()

    async def restart(self, *, clean: bool = False) -> None:
        """End the task (unless `clean`, as a crash would) and open another one on the same disk."""
        if clean:
            await self.task.stop()
        self.received.clear()
        self.budget.used = self.budget.state_bytes = 0
        log = MemoryLog(self.log.disk, self.log.segment_bytes)
        self.log = log
        self.reported = ReportedCounts()
        self.task = self._new_task()

    def _is_due(self) -> bool:
        """Whether the timer would fire now."""
        partition = self.task._partition if self.task.health is Health.HEALTHY else None
        due_ms = self.task._full.put_off(partition.next_due_ms()) if partition is not None else None
        return due_ms is not None and due_ms <= self.clock.monotonic_ms()

    @property
    def subqueues(self) -> list[Subqueue]:
        """The state machine's current subqueues."""
        partition = self.task._partition
        assert partition is not None, "the partition is not open"
        return list(partition.messages.subqueues)

    @property
    def live_bytes(self) -> int:
        """The size of all messages, in bytes; 0 while the partition is not open."""
        partition = self.task._partition
        return partition.messages.live_bytes if partition is not None else 0

    def _new_task(self) -> PartitionTask:
        return PartitionTask(
            self.number,
            log=self.log,
            clock=self.clock,
            description=self.description,
            payloads=self.budget,
            limits=self.limits,
            on_health=self._note_health,
            on_counts=self.reported.changed,
            turns=self.turns,
            slices=self.slices,
            openings=self.openings,
        )

    def _note_health(self, number: int, health: Health) -> None:
        self.healths.append(health)
        self.reported.changed()


def one(answers: list[Answer], kind: type[T]) -> T:
    """The only answer, which must be of this kind."""
    assert len(answers) == 1, answers
    answer = answers[0]
    assert isinstance(answer, kind), answer
    return answer


@asynccontextmanager
async def running(harness: Harness) -> AsyncIterator[None]:
    """Run the task in the background, as in the broker."""
    task = asyncio.create_task(harness.task.run())
    try:
        yield
    finally:
        await asyncio.wait_for(harness.task.stop(), WAIT_S)
        await asyncio.wait_for(task, WAIT_S)


class Lapses:
    """A meter that keeps what expired in each cycle, and how often the partition came back."""

    def __init__(self) -> None:
        self.restarts = 0
        self.locks: list[int] = []
        self.messages: list[int] = []

    def committed(self, records: int, size: int, seconds: float) -> None: ...

    def commit_failed(self) -> None: ...

    def restarted(self) -> None:
        self.restarts += 1

    def lapsed(self, dead_lettered: int, expired_messages: int, expired_locks: int) -> None:
        self.locks.append(expired_locks)
        self.messages.append(expired_messages)


def properties(changed: bytes | None) -> dict[str, object]:
    """Changed application properties as a dictionary; empty if there are none."""
    return dict(decode(changed)[0]) if changed is not None else {}


async def in_dead_letters(harness: Harness, subqueue: str) -> int:
    """Put one message into a dead-letter subqueue, abandoned once on its way; gives its sequence number."""
    number = await harness.send(b"a")
    await harness.do(1, Abandon((await harness.receive(1)).tokens))
    if subqueue == DEAD_LETTER:
        await harness.do(1, DeadLetter((await harness.receive(1)).tokens))
    else:
        await harness.do(1, FailTransfer((await harness.receive(1)).tokens))
    return number
