"""Requests of clients that read and write by position: what they ask of partitions, and what is refused.

`tests/interop/test_streams.py` has them against a running broker.
"""

from __future__ import annotations

from typing import Any

import pytest

from broker.base.errors import Reason
from broker.entities.descriptions import EntityStatus, QueueSettings
from broker.identifiers import PARTITION_SHIFT
from broker.operations.general import Failed
from broker.operations.sending import Send, Sent
from broker.operations.streams import (
    EARLIEST,
    LATEST,
    AdvanceCursor,
    CreateCursor,
    CursorAdvanced,
    CursorState,
    FindPositions,
    GetCursor,
    GetSinkBatch,
    Positions,
    SendSinkBatch,
    SettledThrough,
    SettleThrough,
    SinkBatch,
    SinkBatchSent,
)
from protocol.codec import Timestamp
from tests.support.amqp_messages import message
from tests.support.management_bench import Answers, Bench, bench, down, status


def at(partition: int, number: int) -> int:
    return partition << PARTITION_SHIFT | number


async def get_positions(work: Bench, body: Any, **also: Any) -> tuple[Any, list[FindPositions]]:
    asked: list[FindPositions] = []

    def find(number: int, operation: FindPositions) -> Any:
        asked.append(operation)
        if number in also.get("down", ()):
            return down(number, operation)
        return Positions(at(number, 2), at(number, 9), 5, 50, operation.cookie, at(number, 4), number)

    return await work.ask("partibus:get-positions", body, {FindPositions: find}), asked


async def test_the_positions_of_all_partitions_come_in_one_response() -> None:
    work = await bench(2)
    response, asked = await get_positions(work, None)
    assert status(response) == (200, None)
    assert {key: getattr(value, "values", value) for key, value in response.body.items()} == {
        "generation": work.stack.queue.description.generation,
        "partitions": [0, 1],
        "starts": [at(0, 2), at(1, 2)],
        "heads": [at(0, 9), at(1, 9)],
        "messages": [5, 5],
        "bytes": [50, 50],
    }
    assert [(each.subqueue, each.enqueued_from_ms, each.backlog_from) for each in asked] == [
        ("", None, None)
    ] * 2


async def test_what_is_undecided_is_counted_if_asked_for() -> None:
    work = await bench(2)
    _, asked = await get_positions(work, {"undecided": True})
    assert [each.undecided for each in asked] == [True, True]
    _, asked = await get_positions(work, {})
    assert [each.undecided for each in asked] == [False, False]


async def test_times_and_backlogs_are_found_if_asked_for() -> None:
    body = {"enqueued-time": Timestamp(77), "positions": [at(1, 3)]}
    response, asked = await get_positions(await bench(2), body)
    assert response.body["positions-by-time"].values == [at(0, 4), at(1, 4)]
    assert response.body["backlogs"].values == [0, 1]
    assert [(each.enqueued_from_ms, each.backlog_from) for each in asked] == [(77, None), (77, at(1, 3))]


async def test_partitions_that_are_down_are_named_and_none_at_all_is_an_error() -> None:
    response, _ = await get_positions(await bench(2), {}, down=[1])
    assert response.body["partitions"].values == [0]
    assert response.body["unavailable-partitions"].values == [1]
    response, _ = await get_positions(await bench(2), {}, down=[0, 1])
    assert status(response) == (503, "com.microsoft:server-busy")


@pytest.mark.parametrize(
    "body",
    [
        {"positions": [at(2, 1)]},
        {"positions": [at(1, 1), at(1, 2)]},
        {"positions": [-1]},
        {"positions": 5},
        {"enqueued-time": "now"},
        {"undecided": 1},
        {"time": 5},
    ],
)
async def test_a_malformed_request_asks_nothing_of_a_partition(body: dict[str, Any]) -> None:
    await check_asks_nothing("get-positions", body)


async def check_asks_nothing(operation: str, body: dict[str, Any]) -> None:
    work = await bench(2)
    response = await work.ask(f"partibus:{operation}", body)
    assert status(response) == (400, "com.microsoft:argument-error"), response
    assert not any(part.posted for part in work.stack.parts)


def state(number: int, cookie: object) -> CursorState:
    return CursorState(b"c", b"me", at(number, 4), 3, 9, 100, 200, cookie, True)


async def test_a_cursor_is_created_where_the_request_says() -> None:
    for body, begins in (
        ({"start": "earliest"}, [EARLIEST, EARLIEST]),
        ({"start": "latest"}, [LATEST, LATEST]),
        ({"positions": [at(1, 7), at(0, 6)]}, [at(0, 6), at(1, 7)]),
    ):
        asked: list[CreateCursor] = []

        def create(number: int, operation: CreateCursor, asked: list[CreateCursor] = asked) -> CursorState:
            asked.append(operation)
            return state(number, operation.cookie)

        work = await bench(2, cursors_max=11)
        request = {"cursor": "c", "owner": "me", "expires-after": 9, "take-over": True, **body}
        response = await work.ask("partibus:create-cursor", request, {CreateCursor: create})
        assert [each.begin for each in asked] == begins
        assert [(each.takes_over, each.expires_after_ms, each.cursors_max) for each in asked] == [
            (True, 9, 11)
        ] * 2
        assert {key: getattr(value, "values", value) for key, value in response.body.items()} == {
            "created": True,
            "cursor": "c",
            "owner": "me",
            "generation": work.stack.queue.description.generation,
            "expires-after": 9,
            "partitions": [0, 1],
            "positions": [at(0, 4), at(1, 4)],
            "backlogs": [3, 3],
        }


async def test_positions_can_be_counted_from_a_cursor() -> None:
    asked: list[FindPositions] = []

    def find(number: int, operation: FindPositions) -> Positions:
        asked.append(operation)
        return Positions(1, 2, 3, 4, operation.cookie, backlog=number)

    def get(number: int, operation: GetCursor) -> CursorState:
        return state(number, operation.cookie)

    answers: Answers = {GetCursor: get, FindPositions: find}
    response = await (await bench(2)).ask("partibus:get-positions", {"cursor": "c"}, answers)
    assert [each.backlog_from for each in asked] == [at(0, 4), at(1, 4)]
    assert response.body["backlogs"].values == [0, 1]


@pytest.mark.parametrize("completes", [False, True])
async def test_an_advance_says_where_the_cursor_stands_and_what_was_completed(completes: bool) -> None:
    def advance(number: int, each: AdvanceCursor) -> CursorAdvanced:
        assert each.completes is completes
        return CursorAdvanced(each.position, 5, 1, each.cookie)

    body = {"cursor": "c", "owner": "me", "positions": [at(1, 7)], "complete": completes}
    response = await (await bench(2)).ask("partibus:advance-cursor", body, {AdvanceCursor: advance})
    found = {key: value.values for key, value in response.body.items()}
    assert found == {"partitions": [1], "positions": [at(1, 7)]} | (
        {"completed": [5], "locked": [1]} if completes else {}
    )


async def test_everything_before_some_positions_is_settled() -> None:
    def settle(number: int, each: SettleThrough) -> SettledThrough:
        return SettledThrough(number, 9, each.cookie)

    body = {"positions": [at(1, 7), at(0, 3)]}
    response = await (await bench(2)).ask("partibus:settle-through", body, {SettleThrough: settle})
    assert {key: value.values for key, value in response.body.items()} == {
        "partitions": [1, 0],
        "completed": [1, 0],
        "locked": [9, 9],
    }


async def test_refusals_about_cursors_have_their_words() -> None:
    for reason, words in (
        (Reason.CURSOR_OWNED, (409, "partibus:cursor-owned")),
        (Reason.CURSOR_NOT_FOUND, (404, "partibus:cursor-not-found")),
    ):
        answers = {GetCursor: lambda number, each, reason=reason: Failed(reason, "No.", each.cookie)}
        assert status(await (await bench(2)).ask("partibus:get-cursor", {"cursor": "c"}, answers)) == words


OWNED = {"cursor": "c", "owner": "me"}


@pytest.mark.parametrize(
    ("operation", "body"),
    [
        ("create-cursor", {"owner": "me", "start": "latest"}),
        ("create-cursor", {"cursor": "", "owner": "me", "start": "latest"}),
        ("create-cursor", {"cursor": "c" * 129, "owner": "me", "start": "latest"}),
        ("create-cursor", {"cursor": "c", "start": "latest"}),
        ("create-cursor", {**OWNED}),
        ("create-cursor", {**OWNED, "start": "middle"}),
        ("create-cursor", {**OWNED, "positions": [at(0, 1)]}),
        ("create-cursor", {**OWNED, "positions": [at(0, 1), at(1, 1)], "start": "latest"}),
        ("create-cursor", {**OWNED, "start": "latest", "expires-after": -1}),
        ("create-cursor", {**OWNED, "start": "latest", "take-over": 1}),
        ("advance-cursor", {**OWNED, "positions": []}),
        ("advance-cursor", {**OWNED, "positions": [at(0, 1)], "complete": "yes"}),
        ("advance-cursor", {"cursor": "c", "positions": [at(0, 1)]}),
        ("delete-cursor", {"cursor": "c"}),
        ("list-cursors", {"cursor": "c"}),
        ("settle-through", {}),
        ("settle-through", {"positions": [at(5, 1)]}),
        ("get-positions", {"cursor": "c", "positions": [at(0, 1)]}),
    ],
)
async def test_a_malformed_request_about_cursors_asks_nothing_of_a_partition(
    operation: str, body: dict[str, Any]
) -> None:
    await check_asks_nothing(operation, body)


@pytest.mark.parametrize("operation", ["settle-through", "advance-cursor"])
async def test_nothing_is_completed_where_nothing_may_be_received(operation: str) -> None:
    work = await bench(2, settings=QueueSettings(status=EntityStatus.RECEIVE_DISABLED))
    body: dict[str, Any] = {"positions": [at(0, 1)]}
    if operation == "advance-cursor":
        body |= {**OWNED, "complete": True}
    response = await work.ask(f"partibus:{operation}", body)
    assert status(response) == (403, "com.microsoft:entity-disabled")


PLAIN = message(body=[b"plain"])


async def test_each_message_of_a_request_has_its_outcome() -> None:
    def sent(number: int, send: Send) -> Sent:
        return Sent(at(number, 5), send.cookie, [1])

    response = await (await bench(1)).ask("partibus:send-messages", {"messages": [PLAIN] * 3}, {Send: sent})
    assert {key: getattr(value, "values", value) for key, value in response.body.items()} == {
        "accepted": 2,
        "duplicates": [1],
        "sequence-numbers": [5, 0, 6],
    }


async def test_messages_and_the_batch_of_a_sink_are_one_operation() -> None:
    asked: list[SendSinkBatch] = []

    def sent(number: int, operation: SendSinkBatch) -> SinkBatchSent:
        asked.append(operation)
        return SinkBatchSent(5, [], True, operation.batch, operation.cookie)

    work = await bench(1, sinks_max=3)
    body = {"messages": [PLAIN], "sink": "s", "batch": 7}
    response = await work.ask("partibus:send-messages", body, {SendSinkBatch: sent})
    assert (response.body["committed"], response.body["batch"], response.body["accepted"]) == (True, 7, 1)
    response = await work.ask("partibus:commit-batch", {"sink": "s", "batch": 8}, {SendSinkBatch: sent})
    assert response.body == {"committed": True, "batch": 8}
    assert [(each.sink, each.batch, each.sinks_max, len(each.send.messages)) for each in asked] == [
        (b"s", 7, 3, 1),
        (b"s", 8, 3, 0),
    ]


async def test_the_batch_of_a_sink_is_read_from_its_partition_or_another_one() -> None:
    asked: list[int] = []
    bounds: list[int | None] = []

    def get(number: int, operation: GetSinkBatch) -> SinkBatch:
        asked.append(number)
        bounds.append(operation.sinks_max)
        return SinkBatch(None if number == 0 else 9, operation.cookie)

    work = await bench(2, sinks_max=3)
    for number, batch in ((0, None), (1, 9)):
        response = await work.ask(
            "partibus:get-batch", {"sink": "s", "partition": number}, {GetSinkBatch: get}
        )
        assert response.body == {"batch": batch}
    await work.ask("partibus:get-batch", {"sink": "s"}, {GetSinkBatch: get})
    assert asked == [0, 1, work.stack.queue.router.number_of("s")]
    await work.ask("partibus:get-batch", {"sink": "s", "will-commit": True}, {GetSinkBatch: get})
    assert bounds == [None, None, None, 3]


@pytest.mark.parametrize(
    ("operation", "body"),
    [
        ("send-messages", {"messages": []}),
        ("send-messages", {"messages": [b""]}),
        ("send-messages", {"messages": ["text"]}),
        ("send-messages", {"messages": [PLAIN], "sink": "s"}),
        ("send-messages", {"messages": [PLAIN], "batch": 1}),
        ("send-messages", {"messages": [PLAIN], "sink": "s", "batch": -1}),
        ("commit-batch", {"sink": "s"}),
        ("commit-batch", {"batch": 1}),
        ("commit-batch", {"sink": "s", "batch": 1, "partition": 2}),
        ("get-batch", {"sink": "s", "partition": -1}),
        ("get-batch", {"sink": "s", "will-commit": 1}),
    ],
)
async def test_a_malformed_request_of_a_sink_asks_nothing_of_a_partition(
    operation: str, body: dict[str, Any]
) -> None:
    await check_asks_nothing(operation, body)


@pytest.mark.parametrize(
    ("operation", "body"),
    [
        ("send-messages", {"messages": [PLAIN]}),
        ("commit-batch", {"sink": "s", "batch": 1}),
        ("get-batch", {"sink": "s"}),
    ],
)
async def test_nothing_is_written_to_dead_letters(operation: str, body: dict[str, Any]) -> None:
    work = await bench(2, "queue/$deadletterqueue/$management")
    assert status(await work.ask(f"partibus:{operation}", body)) == (400, "amqp:not-allowed")


async def test_nothing_is_written_where_nothing_may_be_sent() -> None:
    work = await bench(1, settings=QueueSettings(status=EntityStatus.SEND_DISABLED))
    for body in ({"messages": [PLAIN]}, {"messages": [PLAIN], "sink": "s", "batch": 1}):
        assert status(await work.ask("partibus:send-messages", body))[0] == 403
    assert status(await work.ask("partibus:commit-batch", {"sink": "s", "batch": 1}))[0] == 403
