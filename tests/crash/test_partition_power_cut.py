"""Clients of a queue when unsynced data is dropped: the power goes at each sync of a random load, and what
partitions recover from the remaining disk agrees with the clients' own ledger (durability rules 1 and 3).
Counts of failed deliveries survive, too.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from broker.base.clock import ManualClock
from broker.entities.descriptions import DEAD_LETTER, MAIN, QueueDescription
from broker.identifiers import LockToken
from broker.message.changes import encode_changes
from broker.operations.browsing import Peek
from broker.operations.deleting import Delete
from broker.operations.interface import Operation
from broker.operations.receiving import Demand, Locked, Recall, ReceiveDeferred, Unmet, Withdraw, Withdrawn
from broker.operations.sending import Send, Sent
from broker.operations.settling import Abandon, Complete, DeadLetter, Defer, Settled
from broker.operations.transactions import Transact
from broker.partition.health import Health
from broker.partition.payloads import PayloadBudget
from broker.partition.references import ACTIVE, DEFERRED
from broker.partition.task import PartitionTask
from broker.partition.task_limits import TaskLimits
from broker.partition.upkeep import UpkeepLimits
from storage.file_store import FileLogStore
from tests.support.partition_asking import WAIT_S, ask, pages, receive
from tests.support.recording_disk import RecordingDisk

ROOT = Path("/data")
QUEUE = QueueDescription("orders", "5" * 32, 2)
PARTITIONS = 2
STEPS = 25
SEEDS = [int(os.environ["POWER_CUT_SEED"])] if "POWER_CUT_SEED" in os.environ else [1, 2, 3, 4]
LIMITS = TaskLimits(
    upkeep=UpkeepLimits(checkpoint_bytes=20_000, garbage_bytes_max=20_000, relocation_bytes=5_000)
)


@dataclass
class Ledger:
    """What the clients of one partition know, by message body. Bodies are unique."""

    attempted: set[bytes] = field(default_factory=set)
    acknowledged: set[bytes] = field(default_factory=set)
    leaving: set[bytes] = field(default_factory=set)
    """Completion requested, confirmed or not."""
    completed: set[bytes] = field(default_factory=set)
    """Completion confirmed."""
    moving: set[bytes] = field(default_factory=set)
    """Dead-lettering requested, confirmed or not."""
    dead_lettered: set[bytes] = field(default_factory=set)
    """Dead-lettering confirmed."""
    failed_deliveries: dict[bytes, int] = field(default_factory=dict)
    """Confirmed abandons per message."""

    def copy(self) -> Ledger:
        return Ledger(
            *(type(each)(each) for each in (getattr(self, name) for name in self.__dataclass_fields__))
        )


@asynccontextmanager
async def partitions(disk: RecordingDisk) -> AsyncIterator[list[PartitionTask]]:
    """Run the partitions on a disk; they end as at a power cut, without a checkpoint."""
    store = FileLogStore(ROOT, disk, segment_bytes_max=8_000, reserve_bytes=0)
    logs = [store.log(QUEUE.generation, number) for number in range(PARTITIONS)]
    tasks = [
        PartitionTask(
            number,
            log=log,
            clock=ManualClock(),
            description=QUEUE,
            payloads=PayloadBudget(5_000, 0),
            limits=LIMITS,
        )
        for number, log in enumerate(logs)
    ]
    runs = [asyncio.create_task(task.run()) for task in tasks]
    try:
        yield tasks
    finally:
        for run in runs:
            run.cancel()
        await asyncio.wait(runs, timeout=WAIT_S)
        for log in logs:
            await log.close()
        await store.close()


async def work(task: PartitionTask, ledger: Ledger, rng: random.Random) -> None:
    """One client sends, receives and settles, one operation at a time, and keeps its ledger."""
    for _ in range(STEPS):
        bodies = [
            b"%d:" % rng.randrange(1 << 60) + bytes(rng.choice((5, 300, 2_000)))
            for _ in range(rng.randrange(1, 5))
        ]
        ledger.attempted.update(bodies)
        assert isinstance(await ask(task, Send(bodies, None)), Sent)
        ledger.acknowledged.update(bodies)
        for token, body in await received(task, rng.randrange(1, 4)):
            choice = rng.random()
            if choice < 0.6:
                ledger.leaving.add(body)
                assert isinstance(await ask(task, Complete([token])), Settled)
                ledger.completed.add(body)
            elif choice < 0.75:
                ledger.moving.add(body)
                assert isinstance(await ask(task, DeadLetter([token])), Settled)
                ledger.dead_lettered.add(body)
            else:
                assert isinstance(await ask(task, Abandon([token])), Settled)
                ledger.failed_deliveries[body] = ledger.failed_deliveries.get(body, 0) + 1


async def received(task: PartitionTask, count: int) -> list[tuple[LockToken, bytes]]:
    """Receive one to `count` messages of the main subqueue; gives their tokens and bodies."""
    return [
        held
        for answer in await receive(task, MAIN, count)
        for held in zip(answer.tokens, answer.messages, strict=True)
    ]


async def content(task: PartitionTask, subqueue: str) -> dict[bytes, int]:
    """Bodies in a subqueue, each with its number of failed deliveries."""
    found: dict[bytes, int] = {}
    async for page in pages(task, subqueue):
        found.update(zip(page.messages, page.delivery_counts, strict=True))
    return found


async def check(disk: RecordingDisk, ledgers: list[Ledger]) -> None:
    async with partitions(disk) as tasks:
        for task, ledger in zip(tasks, ledgers, strict=True):
            main, dead = await content(task, MAIN), await content(task, DEAD_LETTER)
            assert not main.keys() & dead.keys(), "a message is in one subqueue"
            found = main.keys() | dead.keys()
            assert found <= ledger.attempted, "nothing that was never sent"
            assert ledger.acknowledged - ledger.leaving <= found, "no acknowledged message lost"
            assert not ledger.completed & found, "none with a confirmed completion seen again"
            assert ledger.dead_lettered <= dead.keys() and dead.keys() <= ledger.moving
            for body, count in ledger.failed_deliveries.items():
                if body in main:
                    assert main[body] >= count, "delivery counts are not volatile"
            assert isinstance(await ask(task, Send([b"goes on"], None)), Sent)


@pytest.mark.parametrize("seed", SEEDS)
async def test_at_each_sync_point_the_power_may_go_and_the_clients_ledger_holds(seed: int) -> None:
    """Replay one seed with POWER_CUT_SEED=n."""
    rng = random.Random(seed)
    disk = RecordingDisk(queued=seed % 2 == 0)
    ledgers = [Ledger() for _ in range(PARTITIONS)]
    cuts: list[tuple[RecordingDisk, list[Ledger]]] = []

    def before_sync() -> None:
        if rng.random() < 0.25:  # at a quarter of the sync points, keep none or some of the unsynced data
            cuts.append(
                (
                    disk.after_power_cut(rng if rng.random() < 0.5 else None),
                    [ledger.copy() for ledger in ledgers],
                )
            )

    async with partitions(disk) as tasks:
        disk.before_sync = before_sync
        await asyncio.gather(
            *(
                work(task, ledger, random.Random(seed * 100 + number))
                for number, (task, ledger) in enumerate(zip(tasks, ledgers, strict=True))
            )
        )
        disk.before_sync = None
    cuts.append((disk.after_power_cut(), ledgers))
    assert len(cuts) > 20, "the load synced often enough to mean something"
    for left, known in cuts:
        await check(left, known)


# --- the whole state, exactly -------------------------------------------------------------------------------

State = dict[int, tuple[object, ...]]
OPERATIONS = 120
MEANT: set[tuple[object, ...]] = {(MAIN, DEFERRED), (DEAD_LETTER, ACTIVE)}
"""Each of these states must occur in some message; the load continues until then."""


def state(task: PartitionTask) -> State:
    """The whole durable state of a partition's messages, by sequence number."""
    assert task._partition is not None and task.health is Health.HEALTHY
    task.check()
    return {
        number: (
            subqueue.name,
            each.state,
            each.delivery_count,
            each.changed,
            each.size,
            each.enqueued_at_ms,
            each.expires_at_ms,
        )
        for subqueue in task._partition.messages.subqueues
        for number, each in subqueue.references.items()
    }


def next_operation(rng: random.Random, held: list[LockToken], known: State) -> Operation:
    """A random operation that changes something, on existing messages."""
    if held and rng.random() < 0.6:
        tokens = [held.pop(rng.randrange(len(held))) for _ in range(min(len(held), rng.randrange(1, 4)))]
        changed = rng.choice([None, encode_changes({"colour": "red"}), encode_changes({"note": "x" * 400})])
        make: type[Abandon | Defer | DeadLetter] = rng.choice((Abandon, Abandon, Defer, DeadLetter))
        if rng.random() < 0.3:
            sent = Send([bytes(rng.choice((5, 300))) for _ in range(rng.randrange(3))], None)
            return Transact(sent, [Complete(tokens[:1]), make(tokens[1:], changed)])
        return Complete(tokens) if rng.random() < 0.2 else make(tokens, changed)
    deferred = [number for number, each in known.items() if each[:2] == (MAIN, DEFERRED)]
    if deferred and rng.random() < 0.3:
        return ReceiveDeferred(MAIN, rng.sample(deferred, min(len(deferred), 2)))
    if rng.random() < 0.15:
        return Delete(rng.choice((MAIN, DEAD_LETTER)), rng.randrange(1, 4), 1 << 60)
    if rng.random() < 0.5:
        return Demand(rng.choice((MAIN, MAIN, DEAD_LETTER)), rng.randrange(1, 5), tell_unmet=True)
    return Send([bytes(rng.choice((5, 300, 1_500))) for _ in range(rng.randrange(1, 5))], None)


@pytest.mark.parametrize("seed", SEEDS)
async def test_at_each_sync_point_a_power_cut_leaves_the_state_before_or_after_the_operation_under_way(
    seed: int,
) -> None:
    """Includes delivery counts, deferred messages, changed properties and times, whatever compaction and
    checkpoints are doing.
    """
    rng = random.Random(seed)
    disk = RecordingDisk(queued=seed % 2 == 0)
    states: list[State] = []
    cuts: list[tuple[RecordingDisk, int]] = []

    def before_sync() -> None:
        if states and rng.random() < 0.3:
            cuts.append((disk.after_power_cut(rng if rng.random() < 0.5 else None), len(states) - 1))

    async with partitions(disk) as [task, _]:
        await ask(task, Peek(MAIN, 0, 1))
        states.append(state(task))
        disk.before_sync = before_sync
        held: list[LockToken] = []
        kinds: set[tuple[object, ...]] = set()
        while len(states) <= OPERATIONS or MEANT - kinds:
            assert len(states) < 10 * OPERATIONS, "the load means something"
            operation = next_operation(rng, held, states[-1])
            answer = await ask(task, operation)
            if isinstance(answer, Locked):
                held += [token for token in answer.tokens if token not in held]
            if isinstance(operation, Demand):
                assert isinstance(await ask(task, Withdraw(operation.subqueue)), Withdrawn | Unmet | Recall)
            await ask(task, Peek(MAIN, 0, 1))
            states.append(state(task))
            kinds.update(each[:2] for each in states[-1].values())
        disk.before_sync = None
    assert len(cuts) > 10, "the load means something"
    for left, place in cuts:
        async with partitions(left) as [task, _]:
            await ask(task, Peek(MAIN, 0, 1))
            assert state(task) in states[place : place + 2]
