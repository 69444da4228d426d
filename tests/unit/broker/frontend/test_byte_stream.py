"""How much output may wait in a stream, and in the kernel below it."""

from __future__ import annotations

import socket
from typing import Any

from broker.frontend.byte_stream import UNSENT_BYTES_MIN, limit_output
from broker.frontend.slow_readers import ALLOWANCE_BYTES_FIRST
from tests.support.link_stack import ByteStream


class OverSocket(ByteStream):
    """A stream that tells its socket."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__()
        self.sock = sock

    def get_extra_info(self, name: str) -> Any:
        return self.sock if name == "socket" else None


def test_the_kernel_buffers_little_of_a_client_that_has_not_read_and_more_of_one_that_has() -> None:
    with socket.socket() as sock:
        stream = OverSocket(sock)
        limit_output(stream, ALLOWANCE_BYTES_FIRST)
        assert unsent_max(sock) == UNSENT_BYTES_MIN <= ALLOWANCE_BYTES_FIRST // 2
        limit_output(stream, 4 << 20)
        assert unsent_max(sock) == 512 << 10


def test_a_stream_without_a_tcp_socket_has_only_its_own_limit() -> None:
    limit_output(ByteStream(), 4 << 20)
    with socket.socket(socket.AF_UNIX) as sock:
        limit_output(OverSocket(sock), 4 << 20)


def unsent_max(sock: socket.socket) -> int:
    return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT)
