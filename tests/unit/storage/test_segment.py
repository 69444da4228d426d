"""storage/segment.py: a segment's header and name, and writing at its end."""

from __future__ import annotations

import errno
import struct
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from storage.errors import CommitFailed, CorruptRecord, DiskFull, UnknownFormat
from storage.log import Position
from storage.record import Chain, crc32c
from storage.segment import (
    ALLOCATED_FRAME_BYTES_MIN,
    ALLOCATED_STEP_BYTES_MAX,
    FILL_STEP_BYTES_MAX,
    FILL_STEP_BYTES_MIN,
    SEGMENT_HEADER_BYTES,
    ActiveSegment,
    SegmentHeader,
    decode_segment_header,
    encode_segment_header,
    segment_name,
)
from tests.support.faulty_disk import FaultyDisk
from tests.support.recording_disk import RecordingDisk

HEADER = SegmentHeader("orders/ü", 9, 3, b"s" * 16, Chain(Position(0x1234), 17, b"d" * 16))
PATH = Path("/0000000000001234-00000003.segment")
FOREVER = 1 << 40


def begun(disk: RecordingDisk | FaultyDisk) -> ActiveSegment:
    return ActiveSegment.begin(disk, Path("/"), HEADER)


def test_a_header_comes_back_and_names_its_file() -> None:
    data = encode_segment_header(HEADER)
    assert len(data) == SEGMENT_HEADER_BYTES
    assert decode_segment_header(data, PATH) == HEADER
    assert segment_name(HEADER) == PATH.name


def test_a_header_with_any_flipped_bit_is_refused() -> None:
    data = encode_segment_header(HEADER)
    for bit in range(len(data) * 8):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptRecord, match=PATH.name):
            decode_segment_header(bytes(damaged), PATH)


def test_a_header_of_a_later_format_is_refused_as_such() -> None:
    data = bytearray(encode_segment_header(HEADER))
    struct.pack_into("<H", data, 12, 2)
    struct.pack_into("<I", data, 8, crc32c(bytes(data[12:])))
    with pytest.raises(UnknownFormat, match="version 2"):
        decode_segment_header(bytes(data), PATH)


def test_positions_and_offsets_lie_behind_the_header() -> None:
    segment = begun(RecordingDisk()).segment
    assert segment.offset_of(Position(0x1234)) == SEGMENT_HEADER_BYTES
    assert segment.position_at(SEGMENT_HEADER_BYTES + 5) == 0x1239


def test_the_file_is_filled_ahead_in_steps_that_double_and_end() -> None:
    disk = RecordingDisk()
    active = begun(disk)
    sizes = []
    for _ in range(3_000):
        active.write([b"x" * 1_000], FOREVER)
        size = len(disk.contents(PATH))
        if size not in sizes:
            sizes.append(size)
    steps = [later - earlier for earlier, later in pairwise(sizes)]
    assert sizes[0] == SEGMENT_HEADER_BYTES + 1_000 + FILL_STEP_BYTES_MIN
    assert steps[0] > FILL_STEP_BYTES_MIN and max(steps) <= FILL_STEP_BYTES_MAX + 1_000
    assert disk.contents(PATH)[active.used :].strip(b"\0") == b""


def test_the_zeros_stop_at_the_segments_limit_and_a_frame_does_not() -> None:
    disk = RecordingDisk()
    active = begun(disk)
    active.write([b"x" * 100], fill_until=1_000)
    assert len(disk.contents(PATH)) == 1_000
    active.write([b"x" * 2_000], fill_until=1_000)
    assert len(disk.contents(PATH)) == active.used == SEGMENT_HEADER_BYTES + 2_100


def test_there_is_room_only_over_zeros_already_written() -> None:
    active = begun(RecordingDisk())
    assert not active.has_room(1)
    active.write([b"x"], FOREVER)
    assert active.has_room(FILL_STEP_BYTES_MIN) and not active.has_room(FILL_STEP_BYTES_MIN + 1)


@pytest.mark.parametrize("size", [ALLOCATED_FRAME_BYTES_MIN - 1, ALLOCATED_FRAME_BYTES_MIN])
def test_behind_large_frames_zeros_are_only_allocated(size: int) -> None:
    disk = FaultyDisk(RecordingDisk())
    active = begun(disk)
    calls = disk.calls.copy()
    active.write([bytes(size)], FOREVER)
    written, allocated = (1, 1) if size >= ALLOCATED_FRAME_BYTES_MIN else (2, 0)
    assert disk.calls - calls == Counter(write=written) + Counter(allocate=allocated)
    assert active.has_room(FILL_STEP_BYTES_MIN) and not active.has_room(FILL_STEP_BYTES_MIN + 1)
    while not (zeros := active.zeros_due(FOREVER)):
        active.wrote(size)
    assert zeros.are_allocated == (size >= ALLOCATED_FRAME_BYTES_MIN)
    calls = disk.calls.copy()
    zeros.write(disk, syncs=True)
    assert (disk.calls - calls)["sync"] == written - 1, "what is allocated changes with each frame anyway"
    following = begun(disk)
    following.follow(active)
    calls = disk.calls.copy()
    following.fill(FOREVER, syncs=True)
    assert (disk.calls - calls)["allocate"] == allocated


def test_the_steps_of_large_frames_are_larger_until_frames_are_small_again() -> None:
    active = begun(RecordingDisk())
    for size, largest in ((1_000_000, ALLOCATED_STEP_BYTES_MAX), (1_000, FILL_STEP_BYTES_MAX)):
        steps = list[int]()
        for _ in range(20_000_000 // size):
            active.write([bytes(size)], FOREVER)
            if zeros := active.zeros_due(FOREVER):
                active.zeros_written(zeros)
                steps.append(zeros.end - zeros.begin)
        assert max(steps) == steps[-1] == largest


@pytest.mark.parametrize(
    ("operation", "nth", "size"), [("write", 2, 5), ("allocate", 1, ALLOCATED_FRAME_BYTES_MIN)]
)
def test_on_a_full_disk_a_frame_is_kept_without_the_zeros_behind_it(
    operation: str, nth: int, size: int
) -> None:
    inner = RecordingDisk()
    disk = FaultyDisk(inner)
    active = begun(disk)
    disk.fail(operation, errno.ENOSPC, nth=nth)
    frame = b"f" * size
    active.write([frame], FOREVER)
    assert active.used == SEGMENT_HEADER_BYTES + size and not active.has_room(1)
    assert inner.contents(PATH)[SEGMENT_HEADER_BYTES:] == frame


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT])
def test_a_frame_that_does_not_fit_leaves_the_segment_as_it_was(error: int) -> None:
    inner = RecordingDisk()
    disk = FaultyDisk(inner)
    active = begun(disk)
    disk.shorten(3)
    disk.fail("write", error)
    with pytest.raises(DiskFull):
        active.write([b"frame"], FOREVER)
    assert active.used == len(inner.contents(PATH)) == SEGMENT_HEADER_BYTES
    active.write([b"frame"], FOREVER)


def test_what_cannot_be_undone_has_failed() -> None:
    disk = FaultyDisk(RecordingDisk())
    active = begun(disk)
    disk.fail("write", errno.ENOSPC, times=2)
    disk.fail("truncate")
    with pytest.raises(CommitFailed, match="undone"):
        active.write([b"frame"], FOREVER)


def test_closing_cuts_off_the_zeros_and_abandoning_does_not() -> None:
    disk = RecordingDisk()
    active = begun(disk)
    active.write([b"frame"], FOREVER)
    active.abandon()
    assert len(disk.contents(PATH)) > active.used
    active = begun(disk)
    active.write([b"frame"], FOREVER)
    active.close()
    active.close()
    assert len(disk.contents(PATH)) == active.used
    assert disk.open_files == 0


def put_away(disk: RecordingDisk | FaultyDisk) -> ActiveSegment:
    active = begun(disk)
    active.write([b"x" * 10_000], FOREVER)
    active.sync()
    active.put_away()
    assert not active.is_open
    return active


def test_a_file_that_was_put_away_is_taken_up_as_it_was() -> None:
    disk = RecordingDisk()
    active = put_away(disk)
    assert disk.open_files == 0
    size = len(disk.contents(PATH))
    active.take_up()
    assert active.is_open and active.has_room(FILL_STEP_BYTES_MIN)
    active.write([b"later"], FOREVER)
    assert len(disk.contents(PATH)) == size, "the zeros that were there are used"
    assert disk.contents(PATH)[active.used - 15 : active.used] == b"x" * 10 + b"later"
    active.put_away()
    active.close()
    assert len(disk.contents(PATH)) == active.used and disk.open_files == 0, (
        "closing cuts off the zeros of a file put away, too"
    )


def grow(disk: RecordingDisk) -> None:
    disk.contents(PATH).extend(b"\0")


def damage(disk: RecordingDisk) -> None:
    disk.contents(PATH)[10_000] ^= 1


def replace(disk: RecordingDisk) -> None:
    data = bytes(disk.contents(PATH))
    disk.remove(PATH)
    fd = disk.create(PATH)
    disk.write(fd, [data], 0)
    disk.close(fd)


@pytest.mark.parametrize(("change", "why"), [(grow, "size"), (damage, "end"), (replace, "file")])
def test_a_file_that_was_changed_while_it_was_put_away_is_not_written_to(
    change: Callable[[RecordingDisk], None], why: str
) -> None:
    disk = RecordingDisk()
    active = put_away(disk)
    change(disk)
    data = bytes(disk.contents(PATH))
    with pytest.raises(CommitFailed, match=f"not the same {why}"):
        active.take_up()
    active.close()
    assert disk.contents(PATH) == data and disk.open_files == 0


@pytest.mark.parametrize("operation", ["read", "size", "identity"])
def test_a_file_whose_end_cannot_be_read_is_put_away_and_not_written_to_again(operation: str) -> None:
    inner = RecordingDisk()
    disk = FaultyDisk(inner)
    active = begun(disk)
    disk.fail(operation)
    active.put_away()
    assert inner.open_files == 0
    with pytest.raises(CommitFailed, match="could not be read"):
        active.take_up()


@pytest.mark.parametrize("operation", ["open_write", "read", "size", "identity"])
def test_a_file_that_cannot_be_taken_up_leaves_no_descriptor(operation: str) -> None:
    inner = RecordingDisk()
    disk = FaultyDisk(inner)
    active = put_away(disk)
    disk.fail(operation, errno.EMFILE)
    with pytest.raises(CommitFailed, match="opened again"):
        active.take_up()
    assert inner.open_files == 0 and not active.is_open
