"""Walks over an entity's partitions: how they continue, what they pass over, and what they release."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from broker.base.errors import Reason, Refused
from broker.entities.descriptions import DEAD_LETTER, MAIN, TRANSFER_DEAD_LETTER
from broker.identifiers import PARTITION_SHIFT, ClientId
from broker.message.stored import store_run
from broker.messaging import housekeeping
from broker.messaging.housekeeping import (
    NAMED_AT_ONCE,
    Progress,
    delete_exactly,
    purge,
    redrive,
    redrive_exactly,
)
from broker.namespace.entity import ask
from broker.operations.columns import DESTINATION
from broker.operations.deleting import Delete, Deleted, DeletedExactly, DeleteExactly
from broker.operations.general import Detach, Failed
from broker.operations.interface import Answer, Operation, Sink
from broker.operations.receiving import LockExactly
from broker.operations.redriving import FindDeadLetters, Found, Redrive, Redriven
from broker.operations.sending import Send
from broker.operations.settling import GiveBack, Settled
from broker.operations.transactions import Transact, Transacted
from broker.partition import publishing
from tests.support.forwarding_world import message_of, world
from tests.support.link_stack import LinkStack
from tests.support.locked import locked
from tests.support.topics import copying

NEVER_MS = 1 << 60
Respond = Callable[[int, Any], Answer]


def at(partition: int, number: int = 0) -> int:
    return (partition << PARTITION_SHIFT) + number


class Partitions:
    """A queue whose partitions answer at once, with a function for each kind of operation."""

    def __init__(self, count: int, **respond: Respond) -> None:
        self.stack = LinkStack(count)
        self.queue = self.stack.queue
        self.asked: list[Operation] = []
        self._respond = respond
        for part in self.stack.parts:
            setattr(part, "post", self._posted(part.number))  # noqa: B010 - mypy refuses an assignment

    def _posted(self, number: int) -> Callable[[Operation, ClientId, Sink], None]:
        def post(operation: Operation, client: ClientId, sink: Sink) -> None:
            if isinstance(operation, Detach):
                return
            self.asked.append(operation)
            respond = self._respond.get(type(operation).__name__)
            if respond is not None:
                asyncio.get_running_loop().call_soon(sink, respond(number, operation))

        return post


def down(number: int, operation: Any) -> Answer:
    return Failed(Reason.PARTITION_UNAVAILABLE, f"{number} is down", operation.cookie)


def given_back(number: int, operation: GiveBack) -> Answer:
    return Settled(operation.cookie)


async def purge_all(partitions: Partitions, count: int = 100, start: int = 0) -> Progress:
    return await purge(partitions.queue, MAIN, (0, 1), NEVER_MS, count, start)


async def test_a_purge_goes_through_the_partitions_in_order_and_continues_where_it_stopped() -> None:
    def two_pieces(number: int, operation: Delete) -> Answer:
        is_first = operation.from_sequence_number in (at(number), 0)
        return Deleted(min(operation.count, 3), at(number, 9) if is_first else None, None)

    partitions = Partitions(3, Delete=two_pieces)
    assert await purge_all(partitions, 7) == Progress(7, at(1, 9))
    assert [each.from_sequence_number for each in partitions.asked if isinstance(each, Delete)] == [
        0,
        at(0, 9),
        at(1),
    ]
    assert await purge_all(partitions, start=at(1, 9)) == Progress(9, None)
    assert await purge_all(partitions, start=at(7)) == Progress(0, None)


async def test_a_partition_that_is_down_is_passed_over_and_named() -> None:
    def delete(number: int, operation: Delete) -> Answer:
        return down(number, operation) if number == 1 else Deleted(2, None, None)

    progress = await purge_all(Partitions(3, Delete=delete))
    assert (progress.count, progress.next_sequence_number, [*progress.refusals]) == (4, None, [1])


async def test_a_walk_that_meets_hanging_partitions_ends_soon_and_continues_after_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Symptom: a purge took the time-out of every partition in turn, 81 s in all."""
    monkeypatch.setattr(housekeeping, "WALKS_ON_S", 0.0)

    def delete(number: int, operation: Delete) -> Answer:
        return down(number, operation) if number in (1, 3) else Deleted(2, None, None)

    partitions = Partitions(4, Delete=delete)
    progress = await purge_all(partitions)
    assert (progress.count, progress.next_sequence_number, [*progress.refusals]) == (2, at(2), [1])
    progress = await purge_all(partitions, start=at(2))
    assert (progress.count, progress.next_sequence_number, [*progress.refusals]) == (2, None, [3])


async def test_one_walk_asks_a_bounded_number_of_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(housekeeping, "PIECES_MAX", 4)
    partitions = Partitions(
        2, Delete=lambda number, operation: Deleted(0, operation.from_sequence_number + 10, None)
    )
    assert await purge_all(partitions) == Progress(0, 40)
    assert len(partitions.asked) == 4
    empty = Partitions(8, Delete=lambda number, operation: Deleted(0, None, None))
    assert await purge_all(empty) == Progress(0, at(4))
    assert await purge_all(empty, start=at(4)) == Progress(0, None)


async def test_where_messages_are_recalled_a_purge_looks_again_but_only_once() -> None:
    partitions = Partitions(
        1, Delete=lambda number, operation: Deleted(1, None, None, recalls=operation.recalls)
    )
    assert await purge_all(partitions) == Progress(2, None)
    assert [each.recalls for each in partitions.asked if isinstance(each, Delete)] == [True, False]


async def test_named_messages_are_deleted_in_pieces_and_recalled_ones_are_tried_again() -> None:
    tries: list[list[int]] = []

    def delete(number: int, operation: DeleteExactly) -> Answer:
        tries.append(list(operation.sequence_numbers))
        return DeletedExactly([at(1, 5)] if at(1, 5) in operation.sequence_numbers else [], [], None, True)

    partitions = Partitions(2, DeleteExactly=delete)
    named = [*range(1, NAMED_AT_ONCE + 2), at(1, 5), at(1, 6), at(1, 6), at(9), -1]
    result = await delete_exactly(partitions.queue, MAIN, named)
    assert [len(each) for each in tries] == [NAMED_AT_ONCE, 0, 1, 0, 2, 1]
    assert (len(result.done), result.locked, result.missing) == (NAMED_AT_ONCE + 2, [at(1, 5)], [at(9), -1])


def stock(number: int, operation: LockExactly) -> Answer:
    """Locks the messages it is asked for, but not more than two at a time and none with an odd number."""
    found = [each for each in operation.sequence_numbers if each % 2 == 0][:2]
    answer = locked(number, len(found))
    answer.sequence_numbers = found
    return answer


def redriven(number: int, operation: Redrive) -> Answer:
    return Redriven([1_000 + place for place in range(len(operation.tokens))], None)


async def test_dead_letters_that_are_not_locked_at_once_are_locked_in_turn() -> None:
    partitions = Partitions(1, LockExactly=stock, Redrive=redriven)
    result = await redrive_exactly(
        partitions.queue, DEAD_LETTER, [2, 3, 4, 6, 7, 99 << 48], lambda: asyncio.Semaphore(1)
    )
    assert (result.done, result.new_numbers) == ([2, 4, 6], [1_000, 1_001, 1_000])
    assert result.missing == [99 << 48, 3, 7]


async def test_dead_letters_that_cannot_be_enqueued_are_released() -> None:
    partitions = Partitions(1, LockExactly=stock, Redrive=down, GiveBack=given_back)
    with pytest.raises(Refused):
        await redrive_exactly(partitions.queue, DEAD_LETTER, [2], lambda: asyncio.Semaphore(1))
    locking, _, releasing = partitions.asked
    assert isinstance(locking, LockExactly) and isinstance(releasing, GiveBack)
    assert len(releasing.tokens) == 1


async def test_a_selection_counts_what_was_redriven_before_a_partition_went_down() -> None:
    def find(number: int, operation: FindDeadLetters) -> Answer:
        assert operation.reason == "broken"
        return Found([at(number, 2), at(number, 4)], None, None)

    def one_goes_down(number: int, operation: Redrive) -> Answer:
        return down(number, operation) if number == 1 else redriven(number, operation)

    partitions = Partitions(
        3, FindDeadLetters=find, LockExactly=stock, Redrive=one_goes_down, GiveBack=given_back
    )
    progress = await redrive(
        partitions.queue, DEAD_LETTER, "broken", NEVER_MS, 100, 0, lambda: asyncio.Semaphore(1)
    )
    assert (progress.count, progress.next_sequence_number, [*progress.refusals]) == (4, None, [1])


async def test_a_purge_of_one_session_asks_only_its_partition() -> None:
    def delete(number: int, operation: Delete) -> Answer:
        assert operation.session_id == b"s"
        return Deleted(3, None, None)

    partitions = Partitions(8, Delete=delete)
    place = partitions.queue.router.number_of("s")
    for start, count in ((0, 3), (at(place, 5), 3), (at(place + 1), 0)):
        progress = await purge(partitions.queue, MAIN, (0,), NEVER_MS, 100, start, "s")
        assert progress == Progress(count, None)
    starts = [each.from_sequence_number for each in partitions.asked if isinstance(each, Delete)]
    assert starts == [at(place), at(place, 5)]


async def test_failed_transfers_that_a_topic_publishes_again_lose_no_copies_because_of_each_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("COMMIT_BYTES_MAX", "COPIES_OF_SEND_BYTES_MAX"):
        monkeypatch.setattr(publishing, name, 50_000)
    async with world() as here:
        here.descriptions["t"] = copying("t", "a", "b")
        await here.crash()
        here.start()
        entity = here.entities["t"]
        run = store_run([message_of(f"{number}".ljust(10_000, "x")) for number in range(8)], str)
        failed = Send(run.data, None, columns={DESTINATION: [b"nowhere"] * 8})
        answer = await ask(entity.router.handles[0], Transact(Send([], None), [], transfers=failed))
        assert isinstance(answer, Transacted)
        await here.until_at("t", 8, TRANSFER_DEAD_LETTER)
        progress = await redrive(
            entity, TRANSFER_DEAD_LETTER, None, NEVER_MS, 100, 0, lambda: asyncio.Semaphore(1)
        )
        assert (progress.count, progress.refusals) == (8, {})
        await here.until_empty("t", TRANSFER_DEAD_LETTER)
        # Symptom: all of them were refused as too large; of fewer, one subscription missed some.
        for name in ("a", "b"):
            assert len(await here.texts("t", f"subscriptions/{name}")) == 8
