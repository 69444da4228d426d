"""A light sender beside heavy ones: how long its messages take, one at a time, while others send as fast as
the broker accepts.

Responsible for the load alone. The heavy senders run in a separate process (`python -m
tests.bench.load.fairness URL COUNT`), so that the light sender never waits for their Python; the process ends
with its standard input, and prints how many messages a second were accepted. Knows neither figures nor
rounds.
"""

from __future__ import annotations

import contextlib
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.bench.load.client import LoadConnection, Sender, drive, encode_message
from tests.bench.load.endpoint import Endpoint
from tests.bench.load.footprint import fresh_broker, target_of
from tests.bench.load.traffic import BODY_BYTES, READY_WITHIN_S, WINDOW, Target

REPOSITORY = Path(__file__).resolve().parents[3]
WARM_UP_S = 1.5
"""By then the heavy senders' windows are full and the partitions are open."""
LIGHT_KEY = b"light"
ENDLESS = 1 << 40
ENDS_WITHIN_S = 60.0


@dataclass(slots=True, frozen=True)
class Beside:
    """One round of a light sender beside heavy ones: milliseconds per message, without and with a key."""

    unkeyed_ms: list[float]
    keyed_ms: list[float]
    heavy_rate: float
    """Messages a second that the heavy senders sent meanwhile; 0 if there were none."""


def light_sender(folder: Path, heavy: int, count: int, at_most_s: float) -> Beside:
    """On a fresh broker, send `count` messages of a light sender without a key, then with a key, beside
    `heavy` senders.

    Each half ends after `at_most_s` seconds, even if fewer messages were sent.
    """
    with fresh_broker(folder) as broker:
        target = target_of(broker.addresses)
        with heavy_senders(target.endpoint, heavy) as rates:
            unkeyed_ms = latencies_ms(target, encode_message(BODY_BYTES), count, at_most_s)
            keyed_ms = latencies_ms(target, encode_message(BODY_BYTES, LIGHT_KEY), count, at_most_s)
        return Beside(unkeyed_ms, keyed_ms, rates[0])


def latencies_ms(target: Target, message: bytes, count: int, at_most_s: float) -> list[float]:
    """Send `message` repeatedly, one at a time; gives the time until each was accepted, leaving out the first
    ones.
    """
    found: list[float] = []
    with target.connect() as connection:
        sender = Sender(connection, message, window=1)
        drive([connection], lambda: sender.is_ready, READY_WITHIN_S)
        for _ in range(5):
            _send_one(connection, sender)
        ends = time.perf_counter() + at_most_s
        while len(found) < count and time.perf_counter() < ends:
            found.append(_send_one(connection, sender))
    return found


def _send_one(connection: LoadConnection, sender: Sender) -> float:
    sender.send(1)
    connection.prepare()
    began = time.perf_counter()
    while not sender.is_done:
        connection.exchange()
    return (time.perf_counter() - began) * 1e3


@contextlib.contextmanager
def heavy_senders(endpoint: Endpoint, count: int) -> Iterator[list[float]]:
    """`count` connections, each with a window of 500, that send until the end of the block; gives a list that
    receives their rate.
    """
    rates = [0.0]
    if not count:
        yield rates
        return
    url = f"amqp://{endpoint.user}:{endpoint.password}@{endpoint.host}:{endpoint.port}/{endpoint.address}"
    command = [sys.executable, "-m", "tests.bench.load.fairness", url, str(count)]
    with subprocess.Popen(
        command, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            if process.stdout.readline().strip() != "sending":
                raise RuntimeError(f"the heavy senders did not begin: status {process.wait(ENDS_WITHIN_S)}")
            time.sleep(WARM_UP_S)
            yield rates
            process.stdin.close()
            rates[0] = float(process.stdout.readline())
            process.wait(ENDS_WITHIN_S)
        finally:
            process.kill()


def _send_until_told(endpoint: Endpoint, count: int) -> float:
    """The heavy senders' process; gives the messages a second that were accepted until standard input
    ended.
    """
    connections = [LoadConnection(endpoint) for _ in range(count)]
    senders = [Sender(connection, encode_message(BODY_BYTES), WINDOW) for connection in connections]
    drive(connections, lambda: all(sender.is_ready for sender in senders), READY_WITHIN_S)
    for sender in senders:
        sender.send(ENDLESS)
    sys.stdout.write("sending\n")
    sys.stdout.flush()
    began = time.perf_counter()
    drive(connections, lambda: bool(select.select([sys.stdin], [], [], 0)[0]), ENDS_WITHIN_S * 10)
    rate = sum(sender.accepted for sender in senders) / (time.perf_counter() - began)
    for connection in connections:
        connection.close(politely=False)
    return rate


if __name__ == "__main__":
    sys.stdout.write(f"{_send_until_told(Endpoint.parse(sys.argv[1]), int(sys.argv[2]))}\n")
