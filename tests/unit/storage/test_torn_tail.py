"""Torn tails: where a log ends, what is given up behind that, and when it is damage instead."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from storage.errors import RecordsMissing
from storage.log import Position
from storage.record import Chain
from storage.segment import Segment
from storage.torn_tail import Tail, cut_void, find_tail
from tests.support.faulty_disk import FaultyDisk
from tests.support.open_segment import CODEC, written
from tests.support.recording_disk import RecordingDisk

BODIES = [b"one" * 20, b"two" * 20, b"three" * 20]


def log() -> tuple[RecordingDisk, Segment, list[Chain]]:
    """A segment with three frames; its places."""
    disk = RecordingDisk()
    segment, fd, places = written(disk, BODIES)
    disk.close(fd)
    disk.contents(segment.path)[segment.offset_of(places[-1].position) :] = b""
    return disk, segment, places


def found(disk: RecordingDisk, segment: Segment, known: int = 0) -> Tail:
    return find_tail(disk, segment, CODEC, None, Position(known))


def test_a_log_ends_behind_its_last_whole_frame_and_zeros_are_no_tail() -> None:
    disk, segment, places = log()
    disk.contents(segment.path).extend(bytes(5_000))
    with capture_logs() as lines:
        tail = found(disk, segment)
    assert (tail.chain, tail.epoch) == (places[-1], 1) and lines == []
    assert tail.durable == places[2].position, "the last frame says that those before it were durable"


@pytest.mark.parametrize("more", [b"", bytes(100), b"garbage"])
def test_a_commit_that_was_cut_off_is_given_up_and_logged(more: bytes) -> None:
    disk, segment, places = log()
    data = disk.contents(segment.path)
    data[-10:] = more
    size = len(data)
    with capture_logs() as lines:
        tail = found(disk, segment)
    assert tail.chain == places[2]
    (line,) = lines
    assert (line["event"], line["position"]) == ("log.tail_cut", places[2].position)
    assert line["bytes"] == size - segment.offset_of(places[2].position)


def test_a_tail_that_is_known_to_have_been_durable_is_damage() -> None:
    disk, segment, places = log()
    end = places[-1].position
    assert found(disk, segment, known=end).chain.position == end
    data = disk.contents(segment.path)
    before = bytes(data)
    data[-10:] = b""
    with pytest.raises(RecordsMissing) as missing:
        found(disk, segment, known=end)
    assert (missing.value.expected, missing.value.found) == (end, places[2].position)
    assert bytes(data) == before[:-10], "nothing is changed"


def test_a_whole_frame_behind_a_broken_one_proves_that_it_was_durable() -> None:
    disk, segment, places = log()
    disk.contents(segment.path)[segment.offset_of(places[1].position) + 70] ^= 1
    with pytest.raises(RecordsMissing) as missing:
        found(disk, segment)
    assert missing.value.found == places[1].position
    offset = segment.offset_of(places[1].position)
    assert str(missing.value) == (
        f"{segment.path}: damaged at byte {offset}: the frame's checksum does not match"
    ), "as the check says it"


def test_what_follows_the_end_is_cut_off_unless_the_disk_refuses() -> None:
    disk, segment, places = log()
    whole = bytes(disk.contents(segment.path))
    end = places[2].position
    refusing = FaultyDisk(disk)
    refusing.fail("truncate")
    cut_void(refusing, segment, end)
    assert bytes(disk.contents(segment.path)) == whole
    cut_void(disk, segment, end)
    assert bytes(disk.contents(segment.path)) == whole[: segment.offset_of(end)]
    cut_void(disk, segment, places[-1].position)
    assert bytes(disk.contents(segment.path)) == whole[: segment.offset_of(end)], "a file never grows"
