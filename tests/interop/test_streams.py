"""Reading and writing by position with a plain AMQP client, Qpid Proton (AMQP contract 7.6)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from proton import Message, symbol, timestamp
from proton.reactor import LinkOption
from proton.utils import BlockingConnection, LinkDetached

from tests.interop.own_management import longs, management
from tests.interop.proton_blocking import connected
from tests.support.broker_process import BrokerProcess, queue

PARTITIONS = 2


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    names = ("positions", "generations")
    queues = [queue(name, PartitionCount=PARTITIONS, Partitioned=True) for name in names]
    with BrokerProcess(tmp_path_factory.mktemp("streams"), queues) as running:
        yield running


@pytest.fixture
def connection(broker: BrokerProcess) -> Iterator[BlockingConnection]:
    with connected(broker.addresses) as connected_client:
        yield connected_client


def send(connection: BlockingConnection, name: str, *bodies: bytes, **given: Any) -> None:
    """Send messages, all with the same partition key."""
    sender = connection.create_sender(name)
    for number, body in enumerate(bodies):
        annotations = {symbol("x-opt-partition-key"): "one key"}
        sender.send(Message(id=f"{number}", body=body, inferred=True, annotations=annotations, **given))
    sender.close()  # type: ignore[no-untyped-call]


class Properties(LinkOption):
    """Properties of an attach."""

    def __init__(self, **properties: Any) -> None:
        self._properties = {symbol(f"partibus:{name}"): value for name, value in properties.items()}

    def apply(self, link: Any) -> None:
        link.properties = self._properties


def test_positions_backlogs_and_times_of_all_partitions_come_in_one_response(
    connection: BlockingConnection,
) -> None:
    with management(connection, "positions") as node:
        status, before = node.ask("partibus:get-positions")
        assert status == 200 and before["partitions"] == [0, 1] and before["messages"] == [0, 0]
        assert before["starts"] == before["heads"] == [1, 1 << 48 | 1]
        between = int(time.time() * 1000)
        send(connection, "positions", b"a", b"bb", b"ccc")
        status, after = node.ask(
            "partibus:get-positions",
            enqueued_time=timestamp(between),
            positions=longs([head + 1 for head in before["heads"]]),
        )
        filled = after["messages"].index(3)
        moved = [head - old for head, old in zip(after["heads"], before["heads"], strict=True)]
        assert (moved[filled], moved[1 - filled]) == (3, 0)
        assert after["backlogs"][filled] == 2 and after["backlogs"][1 - filled] == 0
        assert after["positions-by-time"] == before["heads"]
        assert after["generation"] == before["generation"]
        assert node.ask("partibus:get-positions", cursors="all")[0] == 400


def test_a_link_is_told_the_generation_and_refused_if_it_expects_another(
    connection: BlockingConnection,
) -> None:
    with management(connection, "generations") as node:
        generation = node.ask("partibus:get-positions")[1]["generation"]
    receiver = connection.create_receiver("generations", options=Properties(generation=None))
    assert receiver.link.remote_properties["partibus:generation"] == generation
    receiver.close()  # type: ignore[no-untyped-call]
    sender = connection.create_sender("generations", options=Properties(generation=generation))
    assert sender.link.remote_properties["partibus:generation"] == generation
    with pytest.raises(LinkDetached, match="amqp:not-found"):
        connection.create_receiver("generations", options=Properties(generation="another"))
