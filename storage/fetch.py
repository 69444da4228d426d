"""Reads single frames of a log by position, or parts of them: neighbours in one read, each frame verified.

The caller chooses how to read: with `Disk.read`, which blocks and needs a thread, or `Disk.read_cached`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from operator import add
from typing import NamedTuple

from storage.errors import CorruptRecord, RecordsMissing
from storage.log import FRAME_HEADER_BYTES, Frame, Parts, Position
from storage.open_files import Reading
from storage.record import FrameCodec, crc32c, extend_crc32c
from storage.segment import Segment

GAP_BYTES_MAX = 64 << 10
"""Positions this close are read together, because copying the gap costs about as much as another call."""
RUN_BYTES_MAX = 1 << 20
"""How much is read at once, unless a single frame is larger."""

COPIED_ONCE_BYTES_MIN = 8 << 10
"""If the parts of a frame have this size on average, they are cut out of what was read. Smaller ones are cut
out of a copy of the whole frame: to copy them twice takes less time than to check each by itself."""

READ_ON_LOOP_BYTES = 2 << 20
"""How much a fetch may read and check at once in the event loop: about a millisecond. A thread does anything
longer, even if all of it is in memory."""
PORTION_BYTES = READ_ON_LOOP_BYTES // 4 * 3
"""Parts of about this size are fetched at once. That is less than READ_ON_LOOP_BYTES, because their frames
may have others, and what was read is lost if a thread has to begin again."""

Read = Callable[[int, int, int], bytes | memoryview]
"""File descriptor, size, offset: `Disk.read` or `Disk.read_cached`."""


def bounded(read: Read, bytes_max: int = READ_ON_LOOP_BYTES) -> Read:
    """Limit a read function to `bytes_max` bytes in total; beyond that it raises BlockingIOError."""
    left = bytes_max

    def read_bounded(fd: int, size: int, offset: int) -> bytes | memoryview:
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
    found: dict[Position, Frame] = {}
    for body in _bodies(read, reading, segments, codec, end, sorted(set(positions)), lambda _: GAP_BYTES_MAX):
        data = bytes(body.data)
        body.check(crc32c(data))
        found[body.position] = Frame(body.position, data, FRAME_HEADER_BYTES)
    return [found[position] for position in positions]


def portions(parts: Parts) -> Iterator[tuple[Sequence[int], Parts]]:
    """Divide parts into portions of about PORTION_BYTES, each with the places of its parts among all of them.
    Those of a frame stay together, because the whole of it is read."""
    sizes = parts.sizes
    portion: list[int] = []
    room = PORTION_BYTES
    for _, places in sorted(_by_frame(parts).items()):
        size = sum(map(sizes.__getitem__, places))
        if portion and size > room:
            yield portion, _chosen(parts, portion)
            portion, room = [], PORTION_BYTES
        portion += places
        room -= size
    yield portion, _chosen(parts, portion)


def _by_frame(parts: Parts) -> dict[Position, list[int]]:
    """The places of the parts of each frame."""
    found: dict[Position, list[int]] = {}
    for position, neighbours in groupby(range(len(parts.sizes)), parts.positions.__getitem__):
        found.setdefault(position, []).extend(neighbours)
    return found


def _chosen(parts: Parts, places: Sequence[int]) -> Parts:
    return Parts(
        [parts.positions[place] for place in places],
        [parts.offsets[place] for place in places],
        [parts.sizes[place] for place in places],
    )


def fetch_parts(
    read: Read,
    reading: Reading,
    segments: Sequence[Segment],
    codec: FrameCodec,
    end: Position,
    parts: Parts,
) -> list[bytes]:
    """Parts of frames, as `fetch_frames` has the whole of them."""
    offsets, sizes, places = parts.offsets, parts.sizes, _by_frame(parts)

    def reach(position: Position) -> int:
        wanted = places[position]
        last: int = max(map(add, map(offsets.__getitem__, wanted), map(sizes.__getitem__, wanted)))
        return last + GAP_BYTES_MAX

    found = [b""] * len(offsets)
    for body in _bodies(read, reading, segments, codec, end, sorted(places), reach):
        wanted = places[body.position]
        if sum(map(sizes.__getitem__, wanted)) < COPIED_ONCE_BYTES_MIN * len(wanted):
            data = bytes(body.data)
            body.check(crc32c(data))
            for place in wanted:
                begin = offsets[place] - FRAME_HEADER_BYTES
                found[place] = data[begin : begin + sizes[place]]
        else:
            _cut_out(body, wanted, offsets, sizes, found)
    return found


def _cut_out(
    body: _Body, wanted: Sequence[int], offsets: Sequence[int], sizes: Sequence[int], found: list[bytes]
) -> None:
    """Put parts of a frame where they are wanted, and check the frame. They are copied only once."""
    data, at, crc = body.data, 0, 0
    for place in sorted(wanted, key=offsets.__getitem__):
        begin = offsets[place] - FRAME_HEADER_BYTES
        if begin > at:
            crc = extend_crc32c(crc, bytes(data[at:begin]))
            at = begin
        found[place] = part = bytes(data[begin : begin + sizes[place]])
        crc = extend_crc32c(crc, part if begin == at else part[at - begin :])
        at = max(at, begin + len(part))
    body.check(extend_crc32c(crc, bytes(data[at:])))


class _Body(NamedTuple):
    """A frame without its header, as it was read."""

    position: Position
    data: memoryview
    """Valid until something else is read."""
    crc: int
    """What the header says."""
    segment: Segment

    def check(self, crc: int) -> None:
        """Raise CorruptRecord if this is not the CRC-32C of the data."""
        if crc != self.crc:
            offset = self.segment.offset_of(self.position)
            raise CorruptRecord(str(self.segment.path), offset, "the frame's checksum does not match")


def _bodies(
    read: Read,
    reading: Reading,
    segments: Sequence[Segment],
    codec: FrameCodec,
    end: Position,
    wanted: Sequence[Position],
    reach: Callable[[Position], int],
) -> Iterator[_Body]:
    """The bodies of the frames at some ascending positions, to be checked by the caller. `reach` says how
    many bytes to read of the last of several neighbours, before its size is known."""
    assert wanted[-1] < end, "only what is in the log is fetched"
    if wanted[0] < segments[0].base:
        directory = segments[0].path.parent
        raise RecordsMissing(
            str(directory), 0, "the first segments are missing", expected=wanted[0], found=segments[0].base
        )
    bases = [segment.base for segment in segments]
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
            ends = min([limit, *wanted[last + 1 : last + 2]])  # what is wanted next is behind the run
            size = min(run[-1] - run[0] + reach(run[-1]), ends - run[0])
            chunk = memoryview(read(fd, size, segment.offset_of(run[0])))
            for position in run:
                yield _body(read, fd, segment, codec, limit, chunk, position - run[0], position)
        first = last + 1


def _joins(wanted: Sequence[Position], first: int, last: int, limit: Position) -> bool:
    """Whether the position after `last` is read together with the run that began at `first`."""
    following = wanted[last + 1]
    return (
        following < limit
        and following - wanted[last] <= GAP_BYTES_MAX
        and following - wanted[first] < RUN_BYTES_MAX
    )


def _body(
    read: Read, fd: int, segment: Segment, codec: FrameCodec, limit: Position, chunk: memoryview, begin: int,
    position: Position
) -> _Body:  # fmt: skip
    """The body of the frame that begins at `begin` in the chunk. Reads it by itself if the chunk ends
    earlier, so it is the last one in the chunk."""
    offset = segment.offset_of(position)
    header = codec.parse_header(bytes(chunk[begin : begin + FRAME_HEADER_BYTES]))
    if header is None or header.position != position:
        raise CorruptRecord(str(segment.path), offset, "no frame header")
    size = header.body_length
    begin += FRAME_HEADER_BYTES
    body = chunk[begin : begin + size]
    if len(body) < size and position + FRAME_HEADER_BYTES + size <= limit:
        body = memoryview(read(fd, size, offset + FRAME_HEADER_BYTES))
    if len(body) < size:
        raise CorruptRecord(str(segment.path), offset, "the frame is cut off")
    return _Body(position, body, header.body_crc, segment)
