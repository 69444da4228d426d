"""broker/messaging/scheduling.py: which partitions are asked, what the answers become, and what happens when
one of them refuses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

import pytest

from broker.base.errors import Reason, Refused
from broker.entities.descriptions import QueueSettings
from broker.identifiers import PARTITION_SHIFT
from broker.message.identity import IDENTITY_BYTES
from broker.messaging.scheduling import CHANGED_AT_ONCE, cancel, schedule
from broker.namespace.size_quota import SizeQuota
from broker.operations.general import Failed
from broker.operations.interface import Answer
from broker.operations.scheduling import CancelScheduled
from broker.operations.sending import Send, Sent
from broker.operations.settling import Settled
from protocol.codec import Timestamp
from tests.support.amqp_messages import message
from tests.support.link_stack import LinkStack

T = TypeVar("T")
Answers = Callable[[int, Any], Answer]
AT_MS = 1_900_000_000_000


def first_of(number: int) -> int:
    return number << PARTITION_SHIFT | 10


def stored(number: int, send: Send) -> Answer:
    return Sent(first_of(number), send.cookie)


def cancelled(number: int, operation: CancelScheduled) -> Answer:
    return Settled(operation.cookie)


def refused_by(*numbers: int, reason: Reason = Reason.PARTITION_UNAVAILABLE) -> Answers:
    def answer(number: int, send: Send) -> Answer:
        return Failed(reason, f"{number} refuses", send.cookie) if number in numbers else stored(number, send)

    return answer


class Asked:
    """Runs a coroutine and answers for the partitions; keeps what they were asked."""

    def __init__(self, partitions: int = 4, **settings: Any) -> None:
        self.stack = LinkStack(partitions, QueueSettings(**settings))
        self.operations: list[tuple[int, Any]] = []

    async def run(self, work: Coroutine[Any, Any, T], answers: Mapping[type[Any], Answers]) -> T:
        task = asyncio.ensure_future(work)
        for _ in range(10_000):
            await asyncio.sleep(0)
            if task.done():
                return task.result()
            for part in self.stack.parts:
                for kind, answer in answers.items():
                    while part.has(kind):
                        operation, sink = part.take(kind)
                        self.operations.append((part.number, operation))
                        sink(answer(part.number, operation))
        raise TimeoutError(f"{[part.posted for part in self.stack.parts]}")

    async def schedule(self, *payloads: bytes, answers: Answers = stored) -> list[int]:
        work = schedule(
            self.stack.queue,
            payloads,
            memory=self.stack.memory,
            message_id=self.stack.services.message_id,
        )
        return await self.run(work, {Send: answers, CancelScheduled: cancelled})

    async def cancel(self, numbers: list[int], answers: Answers) -> list[Refused]:
        return await self.run(cancel(self.stack.queue, numbers), {CancelScheduled: answers})

    def of(self, kind: type[T]) -> dict[int, T]:
        return {number: each for number, each in self.operations if isinstance(each, kind)}


def scheduled(body: str, key: str | None = None, at_ms: int = AT_MS) -> bytes:
    annotations = {"x-opt-scheduled-enqueue-time": Timestamp(at_ms)}
    return message(
        annotations=annotations | ({"x-opt-partition-key": key} if key else {}), body=[body.encode()]
    )


async def test_messages_go_to_the_partitions_of_their_keys_and_the_others_together_to_one() -> None:
    asked = Asked()
    router = asked.stack.queue.router
    numbers = await asked.schedule(
        scheduled("0", "a"), scheduled("1"), scheduled("2", "b"), scheduled("3"), scheduled("4", "a")
    )
    of_a, of_b = router.number_of("a"), router.number_of("b")
    assert of_a != of_b
    assert numbers[0] == first_of(of_a) and numbers[4] == first_of(of_a) + 1 and numbers[2] == first_of(of_b)
    assert numbers[3] == numbers[1] + 1
    assert all(set(each.scheduled_ms or ()) == {AT_MS} for each in asked.of(Send).values())
    assert asked.stack.metrics.entities["queue"].incoming_messages == 5


async def test_a_duplicate_has_no_sequence_number() -> None:
    asked = Asked(requires_duplicate_detection=True, partitions=1)
    twice = message(properties=["m"], body=[b"x"]), message(properties=["m"], body=[b"y"])

    def second_dropped(number: int, send: Send) -> Answer:
        assert send.identities is not None and list(map(len, send.identities)) == [IDENTITY_BYTES] * 2
        return Sent(first_of(number), send.cookie, [1])

    assert await asked.schedule(*twice, answers=second_dropped) == [first_of(0), 0]
    assert asked.stack.metrics.entities["queue"].duplicate_messages == 1


async def test_if_a_partition_refuses_the_others_cancel_what_they_have_scheduled() -> None:
    asked = Asked()
    of_a, of_b = map(asked.stack.queue.router.number_of, "ab")
    payloads = scheduled("0", "a"), scheduled("1", "b"), scheduled("2", "b")
    with pytest.raises(Refused) as refusal:
        await asked.schedule(*payloads, answers=refused_by(of_a))
    assert refusal.value.reason is Reason.PARTITION_UNAVAILABLE
    [(number, operation)] = asked.of(CancelScheduled).items()
    assert number == of_b and operation.sequence_numbers == [first_of(of_b), first_of(of_b) + 1]


async def test_messages_whose_ids_are_remembered_are_not_cancelled_if_another_partition_refuses() -> None:
    """A second attempt would be dropped as duplicates of messages that no longer exist. A message without an
    id is given a new one then, so it is cancelled."""
    asked = Asked(requires_duplicate_detection=True)
    of_a, of_b = map(asked.stack.queue.router.number_of, "ab")
    without_id = scheduled("2", "b")
    with_ids = [
        message(
            annotations={"x-opt-scheduled-enqueue-time": Timestamp(AT_MS), "x-opt-partition-key": key},
            properties=[f"id-{key}"],
            body=[b"x"],
        )
        for key in "ab"
    ]
    with pytest.raises(Refused) as refusal:
        await asked.schedule(*with_ids, without_id, answers=refused_by(of_a))
    assert refusal.value.reason is Reason.PARTITION_UNAVAILABLE
    [(number, operation)] = asked.of(CancelScheduled).items()
    assert number == of_b and operation.sequence_numbers == [first_of(of_b) + 1]


@pytest.mark.parametrize("reason", [Reason.PARTITION_UNAVAILABLE, Reason.QUOTA_EXCEEDED])
async def test_messages_without_a_key_go_to_another_partition_and_are_refused_if_none_takes_them(
    reason: Reason,
) -> None:
    asked = Asked()
    (number,) = await asked.schedule(scheduled("0"), answers=refused_by(0, 1, 3, reason=reason))
    assert number == first_of(2)
    with pytest.raises(Refused) as refusal:
        await asked.schedule(scheduled("0"), answers=refused_by(0, 1, 2, 3, reason=reason))
    assert refusal.value.reason is reason


async def test_a_key_whose_partition_is_down_is_refused_at_once() -> None:
    asked = Asked()
    asked.stack.parts[asked.stack.queue.router.number_of("a")].available = False
    with pytest.raises(Refused) as refusal:
        await asked.schedule(scheduled("0", "a"))
    assert refusal.value.reason is Reason.PARTITION_UNAVAILABLE and asked.operations == []


@pytest.mark.parametrize(
    ("settings", "payload", "reason"),
    [
        ({"max_message_size_kb": 1}, message(body=[bytes(2_000)]), Reason.MESSAGE_TOO_LARGE),
        ({"requires_session": True}, message(body=[b"x"]), Reason.NOT_ALLOWED),
        ({}, b"no message", Reason.DECODE),
    ],
)
async def test_one_message_that_cannot_be_taken_refuses_the_request(
    settings: dict[str, Any], payload: bytes, reason: Reason
) -> None:
    asked = Asked(**settings)
    with pytest.raises(Refused) as refusal:
        await asked.schedule(message(body=[b"x"], properties=["m"] + [None] * 9 + ["s"]), payload)
    assert refusal.value.reason is reason and asked.operations == []


async def test_numbers_are_cancelled_in_their_partitions_a_bounded_count_at_a_time() -> None:
    asked = Asked()
    numbers = [first_of(1) + each for each in range(CHANGED_AT_ONCE + 1)] + [first_of(3)]
    assert await asked.cancel(numbers, cancelled) == []
    assert sorted((number, len(each.sequence_numbers)) for number, each in asked.operations) == [
        (1, 1),
        (1, CHANGED_AT_ONCE),
        (3, 1),
    ]


async def test_what_is_not_scheduled_is_named_and_the_rest_is_cancelled() -> None:
    asked = Asked()

    def answer(number: int, operation: CancelScheduled) -> Answer:
        if number == 2:
            return Failed(Reason.PARTITION_UNAVAILABLE, "down", operation.cookie)
        return Settled(operation.cookie, {1: Reason.MESSAGE_NOT_FOUND} if number == 1 else {})

    numbers = [first_of(1), first_of(1) + 1, first_of(2), first_of(3), first_of(9)]
    refusals = await asked.cancel(numbers, answer)
    assert [each.reason for each in refusals] == [
        Reason.MESSAGE_NOT_FOUND,
        Reason.MESSAGE_NOT_FOUND,
        Reason.PARTITION_UNAVAILABLE,
    ]
    assert str(first_of(1) + 1) in refusals[1].description


async def test_a_full_partition_is_left_out_for_a_while_as_by_senders() -> None:
    asked = Asked(2)
    await asked.schedule(scheduled("a"), answers=refused_by(0, reason=Reason.QUOTA_EXCEEDED))
    asked.operations.clear()
    for _ in range(3):
        await asked.schedule(scheduled("b"))
    assert {number for number, _ in asked.operations} == {1}


async def test_a_queue_is_full_only_if_all_its_partitions_are() -> None:
    """One that is down may come back with room, so the client is told to try again, as a sender is."""
    asked = Asked(2)

    def answers(number: int, send: Send) -> Answer:
        down = number == 0
        reason = Reason.PARTITION_UNAVAILABLE if down else Reason.QUOTA_EXCEEDED
        return Failed(reason, "down" if down else "full", send.cookie)

    with pytest.raises(Refused) as refusal:
        await asked.schedule(scheduled("a"), answers=answers)
    assert refusal.value.reason is Reason.PARTITION_UNAVAILABLE


async def test_an_entity_that_is_full_as_a_whole_schedules_nothing() -> None:
    asked = Asked()
    asked.stack.queue._quota = SizeQuota("Queue", 1_000, lambda: 990)
    with pytest.raises(Refused) as why:
        await asked.schedule(scheduled("1"))
    assert why.value.reason is Reason.QUOTA_EXCEEDED and asked.operations == []
