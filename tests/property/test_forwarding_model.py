"""Random sends to entities that forward to each other, with crashes, failing disks and changed settings at
random points of the event loop. At the end, each message that was accepted is in one place, and there once.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from broker.entities.descriptions import DEAD_LETTER, MAIN, QueueSettings
from broker.messaging import forward_lane
from broker.partition.origins import Origins
from storage.errors import CommitFailed, DiskFull
from storage.log import Commit
from tests.property.partition_driver import EXAMPLES
from tests.support.forwarding_world import World, held_now
from tests.support.memory_log import MemoryLog
from tests.support.waiting import until

FORWARDS = {"a": "b", "b": "d", "c": "d"}
"""Two chains that meet."""
TURNS_MAX = 120
"""A crash comes after at most so many turns of the event loop: a message takes about a hundred to its end."""


def new_world(chooser: random.Random) -> World:
    settings = {name: QueueSettings(forward_to=target) for name, target in FORWARDS.items()}
    return World(
        a=(chooser.choice((1, 2)), settings["a"]),
        b=(chooser.choice((1, 3)), settings["b"]),
        c=(1, settings["c"]),
        d=(chooser.choice((1, 2)), QueueSettings()),
    )


def failing(chooser: random.Random, log: MemoryLog) -> None:
    """Have some commits of a log fail."""

    def fail(commit: Commit, urgent: bool) -> Exception | None:
        if chooser.random() > 0.08:
            return None
        return CommitFailed("random") if chooser.random() < 0.5 else DiskFull("random")

    log.on_append = fail


async def one_life(here: World, chooser: random.Random, sent: list[str], lost: set[str]) -> None:
    """Send, and crash at some point."""
    here.on_log = (lambda name, number, log: failing(chooser, log)) if chooser.random() < 0.5 else _healthy
    here.start()
    waking = asyncio.create_task(here.wake_all())
    sends = []
    for _ in range(chooser.randrange(6)):
        names = [f"{len(sent) + place}" for place in range(chooser.randrange(1, 5))]
        sent += names
        key = chooser.choice((None, "k", "l", "m"))
        lost.update(names)
        sends.append(asyncio.create_task(_send(here, chooser.choice("aabc"), names, key, lost)))
        for _ in range(chooser.randrange(TURNS_MAX // 3)):
            await asyncio.sleep(0)
            here.clock.advance(chooser.randrange(40))
    for _ in range(chooser.randrange(TURNS_MAX)):
        await asyncio.sleep(0)
        here.clock.advance(chooser.randrange(40))
        for partition in here.partitions.values():
            partition.wake()  # its timer counts other time
    waking.cancel()
    for task in sends:
        task.cancel()
    await asyncio.gather(waking, *sends, return_exceptions=True)
    await (here.crash() if chooser.random() < 0.7 else here.stop())


async def _send(here: World, name: str, names: list[str], key: str | None, lost: set[str]) -> None:
    """Send messages, which are not lost any more once that has ended well."""
    try:
        await here.send(name, *names, key=key)
    except AssertionError:
        return
    lost.difference_update(names)


def _healthy(name: str, number: int, log: MemoryLog) -> None:
    """The log's disk works."""


async def check(seed: int) -> None:
    chooser = random.Random(seed)
    here = new_world(chooser)
    sent: list[str] = []
    unknown: set[str] = set()
    """Messages whose sender heard nothing, or a refusal."""
    try:
        for _ in range(3):
            await one_life(here, chooser, sent, unknown)
        here.on_log = _healthy
        here.start()
        await here.wake_all()
        for name in FORWARDS:
            await here.until_empty(name)
        await until(lambda: not any("forward" in task.get_name() for task in here.tasks))
        found = Counter(await here.texts("d"))
        assert [text for text, count in found.items() if count > 1] == [], "stored twice"
        missing = set(sent) - unknown - found.keys()
        assert not missing, f"lost: {missing}"
        assert found.keys() <= set(sent)
        for name in FORWARDS:
            assert held_now(here.entities[name], DEAD_LETTER) == held_now(here.entities[name], MAIN) == 0
    finally:
        await here.crash()


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forward_lane, "RETRY_S", 0.001)
    monkeypatch.setattr(forward_lane, "RETRY_S_MAX", 0.01)
    monkeypatch.setattr(forward_lane, "FORGET_S", 0.002)


@settings(
    max_examples=max(1, EXAMPLES // 40),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(seed=st.integers(0, 1 << 32))
def test_each_message_arrives_once_whatever_fails(seed: int) -> None:
    asyncio.run(check(seed))


async def test_the_test_notices_a_target_that_remembers_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Origins, "of", lambda self, source: ())
    monkeypatch.setattr(Origins, "check", lambda self: None)
    for seed in range(100):
        try:
            await check(seed)
        except AssertionError as error:
            assert "stored twice" in str(error)
            return
    raise AssertionError("nothing was stored twice")
