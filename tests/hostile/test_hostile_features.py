"""Clients with every right that use sessions, schedules, transactions and the operations of `$management`
without measure: each request is answered, and nobody else notices.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from typing import Any
from uuid import UUID

import pytest

from protocol.codec import Array, TypeCode, UInt
from tests.hostile.bystander import Bystander, resident_mib
from tests.support import raw_amqp as raw
from tests.support.amqp_messages import APPLICATION, PROPERTIES, VALUE, message, section, sections
from tests.support.amqp_sessions import session_attach
from tests.support.broker_process import BrokerProcess
from tests.support.raw_amqp import RawConnection, opened
from tests.support.transactions import DECLARED, coordinator_attach, declare, state_of

LEAST, MOST = -(2**63), 2**63 - 1
TRANSACTIONS_MAX = 1_000
"""`PARTIBUS_TRANSACTIONS_PER_CONNECTION_MAX`: transactions that a connection may have open."""
COORDINATOR, SENDER = 9, 0
"""Link handles."""
WAITING_CONNECTIONS, WAITING_LINKS = 20, 99
FRAME_BYTES = 60_000
UNCOMMITTED, UNCOMMITTED_BODY_BYTES = 300, 900_000
UNCOMMITTED_MIB_MAX = 120
"""64 MiB is what the transactions of a connection may hold; what was sent to them is more than twice this."""


def longs(*values: int) -> Array:
    return Array(TypeCode.LONG, list(values))


REQUESTS: dict[str, tuple[str, Any]] = {
    "schedule nothing": ("schedule-message", {"messages": []}),
    "schedule what is no message": ("schedule-message", {"messages": [{"message": bytes(100)}]}),
    "schedule too many": ("schedule-message", {"messages": [{"message": message(body=[b""])}] * 5_000}),
    "schedule a number": ("schedule-message", {"messages": 3}),
    "cancel too many": ("cancel-scheduled-message", {"sequence-numbers": longs(*range(200_000))}),
    "cancel numbers out of range": ("cancel-scheduled-message", {"sequence-numbers": longs(LEAST, -1, MOST)}),
    "receive too many": (
        "receive-by-sequence-number",
        {"sequence-numbers": longs(*range(200_000)), "receiver-settle-mode": UInt(1)},
    ),
    "receive in no mode": (
        "receive-by-sequence-number",
        {"sequence-numbers": longs(1), "receiver-settle-mode": UInt(9)},
    ),
    "an unknown disposition": (
        "update-disposition",
        {"disposition-status": "x" * 100_000, "lock-tokens": Array(TypeCode.UUID, [UUID(int=1)])},
    ),
    "renew too many": ("renew-lock", {"lock-tokens": Array(TypeCode.UUID, [UUID(int=1)] * 50_000)}),
    "peek a negative number": ("peek-message", {"from-sequence-number": LEAST, "message-count": -5}),
    "list too many sessions": (
        "get-message-sessions",
        {"last-updated-time": 0, "skip": 2**31 - 1, "top": 2**31 - 1},
    ),
    "the state of a long session": ("get-session-state", {"session-id": "x" * 100_000}),
    "the state of a session that is not held": (
        "set-session-state",
        {"session-id": "none", "session-state": b"x"},
    ),
    "delete too many": ("batch-delete-messages", {"message-count": 2**31 - 1}),
    "a rule for a queue": ("add-rule", {"rule-name": "x", "rule-description": {}}),
    "an operation with a long name": ("x" * 5_000, {}),
}


def ask(connection: RawConnection, operation: str, body: Any) -> int:
    """The status of a request to `$management`, 400 when it is rejected as a message."""
    said = (
        section(PROPERTIES, ["1"])
        + section(APPLICATION, {"operation": f"com.microsoft:{operation}"})
        + section(VALUE, body)
    )
    transfer(connection, 0, said)
    while True:
        found = connection.read_until(raw.TRANSFER, raw.DISPOSITION)
        if found.code == raw.TRANSFER:
            status = sections(found.payload)[APPLICATION]["statusCode"]
            assert isinstance(status, int)
            return status
        if found.field(4).descriptor == raw.REJECTED:
            return 400


def transfer(connection: RawConnection, number: int, payload: bytes, state: Any = None) -> None:
    """Send a message in as many frames as it needs."""
    for begin in range(0, len(payload), FRAME_BYTES):
        end = begin + FRAME_BYTES
        fields = raw.transfer_fields(SENDER, number, more=end < len(payload), state=state)
        connection.send_frame(raw.TRANSFER, fields, payload[begin:end])


@pytest.mark.parametrize("queue", ["target", "sessions"])
def test_a_request_without_measure_is_refused_and_the_next_one_answered(
    broker: BrokerProcess, queue: str
) -> None:
    for name, (operation, body) in REQUESTS.items():
        with opened(broker.addresses.amqp_port) as connection:
            connection.attach_sender(SENDER, f"{queue}/$management")
            connection.attach_receiver(1, f"{queue}/$management")
            connection.send_frame(raw.FLOW, raw.flow_fields(1, 0, 2))
            assert ask(connection, operation, body) in (400, 404, 410, 501), name


def test_transactions_that_are_declared_and_never_discharged_are_refused_above_their_bound(
    broker: BrokerProcess, old_friend: Bystander
) -> None:
    with opened(broker.addresses.amqp_port) as connection:
        connection.attach(coordinator_attach(COORDINATOR))
        for number in range(2 * TRANSACTIONS_MAX):
            fields = raw.transfer_fields(COORDINATOR, number)
            connection.send_frame(raw.TRANSFER, fields, declare())
        answers: Counter[int] = Counter()
        while answers.total() < 2 * TRANSACTIONS_MAX:
            found = connection.read_until(raw.DISPOSITION)
            answers[found.field(4).descriptor] += (found.field(2) or found.field(1)) - found.field(1) + 1
        old_friend.round_trip()
        assert answers == {DECLARED: TRANSACTIONS_MAX, raw.REJECTED: TRANSACTIONS_MAX}


def test_what_is_sent_to_transactions_that_never_end_takes_bounded_memory(
    broker: BrokerProcess, old_friend: Bystander
) -> None:
    before = resident_mib(broker.pid)
    with opened(broker.addresses.amqp_port) as connection:
        connection.attach(coordinator_attach(COORDINATOR))
        connection.attach_sender(SENDER, "target")
        payload = message(body=[bytes(UNCOMMITTED_BODY_BYTES)])
        for number in range(0, 2 * UNCOMMITTED, 2):
            connection.send_frame(raw.TRANSFER, raw.transfer_fields(COORDINATOR, number), declare())
            declared = connection.read_until(raw.DISPOSITION).field(4)
            transfer(connection, number + 1, payload, state_of(declared.value[0]))
            connection.read_until(raw.DISPOSITION)
        old_friend.round_trip()
        assert resident_mib(broker.pid) - before < UNCOMMITTED_MIB_MAX


def test_a_crowd_that_waits_for_sessions_costs_nobody_a_session(
    broker: BrokerProcess, old_friend: Bystander
) -> None:
    """Each of five sessions goes to one of those who wait, and others are served meanwhile."""
    with contextlib.ExitStack() as stack:
        port = broker.addresses.amqp_port
        crowd = [stack.enter_context(opened(port)) for _ in range(WAITING_CONNECTIONS)]
        for client in crowd:
            for handle in range(WAITING_LINKS):
                client.send_frame(raw.ATTACH, session_attach(handle, "sessions", None, within_ms=3_000))
        old_friend.round_trip()
        sender = stack.enter_context(opened(port))
        sender.attach_sender(SENDER, "sessions")
        for number in range(5):
            said = message(properties=[str(number), *[None] * 9, f"session-{number}"], body=[b""])
            sender.send_frame(raw.TRANSFER, raw.transfer_fields(SENDER, number), said)
            assert sender.read_until(raw.DISPOSITION).field(4).descriptor == raw.ACCEPTED
        answers = [client.read_until(raw.ATTACH) for client in crowd for _ in range(WAITING_LINKS)]
        assert sum(answer.field(5) is not None for answer in answers) == 5
