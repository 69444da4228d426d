"""Deleting messages through `$management`: how many, from which partitions, and which requests are
refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from broker.access.addresses import parse_address
from broker.entities.descriptions import QueueSettings
from broker.frontend.nodes.management import DELETED_MESSAGES_MAX, ManagementNode
from broker.frontend.nodes.request_node import Response
from broker.operations.deleting import Delete, Deleted
from broker.operations.interface import Answer
from protocol.codec import Timestamp
from tests.support.management_bench import Bench, bench, down, status


class Stock:
    """Partitions with this many messages each; one operation looks at three at most."""

    def __init__(self, counts: Mapping[int, int], down: int | None = None) -> None:
        self.counts, self.down = dict(counts), down
        self.asked: list[tuple[int, int]] = []

    def delete(self, number: int, operation: Delete) -> Answer:
        self.asked.append((number, operation.count))
        if number == self.down:
            return down(number, operation)
        gone = min(self.counts.get(number, 0), operation.count, 3)
        self.counts[number] = self.counts.get(number, 0) - gone
        return Deleted(
            gone, operation.from_sequence_number + gone if self.counts[number] else None, operation.cookie
        )


async def delete(work: Bench, stock: Stock, count: int, **more: Any) -> Response:
    body = {"message-count": count, "enqueued-time-utc": Timestamp(5_000), **more}
    return await work.ask("batch-delete-messages", body, {Delete: stock.delete})


@pytest.mark.parametrize(("count", "deleted"), [(1, 1), (4, 4), (9, 9), (20, 18), (DELETED_MESSAGES_MAX, 18)])
async def test_messages_are_deleted_in_all_partitions_up_to_the_count(count: int, deleted: int) -> None:
    stock = Stock({0: 1, 1: 10, 3: 7})
    response = await delete(await bench(), stock, count)
    assert status(response) == (200, None) and response.body == {"message-count": deleted}
    assert sum(stock.counts.values()) == 18 - deleted


async def test_nothing_to_delete_is_no_content() -> None:
    response = await delete(await bench(), Stock({}), 100)
    assert status(response) == (204, None) and response.body is None


async def test_a_partition_that_is_down_keeps_its_messages_and_is_told_of_if_nothing_else_was_deleted() -> (
    None
):
    work = await bench()
    assert (await delete(work, Stock({0: 2, 1: 2}, down=1), 100)).body == {"message-count": 2}
    assert status(await delete(work, Stock({1: 2}, down=1), 100)) == (503, "com.microsoft:server-busy")


async def test_messages_kept_ready_for_a_receiver_are_taken_back_and_deleted() -> None:
    """Each partition holds two, the first of them delivered, and is looked at again once."""
    asked: list[tuple[int, int, bool]] = []

    def delete_some(number: int, operation: Delete) -> Answer:
        asked.append((number, operation.from_sequence_number, operation.recalls))
        return Deleted(0 if operation.recalls else 1, None, operation.cookie, operation.recalls)

    body = {"message-count": 9, "enqueued-time-utc": Timestamp(5_000)}
    response = await (await bench(2)).ask("batch-delete-messages", body, {Delete: delete_some})
    assert response.body == {"message-count": 2}
    assert sorted(asked) == [(0, 0, False), (0, 0, True), (1, 0, False), (1, 0, True)]


async def test_messages_are_taken_back_in_each_place_of_a_partition() -> None:
    asked: list[tuple[int, bool]] = []

    def delete_some(number: int, operation: Delete) -> Answer:
        start = operation.from_sequence_number
        asked.append((start, operation.recalls))
        return Deleted(0, None if start else 5, operation.cookie, operation.recalls)

    body = {"message-count": 9, "enqueued-time-utc": Timestamp(5_000)}
    response = await (await bench(1)).ask("batch-delete-messages", body, {Delete: delete_some})
    assert status(response) == (204, None), "a client has seen all of them"
    assert asked == [(0, True), (0, False), (5, True), (5, False)]


@pytest.mark.parametrize("count", [0, -1, DELETED_MESSAGES_MAX + 1, None, "5", True])
async def test_a_count_out_of_range_is_an_argument_error_and_deletes_nothing(count: Any) -> None:
    work, stock = await bench(), Stock({0: 5})
    assert status(await delete(work, stock, count)) == (400, "com.microsoft:argument-error")
    assert stock.asked == []


async def test_a_session_is_emptied_in_its_own_partition() -> None:
    work = await bench(settings=QueueSettings(requires_session=True))
    asked: list[tuple[int, bytes | None]] = []

    def delete_some(number: int, operation: Delete) -> Answer:
        asked.append((number, operation.session_id))
        return Deleted(2, None, operation.cookie)

    for address in ("queue/$management", "queue/$deadletterqueue/$management"):
        work.node = ManagementNode(work.client.connection, work.stack.queue, parse_address(address))
        body = {"message-count": 9, "enqueued-time-utc": Timestamp(5_000), "session-id": "s"}
        response = await work.ask("batch-delete-messages", body, {Delete: delete_some})
        assert response.body == {"message-count": 2}
    assert asked == [(work.stack.queue.router.number_of("s"), b"s")] * 2
    response = await work.ask("batch-delete-messages", body | {"session-id": 5}, {Delete: delete_some})
    assert status(response) == (400, "com.microsoft:argument-error") and len(asked) == 2


async def test_a_session_of_an_entity_without_sessions_is_refused_and_the_queue_is_not_emptied_instead() -> (
    None
):
    work, stock = await bench(), Stock({0: 5})
    assert status(await delete(work, stock, 5, **{"session-id": "s"})) == (
        400,
        "com.microsoft:argument-error",
    )
    assert stock.asked == []


async def test_without_the_time_up_to_which_messages_go_nothing_is_deleted() -> None:
    """Otherwise a misspelt field would empty the queue."""
    work, stock = await bench(), Stock({0: 5})
    for body in ({"message-count": 5}, {"message-count": 5, "enqueued-time-utx": Timestamp(5_000)}):
        assert status(await work.ask("batch-delete-messages", body, {Delete: stock.delete})) == (
            400,
            "com.microsoft:argument-error",
        )
    assert stock.asked == []
