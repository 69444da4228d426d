"""The interface between a connection and its socket, and how much output may wait there."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Sequence
from typing import Any, Protocol

UNSENT_BYTES_MIN = 128 * 1024
UNSENT_SHARE = 8
"""How much output the kernel buffers before it has sent it: this fraction of what may wait here, and at least
UNSENT_BYTES_MIN. It takes more of a client that reads: each time that it takes some costs a turn of the event
loop, for 128 KiB as much as for four times that."""


class ByteStream(Protocol):
    """The byte stream below: a TCP or TLS transport of asyncio, or a WebSocket made to look like one."""

    def write(self, data: bytes | memoryview) -> None: ...
    def writelines(self, list_of_data: Sequence[bytes | memoryview]) -> None: ...
    def get_write_buffer_size(self) -> int: ...
    def set_write_buffer_limits(self, high: int) -> None: ...
    def get_extra_info(self, name: str) -> Any: ...
    def is_closing(self) -> bool: ...
    def can_write_eof(self) -> bool: ...
    def write_eof(self) -> None: ...
    def close(self) -> None: ...
    def abort(self) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...


def limit_output(stream: ByteStream, bytes_max: int) -> None:
    """Pause the connection when more than `bytes_max` wait for the client. The kernel buffers little of its
    unsent output (Linux), so that output the client does not read waits here, where it is counted."""
    stream.set_write_buffer_limits(bytes_max)
    sock = stream.get_extra_info("socket")
    if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
        unsent = max(bytes_max // UNSENT_SHARE, UNSENT_BYTES_MIN)
        with contextlib.suppress(OSError, AttributeError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, unsent)
