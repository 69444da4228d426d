"""Reads and rewrites AMQP frames (§2.3) where proton drops or omits something that matters.

    size      4 bytes   of the whole frame
    doff      1 byte    where the body begins, in units of 4 bytes
    type      1 byte    0 for AMQP
    channel   2 bytes
    body                a performative, then the payload of a transfer

*In*: proton drops a transfer's message-format, which marks a Service Bus batch. `BatchFrameFinder` cuts the
stream so that the frame of each such transfer ends a piece of its own. It follows frames from header to
header, so the same bytes inside a payload mean nothing. It reads a performative only if the format's bytes
occur near the beginning of the frame. `native/frames.c` passes over all other frames.

*Out*: proton leaves trailing nulls off performatives (§1.4), and azure-servicebus up to 7.14.3 fails on the
missing fields. `pad_performatives` adds them again, for the connections that need it.

Proton refuses frames that are malformed or too large, and closes the connection with the error of the
standard. Here such frames only end the search.
"""

from __future__ import annotations

import struct

from protocol._runs import lib
from protocol.codec import DecodeError, decode
from protocol.events import ErrorCondition
from protocol.limits import DISPOSITION_BYTES_MAX, SMALL_FRAME_BYTES, oversized
from protocol.sections import elements
from protocol.values import skip

BATCH_MESSAGE_FORMAT = b"\x80\x01\x37\x00"
"""The message-format of a batch, 0x80013700, as a transfer carries it (AMQP contract B)."""

_LOOK_BYTES = 128
"""How far from the beginning of a frame the format may be: behind 8 bytes of header, the descriptor, the head
of the list, the handle, the delivery-id and a delivery-tag of at most 32 bytes (§2.8.7), each in its longest
encoding, with some slack."""

_HEAD_BYTES_MAX = 1024 + _LOOK_BYTES
"""The same, behind the longest extended header (§2.3.1)."""

_KEPT_BYTES_MAX = DISPOSITION_BYTES_MAX
"""How many bytes are kept of an incomplete frame that is not a transfer. Larger frames are refused for their
size alone."""

_PLAIN_TRANSFER = b"\x00\x53\x14\xc0"
"""The start of every client's transfers: the performative has at most 255 bytes (list8)."""

_NO_EXTENDED_HEADER = 2  # data offset

SEARCHED_AT_ONCE = 256
"""So many frames that are not passed over are read, and the others later: each makes a piece at most."""

_pass = lib.frames_pass
_U32 = struct.Struct(">I")
_PROTOCOL_HEADER_BYTES = 8


class BatchFrameFinder:
    """Finds the transfers of batch format in one connection's incoming stream, including the protocol
    header."""

    def __init__(self) -> None:
        self._head = b""
        """The beginning of an incomplete frame."""
        self._missing: int | None = None
        """How many bytes of that frame are still to come; None while its size is unknown."""
        self._at_start = True
        self._lost = False
        self._rest = b""
        """Bytes that were not searched for lack of time, for the next `pieces`."""
        self.refusal: ErrorCondition | None = None
        """The error for a frame whose performative is too large. That frame and everything behind it are left
        out of the pieces."""

    @property
    def is_between_frames(self) -> bool:
        """Whether the next byte begins a frame, and the stream has been well-formed."""
        return not (self._head or self._at_start or self._lost or self._rest)

    @property
    def has_more(self) -> bool:
        """Whether some bytes were not searched: call `pieces` again, with new bytes or without."""
        return bool(self._rest)

    def pieces(self, data: bytes) -> list[tuple[bytes, bool]]:
        """The data in order, in pieces. True marks a piece that ends with a transfer of the batch format and
        completes no other frame."""
        if self._rest:
            data, self._rest = self._rest + data, b""
        if self._lost:
            return [(data, False)] if self.refusal is None else []
        found: list[tuple[bytes, bool]] = []
        begin = 0
        if self._head:
            begin, is_batch = self._continue(data)
            if self.refusal is not None:
                return []
            if is_batch:
                found.append((data[:begin], True))
        offset, taken = begin, begin if found else 0
        size, find, left = len(data), data.find, SEARCHED_AT_ONCE
        while size - offset >= 4:
            if not left:
                self._rest = data[offset:]
                return [*found, (data[taken:offset], False)] if taken < offset else found
            left -= 1
            frame_bytes = _U32.unpack_from(data, offset)[0]
            if self._at_start:
                self._at_start = False
                if data.startswith(b"AMQP", offset):
                    frame_bytes = _PROTOCOL_HEADER_BYTES
            else:
                passed = _pass(data, offset, size, SMALL_FRAME_BYTES)
                if passed > offset:
                    offset = passed
                    continue
            if frame_bytes < 8:
                self._lost = True
                break
            end = offset + frame_bytes
            if end > size:
                break
            if frame_bytes > SMALL_FRAME_BYTES and self._refuses(
                data[offset : min(end, offset + _KEPT_BYTES_MAX)], frame_bytes
            ):
                if taken < offset:
                    found.append((data[taken:offset], False))
                return found
            if (
                find(BATCH_MESSAGE_FORMAT, offset, offset + _LOOK_BYTES) >= 0
                or data[offset + 4] != _NO_EXTENDED_HEADER
            ) and _is_batch_transfer(data[offset : min(end, offset + _HEAD_BYTES_MAX)]):
                if taken < offset:
                    found.append((data[taken:offset], False))
                found.append((data[offset:end], True))
                taken = end
            offset = end
        if offset < size and not self._lost:
            self._keep(data, offset, end - size if size - offset >= 4 else None)
        if taken < size:
            found.append((data[taken:] if taken else data, False))
        return found

    def _keep(self, data: bytes, offset: int, missing: int | None) -> None:
        """Keep the beginning of the frame at `offset`, which lacks `missing` bytes."""
        self._head = data[offset : offset + _kept_bytes(data, offset)]
        self._missing = missing

    def _continue(self, data: bytes) -> tuple[int, bool]:
        """How much of the data belongs to the frame that began earlier, and whether it completes a transfer
        of the batch format."""
        head = self._head + data[: max(0, _kept_bytes(self._head, 0) - len(self._head))]
        if self._missing is None:
            if len(head) < 4:
                self._head = head
                return len(data), False
            frame_bytes = _U32.unpack_from(head)[0]
            if self._at_start:
                self._at_start = False
                if head.startswith(b"AMQP"):
                    frame_bytes = _PROTOCOL_HEADER_BYTES
            if frame_bytes < 8:
                self._lost = True
                return len(data), False
            self._missing = frame_bytes - len(self._head)
        if self._missing > len(data):
            self._missing -= len(data)
            self._head = head
            return len(data), False
        rest, known = self._missing, len(self._head) + self._missing
        self._head, self._missing = b"", None
        frame_bytes = _U32.unpack_from(head)[0]
        if (
            frame_bytes > SMALL_FRAME_BYTES
            and not head.startswith(b"AMQP")
            and self._refuses(head[:known], frame_bytes)
        ):
            return 0, False
        return rest, BATCH_MESSAGE_FORMAT in head and _is_batch_transfer(head[: min(known, _HEAD_BYTES_MAX)])

    def _refuses(self, frame: bytes, frame_bytes: int) -> bool:
        """Whether a frame is refused, judging by its beginning. If so, sets `refusal` and ends the search."""
        if frame.startswith(_PLAIN_TRANSFER, 8) and frame[4] == _NO_EXTENDED_HEADER:
            return False
        self.refusal = oversized(frame, frame_bytes)
        self._lost = self.refusal is not None
        return self._lost


def _kept_bytes(data: bytes, offset: int) -> int:
    """How many bytes to keep of the frame at `offset` until the rest of it arrives."""
    return _HEAD_BYTES_MAX if data.startswith(_PLAIN_TRANSFER, offset + 8) else _KEPT_BYTES_MAX


def _is_batch_transfer(frame: bytes) -> bool:
    """Whether a frame, given by its beginning, is a transfer (§2.7.5) of the batch format."""
    try:
        body = 4 * frame[4]
        if frame[5] != 0 or body < 8:
            return False
        if frame[body : body + 3] == b"\x00\x53\x14":
            value = body + 3
        else:
            if frame[body] != 0:
                return False
            descriptor, value = decode(frame, body + 1)
            if descriptor not in (0x14, "amqp:transfer:list"):
                return False
        if frame[value] not in (0xC0, 0xD0):
            return False
        count, place = elements(frame, value)
        if count < 4:
            return False
        for _ in range(3):  # handle, delivery-id, delivery-tag
            place = skip(frame, place)
        return frame[place : place + 5] == b"\x70" + BATCH_MESSAGE_FORMAT
    except (IndexError, struct.error, DecodeError):
        return False


_FIELDS = {0x10: 10, 0x11: 8, 0x12: 14, 0x13: 11, 0x14: 11, 0x15: 6, 0x16: 3, 0x17: 1, 0x18: 1}
"""The number of fields of each performative (§2.7): open, begin, attach, flow, transfer, disposition, detach,
end, close."""


def needs_padding(properties: dict[str, object]) -> bool:
    """Whether the client cannot read performatives without their trailing nulls: azure-servicebus up to
    7.14."""
    if "python" not in str(properties.get("product", "")).casefold():
        return False
    try:
        major, minor = (int(part) for part in str(properties.get("version", "")).split(".")[:2])
    except ValueError:
        return False
    return (major, minor) < (7, 15)


def pad_performatives(outgoing: bytes) -> bytes:
    """The same frames with all fields in each performative: adds the trailing nulls that were left off.

    `outgoing` consists of whole frames as proton writes them (descriptors as smallulong), with or without the
    protocol header. Transfers are padded too, because the client that needs this expects the payload in place
    of a twelfth field. A frame grows by a few bytes, and a full one may then exceed the peer's
    max-frame-size, which that client does not check.
    """
    offset = _PROTOCOL_HEADER_BYTES if outgoing.startswith(b"AMQP") else 0
    padded = [outgoing[:offset]]
    while offset < len(outgoing):
        end = offset + _U32.unpack_from(outgoing, offset)[0]
        padded.append(_pad_frame(outgoing[offset:end]))
        offset = end
    return b"".join(padded)


def _pad_frame(frame: bytes) -> bytes:
    if len(frame) < 12 or frame[8:10] != b"\x00\x53" or frame[10] not in _FIELDS:
        return frame  # an empty frame
    count, first = elements(frame, 11)
    lacking = _FIELDS[frame[10]] - count
    if lacking <= 0:
        return frame
    end = skip(frame, 11)
    fields = frame[first:end] + b"\x40" * lacking
    size = len(fields)
    if size < 255:
        listed = bytes((0xC0, size + 1, count + lacking)) + fields
    else:
        listed = b"\xd0" + _U32.pack(size + 4) + _U32.pack(count + lacking) + fields
    body = frame[8:11] + listed + frame[end:]
    return _U32.pack(8 + len(body)) + frame[4:8] + body
