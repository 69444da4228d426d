"""An open segment with frames, on a disk in memory."""

from __future__ import annotations

from pathlib import Path

from storage.record import CHAIN_START, Chain, FrameCodec, after
from storage.segment import ActiveSegment, Segment, SegmentHeader
from tests.support.recording_disk import RecordingDisk

CODEC = FrameCodec(b"s" * 16, 0)


def written(disk: RecordingDisk, bodies: list[bytes]) -> tuple[Segment, int, list[Chain]]:
    """Write an open segment with these frames; also returns its descriptor and the places between the
    frames."""
    active = ActiveSegment.begin(disk, Path("/"), SegmentHeader("e", 0, 1, b"s" * 16, CHAIN_START))
    places = [CHAIN_START]
    for body in bodies:
        header = CODEC.header([body], places[-1], places[-1].position, 1)
        active.write([header, body], 1 << 40)
        places.append(after(places[-1].position, places[-1].sequence, header, len(body)))
    return active.segment, active.fd, places
