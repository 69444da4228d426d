"""Damage in checkpoints: either of the two kept checkpoints, with the rest of the log, recovers
everything.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import structlog

from storage import checkpoint_blocks
from storage.checkpoint import CHECKPOINT_SUFFIX
from storage.errors import CorruptRecord, DiskFailed
from storage.log import Checkpoint, Log, Section, whole
from tests.support.logs import acquired, append, contents, flat
from tests.support.recording_disk import RecordingDisk

ROOT = Path("/data")
LOG = ROOT / "logs" / "orders%231" / "0000"
COMMITS = 12
SEGMENT_BYTES_MAX = 400


class Owner:
    """A state made of the bodies of the log's records, ten to a block."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.places: list[int] = []

    async def recover(self, log: Log) -> None:
        """Read the checkpoint and everything after it."""
        self.bodies, self.places = [], []
        checkpoint = await log.load_checkpoint()
        since = log.start
        if checkpoint is not None:
            since = checkpoint.position
            [section] = checkpoint.sections
            for number in sorted(section.blocks):
                entries = whole(section.blocks[number]).split(b"|")
                self.bodies += entries
                self.places += [section.taken[number] - 1] * len(entries)
        async for frame in log.replay(since):
            for record in frame.records():
                self.bodies.append(bytes(record.body))
                self.places.append(frame.position)

    async def append(self, log: Log, body: bytes) -> None:
        self.places.append(await append(log, body))
        self.bodies.append(body)

    async def save(self, log: Log) -> None:
        """Save what has changed since the checkpoint before the last."""
        base = log.checkpoint_base
        blocks: dict[int, bytes] = {}
        for first in range(0, len(self.bodies), 10):
            if base is None or any(place >= base for place in self.places[first : first + 10]):
                blocks[first // 10] = b"|".join(self.bodies[first : first + 10])
        await log.save_checkpoint(Checkpoint(log.end, (Section("bodies", 1, blocks),)))


async def written() -> tuple[RecordingDisk, list[bytes]]:
    """A trimmed log whose checkpoints hold blocks in several files; gives the disk and everything
    appended.
    """
    disk, owner = RecordingDisk(), Owner()
    async with acquired(ROOT, disk, segment_bytes_max=SEGMENT_BYTES_MAX) as log:
        for number in range(5 * COMMITS):
            await owner.append(log, b"body %02d" % number)
            if number % 9 == 4:
                await owner.save(log)
                await log.trim(log.end)
        assert log.start > 0 and log.end > log.checkpoints[0] > log.checkpoints[1] >= log.start
    return disk, owner.bodies


def files(disk: RecordingDisk) -> list[Path]:
    """Checkpoint files, newest first."""
    return sorted((LOG / name for name in disk.names(LOG) if name.endswith(CHECKPOINT_SUFFIX)), reverse=True)


async def recovered(disk: RecordingDisk) -> list[bytes]:
    """What a restart finds. It must find the same after two more checkpoints, which replace everything
    damaged.
    """
    owner = Owner()
    async with acquired(ROOT, disk, segment_bytes_max=SEGMENT_BYTES_MAX) as log:
        await owner.recover(log)
        found = list(owner.bodies)
        for _ in range(2):
            await owner.append(log, b"later")
            await owner.save(log)
        assert len(log.checkpoints) == 2
        await log.trim(log.end)
    again = Owner()
    async with acquired(ROOT, disk, segment_bytes_max=SEGMENT_BYTES_MAX) as log:
        await again.recover(log)
    assert again.bodies == [*found, b"later", b"later"]
    return found


async def test_the_two_checkpoints_share_no_file() -> None:
    disk, bodies = await written()
    assert len(files(disk)) >= 4, "blocks of earlier checkpoints are still in use"
    assert await recovered(disk.after_power_cut()) == bodies
    newest, older = files(disk)[:2]
    for lost in (newest, older):
        copy = disk.after_power_cut()
        copy.remove(lost)
        assert await recovered(copy) == bodies


async def test_a_flipped_bit_anywhere_in_any_file_of_a_checkpoint_loses_nothing() -> None:
    disk, bodies = await written()
    for number, path in enumerate(files(disk)):
        for offset in range(
            number, len(disk.contents(path)), 13
        ):  # every field of the tables, and every block, in one file or another
            copy = disk.after_power_cut()
            copy.contents(path)[offset] ^= 1 << offset % 8
            assert await recovered(copy) == bodies, (path.name, offset)


@pytest.mark.parametrize("keep", [0.0, 0.5, 0.99])
async def test_a_file_of_a_checkpoint_that_is_cut_off_or_missing_loses_nothing(keep: float) -> None:
    disk, bodies = await written()
    for path in files(disk):
        copy = disk.after_power_cut()
        del copy.contents(path)[int(len(disk.contents(path)) * keep) :]
        assert await recovered(copy) == bodies, path.name
        copy = disk.after_power_cut()
        copy.remove(path)
        assert await recovered(copy) == bodies, path.name


async def test_a_damaged_block_is_reported_with_its_offset_and_its_checkpoint_is_replaced() -> None:
    disk, bodies = await written()
    path = files(disk)[0]
    offset = len(disk.contents(path)) - 1
    disk.contents(path)[offset] ^= 4
    async with acquired(ROOT, disk, segment_bytes_max=SEGMENT_BYTES_MAX) as log:
        owner = Owner()
        before = log.checkpoints
        with structlog.testing.capture_logs() as lines:
            await owner.recover(log)
        assert owner.bodies == bodies
        [line] = [line for line in lines if line["log_level"] == "error"]
        assert (line["event"], line["path"]) == ("checkpoint.damaged", str(path)) and 0 < line[
            "position"
        ] <= offset
        assert list(log.checkpoints) == [before[1]] and log.checkpoint_base is None
        start = log.start
        await log.trim(log.end)
        assert log.start == start, "nothing is trimmed while there is one checkpoint"
        await owner.save(log)
        assert list(log.checkpoints) == [log.end, before[1]] and path not in files(disk)


@pytest.mark.parametrize("how", ["flipped", "cut off", "removed"])
async def test_a_block_that_is_damaged_after_the_check_costs_one_more_attempt(
    monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """The blocks of a large checkpoint are read twice: all of them to check them, then one part after the
    other."""
    monkeypatch.setattr(checkpoint_blocks, "PART_BYTES", 10)
    disk, bodies = await written()
    owner = Owner()
    async with acquired(ROOT, disk, segment_bytes_max=SEGMENT_BYTES_MAX) as log:
        newest, older = log.checkpoints
        checkpoint = await log.load_checkpoint()
        assert checkpoint is not None and checkpoint.position == newest
        path = files(disk)[0]
        if how == "flipped":
            disk.contents(path)[-1] ^= 1
        elif how == "cut off":
            del disk.contents(path)[-1:]
        else:
            disk.remove(path)
        with pytest.raises(DiskFailed, match=path.name[-19:]):  # and not CorruptRecord, which is for good
            _ = [part async for part in log.checkpoint_parts(checkpoint)]
        await log.acquire()
        await owner.recover(log)
        assert list(log.checkpoints) == [older] and owner.bodies == bodies


async def test_a_log_that_was_not_trimmed_is_read_from_its_start_if_both_checkpoints_are_damaged() -> None:
    disk, owner = RecordingDisk(), Owner()
    async with acquired(ROOT, disk) as log:
        for number in range(3):
            await owner.append(log, b"%d" % number)
            await owner.save(log)
    for path in files(disk):
        disk.contents(path)[-1] ^= 1
    async with acquired(ROOT, disk) as log:
        assert await log.load_checkpoint() is None
        assert flat(await contents(log)) == owner.bodies


async def test_a_trimmed_log_whose_checkpoints_are_all_damaged_or_missing_is_refused() -> None:
    disk, _ = await written()
    copy = disk.after_power_cut()
    for path in files(copy):
        copy.contents(path)[20] ^= 1
    with pytest.raises(CorruptRecord, match="checksum"):
        await recovered(copy)
    copy = disk.after_power_cut()
    for path in files(copy):
        copy.contents(path)[-1] ^= 1  # blocks are read only when the state is needed
    with pytest.raises(CorruptRecord, match="checksum"):
        await recovered(copy)
    for path in files(disk):
        disk.remove(path)
    with pytest.raises(CorruptRecord, match="checkpoint is missing"):
        await recovered(disk)
