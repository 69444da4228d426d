"""One small frame gives thousands of deliveries a large state: the broker needs memory for one copy of it,
and serves others meanwhile.

The broker has a memory mark, and is not the one of the other attacks: what these clients change stays stored.
"""

from __future__ import annotations

import re
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from protocol.codec import Described, Symbol, ULong
from tests.hostile.bystander import resident_mib
from tests.support import raw_amqp as raw
from tests.support.amqp_messages import DATA, message, section
from tests.support.broker_process import BrokerProcess, queue
from tests.support.raw_amqp import RawConnection

CREDIT = 5_000
GROWTH_MIB_MAX = 64
"""Copies for each delivery took 1.6 GB."""
STALL_S_MAX = 0.2
"""Processor time of the event loop within one round trip, which takes some of its turns: 30 to 90 ms, as for
a small state. Applying the whole frame at once took 1.4 s."""
MARK_BYTES = 300 << 20
PROPERTIES = {Symbol(f"key{number}"): "v" * 1_000 for number in range(60)}
REASON = Symbol("com.microsoft:dead-letter")
STATES = {
    "modified": Described(ULong(raw.MODIFIED), [True, False, PROPERTIES]),
    "rejected": raw.outcome(raw.REJECTED, [Described(ULong(0x1D), [REASON, None, PROPERTIES])]),
    "too-large": Described(ULong(raw.MODIFIED), [True, False, PROPERTIES | {Symbol("more"): "v" * 40_000}]),
    "many-values": Described(
        ULong(raw.MODIFIED), [True, False, {Symbol(f"{number:04}"): None for number in range(1_000)}]
    ),
}


@dataclass
class Seen:
    """What was seen of a process."""

    peak_mib: float = 0.0
    stall_s: float = 0.0


def processor_s(pid: int) -> float:
    """Processor time of a process's first thread, in which its event loop runs."""
    return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text(encoding="ascii").split()[0]) / 1e9


@contextmanager
def watched(broker: BrokerProcess) -> Iterator[Seen]:
    """Another client begins and ends a session all the while."""
    seen, over = Seen(), threading.Event()

    def watch() -> None:
        with RawConnection(broker.addresses.amqp_port) as other:
            other.open()
            while not over.is_set():
                before = processor_s(broker.pid)
                other.begin(1)
                other.send_frame(raw.END, [], channel=1)
                other.read_until(raw.END, within_s=30.0)
                seen.stall_s = max(seen.stall_s, processor_s(broker.pid) - before)
                time.sleep(0.004)

    Path(f"/proc/{broker.pid}/clear_refs").write_text("5", encoding="ascii")  # begins a new peak
    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()
    status = Path(f"/proc/{broker.pid}/status").read_text(encoding="ascii")
    peak = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert peak is not None
    seen.peak_mib = int(peak[1]) / 1024


def filled(connection: RawConnection, address: str, count: int) -> None:
    """Send messages of 8 bytes to a queue, in batches."""
    connection.attach_sender(0, address)
    one = section(DATA, message(body=[b"12345678"]))
    for number in range(count // 1_000):
        connection.send_frame(raw.TRANSFER, raw.transfer_fields(0, number, batch=True), one * 1_000)
        assert connection.read_until(raw.DISPOSITION, within_s=30.0).field(4).descriptor == raw.ACCEPTED


def locked(connection: RawConnection, address: str, count: int) -> None:
    """Receive that many messages on several links."""
    links = range(10, 10 + count // CREDIT)
    for handle in links:
        connection.attach_receiver(handle, address)
    for handle in links:
        connection.send_frame(raw.FLOW, raw.flow_fields(handle, 0, CREDIT))
    for _ in range(count):
        connection.read_until(raw.TRANSFER, within_s=60.0)


def outcomes(connection: RawConnection, count: int) -> Counter[object]:
    """The broker's answers about that many deliveries: the outcome, or the condition of an error."""
    found: Counter[object] = Counter()
    while found.total() < count:
        frame = connection.read_until(raw.DISPOSITION, within_s=60.0)
        last = frame.field(1) if frame.field(2) is None else frame.field(2)
        state = frame.field(4)
        refused = state.descriptor == raw.REJECTED and state.value and state.value[0] is not None
        found[str(state.value[0].value[0]) if refused else state.descriptor] += last - frame.field(1) + 1
    return found


@pytest.fixture
def marked(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker with a memory mark."""
    queues = [queue("bystander"), queue("many", LockDuration="PT5M"), queue("short", LockDuration="PT5S")]
    environment = {"PARTIBUS_MEMORY_BYTES_MAX": str(MARK_BYTES)}
    with BrokerProcess(tmp_path, queues, environment=environment) as process:
        yield process
        process.kill()  # nothing else is asked of what it has stored


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("modified", 10_000),
        ("modified", 30_000),
        ("rejected", 10_000),
        ("rejected", 30_000),
        ("too-large", 10_000),
        ("many-values", 10_000),
    ],
)
def test_thousands_of_deliveries_take_one_copy_of_their_state(
    marked: BrokerProcess, name: str, count: int
) -> None:
    with RawConnection(marked.addresses.amqp_port) as connection:
        connection.open()
        connection.begin(window=1_000_000)
        filled(connection, "many", count)
        locked(connection, "many", count)
        before = resident_mib(marked.pid)
        with watched(marked) as seen:
            connection.send_frame(
                raw.DISPOSITION, raw.disposition_fields(raw.RECEIVER, 0, count - 1, False, STATES[name])
            )
            found = outcomes(connection, count)
    assert seen.peak_mib - before < GROWTH_MIB_MAX
    assert seen.stall_s < STALL_S_MAX
    if name == "too-large":
        assert raw.MODIFIED not in found
    else:
        outcome = raw.REJECTED if name == "rejected" else raw.MODIFIED
        assert found[outcome] > 0 and set(found) <= {outcome, "com.microsoft:server-busy"}


def test_a_large_state_for_locks_that_have_ended_is_as_cheap(marked: BrokerProcess) -> None:
    count = 10_000
    with RawConnection(marked.addresses.amqp_port) as connection:
        connection.open()
        connection.begin(window=1_000_000)
        filled(connection, "short", count)
        locked(connection, "short", count)
        time.sleep(6.0)
        before = resident_mib(marked.pid)
        with watched(marked) as seen:
            connection.send_frame(
                raw.DISPOSITION, raw.disposition_fields(raw.RECEIVER, 0, count - 1, False, STATES["modified"])
            )
            assert "com.microsoft:message-lock-lost" in outcomes(connection, count)
    assert seen.peak_mib - before < GROWTH_MIB_MAX
    assert seen.stall_s < STALL_S_MAX
