"""Many peeks at once from clients that settle no answer: bounded in memory, and no other client waits for
them.
"""

from __future__ import annotations

import contextlib

from protocol.codec import UInt
from tests.hostile.bystander import Bystander, resident_mib
from tests.support import raw_amqp as raw
from tests.support.amqp_messages import APPLICATION, PROPERTIES, VALUE, message, section
from tests.support.broker_process import BrokerProcess
from tests.support.raw_amqp import RawConnection, opened

MESSAGES, BODY_BYTES = 250, 1024
CLIENTS, ROUNDS, PEEKS = 8, 8, 10
GROWTH_MIB_MAX = 80
"""The answers are twice as large in total."""


def peek(number: int) -> bytes:
    body = {"from-sequence-number": UInt(0), "message-count": UInt(1_000)}
    return (
        section(PROPERTIES, [f"peek-{number}"])
        + section(APPLICATION, {"operation": "com.microsoft:peek-message"})
        + section(VALUE, body)
    )


def read_answers(connection: RawConnection, count: int) -> None:
    while count:
        found = connection.read_until(raw.TRANSFER, raw.DETACH, raw.CLOSE, within_s=60)
        assert found.code == raw.TRANSFER, found
        count -= not found.field(5)


def test_peeks_sent_without_waiting_stay_in_bounds_and_others_are_served(broker: BrokerProcess) -> None:
    port = broker.addresses.amqp_port
    assert CLIENTS * ROUNDS * PEEKS * MESSAGES * BODY_BYTES > 1.9 * GROWTH_MIB_MAX * 2**20
    with contextlib.ExitStack() as stack:
        sender = stack.enter_context(opened(port))
        sender.attach_sender(0, "twice")
        for number in range(MESSAGES):
            sender.send_frame(raw.TRANSFER, raw.transfer_fields(0, number), message(body=[bytes(BODY_BYTES)]))
            sender.read_until(raw.DISPOSITION)
        bystander = stack.enter_context(Bystander(port))
        bystander.round_trip()
        before_mib, most_mib = resident_mib(broker.pid), 0.0
        clients = [stack.enter_context(opened(port)) for _ in range(CLIENTS)]
        for client in clients:
            client.attach_sender(0, "twice/$management")
            client.attach_receiver(1, "twice/$management")
        for sent in range(0, ROUNDS * PEEKS, PEEKS):
            for client in clients:
                client.send_frame(raw.FLOW, raw.flow_fields(1, sent, PEEKS))
                for number in range(sent, sent + PEEKS):
                    client.send_frame(
                        raw.TRANSFER, raw.transfer_fields(0, number, settled=True), peek(number)
                    )
            bystander.round_trip()
            for client in clients:
                read_answers(client, PEEKS)
            most_mib = max(most_mib, resident_mib(broker.pid))
        assert most_mib - before_mib < GROWTH_MIB_MAX
