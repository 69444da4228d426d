"""A stored message that many subscriptions share is in the log once: also after checkpoints, compaction and
repairs."""

from __future__ import annotations

import gc
import random
from collections import deque

from broker.entities.descriptions import MESSAGE_OVERHEAD_BYTES
from broker.operations.receiving import Demand, Locked, Withdraw
from broker.operations.settling import Abandon, Complete, DeadLetter, Defer, Settled
from broker.partition.bodies import BODY_BYTES
from broker.partition.salvage import Salvage
from broker.partition.snapshot import Snapshot
from broker.partition.task_limits import TaskLimits
from broker.partition.upkeep import UpkeepLimits
from storage.log import Position
from tests.support.partition_harness import Harness, one
from tests.support.topics import topic

NAMES = [f"subscriptions/s{number}" for number in range(50)]
TOPIC = topic(*(f"s{number}" for number in range(50)))
LIMITS = TaskLimits(
    upkeep=UpkeepLimits(checkpoint_bytes=20_000, garbage_bytes_max=300_000, relocation_bytes=200_000)
)
BIG = 65_536


def log_bytes(harness: Harness) -> int:
    return harness.log.end - harness.log.start


async def shown(harness: Harness, *names: str) -> list[object]:
    return [await harness.peek(each + place) for each in names for place in ("", "/$deadletterqueue")]


async def test_what_is_known_of_shared_messages_counts_as_memory() -> None:
    harness = Harness(description=topic("a", "b"))
    await harness.send(b"m", b"n")
    before = harness.budget.state_bytes
    tokens = (await harness.receive(1, 2, "subscriptions/a")).tokens
    one(await harness.do(1, Complete(tokens[:1])), Settled)
    assert before - harness.budget.state_bytes == MESSAGE_OVERHEAD_BYTES
    tokens = (await harness.receive(1, 1, "subscriptions/b")).tokens
    one(await harness.do(1, Complete(tokens)), Settled)
    assert before - harness.budget.state_bytes == 2 * MESSAGE_OVERHEAD_BYTES + BODY_BYTES
    partition = harness.task._partition
    assert partition is not None
    assert not any(gc.is_tracked(each) for each in partition.messages.bodies._by_number.values())


async def test_large_bodies_for_many_subscriptions_are_on_the_disk_once_whatever_happens_to_the_log() -> None:
    harness = Harness(description=TOPIC, limits=LIMITS, segment_bytes=100_000)
    kept = [bytes([65 + number]) * BIG for number in range(4)]
    for body in kept:
        await harness.send(body)
        for _ in range(3):  # garbage between them, so that they are relocated
            await harness.send(b"x" * BIG)
    for name in NAMES:
        locked = await harness.receive(1, 16, name)
        garbage = [
            token for token, each in zip(locked.tokens, locked.messages, strict=True) if each[:1] == b"x"
        ]
        keeps = [token for token in locked.tokens if token not in garbage]
        one(await harness.do(1, Complete(garbage)), Settled)
        one(await harness.do(1, Abandon(keeps)), Settled)
    await harness.advance(60_000)
    await harness.advance(60_000)
    assert log_bytes(harness) < 4 * BIG + 450_000, "its rows take room too"
    before = await shown(harness, *NAMES)
    await harness.restart(clean=True)
    assert await shown(harness, *NAMES) == before
    assert harness.live_bytes == 4 * BIG
    for name in NAMES:
        locked = await harness.receive(2, 4, name)
        assert locked.messages == kept
        one(await harness.do(2, Complete(locked.tokens)), Settled)
    assert harness.live_bytes == harness.budget.used == 0


async def test_under_a_random_load_each_subscription_has_what_it_should_after_every_restart() -> None:
    chance = random.Random(11)
    limits = TaskLimits(
        upkeep=UpkeepLimits(checkpoint_bytes=5_000, garbage_bytes_max=4_000, relocation_bytes=2_000)
    )
    description = topic(*(f"s{number}" for number in range(5)))
    harness = Harness(description=description, limits=limits, segment_bytes=4_000, payload_bytes=3_000)
    names = NAMES[:5]
    for _ in range(80):
        await harness.send(*(bytes([chance.randrange(256)]) * chance.randrange(1, 300) for _ in range(3)))
        for name in chance.sample(names, 2):
            for locked in await received(harness, name, chance.randrange(1, 8)):
                settle = chance.choice([Complete, Abandon, Defer, DeadLetter, Complete])
                one(await harness.do(1, settle(locked.tokens)), Settled)
        await harness.advance(5_000)
        if not chance.randrange(6):
            before = await shown(harness, *names)
            await harness.restart(clean=chance.random() < 0.5)
            assert await shown(harness, *names) == before
    assert log_bytes(harness) < 2 * harness.live_bytes + 200_000


async def received(harness: Harness, name: str, count: int) -> list[Locked]:
    answers = await harness.do(1, Demand(name, count), Withdraw(name))
    return [each for each in answers if isinstance(each, Locked)]


async def test_a_repair_keeps_what_each_subscription_has() -> None:
    harness = Harness(description=TOPIC)
    await harness.send(b"one", b"two")
    one(await harness.do(1, Complete((await harness.receive(1, 1, NAMES[0])).tokens)), Settled)
    one(await harness.do(1, DeadLetter((await harness.receive(1, 1, NAMES[1])).tokens)), Settled)
    salvage = Salvage(harness.number, TOPIC.subqueues)
    salvage.begin([], Position(0), is_start_known=True)
    async for frame in harness.log.replay(Position(0)):
        salvage.frame(frame)
    salvage.finish()
    deque(salvage.messages.finish_steps(0), maxlen=0)
    salvage.messages.check()
    assert salvage.gone == []
    partition = harness.task._partition
    assert partition is not None
    assert {each.number: {*each.references} for each in salvage.messages.work.occupied.values()} == {
        each.number: {*each.references} for each in partition.messages.work.occupied.values()
    }


async def with_many_subscriptions() -> Harness:
    """240 messages of 300 bytes for each of 40 subscriptions, in frames of eight."""
    harness = Harness(description=topic(*(f"s{number}" for number in range(40))))
    for _ in range(30):
        await harness.send(*[bytes(300)] * 8)
    return harness


async def test_a_compaction_of_messages_for_many_subscriptions_writes_little_more_than_the_messages() -> None:
    harness = await with_many_subscriptions()
    assert harness.task._partition is not None
    messages, log = harness.task._partition.messages, harness.log
    written = log.end - log.start
    expected = messages.relocatable_bytes
    assert expected < 1.1 * written
    frames = [frame async for frame in log.replay(log.start)]
    candidates = deque(each for frame in frames for each in messages.living_in(frame))
    while candidates:
        commit = log.begin()
        relocated = messages.relocate(candidates, commit, 1 << 30)
        assert relocated is not None
        await log.append(commit)
        messages.apply_relocated(commit.start, relocated)
    assert log.end - log.start - written < 1.1 * written
    assert log.end - log.start - written < 1.05 * messages.relocatable_bytes, "it was measured"
    messages.check()


async def test_a_checkpoint_of_messages_for_many_subscriptions_is_smaller_than_the_messages() -> None:
    harness = await with_many_subscriptions()
    tokens = (await harness.receive(1, 100, "subscriptions/s7")).tokens
    one(await harness.do(1, Complete(tokens[::3])), Settled)
    one(await harness.do(1, Abandon(tokens[1::3])), Settled)
    assert harness.task._partition is not None
    messages = harness.task._partition.messages
    snapshot = Snapshot(messages)
    taking = snapshot.take(None)
    for _ in taking.steps():
        pass
    checkpoint = taking.checkpoint(harness.log.end)
    size = sum(len(data) for section in checkpoint.sections for data in section.blocks.values())
    assert size < messages.live_bytes / 10
    assert size <= snapshot.cost(None) < messages.live_bytes / 4, "it was measured"
