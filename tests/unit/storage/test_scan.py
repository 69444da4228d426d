"""storage/scan.py: reading frames one after another, and what stops a scan."""

from __future__ import annotations

from pathlib import Path

from storage.log import FRAME_HEADER_BYTES, Position
from storage.record import CHAIN_START, Chain
from storage.scan import CHUNK_BYTES, FrameScanner, durable_witness, is_zero
from tests.support.open_segment import CODEC, written
from tests.support.recording_disk import RecordingDisk


def scan(scanner: FrameScanner) -> list[Position]:
    found: list[Position] = []
    while frames := scanner.frames():
        found.extend(frame.position for frame in frames)
    return found


def test_all_frames_are_found_also_those_larger_than_a_chunk_or_across_two() -> None:
    disk = RecordingDisk()
    bodies = [b"a" * (CHUNK_BYTES - 100), b"b" * 500, b"c" * (2 * CHUNK_BYTES), b"", b"d"]
    segment, fd, places = written(disk, bodies)
    scanner = FrameScanner(disk, fd, segment, CODEC, CHAIN_START, places[-1].position)
    assert scan(scanner) == [place.position for place in places[:-1]]
    assert scanner.chain == places[-1] and not scanner.why
    assert scanner.last is not None and scanner.last.sequence == 4


def test_a_scan_may_begin_at_any_frame_with_or_without_its_digest() -> None:
    disk = RecordingDisk()
    segment, fd, places = written(disk, [b"a", b"bb", b"ccc"])
    for start in (places[1], Chain(places[1].position, 0, None)):
        scanner = FrameScanner(disk, fd, segment, CODEC, start, places[-1].position)
        assert scan(scanner) == [places[1].position, places[2].position]
        assert scanner.chain == places[3]


def test_a_scan_stops_for_good_where_the_chain_breaks() -> None:
    disk = RecordingDisk()
    segment, fd, places = written(disk, [b"a", b"bb", b"ccc"])
    scanner = FrameScanner(
        disk, fd, segment, CODEC, places[1]._replace(before=b"?" * 16), places[-1].position
    )
    assert scan(scanner) == scan(scanner) == []
    assert scanner.why == "not the frame that follows the one before"


def test_a_frame_that_reaches_beyond_the_end_is_not_read() -> None:
    disk = RecordingDisk()
    segment, fd, places = written(disk, [b"a", b"b" * 100])
    scanner = FrameScanner(disk, fd, segment, CODEC, CHAIN_START, Position(places[-1].position - 1))
    assert scan(scanner) == [0]
    assert scanner.why == "the frame is cut off"


def test_a_file_shorter_than_it_should_be_is_told() -> None:
    disk = RecordingDisk()
    segment, fd, places = written(disk, [b"a" * (CHUNK_BYTES + 5)])
    disk.truncate(fd, segment.offset_of(places[1].position) - 1)
    scanner = FrameScanner(disk, fd, segment, CODEC, CHAIN_START, places[-1].position)
    assert scan(scanner) == []
    assert scanner.why == "the frame is cut off"


def test_zeros_are_told_from_anything_else_across_chunks() -> None:
    disk = RecordingDisk()
    fd = disk.create(Path("/file"))
    disk.write(fd, [b"x", bytes(2 * CHUNK_BYTES)], 0)
    assert is_zero(disk, fd, 1) and is_zero(disk, fd, 1 << 30) and not is_zero(disk, fd, 0)
    disk.write(fd, [b"x"], 2 * CHUNK_BYTES)
    assert not is_zero(disk, fd, 1)


def test_the_witness_is_found_across_chunks_and_only_where_it_says_it_stands() -> None:
    disk = RecordingDisk()
    bodies = [b"a" * (CHUNK_BYTES - FRAME_HEADER_BYTES - 20), b"b"]
    segment, fd, places = written(disk, bodies)
    assert durable_witness(disk, fd, segment, CODEC, segment.offset_of(Position(1))) == places[1].position
    moved = disk.read(fd, FRAME_HEADER_BYTES, segment.offset_of(places[1].position))
    disk.write(fd, [bytes(FRAME_HEADER_BYTES), moved], segment.offset_of(places[1].position))
    assert durable_witness(disk, fd, segment, CODEC, segment.offset_of(Position(1))) == 0
