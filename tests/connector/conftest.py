"""The running broker for the connector, a local Spark, and whether this machine can run one.

Without Java the tests on Spark are not collected; the summary says so, and the run fails where `CI` is set.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from pyspark_partibus.client import pool
from tests.support.broker_process import BrokerProcess, queue
from tests.support.spark_session import local_spark

UNIQUE = {"RequiresDuplicateDetection": True, "DuplicateDetectionHistoryTimeWindow": "PT2H"}
QUEUES = (
    queue("orders"),
    queue("other"),
    queue("drivers"),
    queue("executors"),
    queue("plain", EnablePartitioning=False),
    queue("unique", **UNIQUE),
    queue("again", **UNIQUE),
    queue("executed", **UNIQUE),
    queue("large", **UNIQUE, MaxMessageSizeInKilobytes=8192),
)
ON_SPARK = (
    "test_bad_messages.py",
    "test_batch_read.py",
    "test_demo.py",
    "test_end_to_end.py",
    "test_failing_commits.py",
    "test_kills.py",
    "test_many_batches.py",
    "test_order.py",
    "test_restarts.py",
    "test_settlement.py",
    "test_stream_read.py",
    "test_subscriptions.py",
    "test_wheel.py",
    "test_write.py",
)
collect_ignore = [] if shutil.which("java") else list(ON_SPARK)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """In CI, fail if Spark could not run."""
    if collect_ignore and os.environ.get("CI") and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Report what could not run here, and why."""
    for name in collect_ignore:
        terminalreporter.write_line(
            f"NOT RUN: tests/connector/{name}: this machine has no java (apt-get install "
            "default-jre-headless)",
            yellow=True,
        )


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker for one module."""
    with BrokerProcess(tmp_path_factory.mktemp("broker"), QUEUES) as process:
        yield process


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One Spark for all modules, because each takes ten seconds to start."""
    with local_spark(tmp_path_factory.mktemp("spark")) as session:
        yield session


@pytest.fixture(autouse=True)
def _own_connections() -> Iterator[None]:
    """No test finds the connections of another one."""
    yield
    for connection in list(pool._connections.values()):
        pool.dropped(connection)
