"""Many queues: how long a scrape, `/health` and a page of the list take, and how long an AMQP client waits meanwhile.

Answers for one round on a broker of its own, whose queues nobody has used. One thread asks over HTTP, this one begins and ends sessions on
an AMQP connection (§2.5), which needs nothing but the event loop.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.bench.load.attack_http import ask_s, turn_s
from tests.bench.load.machine import resident_mib
from tests.support.broker_process import BrokerProcess
from tests.support.many_queues import write_queues
from tests.support.raw_amqp import RawConnection
from tests.support.sas import sas_token

TIMES = 5
"""How often each is asked for; the figure is the median."""
PAGE = 1_000


@dataclass(slots=True, frozen=True)
class ManyQueues:
    """One round: milliseconds for each answer, the longest wait of the AMQP client meanwhile, and KiB that a queue takes in memory."""

    scrape_ms: float
    health_ms: float
    list_ms: float
    stall_ms: float
    memory_kib: float


def many_queues(folder: Path, count: int) -> ManyQueues:
    """Ask a broker with `count` queues about all of them."""
    empty_mib = _empty_mib(folder)
    data = Path(tempfile.mkdtemp(prefix="broker-", dir=folder))
    try:
        write_queues(data / "data", (f"queue-{number:05}" for number in range(count)))
        with BrokerProcess(data, []) as broker, RawConnection(broker.addresses.amqp_port) as bystander:
            bystander.open()
            memory_kib = (resident_mib(broker.pid) - empty_mib) * 1024 / count
            with urllib.request.urlopen(f"http://127.0.0.1:{broker.addresses.http_port}/metrics") as answer:
                shown = answer.read().count(b"\npartibus_messages{")
            assert shown == count, f"the broker serves {shown} queues, not {count}"
            port, token = broker.addresses.http_port, {"Authorization": sas_token("https://127.0.0.1")}

            def ask() -> list[float]:
                paths: tuple[tuple[str, dict[str, str]], ...] = (
                    ("/metrics", {}),
                    ("/health", {}),
                    (f"/$Resources/queues?$top={PAGE}", token),
                )
                return [statistics.median(ask_s(port, path, headers) for _ in range(TIMES)) * 1000 for path, headers in paths]

            with ThreadPoolExecutor(1) as threads:
                asking = threads.submit(ask)
                stall_s = 0.0
                while not asking.done():
                    stall_s = max(stall_s, turn_s(bystander))
                    time.sleep(0.001)
            scrape_ms, health_ms, list_ms = asking.result()
            return ManyQueues(scrape_ms, health_ms, list_ms, stall_s * 1000, memory_kib)
    finally:
        shutil.rmtree(data, ignore_errors=True)


def _empty_mib(folder: Path) -> float:
    """The memory of a broker without queues."""
    data = Path(tempfile.mkdtemp(prefix="broker-", dir=folder))
    try:
        with BrokerProcess(data, []) as broker:
            return resident_mib(broker.pid)
    finally:
        shutil.rmtree(data, ignore_errors=True)
