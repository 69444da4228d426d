"""One frame, byte by byte: a commit as stored in a segment. Pure; knows nothing about files.

A frame is a header of 64 bytes and the records of one commit. All numbers are little endian.

    offset  size  field
         0     4  magic "PbF1"
         4     4  header CRC-32C: of the log's salt (16 bytes), then of the bytes 8 … 63
         8     4  body CRC-32C: of the records
        12     4  body length in bytes
        16     8  position: where in the log this frame stands
        24     8  sequence: the number of the frame, from 0, without a gap
        32     8  durable: the log was known to be on stable storage up to here when this frame was written
        40     4  epoch of the owner that wrote it
        44     2  partition
        46     2  zero
        48    16  digest of the frame before: BLAKE2b-128 of its 64 header bytes; zeros for the first frame
        64     …  records, one after the other:

         0     4  body length in bytes
         4     1  kind
         5     1  version
         6     2  zero
         8     …  body

The header has its own CRC, so its length is reliable and the next frame can be found even if the body is
damaged. The CRC covers a salt that never leaves the log's files, so no content of a message can pass for a
frame when the remains of a torn write are searched for frames (`scan.py`). The digest covers the header,
which holds the body's CRC, so each frame proves everything before it. `durable` distinguishes a torn tail
from damage: a crash cannot have torn anything that a whole frame calls durable.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import reduce
from hashlib import blake2b
from typing import NamedTuple

import google_crc32c

from storage.log import FRAME_HEADER_BYTES, Position

MAGIC = b"PbF1"
DIGEST_BYTES = 16
NO_DIGEST = bytes(DIGEST_BYTES)
BODY_BYTES_MAX = 1 << 30
"""No commit is larger; a greater length means damage."""

_CHECKED_BYTES = 8
"""The size of the magic and the header CRC, which the header CRC does not cover."""
_HEAD = struct.Struct("<4sI")
_TAIL = struct.Struct("<IIQQQIHH16s")
assert _HEAD.size == _CHECKED_BYTES and _CHECKED_BYTES + _TAIL.size == FRAME_HEADER_BYTES

crc32c = google_crc32c.value
extend_crc32c = google_crc32c.extend


class Chain(NamedTuple):
    """A place between two frames, and what the next frame must carry."""

    position: Position
    sequence: int
    before: bytes | None
    """The digest of the frame before; None if unknown, and then the next frame's digest and `sequence` are
    accepted."""


CHAIN_START = Chain(Position(0), 0, NO_DIGEST)
"""The place of a log's first frame."""


class FrameHeader(NamedTuple):
    """The content of a frame's header. Its own CRC has been checked, the body's has not."""

    body_crc: int
    body_length: int
    position: Position
    sequence: int
    durable: Position
    epoch: int
    partition: int
    before: bytes


class FrameCodec:
    """Encodes and decodes the frames of one log, which carry its salt and its partition."""

    __slots__ = ("_seed", "partition")

    def __init__(self, salt: bytes, partition: int) -> None:
        self._seed: int = crc32c(salt)
        self.partition = partition

    def header(self, body: Sequence[bytes], chain: Chain, durable: Position, epoch: int) -> bytes:
        """The 64 header bytes for a frame at `chain` with this body, given in pieces."""
        length = sum(map(len, body))
        assert chain.before is not None and length <= BODY_BYTES_MAX
        tail = _TAIL.pack(
            reduce(extend_crc32c, body, 0),
            length,
            chain.position,
            chain.sequence,
            durable,
            epoch,
            self.partition,
            0,
            chain.before,
        )
        return _HEAD.pack(MAGIC, extend_crc32c(self._seed, tail)) + tail

    def parse_header(self, header: bytes) -> FrameHeader | None:
        """Decode 64 bytes as a frame header of this log; None if they are not one."""
        if len(header) != FRAME_HEADER_BYTES or not header.startswith(MAGIC):
            return None
        tail = header[_CHECKED_BYTES:]
        if _HEAD.unpack_from(header)[1] != extend_crc32c(self._seed, tail):
            return None
        body_crc, body_length, position, sequence, durable, epoch, partition, _, before = _TAIL.unpack(tail)
        if partition != self.partition or body_length > BODY_BYTES_MAX:
            return None
        return FrameHeader(body_crc, body_length, position, sequence, durable, epoch, partition, before)


def digest_of(header: bytes) -> bytes:
    """The digest that the frame after this header's frame must carry."""
    return blake2b(header, digest_size=DIGEST_BYTES).digest()


def follows(chain: Chain, header: FrameHeader) -> bool:
    """Whether a frame with this header may stand at `chain`."""
    if header.position != chain.position:
        return False
    return chain.before is None or (header.before == chain.before and header.sequence == chain.sequence)


def after(position: Position, sequence: int, header: bytes, body_length: int) -> Chain:
    """The place behind a frame, given where it stands, its sequence, its header and its body length."""
    return Chain(Position(position + FRAME_HEADER_BYTES + body_length), sequence + 1, digest_of(header))
