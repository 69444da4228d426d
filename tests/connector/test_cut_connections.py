"""Connections that are cut anywhere while a task reads or writes: no message is left out, and none is there
twice. The tasks run in this process, without Spark."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa

from pyspark_partibus.batch_reader import PartibusBatchReader
from pyspark_partibus.columns import full_schema
from pyspark_partibus.endpoint import Endpoint, parse_endpoint
from pyspark_partibus.identity import Identity
from pyspark_partibus.options import SinkOptions, SourceOptions, sink_options, source_options
from pyspark_partibus.query_writers import commit_batch
from pyspark_partibus.task_writer import TaskWriter
from tests.support.broker_process import BrokerProcess
from tests.support.cutting_proxy import CuttingProxy, cutting_proxy

ROWS, CUTS = 4_000, 10
BODIES = [b"%d " % number * 50 for number in range(ROWS)]
SCHEMA = full_schema(properties_as_json=False, with_error=False)


def lifetimes(order: random.Random) -> Iterator[int]:
    """The first connections do not even log in, others carry a few requests."""
    return iter(
        [order.randrange(500), order.randrange(2_000), *(order.randrange(150_000) for _ in range(CUTS))]
    )


def through(proxy: CuttingProxy, endpoint: Endpoint) -> Endpoint:
    return replace(endpoint, port=proxy.port)


def given(broker: BrokerProcess) -> dict[str, str]:
    return {"endpoint": broker.addresses.connection_string(), "entity": "unique", "retryTimeout": "60s"}


def source(broker: BrokerProcess, **more: str) -> SourceOptions:
    return source_options({**given(broker), "fetchMessages": "100", **more})


def sink(broker: BrokerProcess) -> SinkOptions:
    return sink_options({**given(broker), "sendMessages": "100"})


def read(options: SourceOptions) -> Iterator[bytes]:
    reader = PartibusBatchReader(options, SCHEMA)
    for task in reader.partitions():
        for batch in reader.read(task):
            yield from batch.column("body").to_pylist()


def test_what_is_written_and_read_over_connections_that_are_cut_is_there_once(broker: BrokerProcess) -> None:
    rows = pa.RecordBatch.from_pydict({"body": BODIES, "partition_key": [str(n % 40) for n in range(ROWS)]})
    port = parse_endpoint(broker.addresses.connection_string()).port
    order = random.Random(1)
    with cutting_proxy(port, lifetimes(order)) as proxy:
        options = sink(broker)
        options = replace(options, endpoint=through(proxy, options.endpoint))
        written = TaskWriter(options, Identity("cut", 1, "content", ("cut", 1), "cut"), ()).write(
            iter([rows])
        )
        commit_batch(options, [written], 1)
        assert proxy.cuts > 5
    assert Counter(read(source(broker))) == Counter(BODIES)
    with cutting_proxy(port, lifetimes(order)) as proxy:
        options_of_source = source(broker)
        cut = replace(options_of_source, endpoint=through(proxy, options_of_source.endpoint))
        assert Counter(read(cut)) == Counter(BODIES)
        assert proxy.cuts > 5
