"""Streams with large frames, and what becomes of them on the way to proton."""

from __future__ import annotations

import struct
from random import Random

from protocol.large_input import LargeInput

EMPTY_FRAME = b"\0\0\0\x08\x02\0\0\0"


def enlarged(data: bytes, random: Random) -> bytes:
    """A stream in which some frames have a longer payload."""
    offset = 8 if data.startswith(b"AMQP") else 0
    found = [data[:offset]]
    while (size := int.from_bytes(data[offset : offset + 4], "big")) >= 8 and offset + size <= len(data):
        frame = data[offset : offset + size]
        offset += size
        if random.random() < 0.3:
            frame += bytes([random.randrange(256)]) * random.choice((2_000, 5_000, 9_000))
            frame = struct.pack(">I", len(frame)) + frame[4:]
        found.append(frame)
    return b"".join((*found, data[offset:]))


def restored(large: LargeInput, stream: bytes) -> bytes:
    """A stream as it was pushed, up to its last whole frame, with the payloads in their places and without
    the empty frames."""
    offset = 8 if stream.startswith(b"AMQP") else 0
    found = [stream[:offset]]
    while (size := int.from_bytes(stream[offset : offset + 4], "big")) >= 8 and offset + size <= len(stream):
        frame = stream[offset : offset + size]
        offset += size
        (whole,) = large.resolved([frame])
        if whole != frame:
            whole = struct.pack(">I", len(whole)) + whole[4:]
        found.append(b"" if frame == EMPTY_FRAME else whole)
    return b"".join(found)


def without_empty(stream: bytes) -> bytes:
    """A stream up to its last whole frame, without the empty frames."""
    return restored(LargeInput(0), stream)


def pushed(large: LargeInput, data: bytes, most: int) -> bytes:
    """What is pushed for a piece of a stream."""
    found, begin = b"", 0
    while begin < len(data):
        buffer, start, stop, behind = large.next(data, begin, most)
        assert behind > begin and stop - start <= max(most + 4_096, 32 * 1024)
        found, begin = found + bytes(buffer[start:stop]), behind
    return found
