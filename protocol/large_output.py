"""Sends large payloads past proton: it gets a reference to each, and the payload is put into what it writes.

Proton copies what it sends four times: into the buffer of the delivery, into two buffers of frames, and out.
So of a large message, it gets only the front (what the broker puts before the stored message), followed by a
*reference* of 20 bytes: a mark, and a number. It decides when the transfer goes (§2.5.6, §2.6.7) and writes
its frame. `resolved` finds the references at the ends of frames, sets the sizes of these frames right, and
gives the pieces for the socket, with the payloads as they are in memory.

    from proton     size  performative  front  mark  number
    to the socket   size  performative  front              | payload of 16 KiB

The mark consists of 16 random bytes that never leave the process, so no message contains it.

A message that does not fit into one frame of the peer is *divided*: proton gets its reference once for each
part that fits, and writes each part before it gets the next. So it writes a transfer for each, says in it
whether more follow (§2.6.14), and counts it against the session's window. References of one message are all
alike, and stand for its parts in their order.

    from proton     size  more  front  mark  number | size  more  mark  number | size  last  mark  number
    to the socket   size  more  front  | payload of 64 KiB | size  more | 64 KiB | size  last | the rest

Proton must write each of these parts at once, because it would write two of them into one frame. It does if
our begin and attach are written, if it counts enough credit, and if the window is open for all transfers of
the message. Otherwise, proton gets the message itself, as it does

- if the peer's frames are small: copies of small parts cost less;
- if proton holds something back on any session, because it looks at all of that for each part;
- if the peer drains the link, or a drain is to be answered: what is written early includes our answer, which
  comes after the messages of the link (§2.6.7).

It then divides the message into frames, and keeps what the window holds back.

Payloads of deliveries that proton has not written yet count as unsent bytes of their session.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Collection, Sequence
from typing import Any

from protocol import runs
from protocol._runs import ffi
from protocol._runs import lib as native
from protocol._spans import largest
from protocol.links import Delivery, Link, Session
from protocol.proton_values import lib, written_by
from protocol.runs import TRANSFER_BYTES_MAX

PAYLOAD_BYTES_MIN = 16 * 1024
"""Smaller payloads are copied for less than it costs to send them by themselves. Proton takes 5 µs for
16 KiB, but 250 µs for 200 KiB."""
FRAME_BYTES_UNBOUNDED = 1 << 32
_MARK_BYTES = 16
_REFERENCE_BYTES = _MARK_BYTES + 4
_PLACES_MAX = 1024
_U32 = struct.Struct(">I")
_unsent = lib.pn_session_outgoing_bytes
_SENDING = lib.PN_LOCAL_ACTIVE | lib.PN_REMOTE_ACTIVE

_PLACE = struct.Struct("@NNI0N")
"""`reference_t` of `native/large_payloads.h`."""
assert _PLACE.size == ffi.sizeof("reference_t")

_find, _window, _credit = native.large_find, native.sessions_window, native.sessions_credit
_places, _next = ffi.new("reference_t[]", _PLACES_MAX), ffi.new("size_t *")

Kept = tuple[memoryview, Link, int, int]
Piece = bytes | memoryview


class LargeOutput:
    """The large payloads that one connection sends."""

    def __init__(self, sessions: Collection[Any]) -> None:
        """`sessions` always contains proton's sessions of the connection."""
        self._sessions = sessions
        self._mark = os.urandom(_MARK_BYTES)
        self._kept: dict[int, Kept] = {}
        """By the numbers in their references: what is left of the payload, the link that it is sent on, how
        much of it the next reference stands for, and how much each that follows."""
        self._number = 0
        self._room = 0
        """How many bytes of a message fit into a frame of the peer."""
        self._held_back = 0
        """How many bytes proton still had when it was to write all of them."""
        self._waits = False
        """Whether everything goes through proton until the next output."""
        self.wrote_early = False
        """Whether `taken` is to be called with the next output."""
        self._taken: list[bytes] = []
        self.bytes = 0
        """The size of all payloads that are kept."""
        self.taken_bytes = 0
        """The size of what proton has written early, and `taken` will give."""
        self.is_stuck = False
        """Whether proton has not written a part that it could write. The message cannot be finished, because
        the rest of it would get into the same frame; the connection is to be closed."""

    def send(
        self,
        transport: Any,
        link: Link,
        tags: list[bytes],
        fronts: list[bytes],
        settled: bool,
        rests: list[bytes],
        skipped: int,
    ) -> tuple[list[Delivery], bool]:
        """Like `runs.send`, for messages of which some are large."""
        frame_bytes_max = lib.pn_transport_get_remote_max_frame(transport) or FRAME_BYTES_UNBOUNDED
        self._room = room = frame_bytes_max - TRANSFER_BYTES_MAX
        transfers_max = 0
        if room >= PAYLOAD_BYTES_MIN and largest(fronts) + largest(rests) - skipped > room:
            transfers_max = self._transfers_now(transport, link, len(tags))
        rests, parts = self.rests(link, fronts, rests, skipped, transfers_max)
        if not parts:
            return runs.send(link.pn, tags, fronts, settled, rests, 0)
        deliveries, written, is_complete = runs.send_parts(
            transport, link.pn, tags, fronts, settled, rests, parts
        )
        self._take_early(written)
        self.is_stuck = not is_complete
        return deliveries, True

    def _transfers_now(self, transport: Any, link: Link, messages: int) -> int:
        """How many transfers proton is certain to write on the link at once, for so many messages."""
        pn = link.pn
        if (
            lib.pn_link_state(pn) != _SENDING
            or lib.pn_link_get_drain(pn)
            # Checked before, too: proton forgets a begin if it is to write it before the open.
            or _credit(pn) < messages
            or not self._has_written_all(transport)
            or _credit(pn) < messages
            or lib.pn_link_queued(pn)
        ):
            return 0
        return int(_window(link.session.pn))

    def _has_written_all(self, transport: Any) -> bool:
        """Have proton write what it has; returns whether nothing is left, and more can be written."""
        if self._waits or 0 < self._held_back <= self._in_proton():
            return False  # else it would look at all of that again, and write as little as the last time
        written, is_finished = written_by(transport)
        self._take_early(*written)
        self._held_back, self.wrote_early = self._in_proton(), True
        return not (is_finished or self._held_back)

    def _in_proton(self) -> int:
        """The bytes that proton has not written yet, on all sessions."""
        return sum(map(_unsent, self._sessions))

    def unsent_bytes(self, session: Session) -> int:
        """The bytes of a session that have not gone to the peer, and what is written already."""
        return int(_unsent(session.pn)) + session.kept_bytes + self.taken_bytes

    def unsent_bytes_of_all(self) -> int:
        """The same for all sessions."""
        return self._in_proton() + self.bytes + self.taken_bytes

    def _take_early(self, *written: bytes) -> None:
        self._taken += filter(None, written)
        self.taken_bytes += sum(map(len, written))

    def taken(self) -> list[bytes]:
        """What proton has written already; it goes out before what proton has written now, which is all that
        it can."""
        taken, self._taken, self.taken_bytes = self._taken, [], 0
        if self._held_back:
            self._held_back = self._in_proton()
        self.wrote_early, self._waits = self._held_back > 0, False
        return taken

    def wait(self) -> None:
        """Have proton write nothing before the next output, because it is to answer a drain: it forgets that
        if it is to write while the window holds messages of the link back."""
        self.wrote_early = self._waits = True

    def rests(
        self, link: Link, fronts: Sequence[bytes], rests: Sequence[bytes], skipped: int, transfers_max: int
    ) -> tuple[list[bytes], list[int]]:
        """What to pass to proton behind each of the fronts, for messages that consist of a front and a rest
        without its first `skipped` bytes: a reference, or the rest itself. And how often, if that is more
        than once for any of them.

        `transfers_max` is how many transfers may be written at once.
        """
        room, kept, mark, number, kept_bytes = self._room, self._kept, self._mark, self._number, 0
        passed: list[bytes] = []
        divided: dict[int, int] = {}
        for front, rest in zip(fronts, rests, strict=True):
            size, first = len(rest) - skipped, room - len(front)
            if size > first:
                count = 2 + (size - first - 1) // room
                if size < PAYLOAD_BYTES_MIN or first <= 0 or len(passed) + count > transfers_max:
                    passed.append(rest[skipped:])
                    transfers_max = 0  # proton may keep the end of it, so no divided one may follow
                    continue
                divided[len(passed)] = count
                transfers_max -= count - 1  # each message takes one anyway
            elif size < PAYLOAD_BYTES_MIN:
                passed.append(rest[skipped:])
                continue
            kept[number] = memoryview(rest)[skipped:], link, first, room
            kept_bytes += size
            passed.append(mark + _U32.pack(number))
            number = (number + 1) & 0xFFFF_FFFF
        self._number = number
        self.bytes += kept_bytes
        link.session.kept_bytes += kept_bytes
        return passed, [divided.get(place, 1) for place in range(len(passed))] if divided else []

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
        """Take what the next reference of this number stands for."""
        payload, link, size, room = self._kept.pop(number)
        if size < len(payload):
            self._kept[number] = payload[size:], link, room, room
            payload = payload[:size]
        self.bytes -= len(payload)
        link.session.kept_bytes -= len(payload)
        return payload

    def forget(self, is_gone: Callable[[Link], bool]) -> None:
        """Forget the payloads of links that are gone: proton has dropped their deliveries."""
        for number in [number for number, (_, link, *_) in self._kept.items() if is_gone(link)]:
            payload, link, *_ = self._kept.pop(number)
            self.bytes -= len(payload)
            link.session.kept_bytes -= len(payload)

    def forget_all(self) -> None:
        """Forget all payloads, because nothing will be written any more."""
        self.forget(lambda _: True)
        self._taken, self.taken_bytes = [], 0
