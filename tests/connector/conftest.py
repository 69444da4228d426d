"""The running broker for the connector."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pyspark_partibus.client import pool
from tests.support.broker_process import BrokerProcess, queue

QUEUES = ("orders", "other")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker for one module."""
    with BrokerProcess(tmp_path_factory.mktemp("broker"), [queue(name) for name in QUEUES]) as process:
        yield process


@pytest.fixture(autouse=True)
def _own_connections() -> Iterator[None]:
    """No test finds the connections of another one."""
    yield
    for connection in list(pool._connections.values()):
        pool.dropped(connection)
