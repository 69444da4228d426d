"""Where a broker listens and how a load client logs in: the URL, and SASL written by hand (AMQP 1.0 §5.3).

Knows sockets and SASL frames, nothing of what follows them.
"""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

_SASL_HEADER = b"AMQP\x03\x01\x00\x00"
_SASL_OUTCOME = 0x44


class LoadError(Exception):
    """The broker refused, closed or went silent: the measurement is void."""


@dataclass(slots=True, frozen=True)
class Endpoint:
    """Where a broker listens, the client's credentials, and the address of the entity to load."""

    host: str
    port: int
    user: str
    password: str
    address: str

    @classmethod
    def parse(cls, url: str) -> Endpoint:
        """Parse `amqp://user:password@host:port/address`; the address is everything after the first slash, so
        `//queues/q` means `/queues/q`.
        """
        parts = urlsplit(url)
        if parts.scheme != "amqp" or not parts.hostname or len(parts.path) < 2:
            raise ValueError(f"not an amqp://user:password@host:port/address: {url}")
        return cls(
            parts.hostname,
            parts.port or 5672,
            unquote(parts.username or ""),
            unquote(parts.password or ""),
            unquote(parts.path[1:]),
        )


def authenticate(sock: socket.socket, endpoint: Endpoint) -> None:
    """The client's side of SASL (§5.3): PLAIN if there is a user, otherwise ANONYMOUS. Leaves the socket at
    the AMQP header. Raises LoadError.
    """
    sock.sendall(_SASL_HEADER)
    if _read_exactly(sock, 8) != _SASL_HEADER:
        raise LoadError("the broker does not speak SASL")
    _read_frame(sock)  # sasl-mechanisms: a benchmark knows what its broker offers
    mechanism, response = (
        (b"PLAIN", f"\0{endpoint.user}\0{endpoint.password}".encode())
        if endpoint.user
        else (b"ANONYMOUS", b"bench")
    )
    fields = b"\xa3" + bytes((len(mechanism),)) + mechanism + b"\xa0" + bytes((len(response),)) + response
    body = b"\x00\x53\x41\xc0" + bytes((len(fields) + 1, 2)) + fields
    sock.sendall(_sasl_frame(body))
    outcome = _read_frame(sock)
    # Described by smallulong 0x44: 00 53 44, then a list whose first field is the code; ok is ubyte 0: 50 00.
    if outcome[2] != _SASL_OUTCOME or b"\x50\x00" not in outcome[3:8]:
        raise LoadError(f"the broker refused {mechanism.decode()} for {endpoint.user or 'nobody'}")


def accept_sasl(sock: socket.socket) -> None:
    """The server's side of SASL, for a peer that admits everyone. Leaves the socket at the AMQP header."""
    _read_exactly(sock, 8)
    mechanisms = b"\x00\x53\x40\xc0\x0b\x01\xe0\x08\x01\xa3\x05PLAIN"
    sock.sendall(_SASL_HEADER + _sasl_frame(mechanisms))
    _read_frame(sock)
    sock.sendall(_sasl_frame(b"\x00\x53\x44\xc0\x03\x01\x50\x00"))


def _sasl_frame(performative: bytes) -> bytes:
    return struct.pack(">IBBH", 8 + len(performative), 2, 1, 0) + performative


def _read_exactly(sock: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        part = sock.recv(count - len(data))
        if not part:
            raise LoadError("the broker closed the socket during SASL")
        data += part
    return bytes(data)


def _read_frame(sock: socket.socket) -> bytes:
    """The performative of one SASL frame, after its header of `doff` words (§2.3.1)."""
    size, doff = struct.unpack(">IB", _read_exactly(sock, 5))
    return _read_exactly(sock, size - 5)[doff * 4 - 5 :]
