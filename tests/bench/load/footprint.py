"""What a broker costs at rest: memory with messages waiting, restart with them, idle entities, idle
connections.

Responsible for starting brokers with their own folders, one per round, and for reading their memory and CPU
time. `traffic` sends and receives the messages; knows neither figures nor verdicts.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.bench.load import traffic
from tests.bench.load.endpoint import Endpoint
from tests.bench.load.machine import allow_open_files, cpu_s, resident_mib
from tests.bench.load.traffic import Target
from tests.support.broker_process import KEY, KEY_NAME, THIS, Addresses, BrokerProcess, Program, queue

PARTITIONS = 16
QUEUE = "bench"
SETTLE_S = 5.0
"""Pause between a load and reading memory. Background work of the broker has ended by then, or counts in the
figure.
"""
RECORDED_PER_S = 16
"""Logs whose ends a broker records in a second once they are idle. It takes its time, so that this delays
nobody.
"""
FILL_WINDOW = 2_000


@dataclass(slots=True, frozen=True)
class Waiting:
    """One round with messages waiting: MiB and seconds."""

    memory_mib: float
    memory_restarted_mib: float
    restart_killed_s: float
    restart_stopped_s: float


@dataclass(slots=True, frozen=True)
class Idle:
    """One round of an idle broker: MiB, and CPU time in % of a core."""

    memory_mib: float
    cpu_percent: float
    used_memory_mib: float
    used_cpu_percent: float


@dataclass(slots=True, frozen=True)
class Connections:
    """One round with idle connections, in MiB."""

    open_mib: float
    receiving_mib: float


@contextmanager
def fresh_broker(
    folder: Path,
    queue_names: tuple[str, ...] = (QUEUE,),
    environment: Mapping[str, str] | None = None,
    properties: Mapping[str, object] | None = None,
    program: Program = THIS,
) -> Iterator[BrokerProcess]:
    """A broker on an empty data folder inside `folder`. `properties` are more of the queues' settings."""
    queues = [lasting_queue(name, properties) for name in queue_names]
    with broker_with(folder, queues, environment=environment, program=program) as broker:
        yield broker


def lasting_queue(name: str, properties: Mapping[str, object] | None = None) -> dict[str, object]:
    """A queue in the configuration file. Its locks and messages do not expire during a run."""
    settings = {
        "PartitionCount": PARTITIONS,
        "LockDuration": "PT5M",
        "DefaultMessageTimeToLive": "P1D",
        "MaxSizeInMegabytes": 5120,
        **(properties or {}),
    }
    return queue(name, **settings)


@contextmanager
def broker_with(
    folder: Path,
    queues: Sequence[Mapping[str, object]],
    topics: Sequence[Mapping[str, object]] = (),
    environment: Mapping[str, str] | None = None,
    program: Program = THIS,
) -> Iterator[BrokerProcess]:
    """A broker with these entities on an empty data folder inside `folder`."""
    data = Path(tempfile.mkdtemp(prefix="broker-", dir=folder))
    try:
        with BrokerProcess(data, queues, topics=topics, environment=environment, program=program) as broker:
            yield broker
    finally:
        shutil.rmtree(data, ignore_errors=True)


def target_of(addresses: Addresses, queue_name: str = QUEUE) -> Target:
    """A queue of a broker started here, as a target."""
    return Target(
        "partibus", Endpoint("127.0.0.1", addresses.amqp_port, KEY_NAME, KEY, queue_name), settles_first=False
    )


def waiting(folder: Path, count: int) -> Waiting:
    """Fill a queue with count messages; then kill and restart the broker, then stop and restart it."""
    with fresh_broker(folder) as broker:
        traffic.send(target_of(broker.addresses), count, FILL_WINDOW)
        time.sleep(SETTLE_S)
        memory_mib = resident_mib(broker.pid)
        broker.kill()
        restart_killed_s = _restart_s(broker)
        time.sleep(SETTLE_S)
        memory_restarted_mib = resident_mib(broker.pid)
        broker.terminate()
        return Waiting(memory_mib, memory_restarted_mib, restart_killed_s, _restart_s(broker))


def idle(folder: Path, entity_count: int, observed_s: float) -> Idle:
    """Observe a broker with entity_count queues for observed_s seconds without load: first unused, then after
    traffic on every queue.
    """
    names = tuple(f"{QUEUE}-{number:03}" for number in range(entity_count))
    with fresh_broker(folder, names) as broker:
        time.sleep(SETTLE_S)
        memory_mib, cpu_percent = resident_mib(broker.pid), _cpu_percent(broker.pid, observed_s)
        for name in names:
            used = target_of(broker.addresses, name)
            traffic.send(used, 2 * PARTITIONS)
            traffic.receive(used, 2 * PARTITIONS)
        time.sleep(SETTLE_S + entity_count * PARTITIONS / RECORDED_PER_S)
        return Idle(memory_mib, cpu_percent, resident_mib(broker.pid), _cpu_percent(broker.pid, observed_s))


def connections(folder: Path, count: int) -> Connections:
    """Open count idle connections; then again, on a fresh broker, each with a receiver on the empty queue."""
    allow_open_files(count)
    return Connections(
        _connected_mib(folder, count, with_receiver=False), _connected_mib(folder, count, with_receiver=True)
    )


def _connected_mib(folder: Path, count: int, with_receiver: bool) -> float:
    with fresh_broker(folder) as broker:
        sockets = traffic.open_idle(target_of(broker.addresses), count, with_receiver)
        time.sleep(SETTLE_S)
        broker.check_alive()
        memory_mib = resident_mib(broker.pid)
        for each in sockets:
            each.close()
        return memory_mib


def _restart_s(broker: BrokerProcess) -> float:
    began = time.perf_counter()
    traffic.first_delivery(target_of(broker.start()))
    return time.perf_counter() - began


def _cpu_percent(pid: int, observed_s: float) -> float:
    before = cpu_s(pid)
    time.sleep(observed_s)
    return (cpu_s(pid) - before) / observed_s * 100
