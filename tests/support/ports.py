"""Ports for brokers that are restarted, which nothing else takes while the broker is down.

The system gives ports of its own range (`ip_local_port_range`) to any client that connects, so these lie
below. Each process of tests has a block of them to itself: the owner of a block holds an abstract Unix socket
(`unix(7)`) with the block's name, which ends with the process, however that ends.
"""

from __future__ import annotations

import functools
import itertools
import socket
from collections.abc import Iterator
from pathlib import Path

FIRST = 10_000
BLOCK = 128
"""Ports in one block: far more than the brokers of one process use at any time."""
_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def take_ports(count: int) -> list[int]:
    """Ports on which nothing listens, and that this process has not taken for a long time."""
    found: list[int] = []
    for port in itertools.islice(_own(), BLOCK):
        if _is_free(port):
            found.append(port)
            if len(found) == count:
                return found
    raise OSError(f"only {len(found)} ports of a block of {BLOCK} are free")


@functools.cache
def _own() -> Iterator[int]:
    """The ports of this process's block, again and again."""
    below = int(_RANGE.read_text(encoding="ascii").split()[0])
    for start in range(FIRST, below - BLOCK + 1, BLOCK):
        owner = socket.socket(socket.AF_UNIX)
        try:
            owner.bind(f"\0partibus-test-ports-{start}")
        except OSError:  # another process has it
            owner.close()
        else:
            owner.detach()  # stays open until this process ends
            return itertools.cycle(range(start, start + BLOCK))
    raise OSError(f"all blocks of ports from {FIRST} to {below} are taken")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the broker does
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True
