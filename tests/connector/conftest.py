"""The running broker for the connector, a local Spark, and whether this machine can run one.

Without Java the tests on Spark are skipped, and the summary says so; where `CI` is set, they fail.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from pyspark_partibus.client import pool
from tests.support.broker_process import BrokerProcess, queue
from tests.support.missing_tools import skip_without
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


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Without Java, skip the tests on Spark; where `CI` is set, fail them."""
    if item.path.name in ON_SPARK and shutil.which("java") is None:
        skip_without(["java"])


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
