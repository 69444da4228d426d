"""Many connections to the HTTP port, each with an incomplete header, from a separate process.

`python -m tests.support.half_headers PORT COUNT` runs that process. It prints `full` once all connections are
open, replaces each connection that the broker closes, and stops when its standard input closes; then it
prints how many connections it opened in total.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import subprocess
import sys
import threading
from types import TracebackType

HALF = b"GET /$Resources/queues HTTP/1.1\r\nHost: localhost\r\nX-More: "
REOPEN_EVERY_S = 0.05
FULL_WITHIN_S = 60.0
ENDS_WITHIN_S = 30.0


class HalfHeaders:
    """The process, from `full` to the end of the block."""

    def __init__(self, port: int, count: int) -> None:
        self._command = [sys.executable, "-m", "tests.support.half_headers", str(port), str(count)]
        self.opened = 0
        """Total number of connections opened; known at the end."""

    def __enter__(self) -> HalfHeaders:
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        late = threading.Timer(FULL_WITHIN_S, self._process.kill)
        late.start()
        try:
            said = self._process.stdout.readline()
        finally:
            late.cancel()
        assert said == "full\n", f"the attack did not begin: {said!r}"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        said, _ = self._process.communicate(timeout=ENDS_WITHIN_S)
        self.opened = int(said or 0)


def attack(port: int, count: int) -> None:
    """Keep `count` connections with an incomplete header open until standard input closes."""
    opened = 0
    with selectors.DefaultSelector() as selector:
        selector.register(sys.stdin, selectors.EVENT_READ)
        is_full = False
        while True:
            missing = count + 1 - len(selector.get_map())
            for _ in range(missing):
                with contextlib.suppress(OSError):
                    selector.register(_half_header(port), selectors.EVENT_READ)
                    opened += 1
            if not is_full and missing:
                is_full = True
                print("full", flush=True)
            ended = [key.fileobj for key, _ in selector.select(REOPEN_EVERY_S)]
            if sys.stdin in ended:
                break
            for sock in ended:
                assert isinstance(sock, socket.socket)
                selector.unregister(sock)
                sock.close()
            if ended:
                threading.Event().wait(REOPEN_EVERY_S)  # connections that end meanwhile are reopened together
        for key in list(selector.get_map().values()):
            if isinstance(key.fileobj, socket.socket):
                key.fileobj.close()
    print(opened, flush=True)


def _half_header(port: int) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", port), timeout=5)
    try:
        sock.sendall(HALF)
        sock.setblocking(False)
    except OSError:
        sock.close()
        raise
    return sock


if __name__ == "__main__":
    from tests.bench.load.machine import allow_open_files

    allow_open_files(int(sys.argv[2]))
    attack(int(sys.argv[1]), int(sys.argv[2]))
