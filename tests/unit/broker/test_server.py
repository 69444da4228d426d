"""broker/server.py: what ends the whole broker, and how."""

from __future__ import annotations

import asyncio
import gc
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from broker.base.clock import ManualClock
from broker.base.collector import THRESHOLDS
from broker.entities.descriptions import DEAD_LETTER, MAIN, QueueSettings
from broker.namespace.entity import ask
from broker.operations.sending import Send, Sent
from broker.server import Broker, PartFailed
from broker.settings.settings import Settings
from storage.file_log import FileLog
from tests.support.waiting import until


@pytest.fixture
def collector() -> Iterator[None]:
    """Restore the garbage collector's settings, which a broker changes for itself."""
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

    monkeypatch.setattr(FileLog, "sync_if_open", broken)
    settings = Settings(
        data_dir=tmp_path, host="127.0.0.1", amqp_port=0, amqps_port=None, http_port=0, fsync="interval",
        fsync_interval_ms=1
    )  # fmt: skip
    broker = Broker(settings)
    with capture_logs() as lines:
        running = asyncio.create_task(broker.run())
        await asyncio.wait_for(broker.ready.wait(), 30)
        assert gc.get_threshold() == THRESHOLDS, "garbage is collected rarely"
        await broker.namespace.create_entity("orders", QueueSettings())
        queue = broker.namespace.find("orders")
        assert queue is not None
        assert isinstance(await ask(queue.router.handles[0], Send([b"\x00Sw\xa0\x01x"], None)), Sent)
        with pytest.raises(PartFailed, match="RuntimeError: unforeseen"):
            await asyncio.wait_for(running, 30)
    assert [line["task"] for line in lines if line["event"] == "server.part_failed"] == ["storage-sync"]
    assert "server.stopping" in [line["event"] for line in lines]


async def test_work_of_a_client_that_is_gone_before_it_begins_leaves_no_word(
    tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    async def request() -> None:
        raise AssertionError("it never begins")

    broker = Broker(Settings(data_dir=tmp_path, amqps_port=None))
    async with asyncio.TaskGroup() as broker._tasks:
        broker._spawn(request(), name="request").cancel()
    gc.collect()
    assert not recwarn.list


@pytest.mark.usefixtures("collector")
async def test_a_step_of_the_wall_clock_is_reported_once_and_a_suspend_wakes_the_partitions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.server.CLOCK_LOOK_S", 0.01)
    clock = ManualClock()
    broker = Broker(
        Settings(data_dir=tmp_path, host="127.0.0.1", amqp_port=0, amqps_port=None, http_port=0), clock=clock
    )
    with capture_logs() as lines:
        running = asyncio.create_task(broker.run())
        await asyncio.wait_for(broker.ready.wait(), 30)
        await broker.namespace.create_entity("orders", QueueSettings(dead_lettering_on_expiration=True))
        queue = broker.namespace.find("orders")
        assert queue is not None
        assert isinstance(await ask(queue.router.handles[0], Send([b"\x00Sw\xa0\x01x"], [60_000])), Sent)

        def reported(event: str) -> list[int]:
            return [line.get("step_ms", line.get("suspended_ms")) for line in lines if line["event"] == event]

        clock.step(-3_600_000)
        await until(lambda: reported("clock.stepped"))
        assert queue.counts()[DEAD_LETTER].active == 0
        clock.advance(3_600_000)  # the timers of the event loop do not notice
        await until(lambda: reported("clock.suspended"))
        await until(lambda: queue.counts()[DEAD_LETTER].active)
        broker.stop()
        await asyncio.wait_for(running, 30)
    assert reported("clock.stepped") == [-3_600_000] and len(reported("clock.suspended")) == 1


@pytest.mark.usefixtures("collector")
async def test_a_partition_without_its_folder_or_last_segment_fails_at_start_alone(
    tmp_path: Path,
) -> None:
    settings = Settings(
        data_dir=tmp_path,
        host="127.0.0.1",
        amqp_port=0,
        amqps_port=None,
        http_port=0,
        segment_bytes=1 << 20,
        disk_timeout_ms=30_000,
    )
    broker = Broker(settings)
    running = asyncio.create_task(broker.run())
    await asyncio.wait_for(broker.ready.wait(), 30)
    generation = (await broker.namespace.create_entity("orders", QueueSettings(), 4)).generation
    queue = broker.namespace.find("orders")
    assert queue is not None
    for number in range(160):  # two segments of 1 MiB per partition
        assert isinstance(
            await ask(
                queue.router.handles[number % 4], Send([b"\x00Sw\xb0\x00\x00\xa0\x00" + bytes(0xA000)], None)
            ),
            Sent,
        )
    broker.stop()
    await asyncio.wait_for(running, 30)

    shutil.rmtree(tmp_path / "logs" / generation / "0001")
    lost = max((tmp_path / "logs" / generation / "0002").glob("*.segment"))
    lost.unlink()
    broker = Broker(settings)
    with capture_logs() as lines:
        running = asyncio.create_task(broker.run())
        await asyncio.wait_for(broker.ready.wait(), 30)
        queue = broker.namespace.find("orders")
        assert queue is not None
        async with asyncio.timeout(30):
            while queue.health()[1] != "damaged":  # noqa: ASYNC110 - nobody asks for the partition, so nothing tells
                await asyncio.sleep(0.01)
        runtime = await broker.namespace.runtime("orders")
        assert (
            queue.health() == ["healthy", "damaged", "damaged", "healthy"]
            and runtime.availability == "Limited"
        )
        assert runtime.counts[MAIN].active == 160, "damaged partitions are counted as they last were"
        assert isinstance(await ask(queue.router.handles[0], Send([b"\x00Sw\xa0\x01x"], None)), Sent)
        broker.stop()
        await asyncio.wait_for(running, 30)
    failed = {line["partition"]: line["error"] for line in lines if line["event"] == "partition.failed"}
    assert set(failed) == {1, 2}
    assert str(tmp_path / "logs" / generation / "0001") in failed[1] and "expected position" in failed[1]
    assert str(lost) in failed[2] and "expected position" in failed[2]


@pytest.mark.usefixtures("collector")
@pytest.mark.parametrize(
    ("mark", "event"),
    [(1 << 20, "memory.mark_too_low"), (1 << 50, "memory.mark_too_high")],
    ids=["below what the broker needs", "above what there is"],
)
async def test_a_memory_mark_that_cannot_work_is_reported_at_the_start(
    tmp_path: Path, mark: int, event: str
) -> None:
    settings = Settings(
        data_dir=tmp_path,
        host="127.0.0.1",
        amqp_port=0,
        amqps_port=None,
        http_port=0,
        memory_bytes_max=mark,
    )
    broker = Broker(settings)
    with capture_logs() as lines:
        running = asyncio.create_task(broker.run())
        await asyncio.wait_for(broker.ready.wait(), 30)
        async with asyncio.timeout(30):
            while not any(line["event"] == event for line in lines):  # noqa: ASYNC110 - it has no event of its own
                await asyncio.sleep(0.01)
        broker.stop()
        await asyncio.wait_for(running, 30)
