"""Takes the payloads of large transfers out of the frames, so that they do not go through proton.

Proton copies a payload three times before we get it: into its input buffer, into the buffer of the delivery,
and out of it. It only passes payloads on, without looking at them. So of a large transfer's frame, it gets
only the performative (§2.7.5), followed by a *reference* of 20 bytes in place of the payload: a mark, and a
number. When the delivery is read, each reference in it is replaced by its payload (`resolved`).

    from the peer   size  performative  payload of 16 KiB
    to proton       size  performative  mark  number

The mark consists of 16 random bytes that never leave the process, so a peer cannot make a reference itself;
a frame's size and performative stay what they were. Everything that depends on the size of a message is
decided where its payload is known (`deliveries.py`).

A reference is valid from `next` until `clear`: the engine reads all deliveries of a push before the next one.
The bytes of a large frame that has not arrived completely are kept here, as proton keeps those of others; the
engine's bound is the size of a frame. `native/large_payloads.c` handles whole frames, many in one call.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Sequence

from protocol._runs import ffi, lib

FRAME_BYTES_MIN = int(lib.LARGE_FRAME_BYTES_MIN)
"""Smaller frames go to proton as they are."""
PAYLOADS_MAX = 256
"""How many payloads are taken out at once."""
JOINED_BYTES_MAX = 8 * 1024
"""Pieces of an incomplete payload are joined up to this size: a peer may send its bytes one by one, and each
piece takes 50 bytes besides its own."""
_HEADS_BYTES = 32 * 1024
_HEAD_BYTES_MAX = 1024
"""At most this much of a large frame is kept until it is known where the payload begins.
`native/large_payloads.c` has the same bound."""
_HEADER_BYTES = 8
_MARK_BYTES = 16
_REFERENCE_BYTES = _MARK_BYTES + 4
_EVERYTHING = 1 << 62
_EMPTY_FRAME = b"\0\0\0\x08\x02\0\0\0"
_U32 = struct.Struct(">I")

_skip, _payload, _take = lib.large_skip, lib.large_payload, lib.large_take
_heads = bytearray(_HEADS_BYTES)
_heads_pointer = ffi.from_buffer(_heads)
_heads_bytes, _count = ffi.new("size_t *"), ffi.new("size_t *")
_places = ffi.new("payload_t[]", PAYLOADS_MAX)

Push = tuple[bytes | bytearray, int, int, int]
"""A buffer, the part of it to push, and how many bytes of the stream are used up by that."""


class LargeInput:
    """The large payloads on one connection."""

    def __init__(self, frame_bytes_max: int) -> None:
        """Larger frames than `frame_bytes_max` go to proton as they are, which refuses them."""
        self._frame_bytes_max = frame_bytes_max
        self._mark = os.urandom(_MARK_BYTES)
        self._payloads: list[bytes] = []
        """By the numbers in their references."""
        self._passing = _HEADER_BYTES
        """How many bytes pass as they are: the rest of a frame; at first, the protocol header."""
        self._head = b""
        """The beginning of a frame, kept until it is known what to do with it. While a payload is incomplete,
        the frame up to the payload."""
        self._pieces: list[bytes] = []
        self._missing = 0
        """The pieces of a large payload whose end has not arrived, and how many bytes are missing."""

    def next(self, data: bytes, begin: int, most: int) -> Push:
        """The next bytes of the stream to push, not many more than `most`. `data` has the stream from `begin`
        on. The buffer is valid until the next call."""
        size = len(data)
        if self._missing:
            return self._continue_payload(data, begin)
        if self._head:
            return self._begin_frame(data, begin)
        if self._passing:
            end = min(begin + min(self._passing, most), size)
            self._passing -= end - begin
            return data, begin, end, end
        end = _skip(data, begin, size, begin + most)
        if end == begin:
            return self._take_large(data, begin)
        if end > size:
            self._passing, end = end - size, size
        return data, begin, end, end

    def _take_large(self, data: bytes, begin: int) -> Push:
        """Take the payloads out of large transfers that are complete; if there are none, find out what
        begins here."""
        behind = _take(
            data, begin, len(data), self._frame_bytes_max, self._mark, len(self._payloads), _heads_pointer,
            _HEADS_BYTES, _heads_bytes, _places, PAYLOADS_MAX, _count
        )  # fmt: skip
        count = _count[0]
        if not count:
            return self._begin_frame(data, begin)
        self._payloads += [data[place.begin : place.end] for place in _places[0:count]]
        return _heads, 0, _heads_bytes[0], behind

    def _begin_frame(self, data: bytes, begin: int) -> Push:
        """Keep the beginning of a frame until it is known what to do with the frame."""
        begin = self._keep(data, begin, _HEADER_BYTES)
        if len(self._head) < _HEADER_BYTES:
            return _wait(begin)
        frame_bytes = _U32.unpack_from(self._head)[0]
        payload = 0
        if FRAME_BYTES_MIN <= frame_bytes <= self._frame_bytes_max:
            begin = self._keep(data, begin, min(frame_bytes, _HEAD_BYTES_MAX))
            payload = _payload(self._head, len(self._head), frame_bytes)
            if payload > len(self._head):
                return _wait(begin)
        head, self._head = self._head, b""
        if not payload:
            self._passing = frame_bytes - len(head) if frame_bytes >= _HEADER_BYTES else _EVERYTHING
            return head, 0, len(head), begin
        self._head, self._pieces = head[:payload], [head[payload:]]
        self._missing = frame_bytes - len(head)
        return _wait(begin)

    def _keep(self, data: bytes, begin: int, head_bytes: int) -> int:
        """Keep bytes until there are `head_bytes` of the frame. Returns the offset of the bytes that
        follow."""
        end = min(begin + max(head_bytes - len(self._head), 0), len(data))
        self._head += data[begin:end]
        return end

    def _continue_payload(self, data: bytes, begin: int) -> Push:
        end = min(begin + self._missing, len(data))
        piece = data[begin:end]
        if self._pieces and len(self._pieces[-1]) + len(piece) <= JOINED_BYTES_MAX:
            self._pieces[-1] += piece
        else:
            self._pieces.append(piece)
        self._missing -= len(piece)
        if self._missing:
            return _wait(end)
        head, self._head = self._head, b""
        reference = self._mark + _U32.pack(len(self._payloads))
        self._payloads.append(b"".join(self._pieces))
        self._pieces = []
        frame = b"".join((_U32.pack(len(head) + len(reference)), head[4:], reference))
        return frame, 0, len(frame), end

    @property
    def is_between_frames(self) -> bool:
        """Whether the next byte begins a frame."""
        return not (self._passing or self._head or self._missing)

    @property
    def has_payloads(self) -> bool:
        """Whether payloads were taken out since the last `clear`."""
        return bool(self._payloads)

    def clear(self) -> None:
        """Forget the payloads: everything that was pushed has been read."""
        if self._payloads:
            self._payloads = []

    def resolved(self, received: Sequence[bytes]) -> list[bytes]:
        """What proton has received, with the payloads in place of their references."""
        mark, payloads = self._mark, self._payloads
        if not payloads:
            return list(received)
        return [
            payloads[_U32.unpack_from(each, _MARK_BYTES)[0]]
            if len(each) == _REFERENCE_BYTES and each.startswith(mark)
            else b"".join(self._parts(each))
            for each in received
        ]

    def _parts(self, received: bytes) -> Iterator[bytes]:
        """The parts of a message whose frames were large, small, or both."""
        begin = 0
        while (place := received.find(self._mark, begin)) >= 0:
            yield received[begin:place]
            begin = place + _REFERENCE_BYTES
            yield self._payloads[_U32.unpack_from(received, place + _MARK_BYTES)[0]]
        yield received[begin:] if begin else received


def _wait(begin: int) -> Push:
    """Nothing to push yet. The empty frame (§2.3) tells proton that the peer is not idle; proton has had
    whole frames so far."""
    return _EMPTY_FRAME, 0, len(_EMPTY_FRAME), begin
