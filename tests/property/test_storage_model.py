"""Check a log against a list: appends, rolls, checkpoints, trims, restarts, crashes and failed syncs in any
order."""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage.errors import CommitFailed
from storage.file_log import FileLog
from storage.file_store import FileLogStore
from storage.log import FRAME_HEADER_BYTES, Checkpoint, Position
from tests.support.faulty_disk import FaultyDisk
from tests.support.logs import ENTITY, append, checkpoint_of, contents, small_store
from tests.support.recording_disk import RecordingDisk

ROOT = Path("/data")

EXAMPLES = int(os.environ.get("MODEL_EXAMPLES", "150"))

bodies = st.lists(
    st.integers(0, 300).map(lambda size: b"%03d" % (size % 1000) * size), min_size=1, max_size=4
)
steps = st.one_of(
    st.tuples(st.just("append"), bodies),
    st.tuples(st.just("append"), bodies),
    st.tuples(st.just("append a large one"), st.integers(1_000, 1_200_000)),
    st.tuples(st.just("fail"), bodies),
    st.tuples(st.just("checkpoint"), st.binary(max_size=20)),
    st.tuples(st.just("trim"), st.floats(0, 1)),
    st.tuples(st.just("fetch"), st.integers(0, 1_000)),
    st.tuples(st.just("reopen"), st.none()),
    st.tuples(st.just("crash"), st.one_of(st.none(), st.integers(0, 1_000))),
)


class Run:
    """The log and the list beside it."""

    def __init__(self, queued: bool, segment_bytes_max: int) -> None:
        self.disk = RecordingDisk(queued=queued)
        self.segment_bytes_max = segment_bytes_max
        self.commits: list[tuple[Position, list[bytes]]] = []
        self.checkpoints: list[Checkpoint] = []
        """Newest first."""
        self.trimmed = 0
        self.epoch = 0

    async def open(self) -> None:
        self.faults = FaultyDisk(self.disk)
        self.store: FileLogStore = small_store(ROOT, self.faults, segment_bytes_max=self.segment_bytes_max)
        self.log: FileLog = self.store.log(ENTITY, 3)
        await self.acquire()

    async def acquire(self) -> None:
        epoch = await self.log.acquire()
        assert epoch > self.epoch
        self.epoch = epoch

    async def close(self) -> None:
        await self.log.close()
        await self.store.close()

    async def step(self, name: str, argument: object) -> None:
        match name, argument:
            case "append", list():
                position = await append(self.log, *argument)
                self.commits.append((position, argument))
            case "append a large one", int():
                position = await append(self.log, b"L" * argument)
                self.commits.append((position, [b"L" * argument]))
            case "fail", list():
                self.faults.fail("sync")
                with pytest.raises(CommitFailed):
                    await append(self.log, *argument)
                await self.acquire()
            case "checkpoint", bytes():
                checkpoint = checkpoint_of(self.log.end, argument)
                await self.log.save_checkpoint(checkpoint)
                self.checkpoints.insert(0, checkpoint)
            case "trim", float():
                self.trimmed = max(self.trimmed, int(self.log.end * argument))
                await self.log.trim(Position(self.trimmed))
                assert self.log.start <= min(self.trimmed, self.kept_from())
                assert not self.log.trim_points or self.log.trim_points[0] > min(
                    self.trimmed, self.kept_from()
                )
            case "fetch", int():
                await self.fetch(random.Random(argument))
            case "reopen", None:
                await self.close()
                await self.open()
            case "crash", seed:
                crashed = self.disk.after_power_cut(None if seed is None else random.Random(str(seed)))
                await self.close()
                self.disk = crashed
                await self.open()
            case _:
                raise AssertionError(name)

    def kept_from(self) -> int:
        """The position from which a replay based on the older of two checkpoints starts."""
        return self.checkpoints[1].position if len(self.checkpoints) > 1 else 0

    async def fetch(self, rng: random.Random) -> None:
        known = [commit for commit in self.commits if commit[0] >= self.log.start]
        chosen = rng.choices(known, k=min(len(known), 5)) if known else []
        frames = await self.log.fetch([position for position, _ in chosen])
        assert [(f.position, [bytes(record.body) for record in f.records()]) for f in frames] == chosen

    async def check(self) -> None:
        expected = [commit for position, commit in self.commits if position >= self.log.start]
        assert await contents(self.log) == expected
        assert await self.log.load_checkpoint() == (self.checkpoints[0] if self.checkpoints else None)
        assert list(self.log.checkpoints) == [checkpoint.position for checkpoint in self.checkpoints[:2]]
        position, sent = self.commits[-1] if self.commits else (Position(0), [])
        if sent:
            assert self.log.end == position + FRAME_HEADER_BYTES + sum(8 + len(body) for body in sent)
        assert list(self.log.trim_points) == sorted(set(self.log.trim_points))


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.lists(steps, max_size=25), st.booleans(), st.sampled_from([400, 3_000, 1_000_000]))
def test_a_log_is_the_list_of_the_commits_it_acknowledged(
    plan: list[tuple[str, object]], queued: bool, segment_bytes_max: int
) -> None:
    async def run() -> None:
        log = Run(queued, segment_bytes_max)
        await log.open()
        for name, argument in plan:
            await log.step(name, argument)
            await log.check()
        await log.close()
        assert log.disk.open_files == 0, "every file is closed"

    asyncio.run(run())
