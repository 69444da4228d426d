"""broker/server.py: what ends the whole broker, and how."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from broker.clock import ManualClock
from broker.config import Settings
from broker.entities import DEAD_LETTER, QueueSettings
from broker.operations import Send, Sent
from broker.queue import ask
from broker.server import Broker, PartFailed
from storage.file_log import FileLog


@pytest.fixture
def collector() -> Iterator[None]:
    """The garbage collector as it was: a broker sets it up for itself."""
    thresholds = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*thresholds)


@pytest.mark.usefixtures("collector")
async def test_a_background_task_that_dies_takes_the_broker_down_loudly_and_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(log: FileLog) -> None:
        raise RuntimeError("unforeseen")

    monkeypatch.setattr(FileLog, "sync", broken)
    settings = Settings(
        data_dir=tmp_path, host="127.0.0.1", amqp_port=0, amqps_port=None, http_port=0, fsync="interval", fsync_interval_ms=1
    )  # fmt: skip
    broker = Broker(settings)
    with capture_logs() as lines:
        running = asyncio.create_task(broker.run())
        await asyncio.wait_for(broker.ready.wait(), 30)
        await broker.namespace.create_queue("orders", QueueSettings())
        queue = broker.namespace.find("orders")
        assert queue is not None
        assert isinstance(await ask(queue.router.handles[0], Send([b"\x00Sw\xa0\x01x"], None)), Sent)
        with pytest.raises(PartFailed, match="RuntimeError: unforeseen"):
            await asyncio.wait_for(running, 30)
    assert [line["task"] for line in lines if line["event"] == "server.part_failed"] == ["storage-sync"]
    assert "server.stopping" in [line["event"] for line in lines]


@pytest.mark.usefixtures("collector")
async def test_a_step_of_the_wall_clock_is_reported_once_and_a_suspend_wakes_the_partitions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.server.CLOCK_LOOK_S", 0.01)
    clock = ManualClock()
    broker = Broker(Settings(data_dir=tmp_path, host="127.0.0.1", amqp_port=0, amqps_port=None, http_port=0), clock=clock)
    with capture_logs() as lines:
        running = asyncio.create_task(broker.run())
        await asyncio.wait_for(broker.ready.wait(), 30)
        await broker.namespace.create_queue("orders", QueueSettings(dead_lettering_on_expiration=True))
        queue = broker.namespace.find("orders")
        assert queue is not None
        assert isinstance(await ask(queue.router.handles[0], Send([b"\x00Sw\xa0\x01x"], [60_000])), Sent)

        def reported(event: str) -> list[int]:
            return [line.get("step_ms", line.get("suspended_ms")) for line in lines if line["event"] == event]

        async def until(condition: Callable[[], object]) -> None:
            async with asyncio.timeout(30):
                while not condition():  # noqa: ASYNC110 - what is waited for has no event of its own
                    await asyncio.sleep(0.01)

        clock.step(-3_600_000)
        await until(lambda: reported("clock.stepped"))
        assert queue.counts()[DEAD_LETTER].active == 0
        clock.advance(3_600_000)  # the event loop's timers know nothing of it
        await until(lambda: queue.counts()[DEAD_LETTER].active)
        broker.stop()
        await asyncio.wait_for(running, 30)
    assert reported("clock.stepped") == [-3_600_000] and len(reported("clock.suspended")) == 1
