"""Reading what is in a checkpoint, without having all of it in memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from storage import checkpoint_blocks
from storage.checkpoint import Place
from storage.checkpoint_blocks import (
    BlockFiles,
    StoredBlocks,
    checked_checkpoint,
    parts_of,
    read_blocks,
    unread_checkpoint,
)
from storage.checkpoints import Checkpoints
from storage.disk import Disk, publish
from storage.errors import CorruptRecord
from storage.log import Checkpoint, Position, Section, whole
from tests.support.recording_disk import RecordingDisk
from tests.support.saved_checkpoints import ROOT, anchor, files, found, save

STATE = {number: b"block %04d" % number * 100 for number in range(50)}


def saved(state: dict[int, bytes] = STATE) -> tuple[RecordingDisk, Checkpoints]:
    disk, kept = RecordingDisk(), Checkpoints(ROOT)
    save(kept, disk, 5, state)
    return disk, kept


def test_small_blocks_are_in_memory_once_they_have_been_checked() -> None:
    disk, kept = saved()
    checkpoint = kept.load(disk, Position(0))
    assert checkpoint is not None
    disk.remove(files(disk)[0])
    assert checkpoint == Checkpoint(Position(5), (Section("state", 3, STATE),))
    assert list(parts_of(checkpoint)) == [checkpoint]


def test_large_ones_are_read_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_blocks, "PART_BYTES", 5_000)
    disk, kept = saved()
    checkpoint = kept.load(disk, Position(0))
    assert checkpoint is not None and isinstance(checkpoint.sections[0].blocks, StoredBlocks)
    assert len(checkpoint.sections[0].blocks) == 50
    assert checkpoint == Checkpoint(Position(5), (Section("state", 3, STATE),)), "each is read when asked for"
    parts = list(parts_of(checkpoint, 5_000))
    assert len(parts) == 10
    together: dict[int, bytes] = {}
    for part in parts:
        [section] = part.sections
        assert (part.position, section.name, section.version) == (5, "state", 3)
        assert sum(len(block) for block in section.blocks.values()) <= 5_000
        together |= {number: whole(block) for number, block in section.blocks.items()}
    assert list(together) == list(STATE) and together == STATE


def test_blocks_that_were_written_at_different_times_come_by_their_numbers() -> None:
    disk, kept = saved()
    for position, number in ((6, 40), (7, 3), (8, 20)):
        save(kept, disk, position, STATE if kept.base is None else {number: b"changed" * 100})
    checkpoint = unread_checkpoint(disk, ROOT, kept.newest or pytest.fail("it was saved"))
    assert list(checkpoint.sections[0].blocks) != sorted(STATE), "as they are listed"
    numbers = [number for part in parts_of(checkpoint, 5_000) for number in part.sections[0].blocks]
    assert numbers == sorted(STATE)


@pytest.mark.parametrize("size", [10, 5_000, 5_001, 9_999])
def test_one_whole_state_is_one_part_however_large_it_is(size: int) -> None:
    """As checkpoints of version 1 are."""
    disk, kept = saved({0: b"x" * size})
    checkpoint = unread_checkpoint(disk, ROOT, kept.newest or pytest.fail("it was saved"))
    assert [list(part.sections[0].blocks) for part in parts_of(checkpoint, 5_000)] == [[0]]


def test_a_large_block_is_read_in_parts_and_each_time_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_blocks, "READ_BYTES", 1_000)
    large, small = bytes(range(250)) * 20, b"x" * 1_000
    disk, kept = saved({0: large, 1: small})
    checkpoint = unread_checkpoint(disk, ROOT, kept.newest or pytest.fail("it was saved"))
    for _ in range(2):
        block = checkpoint.sections[0].blocks[0]
        assert isinstance(block, deque) and len(block) == 5 and whole(block) == large
        block.clear()
    [part] = parts_of(checkpoint)
    assert {number: whole(block) for number, block in part.sections[0].blocks.items()} == {0: large, 1: small}
    assert isinstance(part.sections[0].blocks[1], bytes)
    in_memory = next(parts_of(kept.load(disk, Position(0)) or pytest.fail("it was saved")))
    assert {number: whole(block) for number, block in in_memory.sections[0].blocks.items()} == {
        0: large,
        1: small,
    }


def test_all_parts_of_a_large_block_are_read_before_any_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_blocks, "READ_BYTES", 1_000)
    disk, kept = saved({0: b"x" * 5_000})
    checkpoint = unread_checkpoint(disk, ROOT, kept.newest or pytest.fail("it was saved"))
    [path] = files(disk)
    disk.contents(path)[-1] ^= 1
    with pytest.raises(CorruptRecord, match="block"):
        next(parts_of(checkpoint))
    del disk.contents(path)[-2_000:]
    with pytest.raises(CorruptRecord, match="block"):
        _ = checkpoint.sections[0].blocks[0]


def test_an_empty_checkpoint_has_one_part() -> None:
    disk, kept = saved({})
    checkpoint = kept.load(disk, Position(0))
    assert checkpoint is not None and list(parts_of(checkpoint)) == [checkpoint]


@pytest.mark.parametrize("part_bytes", [5_000, 1 << 20], ids=["large", "small"])
def test_a_damaged_block_is_found_before_any_is_used(
    monkeypatch: pytest.MonkeyPatch, part_bytes: int
) -> None:
    monkeypatch.setattr(checkpoint_blocks, "PART_BYTES", part_bytes)
    disk, kept = saved()
    [path] = files(disk)
    disk.contents(path)[-1] ^= 1
    newest = kept.newest
    assert newest is not None
    with pytest.raises(CorruptRecord, match="block"):
        checked_checkpoint(disk, ROOT, newest)
    assert list(read_blocks(disk, ROOT, [newest])) == []


def test_the_parts_of_a_block_need_not_be_joined_to_be_written() -> None:
    disk, kept = RecordingDisk(), Checkpoints(ROOT)
    block = b"head", b"x" * 100_000, b"", b"x" * 100_000
    checkpoint = Checkpoint(Position(5), (Section("state", 3, {1: block, 2: b"other"}),))
    kept.save(disk, checkpoint, anchor(5))
    loaded = found(disk).load(disk, Position(0))
    assert loaded is not None
    assert loaded.sections[0].blocks == {1: b"".join(block), 2: b"other"}


def test_copied_blocks_are_read_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint may copy as much as it writes, or a MiB."""
    disk, kept = RecordingDisk(), Checkpoints(ROOT)
    state = {number: b"%04d" % number * 25_000 for number in range(20)}
    for position in (1, 2):
        save(kept, disk, position, state)
    in_memory, most = 0, 0
    read = BlockFiles.read

    def counted(self: BlockFiles, place: Place) -> bytes:
        nonlocal in_memory, most
        in_memory += 1
        most = max(most, in_memory)
        return read(self, place)

    def writing(disk: Disk, path: Path, buffers: Iterable[bytes]) -> int:
        def passed_on() -> Iterator[bytes]:
            nonlocal in_memory
            for each in buffers:
                in_memory = 0
                yield each

        return publish(disk, path, passed_on())

    monkeypatch.setattr(BlockFiles, "read", counted)
    monkeypatch.setattr("storage.checkpoints.publish", writing)
    changed = dict.fromkeys(range(15), b"changed")
    save(kept, disk, 3, changed)
    assert most == 1 and len(files(disk)) == 2
    checkpoint = found(disk).load(disk, Position(0))
    assert checkpoint is not None and checkpoint.sections[0].blocks == state | changed
