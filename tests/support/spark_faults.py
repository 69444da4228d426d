"""What can end in the middle of a streaming query, and a query that is started again until a batch is done.

A fault is aimed at one batch: it comes when Spark has planned the batch, and the batch is followed until
Spark has committed it. Every wait is bounded.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from pyspark import SparkContext
from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery

from tests.support.broker_process import BrokerProcess

WORKER, PLANNER = "pyspark.worker", "python_streaming_source_runner"
"""What is in the command lines of the processes that run tasks, and of the one that plans a stream."""
EXECUTOR = "CoarseGrainedExecutorBackend"
"""The same for the executors of a cluster."""
DONE_WITHIN_S = 120.0
LOOKS_EVERY_S = 0.01
IMPATIENT = {"requestTimeout": "5s", "retryTimeout": "20s"}
"""Options with which a query that waits for a broker that is gone ends soon."""


class Restarted:
    """A streaming query with a checkpoint, started again whenever it has ended."""

    def __init__(self, start: Callable[[], StreamingQuery], checkpoint: Path) -> None:
        self._start, self._checkpoint = start, checkpoint
        self._query = start()
        self.starts = 1

    def wait_for_plan(self, batch: int) -> None:
        """Wait until Spark has planned a batch, which it does before it runs the batch's tasks."""
        self._wait(lambda: newest(self._checkpoint / "offsets") >= batch, f"batch {batch} planned")

    def wait_for_commit(self, batch: int) -> None:
        """Wait until Spark has committed a batch."""
        self._wait(lambda: newest(self._checkpoint / "commits") >= batch, f"batch {batch} committed")

    def _wait(self, done: Callable[[], bool], what: str) -> None:
        gives_up = time.monotonic() + DONE_WITHIN_S
        while not done():
            assert time.monotonic() < gives_up, f"not within {DONE_WITHIN_S} s: {what}"
            if not self._query.isActive:
                self._start_again()
            time.sleep(LOOKS_EVERY_S)

    def next_batch(self) -> int:
        """The number of the batch that Spark plans next, if it has committed all that it has planned."""
        return newest(self._checkpoint / "offsets") + 1

    def run_to_the_end(self) -> None:
        """Wait until everything that is available has been processed, and stop."""
        gives_up = time.monotonic() + DONE_WITHIN_S
        while True:
            # A query that was stopped has nothing to process, and says so without an error.
            if not self._query.isActive:
                self._start_again()
            with suppress(StreamingQueryException):
                self._query.processAllAvailable()
                if self._query.isActive:
                    break
            assert time.monotonic() < gives_up, "the query ends again and again"
        self.stop()

    def _start_again(self) -> None:
        self._query = self._start()
        self.starts += 1

    def stop(self) -> None:
        """Interrupt the query, whatever it does."""
        self._query.stop()


def newest(log: Path) -> int:
    """The number of the last batch in one of the logs of a checkpoint; -1 if there is none."""
    return max((int(each.name) for each in log.glob("[0-9]*")), default=-1)


def faults(broker: BrokerProcess, query: Restarted, order: random.Random) -> list[Callable[[], object]]:
    """What may happen to a query: the broker, a task's process or the planning process is killed, or the
    query is interrupted."""
    return [
        broker.restart,
        lambda: kill_one(WORKER, order),
        lambda: kill_one(PLANNER, order),
        query.stop,
    ]


def kill_one(which: str, order: random.Random) -> None:
    """Kill one of Spark's Python processes as `kill -9` does, if there is one just now."""
    candidates = spark_processes(which)
    if candidates:
        with suppress(ProcessLookupError):
            os.kill(order.choice(candidates), signal.SIGKILL)


def spark_processes(which: str) -> list[int]:
    """The Python processes of this process's Spark with `which` in their command line, without those that
    only start others."""
    gateway = SparkContext._gateway
    assert gateway is not None
    parents = {pid: parent for pid, parent, command in _processes() if which in command}
    starters, java = set(parents.values()), gateway.proc.pid
    ours = (pid for pid, parent in parents.items() if java in (parent, parents.get(parent)))
    return [pid for pid in ours if pid not in starters]


def processes_of_group(group: int, which: str) -> list[int]:
    """The processes of a process group with `which` in their command line."""
    found = []
    for pid, _, command in _processes():
        with suppress(ProcessLookupError):
            if which in command and os.getpgid(pid) == group:
                found.append(pid)
    return found


def _processes() -> Iterator[tuple[int, int, str]]:
    """Process, parent and command line of all processes that can be seen."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            yield int(folder.name), parent, (folder / "cmdline").read_text().replace("\0", " ")
        except OSError:
            continue
