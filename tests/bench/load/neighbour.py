"""A namespace beside a throttled one: how long a light sender's messages take while the other namespace of
the broker is offered three times what it takes.

Responsible for the load alone. The throttled namespace's clients run in a process of their own (`python -m
tests.bench.load.neighbour URL`), which offers messages for as many seconds as each line of its standard input
says, and prints how many were accepted and refused. The light sender measures alone and beside in turn, so
that what else the machine does falls on both. Knows neither figures nor rounds.
"""

from __future__ import annotations

import contextlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from tests.bench.load.client import LoadConnection, PacedSender, drive, encode_message
from tests.bench.load.endpoint import Endpoint, LoadError
from tests.bench.load.fairness import ENDLESS, latencies_ms
from tests.bench.load.footprint import PARTITIONS, QUEUE, target_of
from tests.bench.load.traffic import BODY_BYTES, PACED_EVERY_S, PACED_WINDOW, READY_WITHIN_S
from tests.support.broker_process import KEY, REPOSITORY, BrokerProcess, queue

CREDITS = 1_000
OFFERED_PER_S = 3_000
CONNECTIONS = 2
THROTTLED_HOST = "localhost"
"""The host name of the throttled namespace; the other one is reached by the address."""


@dataclass(slots=True, frozen=True)
class Neighbour:
    """One round. `ratios`: for each pair, the light sender's median beside the load, compared with alone."""

    ratios: list[float]
    alone_ms: float
    accepted: int
    refused: int


class RefusedSender(PacedSender):
    """Sends messages at a rate, whether or not they are accepted."""

    refused = 0

    def on_refused(self, outcome: str) -> None:
        """Count a message that was throttled."""
        if "server-busy" not in outcome:
            raise LoadError(f"a message was not throttled but {outcome}")
        self.refused += 1


def neighbour(folder: Path, pairs: int, seconds: float) -> Neighbour:
    """Measure `pairs` times for `seconds` alone and for as long beside the load. Raises LoadError if a
    message of the light sender is refused."""
    data = Path(tempfile.mkdtemp(prefix="broker-", dir=folder))
    queues = [queue(QUEUE, PartitionCount=PARTITIONS, DefaultMessageTimeToLive="P1D")]
    throttled = {
        "Name": "throttled",
        "HostNames": [THROTTLED_HOST],
        "Queues": queues,
        "Settings": {"SasKey": KEY, "Tier": "standard", "ThrottleCredits": CREDITS},
    }
    try:
        with BrokerProcess(data, queues, others=[throttled]) as broker:
            target = target_of(broker.addresses)
            message = encode_message(BODY_BYTES)

            def median_ms() -> float:
                return statistics.median(latencies_ms(target, message, ENDLESS, seconds))

            median_ms()  # partitions are opened, and code is warm
            ratios, alone_ms, accepted, refused = list[float](), list[float](), 0, 0
            with _offering(replace(target.endpoint, host=THROTTLED_HOST)) as load:
                for number in range(pairs):
                    medians = {}
                    for is_beside in (False, True) if number % 2 == 0 else (True, False):
                        if is_beside:
                            load.begin(seconds)
                        medians[is_beside] = median_ms()
                        if is_beside:
                            outcome = load.end()
                            accepted, refused = accepted + outcome[0], refused + outcome[1]
                    ratios.append(medians[True] / medians[False])
                    alone_ms.append(medians[False])
            if not refused:
                raise LoadError("the throttled namespace took everything")
            return Neighbour(ratios, statistics.median(alone_ms), accepted, refused)
    finally:
        shutil.rmtree(data, ignore_errors=True)


class _Load:
    """The other process."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdin is not None and process.stdout is not None
        self._to, self._from = process.stdin, process.stdout

    def begin(self, seconds: float) -> None:
        """Have it offer messages."""
        self._to.write(f"{seconds}\n")
        self._to.flush()

    def end(self) -> tuple[int, int]:
        """How many of them were accepted and refused, once all have their outcome."""
        line = self._from.readline()
        if not line:
            raise LoadError("the clients of the throttled namespace have ended")
        accepted, refused = map(int, line.split())
        return accepted, refused


@contextlib.contextmanager
def _offering(endpoint: Endpoint) -> Iterator[_Load]:
    url = f"amqp://{endpoint.user}:{endpoint.password}@{endpoint.host}:{endpoint.port}/{endpoint.address}"
    command = [sys.executable, "-m", "tests.bench.load.neighbour", url]
    with subprocess.Popen(
        command, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            load = _Load(process)
            assert load.end() == (0, 0)  # it has connected
            yield load
        finally:
            process.kill()


def _offer(endpoint: Endpoint) -> None:
    """The other process: offer messages for as long as each line says."""
    connections = [LoadConnection(endpoint) for _ in range(CONNECTIONS)]
    message = [encode_message(BODY_BYTES)]
    senders = [
        RefusedSender(connection, message, PACED_WINDOW, OFFERED_PER_S / CONNECTIONS)
        for connection in connections
    ]
    drive(connections, lambda: all(sender.is_ready for sender in senders), READY_WITHIN_S)
    sys.stdout.write("0 0\n")
    sys.stdout.flush()
    for line in sys.stdin:
        seconds = float(line)
        before = [(sender.accepted, sender.refused) for sender in senders]
        for sender in senders:
            sender.begin(round(seconds * OFFERED_PER_S / CONNECTIONS))
        ends = time.monotonic() + seconds + READY_WITHIN_S
        drive(
            connections,
            lambda: all(sender.is_done for sender in senders),
            ends - time.monotonic(),
            write_every_s=PACED_EVERY_S,
        )
        counts = [
            (sender.accepted - accepted, sender.refused - refused)
            for sender, (accepted, refused) in zip(senders, before, strict=True)
        ]
        sys.stdout.write(f"{sum(each[0] for each in counts)} {sum(each[1] for each in counts)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    _offer(Endpoint.parse(sys.argv[1]))
