"""Clients that connect and say nothing, and what becomes of them."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

WITHIN_S = 20.0


@contextlib.contextmanager
def silent_clients(port: int, count: int) -> Iterator[list[socket.socket]]:
    """Clients that connect and say nothing."""
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=WITHIN_S))
            for _ in range(count)
        ]


def is_hung_up_on(client: socket.socket) -> bool:
    """Whether the broker closes the connection. Raises TimeoutError if it does not."""
    try:
        return client.recv(1) == b""
    except ConnectionResetError:
        return True


def still_open(clients: list[socket.socket]) -> int:
    """How many of these clients the broker has not hung up on."""
    count = 0
    for client in clients:
        client.setblocking(False)
        try:
            count += bool(client.recv(1))
        except BlockingIOError:
            count += 1
        except ConnectionResetError:
            pass
    return count
