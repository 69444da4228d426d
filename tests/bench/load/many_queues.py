"""Many queues: how long a scrape, `/health` and the complete list take, and how long an AMQP client waits
meanwhile.

Responsible for one round on its own broker: first with queues never used, then restarted with an index that
says that every partition holds messages. A second process asks over HTTP; this one begins and ends sessions
on an AMQP connection (§2.5), which needs only the event loop. The list is fetched as the official clients do:
in pages of a hundred, over one connection.

A busy machine makes clients wait even if the broker does nothing. So the round also measures how long the
event loop is held in processor time: the time the broker's main thread uses between a request of the AMQP
client and the answer.
"""

from __future__ import annotations

import contextlib
import gc
import http.client
import os
import random
import re
import shutil
import statistics
import tempfile
import time
import tracemalloc
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from broker.base.counters import COUNTERS, SECONDS
from broker.base.metrics import Metrics
from broker.namespace.meter import EntityMeter
from tests.bench.load.attack_http import ANSWERED_WITHIN_S, turn_s
from tests.bench.load.machine import resident_mib
from tests.support.broker_process import BrokerProcess
from tests.support.many_queues import write_notes, write_queues
from tests.support.raw_amqp import RawConnection
from tests.support.sas import sas_token

TIMES = 5
"""Requests of each kind; the figure is the median."""
PAGE = 100
Questions = tuple[tuple[list[str], dict[str, str]], ...]
"""Paths to fetch over one connection, and the headers of the requests."""
PREFERRED = -15
"""The niceness of the process that measures waits."""
HELD = 3
"""Messages in each partition after the restart."""


@dataclass(slots=True, frozen=True)
class ManyQueues:
    """One round: milliseconds for each answer, the longest wait of the AMQP client meanwhile, and KiB of
    memory per queue.

    `hold_ms`: the most processor time that the event loop used during one such wait, or the wait itself if it
    was shorter.
    """

    scrape_ms: float
    health_ms: float
    list_ms: float
    first_scrape_ms: float
    first_list_ms: float
    used_list_ms: float
    start_ms: float
    stall_ms: float
    hold_ms: float
    memory_kib: float


def many_queues(folder: Path, count: int) -> ManyQueues:
    """Run one round on a broker with `count` queues."""
    empty_mib = _empty_mib(folder)
    data = Path(tempfile.mkdtemp(prefix="broker-", dir=folder))
    try:
        write_queues(data / "data", (f"queue-{number:05}" for number in range(count)))
        began = time.perf_counter()
        with BrokerProcess(data, []) as broker:
            started_s = time.perf_counter() - began
            memory_kib = (resident_mib(broker.pid) - empty_mib) * 1024 / count
            assert _counted(broker, 0) == count
            (scrape_s, health_s, list_s), *waits = _asked(broker, count, TIMES)
        write_notes(data / "data", HELD)
        began = time.perf_counter()
        with BrokerProcess(data, []) as broker:
            used_start_s = time.perf_counter() - began
            (first_scrape_s, _, first_list_s), *first_waits = _asked(broker, count, 1)
            assert _counted(broker, 16 * HELD) == count
            (_, _, used_list_s), *used_waits = _asked(broker, count, TIMES)
        stall_s, hold_s = map(max, zip(waits, first_waits, used_waits, strict=True))
        return ManyQueues(
            scrape_s * 1000,
            health_s * 1000,
            list_s * 1000,
            first_scrape_s * 1000,
            first_list_s * 1000,
            used_list_s * 1000,
            (used_start_s - started_s) * 1000,
            stall_s * 1000,
            hold_s * 1000,
            memory_kib,
        )
    finally:
        shutil.rmtree(data, ignore_errors=True)


@dataclass(slots=True, frozen=True)
class SinglePartitions:
    """One round of a broker whose queues have one partition each."""

    start_s: float
    memory_mib: float
    scrape_ms: float
    page_ms: float


def single_partitions(folder: Path, count: int) -> SinglePartitions:
    """Run one round on a broker with `count` queues of one partition each, which nobody has used."""
    data = Path(tempfile.mkdtemp(prefix="broker-", dir=folder))
    try:
        write_queues(data / "data", (f"queue-{number:05}" for number in range(count)), partitions=1)
        began = time.perf_counter()
        with BrokerProcess(data, []) as broker:
            start_s = time.perf_counter() - began
            memory_mib = resident_mib(broker.pid)
            page = [f"/$Resources/queues?$skip={count // 2}&$top={PAGE}"]
            token = {"Authorization": sas_token("https://127.0.0.1")}
            questions: Questions = ((["/metrics"], {}), (page, token))
            scrape_s, page_s = _medians_s(broker.addresses.http_port, questions, TIMES)
        return SinglePartitions(start_s, memory_mib, scrape_s * 1000, page_s * 1000)
    finally:
        shutil.rmtree(data, ignore_errors=True)


def _counted(broker: BrokerProcess, messages: int) -> int:
    """Number of queues that a scrape shows with this many messages."""
    with urllib.request.urlopen(f"http://127.0.0.1:{broker.addresses.http_port}/metrics") as answer:
        return len(re.findall(rb"^partibus_messages\{\S+ %d\.0$" % messages, answer.read(), re.MULTILINE))


def _asked(broker: BrokerProcess, count: int, times: int) -> tuple[list[float], float, float]:
    """Seconds for a scrape, `/health` and the complete list; the longest wait of another client meanwhile;
    and the longest hold of the loop.
    """
    port, token = broker.addresses.http_port, {"Authorization": sas_token("https://127.0.0.1")}
    pages = [f"/$Resources/queues?$skip={skip}&$top={PAGE}" for skip in range(0, count, PAGE)]
    questions: Questions = (
        (["/metrics"], {}),
        (["/health"], {}),
        (pages, token),
    )

    # A process of its own: in a thread, this one would wait for the interpreter while that one reads a page.
    with (
        _on_one_processor(),
        RawConnection(broker.addresses.amqp_port) as bystander,
        ProcessPoolExecutor(1, get_context("spawn")) as processes,
    ):
        bystander.open()
        processes.submit(abs, 0).result()  # it takes a while to start
        asking = processes.submit(_medians_s, port, questions, times)
        stall_s = hold_s = 0.0
        with _preferred():
            while not asking.done():
                used_s = _used_s(broker.pid)
                waited_s = turn_s(bystander)
                stall_s = max(stall_s, waited_s)
                hold_s = max(hold_s, min(waited_s, _used_s(broker.pid) - used_s))
                time.sleep(0.001)
        return asking.result(), stall_s, hold_s


@contextlib.contextmanager
def _on_one_processor() -> Iterator[None]:
    """Keep this thread, and the processes it starts, on one processor: clients run on other machines, so they
    must not decide by chance whether the broker waits for the processor they are on."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextlib.contextmanager
def _preferred() -> Iterator[None]:
    """Have this process get a processor at once, if that is permitted: while it waits for one with an answer
    to read, the broker works for others."""
    before = os.getpriority(os.PRIO_PROCESS, 0)
    with contextlib.suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, PREFERRED)
    try:
        yield
    finally:
        with contextlib.suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, 0, before)


def _medians_s(port: int, questions: Questions, times: int) -> list[float]:
    """Median of the seconds for each question."""
    return [
        statistics.median(_ask_s(port, paths, headers) for _ in range(times)) for paths, headers in questions
    ]


def _ask_s(port: int, paths: Sequence[str], headers: Mapping[str, str]) -> float:
    """Seconds to fetch all of these paths over one connection, from connecting to the last byte."""
    begin = time.perf_counter()
    with contextlib.closing(
        http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWERED_WITHIN_S)
    ) as connection:
        for path in paths:
            connection.request("GET", path, headers=dict(headers))
            answer = connection.getresponse()
            answer.read()
            assert answer.status == 200, (path, answer.status)
    return time.perf_counter() - begin


def _used_s(pid: int) -> float:
    """Processor time that a process's main thread has used, to the nanosecond (`CONFIG_SCHED_INFO`)."""
    return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0]) / 1e9


def counters_kib(count: int) -> float:
    """KiB that the counters of each of `count` entities take in memory, with a large value in every one."""
    metrics, chance = Metrics(), random.Random(4)
    names = [f"queue-{number:05}" for number in range(count)]
    gc.collect()
    tracemalloc.start()
    try:
        for name in names:
            meter = EntityMeter(metrics, name)
            for counter in COUNTERS:
                meter.add(counter, chance.randrange(1 << 40, 1 << 50))
            for bound in SECONDS:
                for _ in range(300):  # counts above 256, since Python shares small integers
                    meter.send_seconds.observe(bound)
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return taken / count / 1024


def _empty_mib(folder: Path) -> float:
    """Memory of a broker without queues."""
    data = Path(tempfile.mkdtemp(prefix="broker-", dir=folder))
    try:
        with BrokerProcess(data, []) as broker:
            return resident_mib(broker.pid)
    finally:
        shutil.rmtree(data, ignore_errors=True)
