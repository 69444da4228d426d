"""Sends large payloads past proton: it gets a reference to each, and the payload is put into what it writes.

Proton copies what it sends four times: into the buffer of the delivery, into two buffers of frames, and out.
So of a large message, it gets only the front (what the broker puts before the stored message), followed by a
*reference* of 20 bytes: a mark, and a number. It decides when the transfer goes (§2.5.6, §2.6.7) and writes
its frame. `resolved` finds the references at the ends of frames, sets the sizes of these frames right, and
gives the pieces for the socket, with the payloads as they are in memory.

    from proton     size  performative  front  mark  number
    to the socket   size  performative  front              | payload of 16 KiB

The mark consists of 16 random bytes that never leave the process, so no message contains it. Only messages
that fit into one frame of the peer go this way: proton divides the others into frames, and counts them.
Payloads of deliveries that proton has not written yet count as unsent bytes of their session.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Sequence

from protocol._runs import ffi, lib
from protocol.links import Link

PAYLOAD_BYTES_MIN = 16 * 1024
"""Smaller payloads are copied for less than it costs to send them by themselves. Proton takes 5 µs for
16 KiB, but 250 µs for 200 KiB."""
TRANSFER_BYTES_MAX = 128
"""The size of the header and the performative of a transfer that we write, with a tag of 32 bytes and all its
nulls."""
_MARK_BYTES = 16
_REFERENCE_BYTES = _MARK_BYTES + 4
_PLACES_MAX = 1024
_U32 = struct.Struct(">I")

_PLACE = struct.Struct("@NNI0N")
"""`reference_t` of `native/large_payloads.h`."""
assert _PLACE.size == ffi.sizeof("reference_t")

_find = lib.large_find
_places, _next = ffi.new("reference_t[]", _PLACES_MAX), ffi.new("size_t *")

Kept = tuple[memoryview, Link]
Piece = bytes | memoryview


class LargeOutput:
    """The large payloads that one connection sends."""

    def __init__(self) -> None:
        self._mark = os.urandom(_MARK_BYTES)
        self._kept: dict[int, Kept] = {}
        """By the numbers in their references: the payload, and the link that it is sent on."""
        self._number = 0
        self.bytes = 0
        """The size of all payloads that are kept."""

    def rests(
        self, link: Link, fronts: Sequence[bytes], rests: Sequence[bytes], skipped: int, frame_bytes_max: int
    ) -> list[bytes]:
        """What to pass to proton behind each of the fronts, for messages that consist of a front and a rest
        without its first `skipped` bytes: a reference, or the rest itself."""
        room = frame_bytes_max - TRANSFER_BYTES_MAX
        kept, mark, number, kept_bytes = self._kept, self._mark, self._number, 0
        passed: list[bytes] = []
        for front, rest in zip(fronts, rests, strict=True):
            size = len(rest)
            if size < PAYLOAD_BYTES_MIN or len(front) + size > room:
                passed.append(rest[skipped:])
                continue
            kept[number] = memoryview(rest)[skipped:], link
            kept_bytes += size - skipped
            passed.append(mark + _U32.pack(number))
            number = (number + 1) & 0xFFFF_FFFF
        self._number = number
        self.bytes += kept_bytes
        link.session.kept_bytes += kept_bytes
        return passed

    def __bool__(self) -> bool:
        """Whether there are payloads that proton has not written yet."""
        return bool(self._kept)

    def resolved(self, chunks: Sequence[Piece]) -> list[Piece]:
        """What proton has written, whole frames, with payloads in place of their references."""
        written = bytearray().join(chunks)
        view, size = memoryview(written), len(written)
        pieces: list[Piece] = []
        begin, offset = 0, 8 if written.startswith(b"AMQP") else 0
        while offset < size:
            count = _find(ffi.from_buffer(written), offset, size, self._mark, _places, _PLACES_MAX, _next)
            assert count or _next[0] == size, "proton writes whole frames"
            for frame, reference, number in _PLACE.iter_unpack(ffi.buffer(_places, count * _PLACE.size)):
                payload = self._take(number)
                _U32.pack_into(written, frame, reference - frame + len(payload))
                pieces += (view[begin:reference], payload)
                begin = reference + _REFERENCE_BYTES
            offset = _next[0]
        if begin < size:
            pieces.append(view[begin:])
        return pieces

    def _take(self, number: int) -> memoryview:
        payload, link = self._kept.pop(number)
        self.bytes -= len(payload)
        link.session.kept_bytes -= len(payload)
        return payload

    def forget(self, is_gone: Callable[[Link], bool]) -> None:
        """Forget the payloads of links that are gone: proton has dropped their deliveries."""
        for number in [number for number, (_, link) in self._kept.items() if is_gone(link)]:
            self._take(number)
