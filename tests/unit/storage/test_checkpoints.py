"""The checkpoints of a log: which two are kept, in which files, and at what cost."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage import checkpoints
from storage.checkpoints import Checkpoints
from storage.errors import CommitFailed, CorruptRecord, DiskFailed
from storage.log import Position, whole
from tests.support.faulty_disk import FaultyDisk
from tests.support.recording_disk import RecordingDisk
from tests.support.saved_checkpoints import ROOT, files, found, save


def blocks_in(kept: Checkpoints, disk: RecordingDisk) -> dict[int, bytes]:
    checkpoint = kept.load(disk, Position(0))
    assert checkpoint is not None
    [section] = checkpoint.sections
    assert (section.name, section.version) == ("state", 3)
    return {number: whole(block) for number, block in section.blocks.items()}


def test_the_two_newest_are_kept_and_the_log_is_trimmed_to_the_older() -> None:
    disk, kept = RecordingDisk(), Checkpoints(ROOT)
    for position in (5, 300, 10_000, 10_000, 10_001):
        assert kept.trim_limit == (kept.positions[1] if position > 300 else None)
        save(kept, disk, position, {0: b"state at %d" % position})
    assert [path.name for path in files(disk)] == [
        "0000000000002710-00000004.checkpoint",
        "0000000000002711-00000005.checkpoint",
    ]
    again = found(disk)
    assert again.positions == kept.positions == (10_001, 10_000) and again.trim_limit == 10_000
    assert blocks_in(again, disk) == {0: b"state at 10001"}


def test_one_writes_what_was_changed_since_the_one_before_the_last() -> None:
    disk, kept = RecordingDisk(), Checkpoints(ROOT)
    state = {number: b"block %04d" % number * 100 for number in range(500)}
    for position in (1, 2):
        assert kept.base is None
        save(kept, disk, position, state)
    whole = len(disk.contents(files(disk)[0]))
    for position in range(3, 20):
        changed = {position: b"changed at %d" % position}
        state |= changed
        base = kept.base
        assert base is not None and base.position == position - 2
        save(kept, disk, position, changed | {position - 1: state[position - 1]})
        newest = files(disk)[-1]
        assert len(disk.contents(newest)) < whole / 20, (
            "a twentieth of the state: the table of all blocks, and two of them"
        )
        assert blocks_in(found(disk), disk) == state


def test_a_block_that_is_gone_stays_gone_though_an_older_checkpoint_had_it() -> None:
    disk, kept = RecordingDisk(), Checkpoints(ROOT)
    save(kept, disk, 1, {1: b"one", 2: b"two"})
    save(kept, disk, 2, {1: b"one", 2: b"two"})
    save(kept, disk, 3, {1: b""})
    save(
        kept, disk, 4, {}
    )  # builds on the second, which still has the block; the owner reported only once that it is gone
    assert blocks_in(kept, disk) == blocks_in(found(disk), disk) == {2: b"two"}


def test_a_complete_one_shares_no_file_with_those_before_and_leaves_nothing_dead() -> None:
    disk, kept = RecordingDisk(), Checkpoints(ROOT)
    state = {number: b"block %04d" % number * 100 for number in range(20)}
    for position in (1, 2):
        save(kept, disk, position, state)
    state = {0: state[0]}
    for position in (3, 4):
        save(kept, disk, position, dict.fromkeys(range(1, 20), b""))
    dead = kept.stored_bytes
    for position in (5, 6):
        save(kept, disk, position, state, is_complete=True)
    assert kept.stored_bytes == 2 * len(state[0]) < dead // 10
    assert len(files(disk)) == 2
    assert blocks_in(kept, disk) == blocks_in(found(disk), disk) == state
    save(kept, disk, 7, {1: b"one"})
    assert blocks_in(kept, disk) == {0: state[0], 1: b"one"}


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 1 << 30), st.sampled_from([1, 40, 400]))
def test_space_and_number_of_files_stay_in_proportion_to_what_is_live(seed: int, per_step: int) -> None:
    """Whatever changes in whatever order, the state is read back as it was."""
    rng = random.Random(seed)
    disk, kept = RecordingDisk(), Checkpoints(ROOT)
    state: dict[int, bytes] = {}
    changed_at: dict[int, int] = {}
    for position in range(1, 60):
        for _ in range(rng.randrange(2 * per_step)):
            number = rng.randrange(1_000)
            state[number] = b"" if rng.random() < 0.3 else rng.randbytes(8) * rng.randrange(1, 300)
            changed_at[number] = position - 1
        base = kept.base
        changed = {
            each: data for each, data in state.items() if base is None or changed_at[each] >= base.position
        }
        if rng.random() < 0.1:
            kept = found(disk)
        save(kept, disk, position, changed)
        live = {number: data for number, data in state.items() if data}
        assert blocks_in(found(disk), disk) == blocks_in(kept, disk) == live
    size = sum(len(disk.contents(path)) for path in files(disk))
    live_bytes = sum(map(len, state.values())) + 40 * len(state)
    assert size <= 2 * (
        2 * live_bytes + checkpoints.DEAD_BYTES_SLACK + checkpoints.COPIED_BYTES_MIN + 400 * 2_400
    )
    assert len(files(disk)) <= 2 * (2 * checkpoints.FILES_MIN + live_bytes // checkpoints.BYTES_PER_FILE)


@pytest.mark.parametrize("operation", ["create", "write", "sync", "rename", "sync_directory"])
def test_a_failure_leaves_those_before(operation: str) -> None:
    disk, kept = RecordingDisk(), Checkpoints(ROOT)
    for position in (5, 6):
        save(kept, disk, position, {0: b"state at %d" % position})
    disk.sync_directory(ROOT)
    faulty = FaultyDisk(disk)
    faulty.fail(operation)
    with pytest.raises(CommitFailed):
        save(kept, faulty, 7, {0: b"never"})
    assert found(disk.after_power_cut()).positions == kept.positions == (6, 5)
    save(kept, faulty, 8, {0: b"state at 8"})
    assert found(disk).positions == (8, 6) and len(files(disk)) == 2
    assert disk.open_files == 0


def test_a_damaged_block_that_was_to_be_copied_makes_the_next_one_whole() -> None:
    disk, kept = RecordingDisk(), Checkpoints(ROOT)
    state = {number: bytes([number % 256]) * 20_000 for number in range(100)}
    save(kept, disk, 1, state)
    save(kept, disk, 2, state)
    disk.contents(files(disk)[0])[-1] ^= 1  # block 99, which stays
    with pytest.raises(DiskFailed, match="as a whole"):
        save(kept, disk, 3, dict.fromkeys(range(99), b""))
    assert list(kept.positions) == [2] and kept.base is None and kept.is_damaged
    save(kept, disk, 4, {99: state[99]})
    assert not kept.is_damaged and not found(disk).is_damaged, "it was replaced"
    assert kept.positions == (4, 2) and blocks_in(found(disk), disk) == {99: state[99]}


def test_without_any_the_log_is_read_from_its_start_unless_it_was_trimmed() -> None:
    disk = RecordingDisk()
    assert found(disk).load(disk, Position(0)) is None
    with pytest.raises(CorruptRecord, match="missing"):
        found(disk, start=1)
    save(Checkpoints(ROOT), disk, 5, {0: b"state"})
    with pytest.raises(CorruptRecord, match="trimmed up to 6"):
        found(disk, start=6)
