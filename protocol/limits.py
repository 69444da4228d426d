"""Bounds on a peer's frames: some that always hold, and narrower ones until it presents credentials (AMQP 1.0
§2.3, §2.7).

Proton makes objects of what a frame holds, and keeps some of them as long as the connection lasts: an attach
of 40 bytes leaves a link of several KiB, and a map of a million nulls a node for each. So these bounds are
checked before proton sees a frame.

*Always* (`oversized`): a performative is small. Only the payload of a transfer may fill a frame.

*Before a token* (`Allowance`): a client without credentials needs an open, a session, a pair of links and a
request or two. It may send several times as much, in bytes, frames, values, sessions and links. The bounds
are on the total since it connected, or lost its last token.
"""

from __future__ import annotations

import struct

from protocol.codec import DecodeError
from protocol.events import ErrorCondition
from protocol.values import TooManyValues, count_values, skip

RESOURCE_LIMIT = "amqp:resource-limit-exceeded"

BYTES_BEFORE_TOKEN = 64 * 1024
"""All that a connection may send before a token: a token has 8 KiB at most, and the official clients need
some 2 KiB besides."""
FRAMES_BEFORE_TOKEN = 256
VALUES_BEFORE_TOKEN = 4_096
"""In performatives; the official clients need some 200. Proton makes a node of 50 to 100 bytes of each."""
SESSIONS_BEFORE_TOKEN = 16
LINKS_BEFORE_TOKEN = 32
"""Sessions begun and links attached, including those that have ended. The Go client attaches a pair each time
it tries a token."""

TRANSFER_HEAD_BYTES_MAX = 1024
"""Of a transfer without its payload. A delivery-tag has at most 32 bytes, and so has the only delivery state
that senders send, the id of a transaction."""
PERFORMATIVE_BYTES_MAX = 16 * 1024
"""Of an open, begin, attach, flow, detach, end or close."""
DISPOSITION_BYTES_MAX = 256 * 1024
"""Of a disposition, which may carry properties to modify: more than a message may have, so that too many
properties fail the settlement and not the connection."""
VALUES_MAX = 2_048
"""In an open, attach or disposition: link properties, filters and states are kept for as long as their link
or delivery."""
SMALL_FRAME_BYTES = VALUES_MAX
"""A frame of at most this size cannot break any of these bounds by much, so it is not checked."""

OPEN, BEGIN, ATTACH, FLOW, TRANSFER, DISPOSITION = range(0x10, 0x16)
SPELLED = -1
"""The code given for a performative whose descriptor has an unusual encoding. It is held to the bounds of
every kind."""

_U32 = struct.Struct(">I")
_HEADER_BYTES = 8
_SIGN_OF_LIFE = b"\0\0\0\x08\x02\0\0\0"


def performative_of(frame: bytes) -> tuple[int | None, int]:
    """The performative's code and the offset of its list; None as code for a frame without one. The beginning
    of the frame is enough."""
    body = 4 * frame[4]
    if len(frame) <= body:
        return None, body
    if frame[body : body + 2] == b"\x00\x53":
        return frame[body + 2], body + 3
    if frame[body : body + 9] == b"\x00\x80\0\0\0\0\0\0\0":
        return frame[body + 9], body + 10
    return SPELLED, body


def oversized(frame: bytes, frame_bytes: int) -> ErrorCondition | None:
    """Why a frame is refused for its performative's size; None if it is not. `frame` is its beginning,
    `frame_bytes` its full size."""
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
        pass  # proton refuses what cannot be read, with an error of its own
    return None


class Allowance:
    """What one connection may still send before it puts a token. Hands on whole frames only, so that proton
    keeps no parts."""

    def __init__(self, rest: bytes = b"", missing: int = _HEADER_BYTES) -> None:
        """`rest` as below; `missing` bytes belong to a frame that was begun before, at first to the protocol
        header."""
        self._missing = missing
        self.rest = rest
        """The begin of a frame whose end has not come."""
        self._bytes = BYTES_BEFORE_TOKEN
        self._frames, self._values = FRAMES_BEFORE_TOKEN, VALUES_BEFORE_TOKEN
        self._sessions, self._links = SESSIONS_BEFORE_TOKEN, LINKS_BEFORE_TOKEN
        self.is_lifted = False

    def lift(self) -> None:
        """End the restriction: the next `take` hands on everything, beginning with what was held back."""
        self.is_lifted = True

    def take(self, data: bytes) -> tuple[bytes, ErrorCondition | None]:
        """Take bytes from the peer; gives the whole frames to hand on, and why the next one is refused, if it
        is."""
        if self.is_lifted:
            data, self.rest = self.rest + data, b""
            return data, None
        if self._missing:
            begun, data = data[: self._missing], data[self._missing :]
            self._missing -= len(begun)
            data, refused = self.take(data) if data else (b"", None)
            return begun + data, refused
        if data == _SIGN_OF_LIFE and not self.rest:
            return (
                data,
                None,
                # an empty frame costs nothing, and a client may wait for its token as long as the settings
                # permit
            )
        self._bytes -= len(data)
        data = self.rest + data if self.rest else data
        offset, size = 0, len(data)
        while size - offset >= _HEADER_BYTES:
            frame_bytes = _U32.unpack_from(data, offset)[0]
            if frame_bytes < _HEADER_BYTES:
                self.rest = b""
                return data, None  # no AMQP: proton refuses it
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
                return None  # a sign of life
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
            pass  # proton refuses what cannot be read, with an error of its own
        return None


def _beyond(allowed: str) -> ErrorCondition:
    return ErrorCondition(
        RESOURCE_LIMIT,
        f"A connection may send {allowed} before it has put a valid token to '$cbs', or logged in.",
    )
