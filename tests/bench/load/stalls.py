"""How long an unrelated client waits while the broker works on one entity with a million messages.

Responsible for one round: an entity of one partition (`backlogs.py`) is filled (with checkpoints), browsed,
opened again after kill -9, emptied except for a tenth (with compaction), filled again, and deleted. If its
messages are scheduled, they come due before it is emptied. One kind of queue is filled for the steps of
`bursts.py` instead. A separate process performs each step; meanwhile
this one begins and ends AMQP sessions (§2.5), which needs only the broker's event loop.
`python -m tests.bench.load.stalls KIND STEP AMQP_PORT HTTP_PORT COUNT` is one step.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from protocol.codec import Described, Int, Long, Symbol, UByte, UInt, ULong
from tests.bench.load import bursts, traffic
from tests.bench.load.attacks import ASK_EVERY_S, Asker
from tests.bench.load.backlogs import BACKLOGS, NAME, Backlog
from tests.bench.load.footprint import target_of
from tests.bench.load.percentiles import percentile
from tests.support import raw_amqp as raw
from tests.support.amqp_messages import APPLICATION, PROPERTIES, VALUE, section
from tests.support.broker_process import Addresses, BrokerProcess
from tests.support.raw_amqp import RawConnection
from tests.support.sas import sas_token

CHECKPOINT_BYTES = 16 * 1024 * 1024
"""Log bytes between two checkpoints; filling the queue makes several."""
BROWSE_CREDIT = 10_000
"""Credit that the browsing receiver gives at a time."""
PEEKED_AT_ONCE = 250
ENVIRONMENT = {"PARTIBUS_CHECKPOINT_BYTES": str(CHECKPOINT_BYTES)}
"""The broker's settings."""
LOOK_EVERY_S = 0.5
"""How often to look whether messages are still scheduled."""
SETTLE_S = 3.0
"""Pause after a step, since the broker's background work belongs to it."""


@dataclass(slots=True, frozen=True)
class Wait:
    """How long the unrelated client waited during a step."""

    p99_ms: float
    worst_ms: float


# --- the steps ----------------------------------------------------------------------------------------------


def fill(addresses: Addresses, count: int, backlog: Backlog) -> None:
    """Send messages."""
    backlog.fill(target_of(addresses, NAME), count)


def browse(addresses: Addresses, count: int, backlog: Backlog) -> None:
    """Page through the first `count` messages: with a browsing receiver, or by peeking, because sessions have
    no other receivers than those that lock one."""
    with RawConnection(addresses.amqp_port) as connection:
        connection.open()
        connection.begin()
        if backlog.in_sessions:
            _peek(connection, backlog.sources[0], count)
        else:
            _receive_copies(connection, backlog.sources[0], count)


def _receive_copies(connection: RawConnection, address: str, count: int) -> None:
    source = Described(ULong(raw.SOURCE), [address, None, None, None, None, None, Symbol("copy")])
    connection.attach(
        ["browser", UInt(0), raw.RECEIVER, UByte(1), UByte(0), source, Described(ULong(raw.TARGET), [])]
    )
    for seen in range(0, count, BROWSE_CREDIT):
        credit = min(BROWSE_CREDIT, count - seen)
        connection.send_frame(raw.FLOW, raw.flow_fields(0, seen, credit, received=seen))
        for _ in range(credit):
            connection.read_until(raw.TRANSFER, within_s=traffic.DONE_WITHIN_S)


def _peek(connection: RawConnection, address: str, count: int) -> None:
    """The sequence numbers of the only partition begin with 1."""
    connection.attach_sender(0, f"{address}/$management")
    connection.attach_receiver(1, f"{address}/$management")
    read = 0
    for number, first in enumerate(range(1, count + 1, PEEKED_AT_ONCE)):
        connection.send_frame(raw.FLOW, raw.flow_fields(1, number, 1, received=read))
        body = {"from-sequence-number": Long(first), "message-count": Int(PEEKED_AT_ONCE)}
        request = (
            section(PROPERTIES, [f"peek-{number}"])
            + section(APPLICATION, {"operation": "com.microsoft:peek-message"})
            + section(VALUE, body)
        )
        connection.send_frame(raw.TRANSFER, raw.transfer_fields(0, number, settled=True), request)
        more = True
        while more:
            more = bool(connection.read_until(raw.TRANSFER, within_s=traffic.DONE_WITHIN_S).field(5))
            read += 1


def open_again(addresses: Addresses, count: int, backlog: Backlog) -> None:
    """Peek at the first message, for which the partition is opened."""
    browse(addresses, 1, backlog)


def come_due(addresses: Addresses, count: int, backlog: Backlog) -> None:
    """Wait until no message is scheduled."""
    while b"ScheduledMessageCount>0<" not in _ask(addresses, "GET"):
        time.sleep(LOOK_EVERY_S)


def empty(addresses: Addresses, count: int, backlog: Backlog) -> None:
    """Receive and complete nine messages out of ten."""
    backlog.empty(addresses, count)


def delete(addresses: Addresses, count: int, backlog: Backlog) -> None:
    """Delete the entity."""
    _ask(addresses, "DELETE")


def large_batches(addresses: Addresses, count: int, backlog: Backlog) -> None:
    """Send 90,000 tiny messages in a few batches."""
    bursts.large_batches(addresses, backlog.sources[0])


def settle_at_once(addresses: Addresses, count: int, backlog: Backlog) -> None:
    """Receive 90,000 messages, and settle them with one disposition."""
    bursts.settle_at_once(addresses, backlog.sources[0])


def locks_end(addresses: Addresses, count: int, backlog: Backlog) -> None:
    """Have the locks of 100,000 messages end together."""
    bursts.locks_end(addresses, backlog.sources[0], count)


BURSTS = (large_batches, settle_at_once, locks_end)


def _ask(addresses: Addresses, method: str) -> bytes:
    """Make a request about the entity."""
    headers = {"Authorization": sas_token("https://127.0.0.1")}
    request = urllib.request.Request(
        f"{addresses.http_url}/{NAME}?api-version=2021-05", headers=headers, method=method
    )
    with urllib.request.urlopen(request, timeout=traffic.DONE_WITHIN_S) as answer:
        assert answer.status == 200
        return bytes(answer.read())


STEPS: Mapping[str, Callable[[Addresses, int, Backlog], None]] = {
    step.__name__: step for step in (fill, browse, open_again, come_due, empty, delete, *BURSTS)
}


def command(kind: str, step: str, addresses: Addresses, count: int) -> list[str]:
    """The command that performs a step in a process of its own."""
    numbers = (addresses.amqp_port, addresses.http_port, count)
    return [sys.executable, "-m", __name__, kind, step, *map(str, numbers)]


@contextmanager
def broker_of(folder: Path, kind: str) -> Iterator[BrokerProcess]:
    """A broker with an entity of a kind."""
    backlog = BACKLOGS[kind]
    with BrokerProcess(folder, backlog.queues, topics=backlog.topics, environment=ENVIRONMENT) as broker:
        yield broker


W = TypeVar("W")


def each_step(broker: BrokerProcess, kind: str, during: Callable[[str], W]) -> dict[str, W]:
    """One round; `during` performs a step. Gives what it returns, by step."""
    if BACKLOGS[kind].in_bursts:
        during("fill")
        return {step.__name__: during(step.__name__) for step in BURSTS}
    found = {step: during(step) for step in ("fill", "browse")}
    broker.kill()
    broker.start()
    found["open_again"] = during("open_again")
    if BACKLOGS[kind].are_scheduled:
        found["come_due"] = during("come_due")
    found["empty"] = during("empty")
    during("fill")
    found["delete"] = during("delete")
    return found


# --- the meter ----------------------------------------------------------------------------------------------


def waits(folder: Path, kind: str, count: int) -> dict[str, Wait]:
    """One round with `count` messages on a fresh broker; gives the waits by step."""
    data = Path(tempfile.mkdtemp(prefix="broker-", dir=folder))
    try:
        with broker_of(data, kind) as broker:
            return each_step(broker, kind, lambda step: _during(broker, kind, step, count))
    finally:
        shutil.rmtree(data, ignore_errors=True)


def _during(broker: BrokerProcess, kind: str, name: str, count: int) -> Wait:
    """Perform a step, and measure during it and a little longer."""
    addresses = broker.addresses
    asker = Asker(addresses.amqp_port)
    took_ms: list[float] = []
    step = subprocess.Popen(command(kind, name, addresses, count), stdout=subprocess.DEVNULL)
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
    return Wait(percentile(took_ms, 0.99), max(took_ms))


if __name__ == "__main__":
    amqp_port, http_port, count = map(int, sys.argv[3:])
    STEPS[sys.argv[2]](Addresses(amqp_port, 0, http_port), count, BACKLOGS[sys.argv[1]])
