"""Requests of clients that read and write by position: what they ask of partitions, and what is refused.

`tests/interop/test_streams.py` has them against a running broker.
"""

from __future__ import annotations

from typing import Any

import pytest

from broker.operations import PARTITION_SHIFT
from broker.stream_operations import FindPositions, Positions
from protocol.codec import Timestamp
from tests.support.management_bench import Bench, bench, down, status


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
        {"time": 5},
    ],
)
async def test_a_malformed_request_asks_nothing_of_a_partition(body: dict[str, Any]) -> None:
    work = await bench(2)
    response = await work.ask("partibus:get-positions", body)
    assert status(response) == (400, "com.microsoft:argument-error")
    assert not any(part.posted for part in work.stack.parts)
