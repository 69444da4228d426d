"""Message-ids that no official client sends: a string that is not UTF-8 (AMQP 1.0 §1.6.20). Only its message
is refused, wherever message-ids place messages or tell them apart, at once or when they are forwarded.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import raw_amqp as raw
from tests.support.amqp_messages import message
from tests.support.azure_client import azure_client
from tests.support.broker_process import BrokerProcess, queue
from tests.support.raw_amqp import RawConnection, opened

COUNT, BAD, WITHIN_S = 11, 5, 30.0
DETECTS = {"RequiresDuplicateDetection": True, "DuplicateDetectionHistoryTimeWindow": "PT10M"}


def outcomes(connection: RawConnection, count: int) -> list[int]:
    """The descriptors of the outcomes of the first deliveries."""
    found: dict[int, int] = {}
    while len(found) < count:
        answer = connection.read_until(raw.DISPOSITION)
        first, last = answer.field(1), answer.field(2)
        for number in range(first, (first if last is None else last) + 1):
            found[number] = int(answer.field(4).descriptor)
    return [found[number] for number in range(count)]


@pytest.mark.parametrize("entity", ["detecting", "single", "forwarding"])
def test_only_the_message_whose_id_is_no_text_is_refused(tmp_path: Path, entity: str) -> None:
    queues = [
        queue("detecting", **DETECTS),
        queue("single", PartitionCount=1, ForwardTo="detecting", **DETECTS),
        queue("forwarding", ForwardTo="detecting"),
    ]
    with BrokerProcess(tmp_path, queues) as broker:
        payloads = [message(properties=[f"id-{number:03}"], body=[b"%d" % number]) for number in range(COUNT)]
        payloads[BAD] = payloads[BAD].replace(b"id-005", b"id-\xff\xfe5")
        with opened(broker.addresses.amqp_port) as connection:
            connection.attach_sender(0, entity)
            connection.send(
                *(
                    raw.frame(raw.TRANSFER, raw.transfer_fields(0, number), payload)
                    for number, payload in enumerate(payloads)
                )
            )
            told = outcomes(connection, COUNT)
        assert told == [raw.REJECTED if number == BAD else raw.ACCEPTED for number in range(COUNT)]
        client = azure_client(broker.addresses.connection_string())
        received: set[str] = set()
        with client, client.get_queue_receiver("detecting", max_wait_time=WITHIN_S) as receiver:
            while len(received) < COUNT - 1:
                found = receiver.receive_messages(COUNT, max_wait_time=WITHIN_S)
                assert found, f"only {len(received)} messages came"
                for each in found:
                    received.add(str(each.message_id))
                    receiver.complete_message(each)
        assert received == {f"id-{number:03}" for number in range(COUNT) if number != BAD}
        assert not broker.errors
