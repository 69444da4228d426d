"""AMQP 1.0 frame by frame over a bare socket, so that a test controls exactly what goes over the wire, right
or wrong.

Frames are built and read with `protocol/codec.py` and nothing else of the broker; no AMQP library validates
outgoing frames. Every wait is bounded. Fields of a performative are given by position, as the specification
lists them (§2.7).
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from protocol.codec import Described, Symbol, UByte, UInt, ULong, UShort, decode, encode
from tests.support.broker_process import KEY, KEY_NAME

AMQP_HEADER, SASL_HEADER, TLS_HEADER = (
    b"AMQP\x00\x01\x00\x00",
    b"AMQP\x03\x01\x00\x00",
    b"AMQP\x02\x01\x00\x00",
)
OPEN, BEGIN, ATTACH, FLOW, TRANSFER, DISPOSITION, DETACH, END, CLOSE = range(0x10, 0x19)
SASL_MECHANISMS, SASL_INIT, SASL_OUTCOME = 0x40, 0x41, 0x44
RECEIVED, ACCEPTED, REJECTED, RELEASED, MODIFIED = range(0x23, 0x28)
TRANSACTIONAL = 0x34
SOURCE, TARGET, ERROR = 0x28, 0x29, 0x1D
SENDER, RECEIVER = False, True
"""The values of `role` (§2.8.1)."""
BATCH_FORMAT = 0x80013700
WAIT_S = 10.0
_SIZE = struct.Struct(">I")


class ConnectionEnded(Exception):
    """The broker has closed the connection."""


@dataclass(slots=True)
class Frame:
    """One frame as read. `code` is None for an empty frame; `field` gives None for fields beyond
    those sent.
    """

    channel: int
    code: int | None
    fields: list[Any]
    payload: bytes

    def field(self, place: int) -> Any:
        """The field at this position, None if it was omitted."""
        return self.fields[place] if place < len(self.fields) else None


# --- bytes --------------------------------------------------------------------------------------------------


def raw_frame(
    body: bytes, *, channel: int = 0, frame_type: int = 0, doff: int = 2, size: int | None = None
) -> bytes:
    """A frame around any bytes; `size` and `doff` may be wrong on purpose (§2.3.1)."""
    extended = bytes(max(0, 4 * doff - 8))
    length = 8 + len(extended) + len(body) if size is None else size
    return struct.pack(">IBBH", length, doff, frame_type, channel) + extended + body


def performative(code: int, fields: Sequence[Any]) -> bytes:
    """A performative's bytes."""
    return encode(Described(ULong(code), list(fields)))


def frame(code: int, fields: Sequence[Any], payload: bytes = b"", channel: int = 0) -> bytes:
    """A frame with a performative."""
    return raw_frame(performative(code, fields) + payload, channel=channel)


def sasl_frame(code: int, fields: Sequence[Any]) -> bytes:
    """A frame of the SASL layer (§5.3.1)."""
    return raw_frame(performative(code, fields), frame_type=1)


def sasl_plain(user: str = KEY_NAME, password: str = KEY) -> bytes:
    """Everything a client sends to log in with PLAIN, SASL header included."""
    return SASL_HEADER + sasl_frame(SASL_INIT, [Symbol("PLAIN"), f"\0{user}\0{password}".encode()])


def sasl_anonymous() -> bytes:
    """Everything a client sends to log in with ANONYMOUS, SASL header included."""
    return SASL_HEADER + sasl_frame(SASL_INIT, [Symbol("ANONYMOUS"), b""])


def open_fields(container: str = "raw", max_frame_bytes: int = 65_536) -> list[Any]:
    return [container, "127.0.0.1", UInt(max_frame_bytes), UShort(1_000), UInt(0)]


def begin_fields(window: int = 100_000) -> list[Any]:
    return [None, UInt(0), UInt(window), UInt(window), UInt(65_535)]


def sender_attach(handle: int, address: str | None, name: str = "") -> list[Any]:
    """Fields of an attach for a sender of unsettled messages."""
    source, target = Described(ULong(SOURCE), []), Described(ULong(TARGET), [address])
    return [
        name or f"sender-{handle}",
        UInt(handle),
        SENDER,
        UByte(0),
        UByte(0),
        source,
        target,
        None,
        None,
        UInt(0),
    ]


def receiver_attach(handle: int, address: str | None, name: str = "", *, settled: bool = False) -> list[Any]:
    """Fields of an attach for a receiver: peek-lock, or receive-and-delete when `settled`."""
    source, target = Described(ULong(SOURCE), [address]), Described(ULong(TARGET), [])
    return [
        name or f"receiver-{handle}",
        UInt(handle),
        RECEIVER,
        UByte(1 if settled else 0),
        UByte(0),
        source,
        target,
    ]


def flow_fields(
    handle: int | None = None,
    link_delivery_count: int = 0,
    credit: int = 0,
    *,
    drain: bool = False,
    received: int = 0,
) -> list[Any]:
    """Fields of a flow; with a handle, for that link (§2.7.4). Windows are as large as possible. `received`:
    transfers read so far in the session; needed only if there may be more than fit into the window.
    """
    session = [UInt(received), UInt(1_000_000), UInt(0), UInt(1_000_000)]
    return (
        session
        if handle is None
        else [*session, UInt(handle), UInt(link_delivery_count), UInt(credit), None, drain]
    )


def transfer_fields(
    handle: int,
    number: int,
    *,
    batch: bool = False,
    settled: bool = False,
    more: bool = False,
    tag: bytes | None = None,
    state: Any = None,
) -> list[Any]:
    """Fields of a transfer (§2.7.5); `number` is the delivery-id."""
    fields = [
        UInt(handle),
        UInt(number),
        _SIZE.pack(number) if tag is None else tag,
        UInt(BATCH_FORMAT if batch else 0),
        settled,
        more,
    ]
    return fields if state is None else [*fields, None, state]


def disposition_fields(role: bool, first: int, last: int, settled: bool, state: Any) -> list[Any]:
    """Fields of a disposition (§2.7.6)."""
    return [role, UInt(first), UInt(last), settled, state]


def detach_fields(handle: int) -> list[Any]:
    """Fields of a detach that closes a link (§2.7.7)."""
    return [UInt(handle), True]


def outcome(code: int, fields: Sequence[Any] = ()) -> Described:
    """A delivery state (§3.4)."""
    return Described(ULong(code), list(fields))


def condition_of(found: Frame) -> str | None:
    """The error condition of a detach, end or close."""
    place = {DETACH: 2, END: 0, CLOSE: 0}[found.code or 0]
    error = found.field(place)
    return str(error.value[0]) if isinstance(error, Described) and error.value else None


# --- a connection -------------------------------------------------------------------------------------------


class RawConnection:
    """A socket to the broker, with methods to write and read frames."""

    def __init__(
        self, port: int, *, receive_buffer_bytes: int | None = None, address: str | None = None
    ) -> None:
        """`address`: the client's own, if it is not 127.0.0.1; all of 127.0.0.0/8 are this machine's."""
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self.socket.settimeout(WAIT_S)
        if receive_buffer_bytes is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        try:
            if address is not None:
                self.socket.bind((address, 0))
            self.socket.connect(("127.0.0.1", port))
        except OSError:
            self.socket.close()
            raise
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = bytearray()

    def __enter__(self) -> RawConnection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.socket.close()

    # --- bytes

    def send(self, *pieces: bytes) -> None:
        """Write bytes. Raises ConnectionEnded if the broker has closed the connection."""
        try:
            self.socket.sendall(b"".join(pieces))
        except (BrokenPipeError, ConnectionResetError) as error:
            raise ConnectionEnded from error

    def send_frame(self, code: int, fields: Sequence[Any], payload: bytes = b"", channel: int = 0) -> None:
        """Write a frame with a performative."""
        self.send(frame(code, fields, payload, channel))

    def read_bytes(self, count: int, within_s: float = WAIT_S) -> bytes:
        """Read exactly `count` bytes. Raises TimeoutError, ConnectionEnded."""
        self._fill(count, time.monotonic() + within_s)
        found = bytes(self._buffer[:count])
        del self._buffer[:count]
        return found

    def _fill(self, count: int, deadline: float) -> None:
        """Read until the buffer holds at least `count` bytes."""
        while len(self._buffer) < count:
            self._buffer += self._receive(deadline)

    def _receive(self, deadline: float) -> bytes:
        """The next bytes from the socket, at least one. Raises TimeoutError, ConnectionEnded."""
        self.socket.settimeout(max(deadline - time.monotonic(), 0.001))
        try:
            data = self.socket.recv(256 * 1024)
        except ConnectionResetError as error:
            raise ConnectionEnded from error
        finally:
            self.socket.settimeout(WAIT_S)
        if not data:
            raise ConnectionEnded
        return data

    def buffered(self) -> bool:
        """Whether the buffer already holds a whole frame."""
        return len(self._buffer) >= 4 and len(self._buffer) >= _SIZE.unpack_from(self._buffer)[0]

    def read_frame(self, within_s: float = WAIT_S) -> Frame:
        """The next frame. Raises TimeoutError, ConnectionEnded."""
        deadline = time.monotonic() + within_s
        while True:
            self._fill(4, deadline)
            size = _SIZE.unpack_from(self._buffer)[0]
            assert size >= 8, f"the broker wrote a frame of {size} bytes"
            self._fill(size, deadline)
            whole = self.read_bytes(size)
            body = whole[4 * whole[4] :]
            channel = int.from_bytes(whole[6:8], "big")
            if not body:
                return Frame(channel, None, [], b"")
            value, end = decode(body)
            return Frame(channel, int(value.descriptor), value.value, body[end:])

    def read_until(self, *codes: int, within_s: float = WAIT_S) -> Frame:
        """The next frame of one of these performatives; skips others. Raises TimeoutError,
        ConnectionEnded.
        """
        deadline = time.monotonic() + within_s
        while True:
            found = self.read_frame(max(deadline - time.monotonic(), 0.001))
            if found.code in codes:
                return found

    def read_dispositions(self, deliveries: int, within_s: float = WAIT_S) -> None:
        """Read dispositions (§2.7.6) until they are about so many deliveries; skips other frames. Raises
        TimeoutError, ConnectionEnded."""
        deadline, found = time.monotonic() + within_s, 0
        while found < deliveries:
            answer = self.read_until(DISPOSITION, within_s=max(deadline - time.monotonic(), 0.001))
            first, last = answer.field(1), answer.field(2)
            found += (first if last is None else last) - first + 1

    def frames_until_end(self, within_s: float = WAIT_S) -> list[Frame]:
        """Every frame until the broker closes the socket. Raises TimeoutError."""
        deadline, found = time.monotonic() + within_s, []
        while True:
            try:
                found.append(self.read_frame(max(deadline - time.monotonic(), 0.001)))
            except ConnectionEnded:
                return found

    # --- steps

    def log_in(self, login: bytes | None = None) -> None:
        """Log in with SASL, by default PLAIN with the root key; leaves the stream at the AMQP header."""
        self.send(sasl_plain() if login is None else login)
        assert self.read_bytes(8) == SASL_HEADER
        self.read_frame()
        result = self.read_frame()
        assert result.code == SASL_OUTCOME and result.field(0) == 0, f"SASL was refused: {result}"

    def open(self, login: bytes | None = None, *, max_frame_bytes: int = 65_536) -> Frame:
        """Log in, exchange headers and opens; gives the broker's open."""
        self.log_in(login)
        self.send(AMQP_HEADER, frame(OPEN, open_fields(max_frame_bytes=max_frame_bytes)))
        assert self.read_bytes(8) == AMQP_HEADER
        return self.read_until(OPEN)

    def begin(self, channel: int = 0, window: int = 100_000) -> None:
        """Begin an AMQP session on this channel (§2.5)."""
        self.send_frame(BEGIN, begin_fields(window), channel=channel)
        self.read_until(BEGIN)

    def attach(self, fields: Sequence[Any], channel: int = 0) -> Frame:
        """Attach a link; gives the broker's attach, or the detach or close with which it refuses the link."""
        self.send_frame(ATTACH, fields, channel=channel)
        answer = self.read_until(ATTACH, CLOSE, END)
        refused = answer.code == ATTACH and answer.field(5) is None and answer.field(6) is None
        return self.read_until(DETACH) if refused else answer

    def attach_sender(self, handle: int, address: str) -> None:
        """Attach a sender and wait for credit. Raises AssertionError if the broker refuses it, and
        ConnectionEnded if it closes the connection."""
        self._attach(sender_attach(handle, address))
        self.read_until(FLOW)

    def attach_receiver(self, handle: int, address: str, *, settled: bool = False) -> None:
        """Attach a receiver without credit. Raises AssertionError if the broker refuses it, and
        ConnectionEnded if it closes the connection."""
        self._attach(receiver_attach(handle, address, settled=settled))

    def _attach(self, fields: Sequence[Any]) -> None:
        answer = self.attach(fields)
        if answer.code == CLOSE:
            raise ConnectionEnded(str(answer))
        assert answer.code == ATTACH, f"the link was refused: {answer}"

    def put_token(self, token: str, audience: str, channel: int) -> None:
        """Put a token in a separate AMQP session (AMQP contract 2), on a free channel. Raises AssertionError
        if it is refused.
        """
        self.begin(channel)
        assert self.attach(sender_attach(0, "$cbs"), channel).code == ATTACH
        self.read_until(FLOW)
        receiver = receiver_attach(1, "$cbs")
        receiver[6] = Described(ULong(TARGET), ["reply"])
        assert self.attach(receiver, channel).code == ATTACH
        self.send_frame(FLOW, flow_fields(1, 0, 1), channel=channel)
        request = b"".join(
            encode(Described(ULong(code), value))
            for code, value in (
                (0x73, ["request-1", None, "$cbs", None, "reply"]),
                (
                    0x74,
                    {"operation": "put-token", "type": "servicebus.windows.net:sastoken", "name": audience},
                ),
                (0x77, token),
            )
        )
        self.send_frame(TRANSFER, transfer_fields(0, 0, settled=True), request, channel)
        status = _application_properties(self.read_until(TRANSFER).payload)["status-code"]
        assert status == 202, f"put-token was answered with {status}"


def _application_properties(message: bytes) -> dict[str, Any]:
    offset = 0
    while offset < len(message):
        section, offset = decode(message, offset)
        if section.descriptor == 0x74:
            return {str(key): value for key, value in section.value.items()}
    return {}


def opened(port: int, *, receive_buffer_bytes: int | None = None) -> RawConnection:
    """A connection after login, open and begin. The caller closes its socket."""
    connection = RawConnection(port, receive_buffer_bytes=receive_buffer_bytes)
    try:
        connection.open()
        connection.begin()
    except BaseException:
        connection.socket.close()
        raise
    return connection
