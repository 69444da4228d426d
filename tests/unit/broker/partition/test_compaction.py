"""Compaction on the real log: its frames stay bounded, and it writes little compared with what comes in."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from broker.base.clock import ManualClock
from broker.entities.descriptions import DEAD_LETTER, MAIN, QueueDescription, QueueSettings
from broker.message.changes import encode_changes
from broker.operations.receiving import Demand, Locked, ReceiveDeferred
from broker.operations.sending import Send, Sent
from broker.operations.settling import Abandon, Complete, DeadLetter, Defer
from broker.partition import records
from broker.partition.payloads import PayloadBudget
from broker.partition.task import PartitionTask
from broker.partition.task_limits import TaskLimits
from broker.partition.upkeep import UpkeepLimits
from storage.file_log import FileLog
from storage.file_store import FileLogStore
from storage.log import FRAME_HEADER_BYTES, RECORD_HEADER, Commit, Ended, Frame, Position
from tests.support.partition_asking import WAIT_S, ask, pages
from tests.support.waiting import until

SEGMENT_BYTES = 64 << 10
FRAME_BYTES = 8 << 10
LIMITS = TaskLimits(
    upkeep=UpkeepLimits(
        checkpoint_bytes=128 << 10,
        garbage_bytes_max=64 << 10,
        relocation_bytes=16 << 10,
        relocation_bytes_max=64 << 10,
        relocated_frame_bytes_max=FRAME_BYTES,
    )
)
QUEUE = QueueDescription("orders", "6" * 32, 16, QueueSettings(max_delivery_count=1000))


Leave = Callable[[PartitionTask], Awaitable[dict[int, bytes]]]
"""Leave messages in a partition for good; return their bodies by sequence number."""


class Traffic:
    """The frames written to the log and read from it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.relocated: list[int] = []
        """The sizes of the frames that relocations wrote."""
        self.came_in = 0
        """Bytes of all other frames."""
        self.fetched: list[int] = []
        """The sizes of the frames that were read."""
        append, at_once, fetch = FileLog.append, FileLog.append_at_once, FileLog.fetch

        async def counting_append(
            log: FileLog, commit: Commit, urgent: bool = False, *, frees: bool = False
        ) -> None:
            await append(log, commit, urgent, frees=frees)
            size = FRAME_HEADER_BYTES + commit.bytes
            if RECORD_HEADER.unpack_from(commit.parts[0])[1] == records.RELOCATED:
                self.relocated.append(size)
            else:
                self.came_in += size

        def counting_at_once(log: FileLog, commit: Commit, ended: Ended, *, urgent: bool = False) -> bool:
            is_begun = at_once(log, commit, ended, urgent=urgent)
            self.came_in += (FRAME_HEADER_BYTES + commit.bytes) * is_begun
            return is_begun

        async def counting_fetch(log: FileLog, positions: Sequence[Position]) -> list[Frame]:
            frames = await fetch(log, positions)
            self.fetched += [frame.size for frame in frames]
            return frames

        monkeypatch.setattr(FileLog, "append", counting_append)
        monkeypatch.setattr(FileLog, "append_at_once", counting_at_once)
        monkeypatch.setattr(FileLog, "fetch", counting_fetch)


@pytest.fixture
def traffic(monkeypatch: pytest.MonkeyPatch) -> Traffic:
    return Traffic(monkeypatch)


@asynccontextmanager
async def partition(root: Path, limits: TaskLimits = LIMITS) -> AsyncIterator[PartitionTask]:
    """A running partition on the files below `root`. No body stays in memory beyond its cycle."""
    store = FileLogStore(root, fsync="never", segment_bytes_max=SEGMENT_BYTES, reserve_bytes=0)
    log = store.log(QUEUE.generation, 3)
    task = PartitionTask(
        3, log=log, clock=ManualClock(), description=QUEUE, payloads=PayloadBudget(0, 0), limits=limits
    )
    run = asyncio.create_task(task.run())
    try:
        yield task
        task.check()
    finally:
        await task.stop()
        await asyncio.wait_for(run, WAIT_S)
        await store.close()


async def send(task: PartitionTask, *bodies: bytes) -> int:
    sent = await ask(task, Send(list(bodies), None))
    assert isinstance(sent, Sent)
    return sent.first


async def receive(task: PartitionTask, count: int) -> list[bytes]:
    """Lock this many messages; returns their tokens."""
    tokens: list[bytes] = []
    while len(tokens) < count:
        locked = await ask(task, Demand(MAIN, count - len(tokens)))
        assert isinstance(locked, Locked)
        tokens += locked.tokens
    return tokens


async def flow(task: PartitionTask, size: int) -> None:
    """Send and complete about `size` bytes, no faster than upkeep can follow on a slow disk."""
    for _ in range(max(1, size // 10_000)):
        await send(task, *[b"x" * 1000] * 10)
        await ask(task, Complete(await receive(task, 10)))
        await until(lambda: not task._beside.is_under_way)


async def everything(task: PartitionTask, subqueue: str = MAIN) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    async for page in pages(task, subqueue, 500):
        found.update(zip(page.sequence_numbers, page.messages, strict=True))
    return found


async def defer(task: PartitionTask, *bodies: bytes, changed: bytes | None = None) -> dict[int, bytes]:
    """Send messages and defer them; returns them by sequence number."""
    first = await send(task, *bodies)
    await ask(task, Defer(await receive(task, len(bodies)), changed))
    return dict(enumerate(bodies, first))


async def test_relocations_write_frames_of_bounded_size_however_often_they_run(
    tmp_path: Path, traffic: Traffic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message sent alone and one of a thousand sent together both end up in a frame small enough for one
    read."""
    monkeypatch.setattr(
        "storage.record.BODY_BYTES_MAX", 16 * FRAME_BYTES
    )  # 1 GiB in production; a larger frame ends the partition
    async with partition(tmp_path) as task:
        expected: dict[int, bytes] = {}
        for index in range(40):
            expected |= await defer(task, *[b"%d" % (1000 * index + each) * 40 for each in range(25)])
        rounds = 0
        while len(traffic.relocated) < 3 * len(expected) * 200 // FRAME_BYTES:
            await flow(task, 50_000)
            rounds += 1
            assert rounds < 200, "nothing is relocated"
        assert max(traffic.relocated) <= FRAME_BYTES
        traffic.fetched.clear()
        locked = await ask(task, ReceiveDeferred(MAIN, [min(expected)], None))
        assert isinstance(locked, Locked) and locked.messages == [expected[min(expected)]]
        assert sum(traffic.fetched) <= FRAME_BYTES
        assert await everything(task) == expected
    async with partition(tmp_path) as task:
        assert await everything(task) == expected


async def test_a_message_larger_than_the_bound_is_relocated_alone(tmp_path: Path, traffic: Traffic) -> None:
    large = 3 * FRAME_BYTES
    async with partition(tmp_path) as task:
        expected = await defer(task, b"a" * 100, b"b" * large, b"c" * 100)
        while not traffic.relocated:
            await flow(task, 50_000)
        await flow(task, 50_000)
        assert {each for each in traffic.relocated if each > FRAME_BYTES} == {
            records.RELOCATED_FRAME_BYTES + records.RELOCATED_MESSAGE_BYTES + large
        }
        assert await everything(task) == expected


async def test_a_frame_that_an_earlier_release_wrote_too_large_is_split(
    tmp_path: Path, traffic: Traffic
) -> None:
    async with partition(tmp_path) as task:
        expected = await defer(task, *[b"%03d" % each * 100 for each in range(500)])  # one frame of 150 KB
        while sum(traffic.relocated) < 150_000:
            await flow(task, 50_000)
        assert max(traffic.relocated) <= FRAME_BYTES
        assert sum(traffic.fetched) < 3 * sum(traffic.relocated) + 500_000, (
            "a large frame is read once, not for each of its pieces"
        )
        assert await everything(task) == expected


async def dead_letter_with_long_descriptions(task: PartitionTask) -> dict[int, bytes]:
    """One record gives the longest possible description, 32 KiB, to ten messages of ten bytes each."""
    first = await send(task, *[b"0123456789"] * 10)
    changed = encode_changes({"DeadLetterReason": "no", "DeadLetterErrorDescription": "d" * 32_763})
    await ask(task, DeadLetter(await receive(task, 10), changed))
    return dict.fromkeys(range(first, first + 10), b"0123456789")


async def leave_messages_of_one_byte(task: PartitionTask) -> dict[int, bytes]:
    return await defer(task, *[b"1"] * 2_000)


async def abandon_with_changed_properties(task: PartitionTask) -> dict[int, bytes]:
    """Abandon messages with changed properties, then defer them."""
    first = await send(task, *[b"body"] * 50)
    await ask(task, Abandon(await receive(task, 50), encode_changes({"attempt": "a" * 2_000})))
    await ask(task, Defer(await receive(task, 50), None))
    return dict.fromkeys(range(first, first + 50), b"body")


@pytest.mark.parametrize(
    ("leave", "subqueue"),
    [
        (dead_letter_with_long_descriptions, DEAD_LETTER),
        (leave_messages_of_one_byte, MAIN),
        (abandon_with_changed_properties, MAIN),
    ],
)
async def test_compaction_writes_less_than_what_came_in(
    tmp_path: Path, traffic: Traffic, leave: Leave, subqueue: str
) -> None:
    """Symptom: dead letters with long descriptions made compaction write 723 times what came in."""
    async with partition(tmp_path) as task:
        expected: dict[int, bytes] = {}
        for _ in range(3):
            expected |= await leave(task)
            await flow(task, 20_000)
        while not traffic.relocated or traffic.came_in < 5 * bytes_below(tmp_path):
            await flow(task, 500_000)
            assert sum(traffic.relocated) <= 0.6 * traffic.came_in, (
                "more than the half that upkeep.py promises, and some slack"
            )
        assert sum(traffic.relocated) > 100_000, "every message that stays was moved"
        assert await everything(task, subqueue) == expected
    async with partition(tmp_path) as task:
        assert await everything(task, subqueue) == expected


def bytes_below(root: Path) -> int:
    size = 0
    for path in root.rglob("*.segment"):
        with suppress(FileNotFoundError):  # upkeep may remove it just now
            size += path.stat().st_size
    return size
