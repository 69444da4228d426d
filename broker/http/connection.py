"""One HTTP connection: aiohttp's protocol, with limits on how long it waits for its client.

A new connection has `http_header_timeout_ms` for its whole first header, counted from the moment it is
accepted and including the TLS handshake; each further request has the same time from its first byte.
Receiving a body may take `http_transfer_timeout_ms`, and so may a client that reads an answer slowly. Between
requests a connection may be idle for `http_keepalive_ms`. While the broker waits for the client, the
connection may lose its place (`crowd.py`). Bytes that are not HTTP are answered with 400 and logged at debug
level. The bytes of a WebSocket are passed on, but before its client has logged in, no more of them than a
login needs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import structlog
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from broker.http.crowd import Guest
from broker.http.portions import PORTION_BYTES, Portions

log = structlog.get_logger("http")

UNTRUSTED_BYTES_MAX = 64 * 1024
"""Unread bytes that a WebSocket may send before its login. aiohttp keeps unfinished messages in memory."""
IDLE = "idle"
"""The reason for ending an idle connection, which the metric does not count."""
_HEADER_ENDS = (b"\r\n\r\n", b"\n\n")


class Limits:
    """Time limits in seconds, and the functions to call when something goes wrong."""

    __slots__ = ("ended", "header_s", "keepalive_s", "malformed", "transfer_s")

    def __init__(
        self,
        *,
        header_s: float,
        transfer_s: float,
        keepalive_s: float,
        ended: Callable[[str], None],
        malformed: Callable[[str], web.Response],
    ) -> None:
        self.header_s, self.transfer_s, self.keepalive_s = header_s, transfer_s, keepalive_s
        self.ended = ended
        """Called with the reason when the broker ends a connection, to count it."""
        self.malformed = malformed
        """Makes the answer to bytes that are not HTTP, given aiohttp's error text."""


class HttpConnection(web.RequestHandler):
    """Owned by the event loop. `begin` and `finish` are called before and after each request's handler."""

    __slots__ = (
        "_deadline",
        "_ends_for",
        "_guest",
        "_is_closing",
        "_is_held",
        "_is_listed",
        "_limits",
        "_parsed",
        "_partial",
        "_portions",
        "_read_ahead",
        "_request",
        "_stream",
        "_timer",
        "_trusted",
        "_unread_bytes",
        "_websocket",
        "_write_timer",
        "at_end",
    )

    def __init__(
        self,
        server: web.Server,
        guest: Guest,
        limits: Limits,
        portions: Portions,
        deadline: float,
        **options: Any,
    ) -> None:
        super().__init__(server, **options)
        self._guest, self._limits, self._portions = guest, limits, portions
        self._read_ahead, self._parsed = b"", 0
        """Bytes read from the socket. The first `_parsed` of them are parsed, and the rest wait for a later
        turn; reading is paused meanwhile."""
        self._deadline = deadline  # the event loop's time by which the first header must be complete
        self._stream: asyncio.Transport | None = None
        self._request: web.BaseRequest | None = None
        self._partial = False
        """Whether the last bytes read probably begin another header."""
        self._timer: asyncio.TimerHandle | None = None
        self._ends_for = ""
        """Why the timer will end the connection; empty if no timer runs."""
        self._write_timer: asyncio.TimerHandle | None = None
        self._websocket = self._trusted = self._is_closing = False
        self._unread_bytes = 0
        self.at_end: list[Callable[[], object]] = []
        """Called once when the connection is lost."""
        self._is_listed = self._is_held = False
        """Whether the connection waits in `portions`, and whether aiohttp has no room for more messages."""

    @property
    def made(self) -> bool:
        """Whether the connection was made, TLS included. From then on `connection_lost` releases its
        place."""
        return self._stream is not None

    @property
    def spare(self) -> bool:
        """Whether this connection has a spare place, where only `/health` is answered."""
        return self._guest.spare

    @property
    def arriving(self) -> web.BaseRequest | None:
        """The request whose body has not arrived as a whole."""
        request = self._request
        return None if request is None or self._websocket or request.content.is_eof() else request

    # --- asyncio's protocol ---------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._stream = cast(asyncio.Transport, transport)
        self._guest.end = self._stream.abort
        super().connection_made(transport)
        self._end_at(self._deadline, "slow_header")

    def connection_lost(self, exc: BaseException | None) -> None:
        self._stop_waiting()
        if self._write_timer is not None:
            self._write_timer.cancel()
        self._guest.leave()
        self._read_ahead, self._parsed = b"", 0
        super().connection_lost(exc)
        while self.at_end:
            self.at_end.pop()()

    def data_received(self, data: bytes) -> None:
        if not data:  # aiohttp calls this to continue with what it already has
            self._take(data)
        elif len(data) <= PORTION_BYTES and not self._read_ahead and self._portions.is_empty:
            self._portions.end_turn()
            self._take(data)
        else:
            self._read_ahead = self._read_ahead[self._parsed :] + data
            self._parsed = 0
            self._wait_to_parse()

    def parse_portion(self) -> bool:
        """Parse the next bytes (`portions.Reader`). Reading resumes once nothing is left to parse."""
        if self._stream is None or self._stream.is_closing():
            self._read_ahead, self._parsed = b"", 0
        if self._read_ahead and not self._is_held:
            begin, self._parsed = self._parsed, self._parsed + PORTION_BYTES
            portion = self._read_ahead[begin : self._parsed]
            is_last = self._parsed >= len(self._read_ahead)
            if is_last:
                self._read_ahead, self._parsed = b"", 0
            self._take(portion)
            if (
                is_last
                and not (self._is_held or self._buffer_paused)
                and self._stream is not None
                and not self._stream.is_closing()
            ):
                self._stream.resume_reading()
        self._is_listed = bool(self._read_ahead) and not self._is_held
        return self._is_listed

    def _wait_to_parse(self) -> None:
        """Pause reading until the rest is parsed, in later turns or when aiohttp has room again."""
        if self._stream is None:
            return
        self._stream.pause_reading()
        if not self._is_held and not self._is_listed:
            self._is_listed = True
            self._portions.add(self)

    def _take(self, data: bytes) -> None:
        if self._websocket:
            if not self._trusted:
                self._unread_bytes += len(data)
                if self._unread_bytes > UNTRUSTED_BYTES_MAX:
                    self._end("websocket_flood")
                    return
        elif data:
            request = self._request
            if request is None or request.content.is_eof():
                self._partial = not data.endswith(_HEADER_ENDS)
                if (
                    request is None and self._ends_for != "slow_header"
                ):  # only a header's first byte starts its time
                    self._end_at(self._loop.time() + self._limits.header_s, "slow_header")
        super().data_received(data)
        if (
            self._timer is not None
            and self._request is not None
            and not self._websocket
            and self._request.content.is_eof()
        ):
            self._is_whole()

    def pause_reading(self) -> None:
        """aiohttp has no room for more messages."""
        self._is_held = True
        super().pause_reading()

    def resume_reading(self, *args: Any, **kw: Any) -> None:
        """aiohttp has room again."""
        self._is_held = False
        super().resume_reading(*args, **kw)
        if self._read_ahead:
            self._wait_to_parse()

    def pause_writing(self) -> None:
        super().pause_writing()
        if (
            not self._websocket
        ):  # on a WebSocket, the AMQP connection bounds the output that waits for a slow reader
            self._guest.waits()
            self._write_timer = self._loop.call_later(self._limits.transfer_s, self._end, "slow_reader")

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None
            if self._request is not None:
                self._guest.is_served()

    # --- requests -------------------------------------------------------------------------------------------

    def begin(self, request: web.BaseRequest) -> None:
        """A request's whole header has arrived."""
        self._request = request
        if request.body_exists:
            self._partial = False  # the bytes after the header were the body
        if request.content.is_eof():
            self._is_whole()
        elif self._is_closing:
            self._end("slow_body")
        else:
            self._end_at(self._loop.time() + self._limits.transfer_s, "slow_body")

    def finish(self) -> None:
        """The handler has answered; the answer may still be on its way to the client."""
        request, self._request = self._request, None
        if self._stream is None or self._stream.is_closing():
            return
        self._guest.waits()
        if self._partial:
            wait_s, reason = self._limits.header_s, "slow_header"
        elif request is not None and request.keep_alive and not self._websocket:
            wait_s, reason = self._limits.keepalive_s, IDLE
        else:  # the connection closes, and waits only briefly for its remaining output
            wait_s, reason = self._limits.header_s, IDLE
        self._end_at(self._loop.time() + wait_s, reason)

    def close(self) -> None:
        """The port closes, and aiohttp drops what clients send from here on. Nothing would answer a request
        whose body is still on its way."""
        self._is_closing = True
        super().close()
        if self.arriving is not None:
            self._end("slow_body")

    def becomes_websocket(self) -> None:
        """The WebSocket handshake is about to be answered. The connection may lose its place until the client
        has logged in."""
        self._stop_waiting()
        self._websocket = True
        self._guest.waits()

    def heard(self, trusted: bool) -> None:
        """A WebSocket message was read. `trusted` says whether the client has logged in or put a token by
        now."""
        self._unread_bytes = 0
        if trusted and not self._trusted:
            self._trusted = True
            self._guest.is_served()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer malformed requests and end connections of departed clients, without aiohttp's traceback in
        the log."""
        if isinstance(exc, ConnectionError | asyncio.IncompleteReadError):
            raise ConnectionResetError("the client is gone") from exc
        if status >= 500:
            return super().handle_error(request, status, exc, message)
        log.debug("http.malformed", peer=request.remote, error=message or repr(exc))
        if request.writer.output_size > 0:
            raise ConnectionResetError("an answer has begun; there is no room for another") from exc
        self._limits.ended("malformed")
        # The header's timer keeps running, and ends the connection if the client does not.
        return self._limits.malformed(message or "")

    def log_exception(self, *args: Any, **kw: Any) -> None:
        """Suppress aiohttp's traceback for malformed bodies and departed clients; log all others."""
        if not isinstance(
            kw.get("exc_info"), web.RequestPayloadError | HttpProcessingError | ConnectionError
        ):
            super().log_exception(*args, **kw)

    # --- waiting --------------------------------------------------------------------------------------------

    def _is_whole(self) -> None:
        self._stop_waiting()
        if self._write_timer is None:
            self._guest.is_served()

    def _end_at(self, when: float, reason: str) -> None:
        self._stop_waiting()
        self._ends_for = reason
        self._timer = self._loop.call_at(when, self._end, reason)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._ends_for = ""

    def _end(self, reason: str) -> None:
        self._timer = None
        if self._stream is None:
            return
        if reason != IDLE:
            self._limits.ended(reason)
            log.debug("http.ended", peer=self._peer(self._stream), reason=reason)
        self._stream.abort()

    @staticmethod
    def _peer(stream: asyncio.Transport) -> str:
        """The client's address. Between the end of the socket and `connection_lost`, uvloop raises
        ValueError."""
        try:
            return str(stream.get_extra_info("peername"))
        except (OSError, ValueError):
            return "gone"
