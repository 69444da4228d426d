"""A running HTTP port for each test, and a whole broker for the tests of one file."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from storage.disk import LocalDisk
from tests.support.broker_process import queue
from tests.support.broker_thread import BrokerThread
from tests.support.http_stack import HttpStack, http_stack
from tests.support.rest_client import RestClient


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[HttpStack]:
    async with http_stack(tmp_path) as running:
        yield running


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerThread]:
    """A broker with partitions."""
    queues = [queue(name, PartitionCount=4) for name in ("plain", "keyed")]
    with BrokerThread(tmp_path_factory.mktemp("broker"), queues, LocalDisk()) as running:
        yield running


@pytest.fixture
def rest(broker: BrokerThread) -> Iterator[RestClient]:
    """A client of this broker."""
    with RestClient(broker.addresses.http_port) as client:
        yield client
