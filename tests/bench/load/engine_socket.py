"""A socket driven by proton's engine: bytes read go in, bytes produced go out, and deliveries go to their
links.

Serves both sides of a benchmark, the load client and the bare peer. Knows nothing of windows, counts or
figures. Each peek stays within one of proton's output buffers, since it would miss the bytes beyond.
"""

from __future__ import annotations

import socket
import time
from abc import ABC, abstractmethod
from typing import Any, Protocol

from cproton_ffi import ffi, lib

from tests.bench.load.endpoint import LoadError

READ_BYTES = 256 * 1024
WRITE_BYTES = 1024 * 1024
MAX_FRAME_BYTES = 64 * 1024

# Bound once: looking up a function in `lib` costs as much as calling it.
_event_peek, _event_pop, _event_type = lib.pn_collector_peek, lib.pn_collector_pop, lib.pn_event_type
_event_delivery, _link_of = lib.pn_event_delivery, lib.pn_delivery_link
_PN_DELIVERY = lib.PN_DELIVERY

_DISPOSITION = b"\x00\x53\x15\xc0"
_NULL, _FALSE = 0x40, 0x42
_UINT_BYTES = {0x70: 5, 0x52: 2, 0x43: 1}


class Link(Protocol):
    """The methods of a link that the engine calls."""

    def on_delivery(self, delivery: Any) -> None: ...
    def replenish(self) -> None: ...


class EngineSocket(ABC):
    """One connection after SASL. Subclasses open it, add the links, and handle events other than
    deliveries.
    """

    def __init__(
        self, sock: socket.socket, is_server: bool = False, spells_out_unsettled: bool = False
    ) -> None:
        self.socket = sock
        self._spells_out_unsettled = spells_out_unsettled
        self.connection = lib.pn_connection()
        self._transport = lib.pn_transport()
        self._collector = lib.pn_collector()
        if is_server:
            lib.pn_transport_set_server(self._transport)
        lib.pn_transport_set_max_frame(self._transport, MAX_FRAME_BYTES)
        lib.pn_connection_collect(self.connection, self._collector)
        lib.pn_transport_bind(self._transport, self.connection)
        self._links: dict[Any, Link] = {}
        self._read_buffer = bytearray(READ_BYTES)
        self._read_pointer = ffi.from_buffer(self._read_buffer)
        self._write_buffer = bytearray(WRITE_BYTES)
        self._write_pointer = ffi.from_buffer(self._write_buffer)
        self._write_view = memoryview(self._write_buffer)
        self._write_from = 0
        self._write_until = 0

    @abstractmethod
    def on_event(self, event: Any, kind: int) -> None:
        """Handle an event that is not a delivery."""

    def add_link(self, link: Any, owner: Link) -> None:
        """Route the link's events to its owner."""
        self._links[link] = owner

    def drop_link(self, link: Any) -> None:
        """Forget a link that both sides have closed, and free its memory."""
        del self._links[link]
        lib.pn_link_free(link)

    def fileno(self) -> int:
        return self.socket.fileno()

    def read(self) -> None:
        """Process what one read of the socket returns, and let each link act on it. Raises LoadError at the
        end of the stream.
        """
        count = self.socket.recv_into(self._read_buffer)
        if count == 0:
            raise LoadError("the other side closed the socket")
        pushed = 0
        while pushed < count:
            step = lib.pn_transport_push(self._transport, self._read_pointer + pushed, count - pushed)
            if step <= 0:
                raise_condition(lib.pn_transport_condition(self._transport), "transport")
            pushed += step
        self._dispatch()

    def replenish(self) -> None:
        """Let each link send or grant what its window permits."""
        for owner in self._links.values():
            owner.replenish()

    def flush(self) -> bool:
        """Write what proton has for the socket; false if the socket took only part of it."""
        while True:
            if not self.gather():
                return True
            try:
                self._write_from += self.socket.send(self._write_view[self._write_from : self._write_until])
            except BlockingIOError:
                return False

    def tick(self) -> None:
        """Let proton write an empty frame when the other side's idle time-out requires one (§2.4.5)."""
        lib.pn_transport_tick(self._transport, time.monotonic_ns() // 1_000_000)

    def release(self) -> socket.socket:
        """Free proton's memory and hand over the socket, with its connection still open."""
        self._links.clear()
        lib.pn_collector_free(self._collector)
        lib.pn_decref(self.connection)
        lib.pn_decref(self._transport)
        return self.socket

    def gather(self) -> bool:
        """Fill the write buffer from proton's output buffers unless it already holds something; false if
        there is nothing to write.
        """
        if self._write_from < self._write_until:
            return True
        end = 0
        while end < WRITE_BYTES:
            pending = lib.pn_transport_pending(self._transport)
            if pending <= 0:
                break
            taken = lib.pn_transport_peek(
                self._transport, self._write_pointer + end, min(pending, WRITE_BYTES - end)
            )
            lib.pn_transport_pop(self._transport, taken)
            end += taken
        self._write_from, self._write_until = 0, end
        if self._spells_out_unsettled:
            spell_out_unsettled(self._write_buffer, end)
        return end > 0

    def _dispatch(self) -> None:
        links, collector = self._links, self._collector
        while event := _event_peek(collector):
            kind = _event_type(event)
            if kind == _PN_DELIVERY:
                delivery = _event_delivery(event)
                links[_link_of(delivery)].on_delivery(delivery)
            else:
                self.on_event(event, kind)
            _event_pop(collector)


def spell_out_unsettled(buffer: bytearray, end: int) -> None:
    """Replace the null `settled` of each disposition in buffer[:end] with false: same meaning (§2.7.6), same
    length.
    """
    at = buffer.find(_DISPOSITION, 0, end)
    while at >= 0:
        settled = at + len(_DISPOSITION) + 2 + 1  # after the list's size and count, and the role
        for _ in ("first", "last"):
            settled += _UINT_BYTES.get(buffer[settled], 1)
        if settled < end and buffer[settled] == _NULL:
            buffer[settled] = _FALSE
        at = buffer.find(_DISPOSITION, settled, end)


def raise_condition(condition: Any, what: str) -> None:
    """Raise LoadError with the condition that ended `what`."""
    name, description = (
        ffi.string(text).decode() if text else ""
        for text in (lib.pn_condition_get_name(condition), lib.pn_condition_get_description(condition))
    )
    raise LoadError(f"the broker ended the {what}: {name or 'no condition'} {description}".rstrip())
