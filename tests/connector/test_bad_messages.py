"""Messages that cannot be decoded: what the broker refuses, and what becomes of the others on Spark."""

from __future__ import annotations

from pathlib import Path

import pytest
from azure.servicebus.amqp import AmqpAnnotatedMessage
from proton import Delivery
from pyspark.errors import PythonException, StreamingQueryException
from pyspark.sql import SparkSession

from pyspark_partibus.client.values import DEPTH_MAX
from tests.interop.proton_blocking import connected
from tests.interop.proton_client import Encoded, outcome_of
from tests.support.azure_client import azure_client
from tests.support.broker_process import BrokerProcess
from tests.support.spark_queries import batch, run_to_the_end, send, stream, written

BODY_BYTES_MAX = 1_000_000
"""Nearly as much as the broker takes."""
DATA = b"\x00\x53\x75\xa0\x01x"
REFUSED = {
    "a section that is cut off": b"\x00\x53\x75\xa0\xff",
    "an unknown section": b"\x00\x53\x79\x45" + DATA,
    "a body that is not binary": b"\x00\x53\x75\xa1\x01x",
    "a property of an unknown type": b"\x00\x53\x74\xc1\x05\x02\xa1\x01k\x3f" + DATA,
}
TAKEN = {
    b"\x00\x53\x74\xc1\x08\x02\xa1\x01k\xa1\x02\xff\xfe" + DATA: "is not valid",
    b"\x00\x53\x77\xa1\x02\xff\xfe": "is not valid",
    b"\x00\x53\x77\xc0\x03\x05\x55\x01": "counts more items than it has bytes",
    b"\x00\x53\x73\xc0\x0b\x04\xa1\x01m\x40\x40\x73\x00\x00\xd8\x00" + DATA: "55296 is no character",
}
"""The broker keeps properties and bodies byte by byte, so it does not notice what is wrong inside them."""


def nested(depth: int) -> list[object]:
    value: list[object] = []
    for _ in range(depth):
        value = [value]
    return value


def test_messages_that_cannot_be_decoded_fail_a_stream_which_goes_on_with_their_bytes(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    """The official client can send what is nested too deeply; the rest takes a client that sends bytes."""
    with connected(broker.addresses) as connection:
        sender = connection.create_sender("plain")
        for what, encoded in REFUSED.items():
            outcome = outcome_of(sender.send(Encoded(encoded), error_states=[]))  # type: ignore[arg-type]
            assert (outcome.state, outcome.condition) == (Delivery.REJECTED, "amqp:decode-error"), what
        send(broker, "plain", {"a": ["before"]})
        for encoded in TAKEN:
            sender.send(Encoded(encoded))  # type: ignore[arg-type]
    with (
        azure_client(broker.addresses.connection_string()) as client,
        client.get_queue_sender("plain") as official,
    ):
        official.send_messages(AmqpAnnotatedMessage(value_body=nested(DEPTH_MAX + 1)))
        official.send_messages(AmqpAnnotatedMessage(data_body=[b""]))
        official.send_messages(AmqpAnnotatedMessage(data_body=[b"x" * BODY_BYTES_MAX]))
        official.send_messages(AmqpAnnotatedMessage(value_body=5))

    first_bad = "message 2 of partition 0 of 'plain' .* cannot be decoded: the text"
    with pytest.raises(PythonException, match=first_bad):
        batch(spark, broker, "plain").load().collect()

    def run(**given: object) -> None:
        frame = stream(spark, broker, "plain", cursor="c", startingOffsets="earliest", **given).load()
        run_to_the_end(frame, tmp_path)

    with pytest.raises(StreamingQueryException, match=first_bad):
        run()
    run(onBadMessage="null")
    rows = sorted(written(spark, tmp_path).collect(), key=lambda row: row.sequence_number)
    assert [row.sequence_number for row in rows] == list(range(1, 10))
    before, *bad, empty, large, number = rows
    assert [bytes(row.body) for row in (before, empty, large)] == [b"before", b"", b"x" * BODY_BYTES_MAX]
    assert (number.body_type, bytes(number.body)) == ("value", b"\x54\x05")
    assert [row.error for row in (before, empty, large, number)] == [None] * 4
    for row, (encoded, problem) in zip(bad, [*TAKEN.items(), (b"\x45", "nested more than")], strict=True):
        assert (row.body, row.body_type, row.properties) == (None, None, None)
        assert bytes(row.raw).endswith(encoded)
        assert problem in row.error
