"""Keys that may do only one thing: a source needs Listen, a sink Send, and neither says the key."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from pyspark_partibus.batch_reader import PartibusBatchReader
from pyspark_partibus.columns import full_schema
from pyspark_partibus.errors import Refused
from pyspark_partibus.identity import Identity
from pyspark_partibus.options import SinkOptions, SourceOptions, sink_options, source_options
from pyspark_partibus.stream_reader import PartibusStreamReader
from pyspark_partibus.task_writer import TaskWriter
from tests.support.broker_process import BrokerProcess, queue

SCHEMA = full_schema(properties_as_json=False, with_error=False)
SECRET = "c2VjcmV0IHNlY3JldCBzZWNyZXQgc2VjcmV0IHNlY3I="
RULES = [
    {"KeyName": f"only-{right}", "PrimaryKey": SECRET, "SecondaryKey": SECRET, "Rights": [right]}
    for right in ("Listen", "Send")
]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker whose queue has two keys."""
    queues = (queue("orders", AuthorizationRules=RULES),)
    with BrokerProcess(tmp_path_factory.mktemp("rights"), queues) as process:
        yield process


def given(broker: BrokerProcess, right: str) -> dict[str, str]:
    endpoint = broker.addresses.connection_string(key_name=f"only-{right}", key=SECRET)
    return {"endpoint": endpoint, "entity": "orders", "retryTimeout": "0s"}


def source(broker: BrokerProcess, right: str, **more: str) -> SourceOptions:
    return source_options({**given(broker, right), **more})


def sink(broker: BrokerProcess, right: str) -> SinkOptions:
    return sink_options(given(broker, right))


def write(options: SinkOptions) -> int:
    rows = pa.RecordBatch.from_pydict({"body": ["a"]})
    identity = Identity("s", 1, "content", ("s", 1), "s")
    return TaskWriter(options, identity, ()).write(iter([rows])).rows


def test_each_side_needs_its_own_right_and_no_more(broker: BrokerProcess) -> None:
    assert write(sink(broker, "Send")) == 1
    with pytest.raises(Refused, match="amqp:unauthorized-access") as refused:
        write(sink(broker, "Listen"))
    assert SECRET not in str(refused.value)
    reader = PartibusBatchReader(source(broker, "Listen"), SCHEMA)
    assert sum(batch.num_rows for task in reader.partitions() for batch in reader.read(task)) == 1
    with pytest.raises(Refused, match="amqp:unauthorized-access") as refused:
        PartibusBatchReader(source(broker, "Send"), SCHEMA).partitions()
    assert SECRET not in str(refused.value)


def test_a_stream_without_the_right_to_settle_does_not_begin(broker: BrokerProcess) -> None:
    for settle in ("cursor", "complete"):
        stream = PartibusStreamReader(source(broker, "Send", settle=settle, cursor="c"), SCHEMA)
        with pytest.raises(Refused, match="amqp:unauthorized-access"):
            stream.initialOffset()
