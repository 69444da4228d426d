"""Scheduling and cancelling through `$management`: requests, responses and rights."""

from __future__ import annotations

from typing import Any

import pytest

from broker.base.errors import Reason
from broker.operations.interface import Answer
from broker.operations.scheduling import CancelScheduled
from broker.operations.sending import Send, Sent
from broker.operations.settling import Settled
from protocol.codec import Array, Timestamp, TypeCode
from tests.support.amqp_messages import message
from tests.support.management_bench import bench, status

AT_MS = 1_900_000_000_000
SCHEDULED = message(annotations={"x-opt-scheduled-enqueue-time": Timestamp(AT_MS)}, body=[b"x"])


def stored(number: int, send: Send) -> Answer:
    assert send.scheduled_ms == [AT_MS]
    return Sent(77, send.cookie)


def settled(number: int, operation: CancelScheduled) -> Answer:
    failures = {0: Reason.MESSAGE_NOT_FOUND} if operation.sequence_numbers[0] == 5 else {}
    return Settled(operation.cookie, failures)


async def test_the_response_names_the_sequence_numbers_as_an_array_of_long() -> None:
    response = await (await bench()).ask(
        "schedule-message", {"messages": [{"message": SCHEDULED, "message-id": "m"}]}, {Send: stored}
    )
    assert status(response) == (200, None)
    assert response.body == {"sequence-numbers": Array(TypeCode.LONG, [77])}


@pytest.mark.parametrize(
    "messages",
    [[], [{}], [{"message": b""}], [{"message": "text"}], ["text"], [{"message": SCHEDULED}, 5], 7],
)
async def test_a_request_without_encoded_messages_is_an_argument_error(messages: Any) -> None:
    work = await bench()
    response = await work.ask("schedule-message", {"messages": messages})
    assert status(response) == (400, "com.microsoft:argument-error")
    assert not any(part.posted for part in work.stack.parts)


async def test_cancelling_answers_with_an_empty_map_or_says_that_a_message_is_not_there() -> None:
    work = await bench()
    for numbers, expected in (
        (Array(TypeCode.LONG, [6, 7]), (200, None)),
        (Array(TypeCode.LONG, [5, 6]), (404, "com.microsoft:message-not-found")),
        ([], (400, "com.microsoft:argument-error")),
        (["x"], (400, "com.microsoft:argument-error")),
    ):
        body = {"sequence-numbers": numbers}
        response = await work.ask("cancel-scheduled-message", body, {CancelScheduled: settled})
        assert status(response) == expected
        assert response.body == ({} if expected[0] == 200 else None)


async def test_a_dead_letter_queue_has_no_scheduled_messages() -> None:
    work = await bench(address="queue/$deadletterqueue/$management")
    for operation, body in (
        ("schedule-message", {"messages": [{"message": SCHEDULED}]}),
        ("cancel-scheduled-message", {"sequence-numbers": [5]}),
    ):
        assert status(await work.ask(operation, body)) == (400, "amqp:not-allowed")


async def test_scheduling_and_cancelling_need_the_right_to_send() -> None:
    work = await bench()
    needed: list[str] = []
    authorize = work.client.connection.authorize

    def noted(path: str, *rights: str) -> None:
        needed.extend(rights)
        authorize(path, *rights)

    work.client.connection.authorize = noted  # type: ignore[method-assign]
    await work.ask("schedule-message", {"messages": [{"message": SCHEDULED}]}, {Send: stored})
    await work.ask("cancel-scheduled-message", {"sequence-numbers": [6]}, {CancelScheduled: settled})
    assert needed == ["Send", "Send"]
