"""Reads the frames of a segment in order and checks each against its checksums and the frame before it.

Used to find a log's end (`torn_tail.py`) and to replay it (`file_log.py`). Reads only. Raises OSError.
"""

from __future__ import annotations

from storage.disk import Disk
from storage.log import FRAME_HEADER_BYTES, Frame, Position
from storage.record import MAGIC, Chain, FrameCodec, FrameHeader, after, crc32c, follows
from storage.segment import Segment

CHUNK_BYTES = 1 << 20
"""How much is read at a time, unless a single frame is larger."""


class FrameScanner:
    """Reads the frames of one segment from a place on. Stops for good at the first bytes that are not the
    expected frame."""

    def __init__(
        self, disk: Disk, fd: int, segment: Segment, codec: FrameCodec, start: Chain, until: Position
    ) -> None:
        self._disk = disk
        self.fd = fd
        """The segment's file. The descriptor may change between two calls."""
        self._segment = segment
        self._codec = codec
        self._until = until
        self.chain = start
        """The place where the next frame is expected."""
        self.last: FrameHeader | None = None
        """The header of the last frame found."""
        self.why = ""
        """The reason why the frame at `chain` is not whole, set when a call finds no frame before `until`."""

    def frames(self) -> list[Frame]:
        """The next whole frames, about one chunk; empty at `until` and where no whole frame follows."""
        frames = self._read(CHUNK_BYTES)
        if not frames and not self.why and self.chain.position < self._until:
            header = self._next_header(self._disk.read(self.fd, FRAME_HEADER_BYTES, self._offset()))
            if header is not None:
                frames = self._read(FRAME_HEADER_BYTES + header.body_length)  # one frame larger than a chunk
            if not frames:
                self.why = self.why or "the frame is cut off"
        return frames

    def _offset(self) -> int:
        return self._segment.offset_of(self.chain.position)

    def _read(self, size: int) -> list[Frame]:
        """The whole frames in the next `size` bytes."""
        size = min(size, self._until - self.chain.position)
        chunk = self._disk.read(self.fd, size, self._offset()) if size > 0 and not self.why else b""
        frames: list[Frame] = []
        begin = 0
        while begin < len(chunk):
            body_at = begin + FRAME_HEADER_BYTES
            header_bytes = chunk[begin:body_at]
            if len(header_bytes) < FRAME_HEADER_BYTES and frames:
                break
            header = self._next_header(header_bytes)
            if header is None:
                break
            end = body_at + header.body_length
            if end > len(chunk):
                break
            if crc32c(chunk[body_at:end]) != header.body_crc:
                self.why = "the frame's checksum does not match"
                break
            frames.append(Frame(header.position, chunk[begin:end]))
            self.chain = after(header.position, header.sequence, header_bytes, header.body_length)
            self.last = header
            begin = end
        return frames

    def _next_header(self, header_bytes: bytes) -> FrameHeader | None:
        """The header of the next frame if these bytes are that; otherwise None, with the reason in `why`."""
        header = self._codec.parse_header(header_bytes)
        if header is None:
            self.why = "no frame header"
        elif not follows(self.chain, header):
            self.why = "not the frame that follows the one before"
        elif header.position + FRAME_HEADER_BYTES + header.body_length > self._until:
            self.why = "the frame is cut off"
        else:
            return header
        return None


def is_zero(disk: Disk, fd: int, offset: int) -> bool:
    """Whether a file holds only zeros from `offset` on."""
    while chunk := disk.read(fd, CHUNK_BYTES, offset):
        if chunk.count(0) != len(chunk):
            return False
        offset += len(chunk)
    return True


def durable_witness(disk: Disk, fd: int, segment: Segment, codec: FrameCodec, offset: int) -> Position:
    """The highest position that any frame header from `offset` on calls durable; 0 if there is none."""
    durable = Position(0)
    while len(chunk := disk.read(fd, CHUNK_BYTES, offset)) >= FRAME_HEADER_BYTES:
        found = chunk.find(MAGIC)
        while found >= 0:
            header = codec.parse_header(chunk[found : found + FRAME_HEADER_BYTES])
            if header is not None and header.position == segment.position_at(offset + found):
                durable = max(durable, header.durable)
            found = chunk.find(MAGIC, found + 1)
        offset += len(chunk) - FRAME_HEADER_BYTES + 1  # a header may span two chunks
    return durable
