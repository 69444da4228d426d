"""How long an unrelated client waits while the broker works on one queue with a million messages.

Responsible for one round: a queue of one partition is filled (with checkpoints), browsed, opened again after
kill -9, emptied except for a tenth (with compaction), filled again, and deleted. A separate process performs
each step; meanwhile this one begins and ends AMQP sessions (§2.5), which needs only the broker's event loop.
`python -m tests.bench.load.stalls STEP AMQP_PORT HTTP_PORT COUNT` is one step.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from protocol.codec import Described, Symbol, UByte, UInt, ULong
from tests.bench.load import traffic
from tests.bench.load.attacks import ASK_EVERY_S, Asker
from tests.bench.load.client import Receiver, Sender, drive, encode_message
from tests.bench.load.fairness import percentile
from tests.bench.load.footprint import target_of
from tests.support import raw_amqp as raw
from tests.support.broker_process import Addresses, BrokerProcess, queue
from tests.support.raw_amqp import RawConnection
from tests.support.sas import sas_token

QUEUE = "waiting"
BODY_BYTES = 64
WINDOW = 2_000
CHECKPOINT_BYTES = 16 * 1024 * 1024
"""Log bytes between two checkpoints; filling the queue makes several."""
BROWSE_CREDIT = 10_000
"""Credit that the browsing receiver gives at a time."""
ENVIRONMENT = {"PARTIBUS_CHECKPOINT_BYTES": str(CHECKPOINT_BYTES)}
PROPERTIES = {"PartitionCount": 1, "LockDuration": "PT5M", "MaxSizeInMegabytes": 5120}
"""The broker's settings, and those of the queue."""
SETTLE_S = 3.0
"""Pause after a step, since the broker's background work belongs to it."""


@dataclass(slots=True, frozen=True)
class Wait:
    """How long the unrelated client waited during a step."""

    p99_ms: float
    worst_ms: float


# --- the steps ----------------------------------------------------------------------------------------------


def fill(addresses: Addresses, count: int) -> None:
    """Send messages."""
    with target_of(addresses, QUEUE).connect() as connection:
        sender = Sender(connection, encode_message(BODY_BYTES), WINDOW)
        drive([connection], lambda: sender.is_ready, traffic.READY_WITHIN_S)
        sender.send(count)
        drive([connection], lambda: sender.is_done, traffic.DONE_WITHIN_S)


def browse(addresses: Addresses, count: int) -> None:
    """Page through the first `count` messages of the queue with a browsing receiver."""
    with RawConnection(addresses.amqp_port) as connection:
        connection.open()
        connection.begin()
        source = Described(ULong(raw.SOURCE), [QUEUE, None, None, None, None, None, Symbol("copy")])
        connection.attach(
            ["browser", UInt(0), raw.RECEIVER, UByte(1), UByte(0), source, Described(ULong(raw.TARGET), [])]
        )
        for seen in range(0, count, BROWSE_CREDIT):
            credit = min(BROWSE_CREDIT, count - seen)
            connection.send_frame(raw.FLOW, raw.flow_fields(0, seen, credit, received=seen))
            for _ in range(credit):
                connection.read_until(raw.TRANSFER, within_s=traffic.DONE_WITHIN_S)


def open_again(addresses: Addresses, count: int) -> None:
    """Peek at the first message, for which the partition is opened."""
    browse(addresses, 1)


def empty(addresses: Addresses, count: int) -> None:
    """Receive and complete nine messages out of ten."""
    with target_of(addresses, QUEUE).connect() as connection:
        receiver = Receiver(connection, WINDOW, BODY_BYTES)
        drive([connection], lambda: receiver.is_ready, traffic.READY_WITHIN_S)
        receiver.receive(count * 9 // 10)
        drive([connection], lambda: receiver.is_done, traffic.DONE_WITHIN_S)


def delete(addresses: Addresses, count: int) -> None:
    """Delete the queue."""
    headers = {"Authorization": sas_token("https://127.0.0.1")}
    request = urllib.request.Request(
        f"{addresses.http_url}/{QUEUE}?api-version=2021-05", headers=headers, method="DELETE"
    )
    with urllib.request.urlopen(request, timeout=traffic.DONE_WITHIN_S) as answer:
        assert answer.status == 200


STEPS: Mapping[str, Callable[[Addresses, int], None]] = {
    step.__name__: step for step in (fill, browse, open_again, empty, delete)
}


def command(name: str, addresses: Addresses, count: int) -> list[str]:
    """The command that performs a step in a process of its own."""
    numbers = (addresses.amqp_port, addresses.http_port, count)
    return [sys.executable, "-m", __name__, name, *map(str, numbers)]


# --- the meter ----------------------------------------------------------------------------------------------


def waits(folder: Path, count: int) -> dict[str, Wait]:
    """One round with `count` messages on a fresh broker; gives the waits by step."""
    data = Path(tempfile.mkdtemp(prefix="broker-", dir=folder))
    try:
        with BrokerProcess(data, [queue(QUEUE, **PROPERTIES)], environment=ENVIRONMENT) as broker:
            found = {name: _during(broker, name, count) for name in ("fill", "browse")}
            broker.kill()
            broker.start()
            found |= {name: _during(broker, name, count) for name in ("open_again", "empty")}
            _during(broker, "fill", count)
            found["delete"] = _during(broker, "delete", count)
            return found
    finally:
        shutil.rmtree(data, ignore_errors=True)


def _during(broker: BrokerProcess, name: str, count: int) -> Wait:
    """Perform a step, and measure during it and a little longer."""
    addresses = broker.addresses
    asker = Asker(addresses.amqp_port)
    took_ms: list[float] = []
    step = subprocess.Popen(command(name, addresses, count), stdout=subprocess.DEVNULL)
    try:
        ends: float | None = None
        while ends is None or time.monotonic() < ends:
            if ends is None and step.poll() is not None:
                ends = time.monotonic() + SETTLE_S
            asker.longest_s = 0.0
            asker.ask()
            took_ms.append(asker.longest_s * 1000)
            time.sleep(ASK_EVERY_S)
    finally:
        step.kill()
        step.wait()
        asker.close()
    broker.check_alive()
    if step.returncode:
        raise RuntimeError(f"the step {name} failed with status {step.returncode}")
    return Wait(percentile(took_ms, 99), max(took_ms))


if __name__ == "__main__":
    STEPS[sys.argv[1]](Addresses(int(sys.argv[2]), 0, int(sys.argv[3])), int(sys.argv[4]))
