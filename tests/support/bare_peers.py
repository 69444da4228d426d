"""A peer that stores nothing, running in a thread: for tests of the load client."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tests.bench.load.bare_peer import BarePeer
from tests.bench.load.endpoint import Endpoint

WITHIN_S = 10.0


@contextmanager
def running_bare_peer() -> Iterator[BarePeer]:
    """Serve one connection after the other until the block ends."""
    started = BarePeer()
    thread = threading.Thread(target=started.serve, name="bare-peer")
    thread.start()
    try:
        yield started
    finally:
        started.stop()
        thread.join(WITHIN_S)


def endpoint_of(peer: BarePeer) -> Endpoint:
    """Where it listens."""
    return Endpoint("127.0.0.1", peer.port, "user", "password", "queue")
