"""A proxy that cuts connections: whoever speaks through it loses each of them after so many bytes."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

CHUNK = 4096
ENDS_WITHIN_S = 10.0


class CuttingProxy:
    """Passes bytes between clients and one port of this machine, each connection in threads of its own."""

    def __init__(self, target_port: int, lifetimes: Iterator[int]) -> None:
        """lifetimes: after how many bytes, in both directions together, each connection is cut; those that
        come when there are no more are not."""
        self._target, self._lifetimes = ("127.0.0.1", target_port), lifetimes
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.cuts = 0
        self._open: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def _accept(self) -> None:
        with suppress(OSError):  # the listener is closed at the end
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._target)
                self._open += (client, server)
                left = [next(self._lifetimes, -1)]
                for pair in ((client, server), (server, client)):
                    thread = threading.Thread(target=self._pass_on, args=(*pair, left), daemon=True)
                    self._threads.append(thread)
                    thread.start()

    def _pass_on(self, source: socket.socket, target: socket.socket, left: list[int]) -> None:
        with suppress(OSError):
            while data := source.recv(CHUNK):
                if 0 <= left[0] <= len(data):
                    target.sendall(data[: left[0]])
                    self.cuts += 1
                    break
                left[0] -= len(data)
                target.sendall(data)
        for each in (source, target):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        source.close()  # the other thread reads from the target, and closes that

    def close(self) -> None:
        """Take no more connections, and end those that there are."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for each in list(self._open):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(ENDS_WITHIN_S)


@contextmanager
def cutting_proxy(target_port: int, lifetimes: Iterator[int]) -> Iterator[CuttingProxy]:
    """A proxy until the end of the `with` statement."""
    proxy = CuttingProxy(target_port, lifetimes)
    try:
        yield proxy
    finally:
        proxy.close()
