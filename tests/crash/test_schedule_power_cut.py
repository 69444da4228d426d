"""Scheduled messages and message-ids when unsynced data is dropped: the power goes at each sync of a random
load. No acknowledged message is lost or becomes active twice, and an id is known if and only if its message
was stored (durability rules 1 and 3).
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path

import pytest

from broker.base.clock import ManualClock
from broker.entities.descriptions import MAIN, QueueDescription, QueueSettings
from broker.operations.browsing import Peek, Peeked
from broker.operations.message_states import MessageState
from broker.operations.scheduling import CancelScheduled
from broker.operations.sending import Send, Sent
from broker.operations.settling import Complete, Settled
from broker.partition.duplicates import IDENTITY_BYTES
from broker.partition.payloads import PayloadBudget
from broker.partition.task import PartitionTask
from broker.partition.task_limits import TaskLimits
from broker.partition.upkeep import UpkeepLimits
from storage.file_store import FileLogStore
from tests.support.partition_asking import WAIT_S, ask, pages, receive
from tests.support.recording_disk import RecordingDisk

ROOT = Path("/data")
QUEUE = QueueDescription("orders", "5" * 32, 2, QueueSettings(requires_duplicate_detection=True))
STEPS = 40
LATER_MS = (None, 40, 100, 400)
ALL_DUE_MS = 1_000
SEEDS = [int(os.environ["POWER_CUT_SEED"])] if "POWER_CUT_SEED" in os.environ else [1, 2, 3, 4]
LIMITS = TaskLimits(
    upkeep=UpkeepLimits(checkpoint_bytes=10_000, garbage_bytes_max=10_000, relocation_bytes=3_000)
)


@dataclass
class Ledger:
    """What the client knows. A body begins with its message-id."""

    elapsed_ms: int = 0
    attempted: set[bytes] = field(default_factory=set)
    acknowledged: set[bytes] = field(default_factory=set)
    leaving: set[bytes] = field(default_factory=set)
    """Completion or cancellation requested."""
    gone: set[bytes] = field(default_factory=set)
    """Completion or cancellation confirmed."""


def id_of(body: bytes) -> bytes:
    return body.partition(b":")[0]


def send_of(bodies: list[bytes], scheduled_ms: list[int | None] | None = None) -> Send:
    identities = [blake2b(id_of(body), digest_size=IDENTITY_BYTES).digest() for body in bodies]
    return Send(bodies, None, scheduled_ms=scheduled_ms, identities=identities)


@asynccontextmanager
async def partition(disk: RecordingDisk, clock: ManualClock) -> AsyncIterator[PartitionTask]:
    """Run a partition on a disk; it ends as at a power cut, without a checkpoint."""
    store = FileLogStore(ROOT, disk, segment_bytes_max=8_000, reserve_bytes=0)
    log = store.log(QUEUE.generation, 0)
    budget = PayloadBudget(5_000, 0)
    task = PartitionTask(0, log=log, clock=clock, description=QUEUE, payloads=budget, limits=LIMITS)
    run = asyncio.create_task(task.run())
    try:
        yield task
    finally:
        run.cancel()
        await asyncio.wait([run], timeout=WAIT_S)
        await log.close()
        await store.close()


async def work(task: PartitionTask, clock: ManualClock, ledger: Ledger, rng: random.Random) -> None:
    """One client sends, waits, receives and cancels, one operation at a time, and keeps its ledger."""
    for step in range(STEPS):
        bodies = [
            b"%d-%d:" % (step, place) + bytes(rng.choice((5, 300))) for place in range(rng.randint(1, 4))
        ]
        ledger.attempted.update(bodies)
        repeated = [id_of(body) + b":again" for body in rng.sample(sorted(ledger.acknowledged), min(step, 2))]
        later = [rng.choice(LATER_MS) for _ in [*bodies, *repeated]]
        times = [None if each is None else clock.now_ms() + each for each in later]
        sent = await ask(task, send_of([*bodies, *repeated], times))
        assert isinstance(sent, Sent)
        assert sent.duplicates == list(range(len(bodies), len(bodies) + len(repeated)))
        ledger.acknowledged.update(bodies)
        clock.advance(60)
        ledger.elapsed_ms += 60
        seen = await ask(task, Peek(MAIN, 0, 1_000))
        assert isinstance(seen, Peeked)
        waiting = [place for place, each in enumerate(seen.states) if each == MessageState.SCHEDULED]
        if waiting and rng.random() < 0.5:
            place = rng.choice(waiting)
            ledger.leaving.add(seen.messages[place])
            settled = await ask(task, CancelScheduled([seen.sequence_numbers[place]]))
            assert isinstance(settled, Settled) and not settled.failures
            ledger.gone.add(seen.messages[place])
        if len(waiting) < len(seen.states) and rng.random() < 0.7:
            (locked,) = await receive(task, MAIN, 1)
            ledger.leaving.update(locked.messages)
            assert isinstance(await ask(task, Complete(locked.tokens)), Settled)
            ledger.gone.update(locked.messages)


async def check(disk: RecordingDisk, ledger: Ledger) -> None:
    clock = ManualClock()
    clock.advance(ledger.elapsed_ms + ALL_DUE_MS)
    async with partition(disk, clock) as task:
        found: Counter[bytes] = Counter()
        async for page in pages(task, MAIN):
            found.update(page.messages)
            assert set(page.states) == {MessageState.ACTIVE}, "all of them are due"
        assert set(found.values()) <= {1}, "each is there once"
        assert found.keys() <= ledger.attempted, "no duplicate, and nothing that was never sent"
        assert ledger.acknowledged - ledger.leaving <= found.keys(), "no acknowledged message is lost"
        assert not ledger.gone & found.keys(), "what was completed or cancelled stays away"
        again = sorted(ledger.attempted)
        sent = await ask(task, send_of([id_of(body) + b":again" for body in again]))
        assert isinstance(sent, Sent)
        known = {again[place] for place in sent.duplicates}
        assert ledger.acknowledged | found.keys() <= known, "an id survives with its message"
        assert known <= ledger.acknowledged | found.keys() | ledger.leaving, "and only with it"


@pytest.mark.parametrize("seed", SEEDS)
async def test_at_each_sync_point_the_power_may_go_and_schedules_and_ids_hold(seed: int) -> None:
    """Replay one seed with POWER_CUT_SEED=n."""
    rng = random.Random(seed)
    disk, clock, ledger = RecordingDisk(queued=seed % 2 == 0), ManualClock(), Ledger()
    cuts: list[tuple[RecordingDisk, Ledger]] = []

    def before_sync() -> None:
        if rng.random() < 0.3:
            left = disk.after_power_cut(rng if rng.random() < 0.5 else None)
            cuts.append((left, deepcopy(ledger)))

    async with partition(disk, clock) as task:
        disk.before_sync = before_sync
        await work(task, clock, ledger, random.Random(seed * 100))
        disk.before_sync = None
    cuts.append((disk.after_power_cut(), ledger))
    assert len(cuts) > 15 and ledger.gone, "the load means something"
    for left, then in cuts:
        await check(left, then)
