"""Divides dispositions of thousands of deliveries, and drops those that say nothing (AMQP 1.0 §2.7.6).

Proton applies each disposition in one go, 90,000 deliveries in 30 ms. If there are so many, one becomes
several with fewer deliveries, and `Engine.receive` stops between them. What is left after PARTS_MAX of them
is one disposition again, which is divided when its turn comes (`take_rest`). A peer may send very many, about
deliveries that do not exist. So `lenience.py`, which finds them in the stream, keeps the rest of it after
some of them (`had_enough`).

A receiver's disposition without an outcome that does not settle either, such as `received` (§3.4.1), changes
nothing here. But proton would report it for each delivery, again and again. So it never sees it.

Nor does proton see a large state, which it would copy into each delivery (`heavy_states.py`).

A client names each delivery once or twice. One that names them again and again in a few bytes would keep the
event loop busy for minutes, so its connection is refused.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from protocol._runs import lib
from protocol.codec import DecodeError, UInt
from protocol.events import ErrorCondition, Outcome
from protocol.heavy_states import LIGHT_BYTES, HeavyStates
from protocol.limits import RESOURCE_LIMIT, oversized
from protocol.sections import elements
from protocol.values import is_true, scalar, skip

PART = 4 * int(lib.WIDE_DISPOSITION)
"""A disposition that names more deliveries than this becomes several that name so many each. Those of more
than a quarter of it are counted: proton looks for each of the deliveries, even if they have gone."""
PARTS_MAX = 128
"""One frame becomes at most so many at a time. A peer may name more deliveries than it has."""
_AT_ONCE = 128
"""After so many, the rest of the stream waits. If their deliveries have gone, proton looks for 130,000 of
them, in 7 ms."""
_NAMED_TIMES = 4
"""How often the deliveries of a connection may be named, on average. _NAMED_AT_FIRST comes on top."""
_NAMED_AT_FIRST = 1 << 20
"""So many may be named however few were sent: proton looks for them in 50 ms."""
_LEAST_COUNTED = 16
"""To look at a disposition and leave it takes as long as to make so many."""
_LIST32 = 0xD0
_UINT = 0x70
_ROLES = (b"\x41", b"\x56\x01", b"\x42", b"\x56\x00", b"\x40")
_OUTCOMES = frozenset(set(Outcome) - {Outcome.NONE, Outcome.RECEIVED})
"""Only these change anything, if the delivery is not settled as well."""
_U32 = struct.Struct(">I")
_FIRST_AND_LAST = struct.Struct(">BIBI")
_MASK = 2**32 - 1


class WideDispositions:
    """The wide dispositions from one connection's peer."""

    __slots__ = ("_counted", "_frame_bytes_max", "_named", "_rest", "refusal", "sent", "states")

    def __init__(self, frame_bytes_max: int) -> None:
        """Larger frames are left as they are."""
        self._frame_bytes_max = frame_bytes_max
        self.sent = 0
        """How many deliveries were sent on the connection. Proton numbers those of each session from 0, so
        there are none with higher numbers. Set by the owner."""
        self.refusal: ErrorCondition | None = None
        """Why the connection is refused, if it is."""
        self.states = HeavyStates()
        """The large states. The owner forgets them once all that was given here is read."""
        self._named = 0
        """How many deliveries were named in dispositions of many, in all."""
        self._counted = 0
        """How many dispositions were made or looked at since `begin`."""
        self._rest = b""
        """The frame with what is left of the last disposition."""

    def begin(self) -> None:
        """Count from here."""
        self._counted = 0

    @property
    def had_enough(self) -> bool:
        """Whether so many were made that others should have their turn before more are."""
        return self._counted >= _AT_ONCE

    def take_rest(self) -> bytes:
        """The frame that comes next in the stream, in place of what is left of the last disposition; empty if
        nothing is left. If there is one, others should have their turn before it (`had_enough`)."""
        rest, self._rest = self._rest, b""
        return rest

    def divide(self, head: bytes, value: int, frame_bytes: int) -> bytes | None:
        """The frames in place of one with a disposition, perhaps none; None to leave it. `head`: as much of
        the frame as there is. `value`: the offset of the disposition's list.

        If it is malformed, the connection is refused: proton is more tolerant, and would look at each
        delivery. Raises IndexError if the frame is incomplete.
        """
        found = self._replaced(head, value, frame_bytes)
        self._counted += max(len(found or ()), _LEAST_COUNTED)
        return None if found is None else b"".join(found)

    def _replaced(self, head: bytes, value: int, frame_bytes: int) -> list[bytes] | None:
        if frame_bytes > self._frame_bytes_max:
            return None
        if len(head) < frame_bytes:
            raise IndexError("a disposition is divided or dropped as a whole")
        if oversized(head, frame_bytes) is not None:
            return None  # whoever checks the sizes of all frames refuses it
        try:
            light = head if frame_bytes <= LIGHT_BYTES else self.states.lighten(head, value)
            found = self._of_light(light, value)
        except (DecodeError, IndexError, struct.error):
            self.refusal = ErrorCondition("amqp:decode-error", "a disposition that cannot be decoded")
            return None
        return [light] if found is None and light is not head else found

    def _of_light(self, head: bytes, value: int) -> list[bytes] | None:
        """Like `_replaced`, for a whole frame with a state for proton."""
        count, role = elements(head, value)
        if count < 3:
            return None
        places = [role]
        for _ in range(count):
            places.append(skip(head, places[-1]))
        if places[-1] != skip(head, value) or head[role : places[1]] not in _ROLES:
            raise DecodeError("the fields are not those of a disposition")
        first, last = scalar(head, places[1]), scalar(head, places[2])
        if last is None:
            return None
        if not (isinstance(first, UInt) and isinstance(last, UInt)):
            raise DecodeError("a delivery number is of another type")
        if is_true(head, role) and not self._says_something(head, places):
            return []
        return self._divided(head, value, places, first, last)

    def _divided(
        self, head: bytes, value: int, places: Sequence[int], first: int, last: int
    ) -> list[bytes] | None:
        count, role = len(places) - 1, places[0]
        named = ((last - first) & _MASK) + 1
        begin = first if first <= last else first - _MASK - 1  # 0 comes behind the last number
        deliveries = min(named, max(self.sent - begin, 0))
        if not is_true(head, role) or named > _MASK // 2 + 1:
            return None
        self._name(deliveries)
        if deliveries <= PART:
            return None
        before, behind = head[role : places[1]], head[places[3] : places[-1]]
        list_bytes = 4 + len(before) + _FIRST_AND_LAST.size + len(behind)
        sizes = bytes((_LIST32,)) + _U32.pack(list_bytes) + _U32.pack(count)
        head_of_each = _U32.pack(value + 5 + list_bytes) + head[4:value] + sizes + before
        parts = -(-deliveries // PART)
        starts = [(first + part * PART) & _MASK for part in range(min(parts, PARTS_MAX + 1))]
        ends = [(start - 1) & _MASK for start in starts[1:]] + [last]
        pack = _FIRST_AND_LAST.pack
        frames = [
            head_of_each + pack(_UINT, start, _UINT, end) + behind
            for start, end in zip(starts, ends, strict=True)
        ]
        if parts > PARTS_MAX:
            self._rest = frames.pop()
        return frames

    def _name(self, deliveries: int) -> None:
        """Count deliveries that were named. What is left of a disposition counts again when it is divided, so
        only a part of it counts at a time."""
        self._named += min(deliveries, PARTS_MAX * PART)
        if self._named > _NAMED_AT_FIRST + _NAMED_TIMES * self.sent:
            self.refusal = ErrorCondition(
                RESOURCE_LIMIT,
                f"Dispositions have named {self._named} deliveries, but only {self.sent} were sent: name "
                "each of them once or twice.",
            )

    def _says_something(self, head: bytes, places: Sequence[int]) -> bool:
        """Whether a disposition settles its deliveries, or has an outcome that is known. `places`: the offset
        of each field, and the end of the last one."""
        fields = len(places) - 1
        if fields > 3 and is_true(head, places[3]):
            return True
        if fields < 5:
            return False
        state = head[places[4] : places[5]]
        code = state[2:3] if state[:2] == b"\x00\x53" else state[2:10] if state[:2] == b"\x00\x80" else b""
        outcome = int.from_bytes(code, "big")
        kept = self.states.find(outcome)
        return (outcome if kept is None else kept.outcome) in _OUTCOMES
