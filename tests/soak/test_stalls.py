"""The stall meter counts what keeps the event loop busy or waiting."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from storage.disk import LocalDisk
from tests.soak.stalls import StallMeter
from tests.support.broker_thread import BrokerThread

STALL_S = 0.5
COUNTED_MS_MIN = 200
"""Least part of the stall to be counted. The meter subtracts time that the host took from a processor during
a wait, even if the loop did not need that processor.
"""
WITHIN_S = 30.0
T = TypeVar("T")


def wait() -> None:
    time.sleep(STALL_S)


def work() -> None:
    ends = time.thread_time() + STALL_S
    while time.thread_time() < ends:
        pass


def in_loop(broker: BrokerThread, function: Callable[[], T]) -> T:
    """Run the function in the broker's event loop; gives its result."""

    async def call() -> T:
        return function()

    return asyncio.run_coroutine_threadsafe(call(), broker.loop).result(WITHIN_S)


@pytest.mark.parametrize("stall", [wait, work])
def test_a_loop_that_waits_or_works_too_long_at_a_time_is_seen(
    stall: Callable[[], None], tmp_path: Path
) -> None:
    with BrokerThread(tmp_path, [], LocalDisk()) as broker:
        meter = StallMeter(broker.addresses.amqp_port, in_loop(broker, threading.get_native_id))
        in_loop(broker, stall)
        waits_ms = meter.end()
    assert max(waits_ms) > COUNTED_MS_MIN
