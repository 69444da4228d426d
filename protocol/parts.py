"""How much memory one peer's sessions and links take, and whether it may have more of them.

Proton makes objects of a few KiB for each session and link. It keeps an attach as bytes, and makes 70 bytes
of each value that is asked for or copied: the broker asks for the properties, and accepting a link copies its
filter. A link with 1,800 nulls there takes 129 KiB until it ends. The same goes for the open. Memory is
counted in parts: a session or a link is one, and so are so many values, all of them, since nobody knows yet
which will be asked for. The engine's user is asked before proton sees a frame, and told when parts have gone.
"""

from __future__ import annotations

import math
import struct
from collections import deque
from collections.abc import Callable

from protocol.codec import DecodeError
from protocol.events import ErrorCondition
from protocol.limits import ATTACH, OPEN, RESOURCE_LIMIT, VALUES_MAX
from protocol.values import TooManyValues, count_values

VALUES_PER_PART = 64
"""Proton takes 70 bytes for each value that it decodes."""
FEW_BYTES = 256
"""The values of frames of up to this size are not counted: at most 240 of them, or 17 KiB. Attaches of the
official Python client have up to 306 bytes, and 41 values."""

_NO_MEMORY = ErrorCondition(
    RESOURCE_LIMIT,
    "The broker is short of memory, so this connection may have no more sessions and links now.",
)


def always(parts: int, objects: int) -> bool:
    """Let the peer have as many parts as it likes."""
    return True


class Parts:
    """The parts of one connection."""

    __slots__ = ("_admit", "_at_once", "_attaching", "_begun", "count", "objects")

    def __init__(self, admit: Callable[[int, int], bool] = always, at_once: float = math.inf) -> None:
        """`admit` is called with how many parts the peer is about to have more, and how many of these are
        sessions and links, and says whether it may. When parts have gone, it is called with both numbers
        negative.

        `at_once`: how many may begin before proton gets what came before, and others have their turn
        (`had_enough`).
        """
        self._at_once = at_once
        self._admit = admit
        self.count = 0
        """How many parts the peer has."""
        self.objects = 0
        """How many of them are sessions and links; the others stand for values."""
        self._begun = 0
        """How many have begun since the last call of `go_on`."""
        self._attaching: deque[int] = deque()
        """The parts of each attach that was passed on and that proton has not reported yet."""

    def begin(self, code: int, parts: int) -> ErrorCondition | None:
        """The peer sends an open, begin or attach with so many parts. Gives the error if it is refused;
        otherwise they count from now on."""
        objects = int(code != OPEN)
        if not self._admit(parts, objects):
            return _NO_MEMORY
        self.count += parts
        self.objects += objects
        self._begun += parts
        if code == ATTACH:
            self._attaching.append(parts)
        return None

    @property
    def had_enough(self) -> bool:
        """Whether so many have begun that proton should have them before there are more: until then, memory
        in use does not show them."""
        return self._begun >= self._at_once

    def go_on(self) -> None:
        """Count from here what begins at once."""
        self._begun = 0

    def attached(self) -> int:
        """How many parts the next link that proton reports has."""
        return self._attaching.popleft() if self._attaching else 0  # none known: a lost stream

    def end(self, parts: int) -> None:
        """A session or link with so many parts has gone."""
        if parts:
            self.count -= parts
            self.objects -= 1
            self._admit(-parts, -1)


def parts_of(code: int, head: bytes, value: int, frame_bytes: int) -> int:
    """How many parts an open or attach takes, by its code and its beginning, `head`, whose list is at
    `value`. Raises IndexError if too little of the frame has arrived to tell."""
    return (code == ATTACH) + _values_in(head, value, frame_bytes) // VALUES_PER_PART


def _values_in(head: bytes, value: int, frame_bytes: int) -> int:
    if frame_bytes <= FEW_BYTES:
        return 0
    if len(head) < frame_bytes:
        raise IndexError("the values of a frame are counted as a whole")
    try:
        return count_values(head, value, frame_bytes, VALUES_MAX)
    except (TooManyValues, DecodeError, struct.error, IndexError):
        return VALUES_MAX
