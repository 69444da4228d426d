"""The reads of one connection, as far as they are plain (`exchange.py`): nearly all that a client sends while
it sends messages or settles them.

The reads of a client that sends much seldom end where a frame ends. So whole frames are taken, and the
beginning of a small one is kept for the next read. Nobody else has seen such bytes, so they come first,
whichever way that read takes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from protocol import exchange
from protocol.deliveries import Deliveries
from protocol.lenience import Lenience
from protocol.links import Link
from protocol.proton_values import ffi
from protocol.push_size import PushSize

HEADER_BYTES, SIZE_BYTES = 8, 4
"""Of a frame, and of the number in it that gives its size (AMQP 1.0 §2.3.1)."""
KEPT_BYTES_MAX = 4 * 1024
"""Larger frames are not plain (`large_input.py`), or seldom: their beginnings take the way of the others."""

IsLate = Callable[[], bool]
"""Whether what is being done has taken long enough, and the rest can wait."""
NEVER: IsLate = bool
"""`bool()` is False."""

_cast, _POINTER = ffi.cast, ffi.typeof("void *")


class PlainReads:
    """Takes whole plain frames, and keeps the beginning of the next one."""

    __slots__ = ("_attached", "_deliveries", "_has_waited", "_kept", "_lenience", "_proton", "_push_size")

    def __init__(
        self,
        proton: tuple[int, int],
        lenience: Lenience,
        push_size: PushSize,
        attached: Mapping[Any, Link],
        deliveries: Deliveries,
    ) -> None:
        """`proton`: the addresses of the transport and the collector."""
        self._proton, self._lenience, self._push_size = proton, lenience, push_size
        self._attached, self._deliveries = attached, deliveries
        self._kept = b""
        self._has_waited = False
        """Whether the latest read was joined to what was kept."""

    def joined(self, data: bytes) -> bytes:
        """The peer's next bytes, with those that were kept before them."""
        self._has_waited = bool(self._kept and data)
        if self._kept:
            data, self._kept = self._kept + data, b""
        return data

    @property
    def has_kept(self) -> bool:
        """Whether the beginning of a frame is kept."""
        return bool(self._kept)

    def take(self, data: bytes, begin: int, at_once: float, is_late: IsLate) -> tuple[int, bool, float]:
        """Take whole frames of `data` from `begin` on, as long as they are plain, and until they have made
        some `at_once` deliveries, or `is_late` after some of them.

        Gives where they end; whether everything that they have caused was reported, or else the caller reads
        the rest from proton before that gets more bytes; and what is left of `at_once`.
        """
        push_size, size = self._push_size, len(data)
        while begin < size and at_once > 0 and not (begin and is_late()):
            read = self._read(data, begin, push_size.most)
            if read is None:
                break
            number, deliveries, payloads, settled, is_all, end = read
            push_size.uncounted_bytes += end - begin
            at_once -= len(deliveries if payloads is None else payloads)
            link = self._attached.get(_cast(_POINTER, number)) if number else None
            if link is not None:  # None: outcomes after a detach
                self._deliveries.report_run(link, deliveries, payloads, settled)
            if not is_all:
                return end, False, at_once
            push_size.adapt(end - begin, 0)
            begin = end
        return begin, True, at_once

    def _read(self, data: bytes, begin: int, most: int) -> Any:
        """See `exchange.read`."""
        push_size, about = self._push_size, (*self._proton, self._lenience.ids_address, data, begin, most)
        size = min(len(data) - begin, most)
        has_time = push_size.may_hold_dispositions(size)
        read = exchange.read(*about, not has_time)
        if read is None and not has_time:  # by what was pushed since deliveries were last counted
            push_size.now(self._attached)
            if push_size.may_hold_dispositions(size):
                read = exchange.read(*about, False)
        return read

    def keeps(self, rest: bytes, is_new: bool) -> bool:
        """Whether nothing is left of a read but the beginning of a small frame. It is kept, once: a frame
        that comes in many reads goes to proton, which else would hear nothing of a slow peer for too long.
        `is_new`: frames were taken before it."""
        if self._has_waited and not is_new:
            return False
        if len(rest) >= SIZE_BYTES:
            size = int.from_bytes(rest[:SIZE_BYTES], "big")
            if not (HEADER_BYTES <= size <= KEPT_BYTES_MAX and len(rest) < size):
                return False
        self._kept = rest
        return True
