"""AMQP frame by frame over a WebSocket: the interface of `raw_amqp.RawConnection`, with its bytes in binary
messages (RFC 6455).
"""

from __future__ import annotations

import struct
import time
from collections.abc import Mapping

from tests.support.raw_amqp import WAIT_S, ConnectionEnded, RawConnection

PATH = "/$servicebus/websocket"
BINARY, CLOSE, PING = 2, 8, 9
_NO_MASK = bytes(4)
"""Clients must mask (RFC 6455 5.1); a mask of zeros changes nothing."""


class HandshakeRefused(Exception):
    """The status of the answer was not 101."""

    def __init__(self, status: int) -> None:
        super().__init__(f"the handshake was answered with {status}")
        self.status = status


def handshake(headers: Mapping[str, str]) -> bytes:
    """The opening request, with additional headers."""
    sent = {
        "Host": "localhost",
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Protocol": "AMQPWSB10",
        **headers,
    }
    lines = "".join(f"{name}: {value}\r\n" for name, value in sent.items())
    return f"GET {PATH} HTTP/1.1\r\n{lines}\r\n".encode()


def message(data: bytes, kind: int = BINARY) -> bytes:
    """One whole message from a client."""
    if len(data) < 126:
        length = bytes([0x80 | len(data)])
    elif len(data) < 1 << 16:
        length = struct.pack(">BH", 0x80 | 126, len(data))
    else:
        length = struct.pack(">BQ", 0x80 | 127, len(data))
    return bytes([0x80 | kind]) + length + _NO_MASK + data


class WebSocketConnection(RawConnection):
    """A WebSocket to the broker, with methods to write and read AMQP frames. Raises HandshakeRefused."""

    def __init__(self, port: int, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(port)
        self._wire = bytearray()
        self.socket.sendall(handshake(headers or {}))
        deadline = time.monotonic() + WAIT_S
        try:
            while b"\r\n\r\n" not in self._wire:
                self._wire += self._receive(deadline)
        except BaseException:
            self.socket.close()
            raise
        head, _, rest = bytes(self._wire).partition(b"\r\n\r\n")
        self._wire[:] = rest
        status = int(head.split()[1])
        if status != 101:
            self.socket.close()
            raise HandshakeRefused(status)

    def send(self, *pieces: bytes) -> None:
        super().send(message(b"".join(pieces)))

    def _fill(self, count: int, deadline: float) -> None:
        while len(self._buffer) < count:
            found = self._next_message()
            if found is None:
                self._wire += self._receive(deadline)
                continue
            kind, data = found
            if kind == CLOSE:
                raise ConnectionEnded
            if kind == BINARY:
                self._buffer += data

    def _next_message(self) -> tuple[int, bytes] | None:
        """Kind and content of the next message, if it has arrived as a whole. Servers do not mask and, here,
        do not fragment messages.
        """
        if len(self._wire) < 2:
            return None
        kind, length, begin = self._wire[0] & 0x0F, self._wire[1], 2
        if length >= 126:
            begin = 4 if length == 126 else 10
            if len(self._wire) < begin:
                return None
            length = int.from_bytes(self._wire[2:begin], "big")
        if len(self._wire) < begin + length:
            return None
        data = bytes(self._wire[begin : begin + length])
        del self._wire[: begin + length]
        return kind, data
