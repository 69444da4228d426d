"""While the broker works on one large queue, no turn of its event loop takes long.

Unlike the waits of another client (`test_large_queue.py`), this is processor time of the loop's thread alone,
so a busy machine makes no turn longer. `make soak` uses 1,000,000 messages (`PARTIBUS_SOAK_MESSAGES`);
`make test` uses few, and prints the longest turn of each step.
"""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from storage.disk import LocalDisk
from tests.bench.load import stalls
from tests.bench.load.backlogs import BACKLOGS
from tests.soak.test_large_queue import MESSAGES, WITHIN_S
from tests.support.broker_thread import BrokerThread
from tests.support.turn_meter import TurnMeter
from tests.support.waiting import WAIT_S

BURSTS = [step.__name__ for step in stalls.BURSTS]
TURN_MS_MAX = 100.0
"""Far above what a turn takes (5 to 10 ms), because a full collection of the interpreter's garbage also looks
at the objects of the test itself, which shares its process with the broker."""


def longest_turn_ms(broker: BrokerThread, step: str, kind: str) -> float:
    """The processor time of the longest turn while another process performs a step."""
    meter = TurnMeter()

    async def begin() -> None:
        meter.begin()

    async def end() -> None:
        meter.end()

    asyncio.run_coroutine_threadsafe(begin(), broker.loop).result(WAIT_S)
    try:
        subprocess.run(stalls.command(kind, step, broker.addresses, MESSAGES), timeout=WITHIN_S, check=True)
    finally:
        asyncio.run_coroutine_threadsafe(end(), broker.loop).result(WAIT_S)
    assert meter.turns > 0
    return meter.longest_ms


async def test_a_turn_that_works_long_is_seen_and_one_that_sleeps_is_not() -> None:
    def work() -> None:
        ends = time.thread_time() + 0.03
        while time.thread_time() < ends:
            pass

    with TurnMeter().measuring() as meter:
        await asyncio.sleep(0.01)
        time.sleep(0.1)  # noqa: ASYNC251 - it holds the loop and uses no processor
        await asyncio.sleep(0.01)
        assert meter.turns > 2 and meter.longest_ms < 30
        work()
        await asyncio.sleep(0.01)
        assert meter.longest_ms >= 30


def test_no_turn_of_the_loop_takes_long_while_one_queue_is_worked_on(tmp_path: Path) -> None:
    """The queue is filled and checkpointed, paged through, opened by another broker, emptied and compacted,
    and deleted."""
    queues = BACKLOGS["plain"].queues
    found: dict[str, float] = {}
    for steps in (("fill", "browse"), ("open_again", "empty", "fill", "delete")):
        with BrokerThread(
            tmp_path, queues, LocalDisk(), checkpoint_bytes=min(stalls.CHECKPOINT_BYTES, 100 * MESSAGES)
        ) as broker:
            for step in steps:
                found[step] = max(longest_turn_ms(broker, step, "plain"), found.get(step, 0.0))
    check(found)


def test_no_turn_of_the_loop_takes_long_when_one_client_does_much_at_once(tmp_path: Path) -> None:
    """It sends 90,000 messages in a few batches, settles 90,000 with one disposition, and has up to 100,000
    locks end together."""
    with BrokerThread(tmp_path, BACKLOGS["bursts"].queues, LocalDisk()) as broker:
        check({step: longest_turn_ms(broker, step, "bursts") for step in ("fill", *BURSTS)})


def check(found: Mapping[str, float]) -> None:
    """Print the longest turn of each step, in ms, and check them."""
    print(*(f"{step}: longest turn {took_ms:.1f} ms" for step, took_ms in found.items()), sep="\n")
    assert all(took_ms < TURN_MS_MAX for took_ms in found.values()), found
