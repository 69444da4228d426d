"""Divides dispositions of thousands of deliveries (AMQP 1.0 §2.7.6).

Proton applies each disposition in one go, 90,000 deliveries in 30 ms. If there are so many, one becomes
several with fewer deliveries, and `Engine.receive` stops between them. A peer may send very many, about
deliveries that do not exist. So `lenience.py`, which finds them in the stream, keeps the rest of it after
some of them (`had_enough`).
"""

from __future__ import annotations

import struct

from protocol._runs import lib
from protocol.codec import UInt
from protocol.sections import elements
from protocol.values import scalar, skip

_WIDE: int = lib.WIDE_DISPOSITION
"""From this many deliveries on, a disposition is wide."""
_PARTS_MAX = 128
"""One frame becomes at most so many. A peer may name more deliveries than it has."""
_AT_ONCE = 128
"""So many are enough. If their deliveries have gone, proton looks for 130,000 of them, in 7 ms."""
_LEAST_COUNTED = 16
"""To look at a disposition and leave it takes as long as to make so many."""
_LIST8, _LIST32 = 0xC0, 0xD0
_TRUE, _UINT = 0x41, 0x70
_U32 = struct.Struct(">I")
_FIRST_AND_LAST = struct.Struct(">BIBI")
_MASK = 2**32 - 1


class WideDispositions:
    """The wide dispositions from one connection's peer."""

    __slots__ = ("_counted", "_frame_bytes_max", "below")

    def __init__(self, frame_bytes_max: int) -> None:
        """Larger frames are left as they are."""
        self._frame_bytes_max = frame_bytes_max
        self.below = 0
        """Dispositions of many deliveries with lower numbers than this are divided; there are none with
        higher ones. 0 if so few are unsettled that nothing need be. Set by the owner."""
        self._counted = 0
        """How many dispositions were made or looked at since `begin`."""

    def begin(self) -> None:
        """Count from here."""
        self._counted = 0

    @property
    def had_enough(self) -> bool:
        """Whether so many were made that others should have their turn before more are."""
        return self._counted >= _AT_ONCE

    def divide(self, head: bytes, value: int, frame_bytes: int) -> bytes | None:
        """The frames in place of one with a disposition; None to leave it. `head`: as much of the frame as
        there is. `value`: the offset of the disposition's list.

        Raises IndexError if the frame is incomplete, DecodeError if it is malformed.
        """
        found = self._divided(head, value, frame_bytes) if self.below else []
        self._counted += max(len(found), _LEAST_COUNTED)
        return b"".join(found) if found else None

    def _divided(self, head: bytes, value: int, frame_bytes: int) -> list[bytes]:
        if frame_bytes > self._frame_bytes_max:
            return []
        if len(head) < frame_bytes:
            raise IndexError("a disposition is divided as a whole")
        count, role = elements(head, value)
        if head[value] not in (_LIST8, _LIST32) or count < 3:
            return []
        places = [role]
        for _ in range(count):
            places.append(skip(head, places[-1]))
        first, last = scalar(head, places[1]), scalar(head, places[2])
        if places[-1] != skip(head, value) or not (isinstance(first, UInt) and isinstance(last, UInt)):
            return []
        named = ((last - first) & _MASK) + 1
        deliveries = min(named, (self.below - first) & _MASK)
        if head[role] != _TRUE or named > _MASK // 2 + 1 or deliveries <= _WIDE:
            return []
        before, behind = head[role : places[1]], head[places[3] : places[-1]]
        list_bytes = 4 + len(before) + _FIRST_AND_LAST.size + len(behind)
        sizes = bytes((_LIST32,)) + _U32.pack(list_bytes) + _U32.pack(count)
        begin = _U32.pack(value + 5 + list_bytes) + head[4:value] + sizes + before
        parts = min(-(-deliveries // _WIDE), _PARTS_MAX)
        starts = [(first + part * _WIDE) & _MASK for part in range(parts)]
        ends = [(start - 1) & _MASK for start in starts[1:]] + [last]
        pack = _FIRST_AND_LAST.pack
        return [
            begin + pack(_UINT, start, _UINT, end) + behind for start, end in zip(starts, ends, strict=True)
        ]
