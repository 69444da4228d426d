"""Corrects errors of the official Python client that proton would refuse, in both directions of the byte
stream.

*Delivery-ids out of sequence* (AMQP 1.0 §2.7.5). The deliveries of a session are numbered one by one, and
proton closes the connection on any other number. The Python client takes its numbers from a counter that its
threads share without a lock. When several threads use one receiver (to renew several locks, or to peek at the
same time), numbers are repeated, swapped or left out. The service accepts them all (AMQP contract 4.3).

On the way in, each delivery gets the number that proton expects next, in all of its frames. On the way out,
its outcome is sent under the client's own number.

    the client's numbers   5 6 6 9
    proton's               5 6 7 8      what proton says of 6 to 8 goes to the client as 6, 6 and 9

*A begin that answers one of ours* (§2.7.2). We begin no sessions. Proton maps the session of such a begin a
second time, and frees it twice. So the stream is refused.

*A detach after an end* (§2.5.5). The Python client sends one whenever it closes. The link has already ended
with its session, so the frame is dropped.

*Dispositions of thousands of deliveries, or of some that do not exist* (§2.7.6). Proton applies each in one
go, so they are divided (`wide_dispositions.py`). After some of them, the rest of the stream is kept.

*Sessions that begin and end faster than their ends are answered.* Proton needs a separate channel for each.
When none is left, it fails silently and keeps whatever the client sends after that. So the stream is refused
before that happens.

A client that numbers its deliveries in order costs little. `native/delivery_ids.c` skips plain frames and
stops at each frame that needs a decision: a transfer with another number or in several frames, the
beginning or end of a link or session, or a disposition of many deliveries, or of some that do not exist.

*Sessions and links* (`parts.py`) are counted here, because this file looks at each open, begin and attach.
Proton takes some malformed ones, which could not be counted, so all of those are refused.

A frame is passed on once its performative has arrived; at most `_HEAD_BYTES_MAX` bytes of it are kept, but
all of an open, an attach, and a disposition of many deliveries or with a large state. Other malformed frames
are left for proton to refuse. From a frame of an impossible size on, the bytes of the connection pass
unchanged. Proton still refuses a second delivery on a link whose first one is unfinished. If both have the
same number or tag, they cannot be told apart and count as one.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from protocol._runs import ffi, lib
from protocol.codec import DecodeError, UInt, decode, encode
from protocol.events import ErrorCondition
from protocol.limits import (
    DECODE_ERROR,
    DISPOSITION_BYTES_MAX,
    PERFORMATIVE_BYTES_MAX,
    RESOURCE_LIMIT,
    oversized,
)
from protocol.parts import Parts, parts_of
from protocol.runs import address_of
from protocol.sections import ELEMENTS_MAX, elements, fields
from protocol.values import is_true, scalar, skip
from protocol.wide_dispositions import WideDispositions

_OPEN, _BEGIN, _ATTACH, _TRANSFER, _DISPOSITION, _DETACH, _END = 0x10, 0x11, 0x12, 0x14, 0x15, 0x16, 0x17
_COUNTED = (_OPEN, _BEGIN, _ATTACH)
"""What is counted before proton gets it (`parts.py`)."""
_HEAD_BYTES_MAX = 1024 + 1024
"""Enough for the longest extended header (§2.3.1) and a transfer with a state."""
_HEADER_BYTES = 8
_NULL = b"\x40"
_LIST0, _LIST8, _LIST32 = 0x45, 0xC0, 0xD0
_SETTLED, _MORE, _ABORTED = 4, 5, 9
"""Indexes of fields in a transfer (§2.7.5)."""
_REMOTE_CHANNEL, _HANDLE_MAX = 0, 4
"""The indexes of these fields in a begin (§2.7.2)."""
HANDLE_MAX_DEFAULT = 2**32 - 1
_U32 = struct.Struct(">I")
_MASK = 2**32 - 1

DECIDED_AT_ONCE = 512
"""So many frames that are not plain are looked at, and the others later."""
PER_TRANSFER = 4
"""How many frames a transfer counts as: it takes some 20 µs, and others a quarter."""
_COUNTS_AS: dict[int | None, int] = {_TRANSFER: PER_TRANSFER, _ATTACH: 0}
"""How many frames one counts as, if that is not 1. There are no more attaches than links (`parts.py`)."""

_walk = lib.delivery_ids_walk


@dataclass(slots=True)
class _Unfinished:
    """A delivery with more frames to come."""

    number: int
    """The number under which proton knows it."""
    given: int
    """The peer's own number."""
    tag: int | None
    """A hash of its tag; None if it has none."""


@dataclass(slots=True, eq=False)
class _Session:
    """A session of the peer, from its begin to its end."""

    channel: int
    unfinished: dict[int, _Unfinished] = field(default_factory=dict)
    """By handle."""
    is_ended: bool = False
    """Whether the peer has ended it."""
    renamed: dict[int, tuple[int, int | None]] = field(default_factory=dict)
    """Renumbered deliveries without an outcome so far: proton's number → the peer's number and the link's
    handle, None once the link is gone."""


@dataclass(slots=True)
class _Transfer:
    """The fields of a transfer that this file needs."""

    handle: int
    given: int | None
    tag: int | None
    goes_on: bool
    """Whether more frames of the delivery follow."""
    has_no_outcome: bool
    """Whether it is settled or aborted, so that no disposition will mention it."""
    places: list[int]
    """The offset of each field, and the end of the last one."""


class _CutOff(Exception):
    """More of a frame is needed to decide on it."""


class Lenience:
    """Corrects both directions of one connection."""

    def __init__(self, channel_max: int, frame_bytes_max: int, parts: Parts | None = None) -> None:
        """The bounds are proton's: it refuses frames that exceed either. `parts` decides on sessions and
        links."""
        self.parts = parts or Parts()
        self._channel_max, self._frame_bytes_max = channel_max, frame_bytes_max
        self._table: Any = ffi.new("session_ids_t[]", 1)
        """The sessions as the C code needs them, by channel."""
        self._ids: Any = ffi.new("delivery_ids_t *", {"count": 1, "frame_max": frame_bytes_max})
        self._ids.sessions = self._table
        """What the C code needs and counts, with the sessions in it."""
        self.ids_address = address_of(self._ids)
        """Where that is in memory, for `exchange.py`."""
        self._known: dict[Any, int] = {}
        """Proton's sessions, with the peer's channel for each."""
        self._sessions: dict[int, _Session] = {}
        self._ended: set[int] = set()
        """Channels that once had a session."""
        self._by_local_channel: dict[int, _Session] = {}
        self._unanswered: list[_Session] = []
        """Sessions that the peer has begun and we have not, so our channel for them is not known yet."""
        self._ending = 0
        """How many sessions the peer has ended and we have not. Proton keeps a channel for each."""
        self.refusal: ErrorCondition | None = None
        """The error with which the rest of the stream is refused; None if it is passed on."""
        self.handles_max: deque[int] = deque()
        """The handle-max (§2.7.2) of each session that the peer has begun, until whoever makes the session
        takes it."""
        self._renamed = 0
        """How many deliveries are renumbered, over all sessions."""
        self._departed: list[tuple[_Session, int]] = []
        """Renumbered deliveries of detached links. They may get an outcome until the detach is served, and
        none after the next write."""
        self.wide = WideDispositions(DISPOSITION_BYTES_MAX, self._ids)
        self._first = b""
        """What is left of a wide disposition, as a frame that is kept for the next `incoming`."""
        self._rest, self._rest_begin = b"", 0
        """Bytes that are kept for the next `incoming` after it, from this offset on. They may be many, and
        are not copied for each portion."""
        self._head = b""
        """The beginning of a frame, kept until enough of it has arrived."""
        self._missing = _HEADER_BYTES
        """The bytes still to come of a frame that was passed on; at first, of the protocol header."""
        self._lost = False
        """Whether the stream is malformed and so passes unchanged."""
        self._looked_at = 0
        """What `incoming` has looked at this time, as DECIDED_AT_ONCE counts it."""

    # --- in -------------------------------------------------------------------------------------------------

    def incoming(self, data: bytes) -> bytes:
        """Take bytes from the peer, including the protocol header; gives the bytes for proton, up to a
        refusal. If `has_more`, call it again, with new bytes or without."""
        if self.refusal is not None:
            return b""
        begin = 0
        if self._first or self._rest:
            if data:
                self._rest, self._rest_begin = self._rest[self._rest_begin :] + data, 0
            data, begin = self._take_kept()
        if self._lost:
            return data
        self.wide.begin()
        self.parts.go_on()
        if self.wide.refusal is not None:
            self.refusal = self.wide.refusal
            self._drop_kept()
            return b""
        if self._head:
            data, self._head = self._head + data, b""
        offset, size = begin + self._missing, len(data)
        if offset < size:
            offset = _walk(self._ids, data, offset, size)
        if offset < size:
            return self._decide(data, begin, offset)
        self._missing = offset - size
        return data[begin:]

    def _take_kept(self) -> tuple[bytes, int]:
        """What was kept and comes next, and the offset at which it begins."""
        if self._first:
            first, self._first = self._first, b""
            return first, 0
        rest, begin = self._rest, self._rest_begin
        self._drop_kept()
        return rest, begin

    @property
    def is_between_frames(self) -> bool:
        """Whether the next byte begins a frame, and the stream has been well-formed."""
        is_within = self._head or self._missing or self._lost or self.has_more
        return not is_within and self.refusal is None

    @property
    def has_more(self) -> bool:
        """Whether frames were kept for the next `incoming`."""
        return bool(self._first or self._rest)

    def take_back(self) -> tuple[bytes, int]:
        """Give back the kept beginning of a frame, which the caller passes in again later, or the number of
        bytes missing of a frame that was passed on."""
        kept = self._first + self._rest[self._rest_begin :] + self._head
        self._head = b""
        self._drop_kept()
        return kept, 0 if kept else self._missing

    def _drop_kept(self) -> None:
        self._first = self._rest = b""
        self._rest_begin = 0

    def _decide(self, data: bytes, begin: int, offset: int) -> bytes:
        """Like `incoming`, for the data from `begin` on. The frame at `offset` is the first one that is not
        plain."""
        changed: list[bytes] = []
        taken, size, self._looked_at = begin, len(data), 0
        while size - offset >= _HEADER_BYTES:
            frame_bytes = _U32.unpack_from(data, offset)[0]
            if not _HEADER_BYTES <= frame_bytes <= self._frame_bytes_max:
                self._lost = True
                break
            try:
                replacement, replaced = self._replacement(data, offset, frame_bytes)
            except _CutOff:
                break
            if self.refusal is not None:
                self._drop_kept()
                return b"".join((*changed, data[taken:offset]))
            if replacement is not None:
                changed += (data[taken:offset], replacement)
                taken = offset + replaced
            end = offset + frame_bytes
            if self._looked_at >= DECIDED_AT_ONCE or self.wide.had_enough or self.parts.had_enough:
                size = self._keep_from(data, end)
                if self.has_more:
                    offset = end
                    break
            offset = _walk(self._ids, data, end, size)
        self._missing = max(offset - size, 0)
        if offset < size and not self._lost:
            self._head = data[offset:]
            size = offset
        return b"".join((*changed, data[taken:size])) if changed else data[begin:size]

    def _replacement(self, data: bytes, offset: int, frame_bytes: int) -> tuple[bytes | None, int]:
        """What replaces the beginning of the frame at `offset`, and the size of that beginning. None leaves
        the frame as it is. Raises _CutOff if too little of it has arrived to tell."""
        end, most, code = offset + frame_bytes, _HEAD_BYTES_MAX, None
        self._looked_at += 1  # also if it cannot be read
        head = data[offset : min(end, offset + most)]
        try:
            code, value = _performative(head, frame_bytes)
            self._looked_at += _COUNTS_AS.get(code, 1) - 1
            if code == _DISPOSITION or code in _COUNTED:  # these are looked at as a whole
                most = DISPOSITION_BYTES_MAX if code == _DISPOSITION else PERFORMATIVE_BYTES_MAX
                head = data[offset : min(end, offset + most)]
            return self._judge(code, value, head, frame_bytes), len(head)
        except (IndexError, struct.error, DecodeError):
            if end > len(data) and len(head) < most:
                raise _CutOff from None
            if code in _COUNTED:
                self.refusal = oversized(head, frame_bytes) or ErrorCondition(
                    DECODE_ERROR, "an open, begin or attach that cannot be decoded"
                )
            return None, 0  # proton refuses any other frame, or takes no harm from it

    def _keep_from(self, data: bytes, end: int) -> int:
        """Keep the data from `end` on, and before it what is left of a wide disposition, for the next
        `incoming`. Returns the end of the data that is not kept."""
        self._first = self.wide.take_rest()
        if end < len(data):
            self._rest, self._rest_begin = data, end
        return min(end, len(data))

    def _judge(self, code: int | None, value: int, head: bytes, frame_bytes: int) -> bytes | None:
        """Decide on a frame by its beginning, `head`, and what `_performative` finds there; gives the bytes
        that replace `head`, or None to leave it.

        Raises IndexError, struct.error or DecodeError if the frame ends too early; then nothing has changed.
        """
        channel = int.from_bytes(head[6:8], "big")
        places = _fields_of(head, value) if code in _COUNTED else []
        if code == _BEGIN:
            handle_max = _handle_max(head, places)
            if len(places) > 1 and head[places[_REMOTE_CHANNEL]] != _NULL[0]:
                self.refusal = ErrorCondition(
                    "amqp:not-allowed",
                    "A begin with a remote-channel answers another one, and the broker has sent none.",
                )
                return None
            self.refusal = self.parts.begin(code, 1)
            if self.refusal is None:
                self._begin(channel)
                self.handles_max.append(handle_max)
            return None
        if code == _OPEN:
            self.refusal = self.parts.begin(code, parts_of(code, head, value, frame_bytes))
            return None
        session = self._sessions.get(channel)
        if code == _DISPOSITION:
            if session is None:
                return None  # proton refuses it
            replacement = self.wide.divide(head, value, frame_bytes, self._table[channel])
            self.refusal = self.wide.refusal
            return replacement
        if session is None:
            if code != _DETACH or channel not in self._ended:
                return None
            if len(head) < frame_bytes:
                raise IndexError("a frame is dropped as a whole")
            return b""
        if code == _TRANSFER:
            return self._transferred(session, head, value)
        parts = parts_of(code, head, value, frame_bytes) if code == _ATTACH else 0
        if code == _END:
            session.is_ended = True
            self._ending += 1
            del self._sessions[channel]
            self._ended.add(channel)
            self._table[channel] = (0, False, False, ffi.NULL)
        elif code in (_ATTACH, _DETACH) and (session.unfinished or session.renamed):
            self._free_handle(session, _handle(code, head, value))
        if code == _ATTACH:
            self.refusal = self.parts.begin(code, parts)
        return None

    def _begin(self, channel: int) -> None:
        if channel > self._channel_max:
            return
        if channel in self._sessions:
            self.refusal = ErrorCondition("amqp:not-allowed", "The channel has a session already.")
            return
        if len(self._sessions) + self._ending > self._channel_max:
            self.refusal = ErrorCondition(
                RESOURCE_LIMIT,
                (
                    f"A connection may have {self._channel_max + 1} sessions, counting those whose end has "
                    "not been answered yet."
                ),
            )
            return
        if channel >= self._ids.count:
            self._ids.count = min(max(channel + 1, 2 * self._ids.count), self._channel_max + 1)
            grown = ffi.new("session_ids_t[]", self._ids.count)
            ffi.memmove(grown, self._table, ffi.sizeof(self._table))
            self._table = self._ids.sessions = grown
        self._table[channel] = (0, False, False, ffi.NULL)
        self._ended.discard(channel)
        session = self._sessions[channel] = _Session(channel)
        self._unanswered.append(session)

    def session_begins(self, pn: Any) -> None:
        """Learn from proton's session for one of the peer's channels how many deliveries there are. It must
        exist until `session_ends`."""
        channel = int(lib.sessions_channel(pn))
        if channel in self._sessions:
            self._known[pn] = channel
            self._table[channel].deliveries = lib.sessions_deliveries(pn)

    def session_ends(self, pn: Any) -> None:
        """Forget proton's session."""
        channel = self._known.pop(pn, None)
        if channel is not None and self._table[channel].deliveries == lib.sessions_deliveries(pn):
            self._table[channel].deliveries = ffi.NULL

    def _free_handle(self, session: _Session, handle: object) -> None:
        """Forget a handle whose link ends, or that another link takes."""
        for unfinished in [key for key in session.unfinished if key == handle]:
            self._finish(session, unfinished)
        for number, (given, of) in session.renamed.items():
            if of == handle:  # it has none from now on, so each is noted once
                session.renamed[number] = given, None
                self._departed.append((session, number))

    def _finish(self, session: _Session, handle: int) -> None:
        del session.unfinished[handle]
        self._table[session.channel].divided = bool(session.unfinished)

    def _transferred(self, session: _Session, head: bytes, value: int) -> bytes | None:
        """The beginning of a transfer with the number that proton expects; None to leave it unchanged."""
        transfer = _read_transfer(head, value)
        begun = session.unfinished.get(transfer.handle)
        if begun is not None and (
            transfer.given in (None, begun.given) or (transfer.tag is not None and transfer.tag == begun.tag)
        ):
            return self._continued(session, head, value, transfer, begun)
        entry = self._table[session.channel]
        if not entry.known:
            if transfer.given is None:
                return None  # proton refuses it
            entry.known, entry.next = True, transfer.given
        number = entry.next
        entry.next = (number + 1) & _MASK
        self._ids.received += 1
        given = number if transfer.given is None else transfer.given
        if transfer.goes_on:
            session.unfinished[transfer.handle] = _Unfinished(number, given, transfer.tag)
            entry.divided = True
        elif begun is not None:
            self._finish(session, transfer.handle)
        if given == number or begun is not None:
            return None
        tag_end = transfer.places[min(3, len(transfer.places) - 1)]
        # Drop the tag: nobody reads it, and the number may need the space.
        renamed = self._with_number(head, value, transfer.places[1], tag_end, encode(UInt(number)) + _NULL)
        if renamed is not None and not transfer.has_no_outcome:
            self._forget(session, number)
            session.renamed[number] = (given, transfer.handle)
            self._renamed += 1
        return renamed

    def _continued(
        self, session: _Session, head: bytes, value: int, transfer: _Transfer, begun: _Unfinished
    ) -> bytes | None:
        """Handle a further frame of a delivery. Without a number, it has that of the first frame (§2.7.5)."""
        if not transfer.goes_on:
            self._finish(session, transfer.handle)
        if transfer.has_no_outcome:
            self._forget(session, begun.number)
        if transfer.given in (None, begun.number):
            return None
        return self._with_number(head, value, transfer.places[1], transfer.places[2], _NULL)

    def _with_number(self, head: bytes, value: int, begin: int, end: int, replacement: bytes) -> bytes | None:
        """The frame with `replacement` from `begin` to `end`; None if it would be too long."""
        more = len(replacement) - (end - begin)
        frame_bytes = _U32.unpack_from(head)[0] + more
        if head[value] == _LIST8:
            list_bytes = head[value + 1] + more
            if list_bytes > 0xFF:
                return None
            sized = bytes((_LIST8, list_bytes))
        else:
            sized = head[value : value + 1] + _U32.pack(_U32.unpack_from(head, value + 1)[0] + more)
        if frame_bytes > self._frame_bytes_max:
            return None
        fields = value + len(sized)
        return b"".join(
            (_U32.pack(frame_bytes), head[4:value], sized, head[fields:begin], replacement, head[end:])
        )

    def _forget(self, session: _Session, number: int) -> None:
        if session.renamed.pop(number, None) is not None:
            self._renamed -= 1

    # --- out ------------------------------------------------------------------------------------------------

    @property
    def watches(self) -> bool:
        """Whether the bytes that proton writes must go through `outgoing`."""
        return bool(self._renamed or self._unanswered or self._ending)

    def outgoing(self, chunks: list[bytes], all_is_served: bool) -> list[bytes]:
        """Take what proton has written: whole frames, with or without the protocol header. Gives the bytes
        for the peer.

        `all_is_served` means that everything that went through `incoming` has been served. Until then,
        deliveries of a link whose detach has arrived may still get an outcome.
        """
        found = list(self._answered(b"".join(chunks)))  # a frame may begin in one chunk and end in the next
        if all_is_served:
            for session, number in self._departed:
                self._forget(session, number)
            self._departed.clear()
        return found

    def _answered(self, written: bytes) -> Iterator[bytes]:
        offset = _HEADER_BYTES if written.startswith(b"AMQP") else 0
        if offset:
            yield written[:offset]
        while offset < len(written):
            frame_bytes = _U32.unpack_from(written, offset)[0]
            assert _HEADER_BYTES <= frame_bytes <= len(written) - offset, "proton writes whole frames"
            frame = written[offset : offset + frame_bytes]
            offset += frame_bytes
            code = frame[10] if len(frame) > 11 else 0
            if code == _DISPOSITION:
                yield from self._renumbered(frame)
                continue
            channel = int.from_bytes(frame[6:8], "big")
            if code == _BEGIN:
                self._answer_begin(channel, decode(frame, elements(frame, 11)[1])[0])
            elif code == _END:
                self._ending = max(self._ending - 1, 0)
                session = self._by_local_channel.pop(channel, None)
                if session is not None:
                    self._renamed -= len(session.renamed)
                    session.renamed.clear()
            yield frame

    def _answer_begin(self, local_channel: int, channel: object) -> None:
        for session in self._unanswered:
            # Proton names no channel if the peer has ended the session before this begin is written.
            if session.channel == channel or (channel is None and session.is_ended):
                self._unanswered.remove(session)
                self._by_local_channel[local_channel] = session
                return

    def _renumbered(self, frame: bytes) -> Iterator[bytes]:
        """A disposition with the peer's numbers: one frame for each run of consecutive numbers."""
        session = self._by_local_channel.get(int.from_bytes(frame[6:8], "big"))
        count, place = elements(frame, 11)
        of_incoming, place = decode(frame, place)
        if session is None or not of_incoming or not session.renamed:
            yield frame
            return
        first, place = decode(frame, place)
        last = first
        if count > 2:
            last, place = decode(frame, place)
            last = first if last is None else last
        stretches: list[list[int]] = []
        for step in range(((last - first) & _MASK) + 1):
            number = (first + step) & _MASK
            given = session.renamed[number][0] if number in session.renamed else number
            self._forget(session, number)
            if stretches and given == (stretches[-1][1] + 1) & _MASK:
                stretches[-1][1] = given
            else:
                stretches.append([given, given])
        for begin, end in stretches:
            fields = b"\x41" + encode(UInt(begin)) + encode(UInt(end)) + frame[place:]
            listed = b"\xd0" + _U32.pack(len(fields) + 4) + _U32.pack(max(count, 3)) + fields
            yield _U32.pack(11 + len(listed)) + frame[4:11] + listed


def _performative(head: bytes, frame_bytes: int) -> tuple[int | None, int]:
    """The code of a frame's performative, and the offset of its list. The code is None if proton does not
    know the performative.

    Raises IndexError if the frame ends too early, and DecodeError if its body begins within its header.
    """
    body = 4 * head[4]
    if head[5] != 0 or body >= frame_bytes:
        return None, body
    if body < _HEADER_BYTES:
        raise DecodeError("the frame's body begins in its header")
    if head[body] != 0:
        return None, body
    if head[body + 1] == 0x53:
        return head[body + 2], body + 3
    if head[body + 1] == 0x80:
        head[body + 10]  # raises IndexError until the whole descriptor has arrived
        return int.from_bytes(head[body + 2 : body + 10], "big"), body + 10
    return None, body  # proton does not know any other encoding


def _fields_of(head: bytes, value: int) -> list[int]:
    """The offsets of the fields of a performative, followed by their end. Raises DecodeError unless the list
    has as many as it says, and IndexError or struct.error if it is incomplete. Proton goes by its size, and
    would find fields that are not counted."""
    if head[value] not in (_LIST0, _LIST8, _LIST32):
        raise DecodeError("a performative is a list")
    end = skip(head, value)
    if end > len(head):
        raise IndexError("some of the fields have not arrived")
    return fields(head, value, end, ELEMENTS_MAX)


def _handle(code: int, head: bytes, value: int) -> UInt | None:
    """The handle of an attach or detach; None if it is of another type, which proton does not refuse. Raises
    IndexError or struct.error if the frame is malformed or incomplete."""
    _, place = elements(head, value)
    try:
        found = scalar(head, skip(head, place) if code == _ATTACH else place)
    except DecodeError:
        return None
    return found if isinstance(found, UInt) else None


def _handle_max(head: bytes, places: list[int]) -> int:
    """The highest handle that a begin permits, whose fields are at `places` (`_fields_of`)."""
    if len(places) <= _HANDLE_MAX + 1:
        return HANDLE_MAX_DEFAULT
    try:
        found = scalar(head, places[_HANDLE_MAX])
    except DecodeError:
        return HANDLE_MAX_DEFAULT  # proton ignores a value of another type
    return found if isinstance(found, UInt) else HANDLE_MAX_DEFAULT


def _read_transfer(head: bytes, value: int) -> _Transfer:
    """Read the fields of a transfer. Raises IndexError, struct.error or DecodeError if it is malformed or
    incomplete."""
    count, place = elements(head, value)
    if head[value] not in (_LIST8, _LIST32) or not 2 <= count <= 11:
        raise DecodeError("a transfer is a list of two to eleven fields")
    places = [place]
    for _ in range(count):
        places.append(skip(head, places[-1]))
    if places[-1] > len(head):
        raise IndexError("some of the fields have not arrived")
    if places[-1] > skip(head, value):
        raise DecodeError("a transfer's fields reach beyond their list")
    handle, given, tag = (
        scalar(head, place),
        scalar(head, places[1]),
        scalar(head, places[2]) if count > 2 else None,
    )
    if (
        not isinstance(handle, UInt)
        or not isinstance(given, UInt | None)
        or not isinstance(tag, bytes | None)
    ):
        raise DecodeError("a transfer's handle, delivery-id or delivery-tag is of another type")
    settled, more, aborted = (
        count > number and is_true(head, places[number]) for number in (_SETTLED, _MORE, _ABORTED)
    )
    return _Transfer(
        handle, given, None if tag is None else hash(tag), more and not aborted, settled or aborted, places
    )
