"""Divides dispositions of thousands of deliveries, and drops those that change nothing (AMQP 1.0 §2.7.6).

Proton applies each disposition in one go, 90,000 deliveries in 30 ms. If there are so many, one becomes
several with fewer deliveries, and `Engine.receive` stops between them. What is left after some of them is one
disposition again, which is divided when its turn comes (`take_rest`). A peer may send very many, also
of few deliveries each. So `lenience.py`, which finds them in the stream, keeps the rest of it after some of
them (`had_enough`).

A peer may name deliveries that do not exist. They are left out: if the first of them does not exist, proton
looks at all that do, again for each disposition. That takes 0.3 ms with 50,000 unsettled.

A receiver's disposition without an outcome that does not settle either, such as `received` (§3.4.1), changes
nothing here. But proton would report it for each delivery, again and again. So it never sees it.

Nor does proton see a large state, which it would copy into each delivery (`heavy_states.py`).

A client names each delivery once or twice. One that names them again and again in a few bytes would keep the
event loop busy for minutes, so its connection is refused.

`native/delivery_ids.c` counts the dispositions that need none of this, and passes over them.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

from protocol._runs import ffi, lib
from protocol.codec import DecodeError, UInt
from protocol.events import ErrorCondition, Outcome
from protocol.heavy_states import LIGHT_BYTES, HeavyStates
from protocol.limits import DECODE_ERROR, RESOURCE_LIMIT, oversized
from protocol.sections import ELEMENTS_MAX, fields
from protocol.values import is_true, scalar, skip

PART = 4 * int(lib.WIDE_DISPOSITION)
"""A disposition that names more deliveries than this becomes several that name so many each."""
WORK_AT_ONCE = int(lib.WORK_AT_ONCE)
"""How many deliveries may be named before the rest of the stream waits."""
_LOOK = PART
"""What looking at one disposition here adds to the work, in deliveries. It takes a fifth of the time in which
proton applies a disposition to so many."""
_NAMED_TIMES = 4
"""How often the deliveries of a connection may be named, on average. _NAMED_AT_FIRST comes on top."""
_NAMED_AT_FIRST = 1 << 20
"""So many may be named however few there were: proton looks for them in 50 ms."""
_NAMES_NONE = 16
"""A disposition of deliveries that do not exist counts as one of so many: it takes as long to look at."""
_PLACES_PER_DELIVERY = int(lib.PLACES_PER_DELIVERY)
_FIRST, _LAST, _SETTLED, _STATE = 1, 2, 3, 4
"""Indexes of fields in a disposition."""
_LIST32 = 0xD0
_UINT = 0x70
_ROLES = (b"\x41", b"\x56\x01", b"\x42", b"\x56\x00", b"\x40")
_NO_OUTCOMES = (int(Outcome.NONE), int(Outcome.RECEIVED))
"""All others change something, even if the delivery is not settled as well."""
_U32 = struct.Struct(">I")
_FIRST_AND_LAST = struct.Struct(">BIBI")
_MASK = 2**32 - 1


class WideDispositions:
    """The dispositions from one connection's peer that are not plain."""

    __slots__ = ("_frame_bytes_max", "_ids", "_rest", "refusal", "sent", "states")

    def __init__(self, frame_bytes_max: int, ids: Any) -> None:
        """Larger frames are left as they are. `ids`: the connection's `delivery_ids_t`, in which C counts as
        well."""
        self._frame_bytes_max = frame_bytes_max
        self._ids = ids
        self.sent = 0
        """How many deliveries were sent on the connection. Set by the owner."""
        self.refusal: ErrorCondition | None = None
        """Why the connection is refused, if it is."""
        self.states = HeavyStates()
        """The large states. The owner forgets them once all that was given here is read."""
        self._rest = b""
        """The frame with what is left of the last disposition."""

    def begin(self) -> None:
        """Count from here what is made at once, and check what was counted in C."""
        self._ids.work = 0
        self._name(0)

    @property
    def had_enough(self) -> bool:
        """Whether so many were made that others should have their turn before more are."""
        return int(self._ids.work) >= WORK_AT_ONCE

    def take_rest(self) -> bytes:
        """The frame that comes next in the stream, in place of what is left of the last disposition; empty if
        nothing is left. If there is one, others should have their turn before it (`had_enough`)."""
        rest, self._rest = self._rest, b""
        return rest

    def divide(self, head: bytes, value: int, frame_bytes: int, session: Any) -> bytes | None:
        """The frames in place of one with a disposition, perhaps none; None to leave it. `head`: as much of
        the frame as there is. `value`: the offset of the disposition's list. `session`: its `session_ids_t`.

        If it is malformed, the connection is refused: proton is more tolerant, and would look at each
        delivery. Raises IndexError if the frame is incomplete.
        """
        if frame_bytes > self._frame_bytes_max:
            return None
        if len(head) < frame_bytes:
            raise IndexError("a disposition is divided or dropped as a whole")
        self._ids.work += _LOOK
        if oversized(head, frame_bytes) is not None:
            return None  # whoever checks the sizes of all frames refuses it
        try:
            return self._replaced(head, value, session)
        except (DecodeError, IndexError, struct.error):
            self.refusal = ErrorCondition(DECODE_ERROR, "a disposition that cannot be decoded")
            return None

    def _replaced(self, head: bytes, value: int, session: Any) -> bytes | None:
        """Like `divide`, for a whole frame."""
        places = fields(head, value, skip(head, value), ELEMENTS_MAX)
        count, role = len(places) - 1, places[0]
        if count <= _FIRST:
            return None
        if head[role : places[_FIRST]] not in _ROLES:
            raise DecodeError("the fields are not those of a disposition")
        first = last = scalar(head, places[_FIRST])
        if count > _LAST and (given := scalar(head, places[_LAST])) is not None:
            last = given
        if not (isinstance(first, UInt) and isinstance(last, UInt)):
            raise DecodeError("a delivery number is of another type")
        if (last - first) & _MASK > _MASK // 2:
            return None  # proton refuses it
        end, unsettled = _numbered(session, is_true(head, role))
        if end is None or not _is_before(first, end):
            self._name(_NAMES_NONE)
            return b""
        self._ids.work += unsettled // _PLACES_PER_DELIVERY
        return None if first == last else self._of_many(head, value, places, first, last, end)

    def _of_many(
        self, head: bytes, value: int, places: Sequence[int], first: int, last: int, end: int
    ) -> bytes | None:
        """Like `divide`, for a disposition that may name many deliveries, of which some exist. `places`: the
        offset of each field, and the end of the last one. `end`: the number behind the last delivery."""
        count = len(places) - 1
        given = state = head[places[_STATE] : places[_STATE + 1]] if count > _STATE else b""
        if given and len(head) > LIGHT_BYTES:
            state = self.states.keep(given)
        settles = count > _SETTLED and is_true(head, places[_SETTLED])
        if is_true(head, places[0]) and not (settles or self._is_outcome(state)):
            return b""
        last_there = last if _is_before(last, end) else (end - 1) & _MASK
        named = ((last_there - first) & _MASK) + 1
        parts = min((named - 1) // PART, max(WORK_AT_ONCE - 1 - int(self._ids.work), 0) // PART) + 1
        self._ids.work += min(named, parts * PART)
        self._name(min(named, parts * PART))
        if named <= PART and last_there == last and state is given:
            return None
        between = head[places[_LAST + 1] : places[_STATE]] if given else head[places[_LAST + 1] : places[-1]]
        behind = between + state + (head[places[_STATE + 1] : places[-1]] if given else b"")
        return self._divided(head, value, places, first, last_there, behind, parts)

    def _divided(
        self,
        head: bytes,
        value: int,
        places: Sequence[int],
        first: int,
        last: int,
        behind: bytes,
        parts: int,
    ) -> bytes:
        """Frames of PART deliveries each, at most `parts` of them for now. `behind`: their fields behind the
        numbers."""
        before = head[places[0] : places[_FIRST]]
        list_bytes = 4 + len(before) + _FIRST_AND_LAST.size + len(behind)
        sizes = bytes((_LIST32,)) + _U32.pack(list_bytes) + _U32.pack(len(places) - 1)
        head_of_each = _U32.pack(value + 5 + list_bytes) + head[4:value] + sizes + before
        begins = range(0, ((last - first) & _MASK) + 1, PART)[: parts + 1]
        starts = [(first + begin) & _MASK for begin in begins]
        ends = [(start - 1) & _MASK for start in starts[1:]] + [last]
        pack = _FIRST_AND_LAST.pack
        frames = [
            head_of_each + pack(_UINT, start, _UINT, end) + behind
            for start, end in zip(starts, ends, strict=True)
        ]
        if len(frames) > parts:
            self._rest = frames.pop()
        return b"".join(frames)

    def _name(self, deliveries: int) -> None:
        """Count deliveries that were named. What is left of a disposition counts again when it is divided, so
        only a part of it counts at a time."""
        ids = self._ids
        ids.named += deliveries
        there_were = self.sent + int(ids.received)
        if ids.named > _NAMED_AT_FIRST + _NAMED_TIMES * there_were:
            self.refusal = ErrorCondition(
                RESOURCE_LIMIT,
                f"Dispositions have named {ids.named} deliveries, but there were only {there_were}: name "
                "each of them once or twice.",
            )

    def _is_outcome(self, state: bytes) -> bool:
        """Whether an encoded state is an outcome, known or not."""
        code = state[2:3] if state[:2] == b"\x00\x53" else state[2:10] if state[:2] == b"\x00\x80" else b""
        outcome = int.from_bytes(code, "big")
        kept = self.states.find(outcome)
        return (outcome if kept is None else kept.outcome) not in _NO_OUTCOMES


def _numbered(session: Any, is_receiver: bool) -> tuple[int | None, int]:
    """The number behind the last delivery that a disposition may name, None if there were no deliveries; and
    how many places proton has for those that are unsettled."""
    there = session.deliveries
    if is_receiver:
        return (there.outgoing.next, there.outgoing.unsettled.capacity) if there != ffi.NULL else (None, 0)
    places = there.incoming.unsettled.capacity if there != ffi.NULL else 0
    return (session.next if session.known else None), places


def _is_before(number: int, end: int) -> bool:
    """Whether a number is before another. Numbers wrap around (RFC 1982)."""
    return (end - number - 1) & _MASK < _MASK // 2
