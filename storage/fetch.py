"""Reads single frames of a log by position: neighbours in one read, each frame verified.

The caller chooses how to read: with `Disk.read`, which blocks and needs a thread, or `Disk.read_cached`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence

from storage.errors import CorruptRecord, RecordsMissing
from storage.log import FRAME_HEADER_BYTES, Frame, Position
from storage.open_files import Reading
from storage.record import FrameCodec, crc32c
from storage.segment import Segment

GAP_BYTES_MAX = 64 << 10
"""Positions this close are read together, because copying the gap costs about as much as another call."""
RUN_BYTES_MAX = 1 << 20
"""How much is read at once, unless a single frame is larger."""

READ_ON_LOOP_BYTES = 2 << 20
"""How much a fetch may read and check in the event loop: about a millisecond. A thread does anything longer,
even if all of it is in memory."""

Read = Callable[[int, int, int], bytes]
"""File descriptor, size, offset: `Disk.read` or `Disk.read_cached`."""


def bounded(read: Read, bytes_max: int = READ_ON_LOOP_BYTES) -> Read:
    """Limit a read function to `bytes_max` bytes in total; beyond that it raises BlockingIOError."""
    left = bytes_max

    def read_bounded(fd: int, size: int, offset: int) -> bytes:
        nonlocal left
        left -= size
        if left < 0:
            raise BlockingIOError("too much to be read in the event loop")
        return read(fd, size, offset)

    return read_bounded


def fetch_frames(
    read: Read,
    reading: Reading,
    segments: Sequence[Segment],
    codec: FrameCodec,
    end: Position,
    positions: Sequence[Position],
) -> list[Frame]:
    """The frames at these positions of a log that ends at `end`. Raises CorruptRecord, OSError.

    `reading` lends the descriptor of a segment.
    """
    wanted = sorted(set(positions))
    assert wanted[-1] < end, "only what is in the log is fetched"
    if wanted[0] < segments[0].base:
        directory = segments[0].path.parent
        raise RecordsMissing(
            str(directory), 0, "the first segments are missing", expected=wanted[0], found=segments[0].base
        )
    bases = [segment.base for segment in segments]
    found: dict[Position, Frame] = {}
    first = 0
    while first < len(wanted):
        place = bisect_right(bases, wanted[first]) - 1
        segment = segments[place]
        limit = segments[place + 1].base if place + 1 < len(segments) else end
        last = first
        while last + 1 < len(wanted) and _joins(wanted, first, last, limit):
            last += 1
        run = wanted[first : last + 1]
        with reading(segment.path) as fd:
            chunk = read(fd, min(run[-1] - run[0] + GAP_BYTES_MAX, limit - run[0]), segment.offset_of(run[0]))
            for position in run:
                found[position] = _frame(read, fd, segment, codec, limit, chunk, position - run[0], position)
        first = last + 1
    return [found[position] for position in positions]


def _joins(wanted: list[Position], first: int, last: int, limit: Position) -> bool:
    """Whether the position after `last` is read together with the run that began at `first`."""
    following = wanted[last + 1]
    return (
        following < limit
        and following - wanted[last] <= GAP_BYTES_MAX
        and following - wanted[first] < RUN_BYTES_MAX
    )


def _frame(
    read: Read, fd: int, segment: Segment, codec: FrameCodec, limit: Position, chunk: bytes, begin: int,
    position: Position
) -> Frame:  # fmt: skip
    """The frame that begins at `begin` in the chunk, without its header. Reads it by itself if the chunk ends
    earlier: a large frame is then copied only once."""
    offset = segment.offset_of(position)
    header = codec.parse_header(chunk[begin : begin + FRAME_HEADER_BYTES])
    if header is None or header.position != position:
        raise CorruptRecord(str(segment.path), offset, "no frame header")
    size = header.body_length
    begin += FRAME_HEADER_BYTES
    if begin + size <= len(chunk):
        body = chunk[begin : begin + size]
    elif position + FRAME_HEADER_BYTES + size <= limit:
        body = read(fd, size, offset + FRAME_HEADER_BYTES)
    else:
        body = b""
    if len(body) < size:
        raise CorruptRecord(str(segment.path), offset, "the frame is cut off")
    if crc32c(body) != header.body_crc:
        raise CorruptRecord(str(segment.path), offset, "the frame's checksum does not match")
    return Frame(position, body, FRAME_HEADER_BYTES)
