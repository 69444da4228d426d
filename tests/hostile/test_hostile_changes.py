"""Properties that settlements change stay in memory until their messages are gone. Whatever clients do to
have each message keep its own, or to have what is shared fall apart, the process stays near its memory mark,
and does so after a crash as well.
"""

from __future__ import annotations

import select
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from protocol.codec import Described, Symbol, ULong
from tests.hostile.bystander import resident_mib
from tests.hostile.test_hostile_states import filled, outcomes
from tests.support import raw_amqp as raw
from tests.support.broker_process import BrokerProcess, queue
from tests.support.raw_amqp import RawConnection

MARK_MIB = 180
MEMORY_MIB_MAX = 240
"""A third more than the mark, which is 60 % of all memory. The process itself takes 95 MiB."""
COUNT = 4_000
"""240 MB, if each message has its own."""
AT_ONCE = 500
LOOK_S = 0.3
"""After this time, the broker has looked at the memory in use again."""


def properties(name: str) -> dict[Symbol, object]:
    return {Symbol(f"{name}{number:02}"): "v" * 1_000 for number in range(60)}


def modified(changed: dict[Symbol, object], *, is_undeliverable: bool) -> Described:
    return Described(ULong(raw.MODIFIED), [False, is_undeliverable, changed])


def broker_with_mark(tmp_path: Path, queues: Iterable[str], mark_mib: int = MARK_MIB) -> BrokerProcess:
    settings = {"LockDuration": "PT5M", "MaxDeliveryCount": 100, "EnablePartitioning": False}
    entities = [queue(name, **settings) for name in queues]
    environment = {"PARTIBUS_MEMORY_BYTES_MAX": str(mark_mib << 20)}
    return BrokerProcess(tmp_path / "data", entities, environment=environment)


@pytest.fixture
def marked(tmp_path: Path) -> Iterator[BrokerProcess]:
    with broker_with_mark(tmp_path, ["shared"]) as started:
        yield started


def connected(broker: BrokerProcess) -> RawConnection:
    connection = RawConnection(broker.addresses.amqp_port)
    connection.open(max_frame_bytes=262_144)
    connection.begin(window=1_000_000)
    return connection


def receive(connections: list[RawConnection], count: int) -> None:
    """Let clients lock messages in turns, one at a time."""
    for connection in connections:
        for handle in range(10, 10 + count // len(connections) // 1_000 + 1):
            connection.attach_receiver(handle, "shared")
    for number in range(count):
        connection, got = connections[number % len(connections)], number // len(connections)
        handle = 10 + got // 1_000
        connection.send_frame(raw.FLOW, raw.flow_fields(handle, got % 1_000, 1, received=got))
        connection.read_until(raw.TRANSFER, within_s=30.0)


def settle(connection: RawConnection, first: int, last: int, state: Described) -> Counter[object]:
    connection.send_frame(raw.DISPOSITION, raw.disposition_fields(True, first, last, False, state))
    return outcomes(connection, last - first + 1)


def peak_mib(broker: BrokerProcess) -> float:
    status = Path(f"/proc/{broker.pid}/status").read_text(encoding="ascii")
    (line,) = (line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) / 1024


def test_what_two_receivers_share_is_shared_after_a_restart_as_well(marked: BrokerProcess) -> None:
    with connected(marked) as sender:
        filled(sender, "shared", COUNT)
    with connected(marked) as one, connected(marked) as other:
        receive([one, other], COUNT)
        found: Counter[object] = Counter()
        for begin in range(0, COUNT // 2, AT_ONCE):
            for name, connection in (("a", one), ("b", other)):
                state = modified(properties(name), is_undeliverable=True)  # each of them is deferred
                found += settle(connection, begin, begin + AT_ONCE - 1, state)
                time.sleep(LOOK_S)
        assert found == {raw.MODIFIED: COUNT}
    assert peak_mib(marked) < MEMORY_MIB_MAX
    marked.terminate()
    marked.start()
    with connected(marked) as receiver:
        receiver.attach_receiver(1, "shared")
        receiver.send_frame(raw.FLOW, raw.flow_fields(1, 0, 1, drain=True))
        receiver.read_until(raw.FLOW, within_s=30.0)
        assert resident_mib(marked.pid) < MEMORY_MIB_MAX and peak_mib(marked) < MEMORY_MIB_MAX


def test_small_changes_to_messages_that_share_large_ones_count_with_all_that_they_take(
    marked: BrokerProcess,
) -> None:
    with connected(marked) as sender:
        filled(sender, "shared", COUNT)
    with connected(marked) as receiver:
        receive([receiver], COUNT)
        for begin in range(0, COUNT, AT_ONCE):
            settle(receiver, begin, begin + AT_ONCE - 1, modified(properties("a"), is_undeliverable=False))
            time.sleep(LOOK_S)
    with connected(marked) as receiver:
        receive([receiver], COUNT)
        found: Counter[object] = Counter()
        for number in range(COUNT):
            state = modified({Symbol("a00"): number}, is_undeliverable=False)
            found += settle(receiver, number, number, state)
        assert found[raw.MODIFIED] and found["com.microsoft:server-busy"]
        assert found.total() == COUNT
    assert peak_mib(marked) < MEMORY_MIB_MAX


QUEUES = 8
EACH = 1_000
"""Messages in each queue: 30 MB, if each has its own 30 KB."""


def lock_all(client: RawConnection, name: str, count: int) -> None:
    for got in range(0, count, EACH):
        handle, credit = 1 + got // EACH, min(EACH, count - got)
        client.attach_receiver(handle, name)
        client.send_frame(raw.FLOW, raw.flow_fields(handle, 0, credit, received=got))
        for _ in range(credit):
            client.read_until(raw.TRANSFER, within_s=30.0)


def give_each_its_own(client: RawConnection, count: int) -> None:
    """Give each of the locked messages 30 KB of properties, and release it."""
    own = {key: value for key, value in properties("a").items() if key < "a30"}
    for each in range(count):
        state = modified({**own, Symbol("n"): each}, is_undeliverable=False)
        assert settle(client, each, each, state) == {raw.MODIFIED: 1}


def test_after_a_crash_queues_are_opened_as_far_as_memory_has_room_for_what_they_hold(tmp_path: Path) -> None:
    """Symptom: nobody had noted what they held, so all of them were opened at once, and the kernel ended the
    broker at each start."""
    names = [f"q{number}" for number in range(QUEUES)]
    with broker_with_mark(tmp_path, names, mark_mib=1_024) as broker:
        for name in names:
            with connected(broker) as client:
                filled(client, name, EACH)
                lock_all(client, name, EACH)
                give_each_its_own(client, EACH)
        broker.kill()
    with broker_with_mark(tmp_path, names, MARK_MIB) as broker, ExitStack() as receivers:
        connections = [receivers.enter_context(connected(broker)) for _ in names]
        for name, receiver in zip(names, connections, strict=True):
            receiver.attach_receiver(1, name)
            receiver.send_frame(raw.FLOW, raw.flow_fields(1, 0, 1))
        arrived: set[RawConnection] = set()
        deadline = time.monotonic() + 30.0
        quiet_from = time.monotonic() + 5.0
        while not arrived or time.monotonic() < quiet_from:
            assert peak_mib(broker) < MEMORY_MIB_MAX and time.monotonic() < deadline
            for receiver in connections:
                if select.select([receiver.socket], [], [], 0.02)[0]:
                    arrived.update([receiver] if receiver.read_frame(1.0).code == raw.TRANSFER else [])


def bytes_of_logs(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def test_what_a_queue_held_before_it_was_drained_does_not_keep_it_closed_after_a_crash(
    tmp_path: Path,
) -> None:
    """Symptom: its last note said that it held 90 MB, for which there was no room while a receiver held
    another queue. Its messages did not come."""
    counts = {"drained": 3 * EACH, "held": EACH}
    with broker_with_mark(tmp_path, counts, mark_mib=1_024) as broker:
        for name, count in counts.items():
            with connected(broker) as client:
                filled(client, name, count)
                lock_all(client, name, count)
                give_each_its_own(client, count)
        broker.terminate()
        before = bytes_of_logs(tmp_path)
        broker.start()
        with connected(broker) as client:
            count = counts["drained"]
            lock_all(client, "drained", count)
            assert settle(client, 0, count - 1, Described(ULong(raw.ACCEPTED), [])) == {raw.ACCEPTED: count}
        deadline = time.monotonic() + 60.0
        while bytes_of_logs(tmp_path) > before // 3:  # until a checkpoint without them has been saved
            assert time.monotonic() < deadline
            with connected(broker) as client:  # it stays in use, so what it holds is not noted
                filled(client, "drained", EACH)
            time.sleep(LOOK_S)
        broker.kill()
    with broker_with_mark(tmp_path, counts, mark_mib=120) as broker, connected(broker) as holder:
        lock_all(holder, "held", 1)
        with connected(broker) as receiver:
            receiver.attach_receiver(1, "drained")
            receiver.send_frame(raw.FLOW, raw.flow_fields(1, 0, 1))
            receiver.read_until(raw.TRANSFER, within_s=10.0)
        assert peak_mib(broker) < MEMORY_MIB_MAX
