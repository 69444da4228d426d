"""Bounds on a peer's frames (AMQP 1.0 §2.3, §2.7).

Proton makes objects of a frame's content and keeps some of them for as long as the connection lasts: an
attach of 40 bytes leaves a link of several KiB, and a map of a million nulls leaves a node for each. So these
bounds are checked before proton sees a frame.

*Always* (`oversized`): a performative is small. Only the payload of a transfer may fill a frame.

*Before a token* (`Allowance`): a client without credentials needs an open, a session, a pair of links and one
or two requests. It may send several times the bytes, frames, values, sessions and links that these take. The
bounds apply to everything since the client connected, or since its last token became invalid.
"""

from __future__ import annotations

import struct

from protocol.codec import DecodeError
from protocol.events import ErrorCondition
from protocol.values import TooManyValues, count_values, skip

RESOURCE_LIMIT = "amqp:resource-limit-exceeded"
DECODE_ERROR = "amqp:decode-error"

BYTES_BEFORE_TOKEN = 64 * 1024
"""The most bytes before a token. A token has at most 8 KiB, and the official clients need some 2 KiB more."""
FRAMES_BEFORE_TOKEN = 256
VALUES_BEFORE_TOKEN = 4_096
"""The most values in performatives. The official clients need some 200. Proton makes a node of 50 to 100
bytes for each."""
SESSIONS_BEFORE_TOKEN = 16
"""The most sessions, including those that have ended."""
LINKS_BEFORE_TOKEN = 32
"""The most links, including those that are detached. The Go client attaches a pair each time it tries a
token."""

TRANSFER_HEAD_BYTES_MAX = 1024
"""The largest transfer, without its payload. A delivery-tag has at most 32 bytes, and the only delivery state
that senders use names a transaction."""
PERFORMATIVE_BYTES_MAX = 16 * 1024
"""The largest open, begin, attach, flow, detach, end or close."""
DISPOSITION_BYTES_MAX = 256 * 1024
"""The largest disposition, which may carry properties to modify. It is more than a message may have, so that
too many properties fail the settlement and not the connection."""
VALUES_MAX = 2_048
"""The most values in an open, attach or disposition. Link properties, filters and states are kept for as long
as their link or delivery."""
SMALL_FRAME_BYTES = VALUES_MAX
"""Frames of at most this size are not checked: they cannot exceed any of these bounds by much."""

OPEN, BEGIN, ATTACH, FLOW, TRANSFER, DISPOSITION = range(0x10, 0x16)
SPELLED = -1
"""The code for a performative whose descriptor has an unusual encoding. The bounds of every kind apply to
it."""

_U32 = struct.Struct(">I")
_HEADER_BYTES = 8
_EMPTY_FRAME = b"\0\0\0\x08\x02\0\0\0"


def performative_of(frame: bytes) -> tuple[int | None, int]:
    """The performative's code (None if the frame has none) and the offset of its list. `frame` may be just
    the beginning."""
    body = 4 * frame[4]
    if len(frame) <= body:
        return None, body
    if frame[body : body + 2] == b"\x00\x53":
        return frame[body + 2], body + 3
    if frame[body : body + 9] == b"\x00\x80\0\0\0\0\0\0\0":
        return frame[body + 9], body + 10
    return SPELLED, body


def oversized(frame: bytes, frame_bytes: int) -> ErrorCondition | None:
    """The error for a frame whose performative is too large, else None. `frame` is the beginning of the
    frame, `frame_bytes` its full size."""
    try:
        code, value = performative_of(frame)
        if code == TRANSFER:
            size, bound, name = skip(frame, value) - value, TRANSFER_HEAD_BYTES_MAX, "transfer"
        else:
            size, name = frame_bytes, "disposition" if code == DISPOSITION else "performative"
            bound = DISPOSITION_BYTES_MAX if code == DISPOSITION else PERFORMATIVE_BYTES_MAX
        if size > bound:
            return ErrorCondition(
                RESOURCE_LIMIT,
                f"A {name} may have {bound} bytes, not counting a transfer's payload; this one has {size}.",
            )
        if code in (OPEN, ATTACH, DISPOSITION, SPELLED) and len(frame) == frame_bytes:
            count_values(frame, value, frame_bytes, VALUES_MAX)
    except TooManyValues:
        return ErrorCondition(
            RESOURCE_LIMIT, f"A performative may have {VALUES_MAX} values; this one has more."
        )
    except (DecodeError, IndexError, struct.error):
        pass  # proton refuses malformed frames with an error of its own
    return None


class Allowance:
    """What one connection may still send before it presents a token. Passes on whole frames only, so that
    proton keeps no parts of frames."""

    def __init__(self, rest: bytes = b"", missing: int = _HEADER_BYTES) -> None:
        """`rest`: the beginning of an incomplete frame. The first `missing` bytes belong to a frame that
        began earlier, or to the protocol header."""
        self._missing = missing
        self.rest = rest
        """The beginning of a frame that has not arrived completely."""
        self._bytes = BYTES_BEFORE_TOKEN
        self._frames, self._values = FRAMES_BEFORE_TOKEN, VALUES_BEFORE_TOKEN
        self._sessions, self._links = SESSIONS_BEFORE_TOKEN, LINKS_BEFORE_TOKEN
        self.is_lifted = False

    def lift(self) -> None:
        """End the restriction: the next `take` passes on everything, starting with what was held back."""
        self.is_lifted = True

    def take(self, data: bytes) -> tuple[bytes, ErrorCondition | None]:
        """Take bytes from the peer; gives the whole frames to pass on, and the error if the next frame is
        refused."""
        if self.is_lifted:
            data, self.rest = self.rest + data, b""
            return data, None
        if self._missing:
            begun, data = data[: self._missing], data[self._missing :]
            self._missing -= len(begun)
            data, refused = self.take(data) if data else (b"", None)
            return begun + data, refused
        if data == _EMPTY_FRAME and not self.rest:
            # An empty frame costs nothing, and a client may wait for its token as long as the settings
            # allow.
            return data, None
        self._bytes -= len(data)
        data = self.rest + data if self.rest else data
        offset, size = 0, len(data)
        while size - offset >= _HEADER_BYTES:
            frame_bytes = _U32.unpack_from(data, offset)[0]
            if frame_bytes < _HEADER_BYTES:
                self.rest = b""
                return data, None  # this is not AMQP; proton refuses it
            end = offset + frame_bytes
            missing = max(end - size, 0)
            refused = self._refusal(data[offset:end], frame_bytes) if not missing else None
            if self._bytes < missing:
                refused = _beyond(f"{BYTES_BEFORE_TOKEN} bytes")
            if refused is not None:
                self.rest = b""
                return data[:offset], refused
            if missing:
                break
            offset = end
        self.rest = data[offset:]
        return data[:offset], None

    def _refusal(self, frame: bytes, frame_bytes: int) -> ErrorCondition | None:
        self._frames -= 1
        if self._frames < 0:
            return _beyond(f"{FRAMES_BEFORE_TOKEN} frames")
        try:
            code, value = performative_of(frame)
            if code is None:
                return None  # an empty frame
            if code in (BEGIN, SPELLED):
                self._sessions -= 1
            if code in (ATTACH, SPELLED):
                self._links -= 1
            if self._sessions < 0:
                return _beyond(f"{SESSIONS_BEFORE_TOKEN} sessions")
            if self._links < 0:
                return _beyond(f"{LINKS_BEFORE_TOKEN} links")
            end = min(skip(frame, value), frame_bytes) if code == TRANSFER else frame_bytes
            self._values -= count_values(frame, value, end, self._values)
        except TooManyValues:
            return _beyond(f"{VALUES_BEFORE_TOKEN} values")
        except (DecodeError, IndexError, struct.error):
            pass  # proton refuses malformed frames with an error of its own
        return None


def _beyond(allowed: str) -> ErrorCondition:
    return ErrorCondition(
        RESOURCE_LIMIT,
        f"A connection may send {allowed} before it has put a valid token to '$cbs', or logged in.",
    )
