"""The connector's client against the real broker: logging in, links, requests, lost connections."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from cproton_ffi import ffi, lib

from pyspark_partibus.batch_reader import PartibusBatchReader
from pyspark_partibus.client.connection import Connection
from pyspark_partibus.client.links import Receiver, Sender
from pyspark_partibus.client.operations import Node
from pyspark_partibus.client.patience import Patience
from pyspark_partibus.client.pool import checked_out, dropped
from pyspark_partibus.client.ranges import RangeReader
from pyspark_partibus.client.requests import Requester
from pyspark_partibus.client.values import Described, ULong, encode
from pyspark_partibus.columns import full_schema
from pyspark_partibus.endpoint import Endpoint, parse_endpoint
from pyspark_partibus.errors import DataLoss, OptionError, Refused, TimedOut, Unavailable
from pyspark_partibus.identity import Identity
from pyspark_partibus.offsets import Range
from pyspark_partibus.options import sink_options, source_options
from pyspark_partibus.query_writers import commit_batch
from pyspark_partibus.task_writer import TaskWriter
from tests.support.broker_process import KEY, KEY_NAME, BrokerProcess
from tests.support.sas import sas_token

WAIT_S = 10.0
PATIENCE = Patience(WAIT_S, WAIT_S)


def endpoint_of(broker: BrokerProcess) -> Endpoint:
    """The endpoint of a client that logs in with the key, and so has its rights on all entities."""
    return parse_endpoint(f"amqp://{KEY_NAME}:{KEY}@127.0.0.1:{broker.addresses.amqp_port}")


def data(body: bytes) -> bytes:
    return encode(Described(ULong(0x75), body))


def test_messages_of_all_sizes_come_back_as_they_were_sent(broker: BrokerProcess) -> None:
    connection = Connection(endpoint_of(broker), WAIT_S)
    sender, receiver = Sender(connection, "orders"), Receiver(connection, "orders")
    bodies = [b"x" * size for size in (0, 1, 300_000, 1_000_000)]
    for body in bodies:
        sender.send(data(body))
        sender.outcome()
    receiver.grant(len(bodies))
    received = [receiver.receive() for _ in bodies]
    assert sorted(len(each) for each in bodies) == sorted(_body_size(each) for each in received)
    with pytest.raises(TimedOut):
        receiver.receive(timeout_s=0.05)
    connection.close()


def _body_size(message: bytes) -> int:
    return (
        len(message)
        - message.rindex(b"\x00\x53\x75")
        - (5 if message[message.rindex(b"\x00\x53\x75") + 3] == 0xA0 else 8)
    )


def test_what_the_broker_refuses_is_an_error_with_its_condition(broker: BrokerProcess) -> None:
    endpoint = endpoint_of(broker)
    connection = Connection(endpoint, WAIT_S)
    with pytest.raises(Refused, match="amqp:not-found"):
        Receiver(connection, "nowhere")
    with pytest.raises(Refused, match="amqp:not-found"):
        Sender(connection, "nowhere")
    sender = Sender(connection, "orders")
    sender.send(b"no message")
    with pytest.raises(Refused, match="amqp:decode-error"):
        sender.outcome()
    with pytest.raises(Refused, match="partibus:no-such-thing"):
        Requester(connection, "orders/$management").ask("partibus:no-such-thing", {})
    with pytest.raises(Refused, match="refused the credentials") as refused:
        Connection(replace(endpoint, password="guess"), WAIT_S)
    assert "guess" not in str(refused.value)
    with pytest.raises(Refused, match="amqp:unauthorized-access"):
        Sender(
            Connection(replace(endpoint, mechanism="ANONYMOUS", username=None, password=None), WAIT_S),
            "orders",
        )
    assert Requester(connection, "orders/$management").ask("partibus:count-messages", {})["active"] >= 0


def test_an_address_means_the_entity_that_it_spells(broker: BrokerProcess) -> None:
    """C's strings end at a zero. A request to the node of `orders\\0x` would go to the queue `orders`, whose
    messages the client would take for responses."""
    connection = Connection(endpoint_of(broker), WAIT_S)
    for made in (Receiver, Sender):
        with pytest.raises(Refused, match="contains a NUL character"):
            made(connection, "orders\0x")
    for address in ("orders/$management", "$cbs"):
        with pytest.raises(Refused, match="no queue or topic"):
            Node(endpoint_of(broker), address, PATIENCE).facts()


def test_a_token_is_presented_once_for_each_entity(broker: BrokerProcess) -> None:
    sas = sas_token("sb://127.0.0.1/")
    endpoint = replace(endpoint_of(broker), mechanism="ANONYMOUS", username=None, password=None, token=sas)
    connection = checked_out(endpoint, WAIT_S, "orders")
    assert Sender(connection, "orders")
    assert checked_out(endpoint, WAIT_S, "other") is connection
    assert Sender(connection, "other")
    with pytest.raises(Refused, match="put-token"):
        checked_out(replace(endpoint, token=sas[:-20] + "x" * 20), WAIT_S, "orders")


def test_tls_is_checked_against_the_authorities_given(broker: BrokerProcess) -> None:
    endpoint = replace(endpoint_of(broker), tls=True, port=broker.addresses.amqps_port)
    with pytest.raises(Refused, match="not trusted"):
        Connection(endpoint, WAIT_S)
    connection = Connection(replace(endpoint, ca_file=str(broker.data_dir / "tls" / "ca.pem")), WAIT_S)
    sender = Sender(connection, "orders")
    sender.send(data(b"x" * 500_000))
    sender.outcome()


def test_a_file_for_tls_that_cannot_be_used_is_an_error_at_once(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    endpoint = replace(endpoint_of(broker), tls=True, port=broker.addresses.amqps_port)
    nowhere, empty = str(tmp_path / "nowhere.pem"), tmp_path / "empty.pem"
    empty.touch()
    with pytest.raises(OptionError, match=f"option 'tls.caFile': '{nowhere}' cannot be used"):
        Node(replace(endpoint, ca_file=nowhere), "orders", PATIENCE).heads()
    with pytest.raises(OptionError, match=f"option 'tls.certFile': '{empty}' cannot be used"):
        Node(replace(endpoint, cert_file=str(empty)), "orders", PATIENCE).heads()


def test_a_connection_is_shared_until_it_is_lost(broker: BrokerProcess) -> None:
    endpoint = endpoint_of(broker)
    first = checked_out(endpoint, WAIT_S, "orders")
    assert checked_out(endpoint, WAIT_S, "other") is first
    first._socket.shutdown(2)
    second = checked_out(endpoint, WAIT_S, "orders")
    assert second is not first
    dropped(second)
    assert checked_out(endpoint, WAIT_S, "orders") is not second


def test_a_child_process_makes_a_connection_of_its_own(
    broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint = endpoint_of(broker)
    parents = checked_out(endpoint, WAIT_S, "orders")
    monkeypatch.setattr(os, "getpid", lambda: -1)
    childs = checked_out(endpoint, WAIT_S, "orders")
    assert childs is not parents
    dropped(childs)


def test_a_request_outlasts_a_restart_of_the_broker(broker: BrokerProcess) -> None:
    node = Node(endpoint_of(broker), "orders", PATIENCE)
    before = node.heads()
    assert sorted(before.heads) == list(range(16))
    broker.restart()
    assert node.heads() == before


def test_tasks_leave_no_links_on_the_connection_that_they_share(broker: BrokerProcess) -> None:
    options = sink_options({"endpoint": broker.addresses.connection_string(), "entity": "unique"})
    connection = checked_out(options.endpoint, WAIT_S, "unique")
    rows = pa.RecordBatch.from_pydict({"body": ["a"]})
    for task in range(50):
        written = TaskWriter(options, Identity("s", task, "content", ("s", task), "s"), ()).write(
            iter([rows])
        )
        commit_batch(options, [written], task)
    schema = full_schema(properties_as_json=False, with_error=False)
    source = source_options({"endpoint": broker.addresses.connection_string(), "entity": "unique"})
    reader = PartibusBatchReader(source, schema)
    assert sum(batch.num_rows for task in reader.partitions() for batch in reader.read(task)) == 50
    assert checked_out(options.endpoint, WAIT_S, "unique") is connection
    assert lib.pn_link_head(connection._pn, 0) == ffi.NULL


def test_a_row_that_is_larger_than_a_request_is_sent_by_itself(broker: BrokerProcess) -> None:
    given = {"endpoint": broker.addresses.connection_string(), "entity": "large", "retryTimeout": "0s"}
    bodies = [b"a", b"b" * (5 << 20), b"c"]
    for _ in range(2):  # the second time, all of them are duplicates
        written = TaskWriter(sink_options(given), Identity("s", 0, "content", ("s", 0), "s"), ()).write(
            iter([pa.RecordBatch.from_pydict({"body": bodies, "partition_key": ["k"] * 3})])
        )
        assert written.rows == 3
    reader = PartibusBatchReader(
        source_options(given), full_schema(properties_as_json=False, with_error=False)
    )
    batches = [batch for task in reader.partitions() for batch in reader.read(task)]
    assert [body.as_py() for batch in batches for body in batch.column("body")] == bodies
    with pytest.raises(Refused, match="amqp:link:message-size-exceeded"):
        Node(endpoint_of(broker), "large", PATIENCE).send([data(b"d" * (9 << 20))])


def test_a_range_beyond_what_is_there_is_data_loss(broker: BrokerProcess) -> None:
    endpoint = endpoint_of(broker)
    heads = Node(endpoint, "plain", PATIENCE).heads()
    reader = RangeReader(endpoint, "plain", PATIENCE, generation=heads.generation, messages=10, size=1 << 16)
    with pytest.raises(DataLoss, match="ends before"):
        list(reader.envelopes(Range(0, heads.heads[0], heads.heads[0] + 1)))


def test_a_sender_is_told_what_its_target_can_do(broker: BrokerProcess) -> None:
    endpoint = endpoint_of(broker)
    facts = [Node(endpoint, name, PATIENCE).facts() for name in ("orders", "plain", "unique")]
    assert [(each.partitions, each.duplicate_window_ms) for each in facts] == [
        (16, None),
        (1, None),
        (16, 7_200_000),
    ]
    assert facts[0].generation == Node(endpoint, "orders", PATIENCE).heads().generation


def test_a_broker_that_is_not_there_is_not_available() -> None:
    endpoint = Endpoint("127.0.0.1", 9, False)
    with pytest.raises(Unavailable, match="cannot be reached"):
        Node(endpoint, "orders", Patience(WAIT_S, 0)).heads()
