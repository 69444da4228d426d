"""Schedule messages on request, with answers that name sequence numbers; cancel them, and give them another
time (AMQP contract 7.3.6, 7.3.7, 7.5).

The messages of one request are placed by their keys, as those of sends are; those without a key go to one
partition together. If a partition refuses, the others cancel what they have scheduled, so that a client that
tries again does not schedule it twice.

In a queue that detects duplicates, messages whose senders gave them an id stay scheduled instead. Their
partition remembers the id and drops the message of the second attempt, so a cancelled one would be lost.

Knows nothing of AMQP.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from broker.base.errors import Reason, Refused
from broker.identifiers import partition_of
from broker.message.identity import key_text
from broker.messaging.asking import answer_of
from broker.messaging.storing import store_all, to_store
from broker.namespace.entity import Entity
from broker.operations.interface import Operation
from broker.operations.scheduling import CancelScheduled, Reschedule
from broker.operations.settling import Settled
from broker.throttle.memory_mark import Memory

CHANGED_AT_ONCE = 1024
"""Sequence numbers in one operation that cancels messages or gives them another time."""


async def schedule(
    entity: Entity, payloads: Sequence[bytes], *, memory: Memory, message_id: Callable[[], str]
) -> list[int]:
    """Store messages, each as its sender encoded it with its scheduled time. A message without a time, or
    whose time has passed, is enqueued at once.

    Returns their sequence numbers, in order, once all are durable; 0 for a message that was dropped as a
    duplicate. Raises Refused; what stays scheduled then is not scheduled again by a second
    attempt.
    `message_id` makes ids for messages that have none.
    """
    made: set[str] = set()

    def new_id() -> str:
        made.add(new := message_id())
        return new

    collected = to_store(entity, payloads, memory=memory, message_id=new_id)
    outcomes = await store_all(entity, collected)
    if outcomes.refusals:
        again: Sequence[int] = range(len(outcomes.numbers))
        whole = collected.send
        if whole.identities is not None:  # those that a second attempt would not store are not cancelled
            again = [place for place in again if key_text(whole.messages[place]) in made]
        await cancel(entity, [outcomes.numbers[place] for place in again if outcomes.numbers[place]])
        raise outcomes.refusals[0]
    return outcomes.numbers


def check_schedules(entity: Entity, subqueue: str) -> None:
    """Check that scheduled messages wait in this subqueue. Raises Refused."""
    if not entity.description.subqueues.takes_sends(subqueue):
        raise Refused(Reason.NOT_ALLOWED, "Only the queue itself has scheduled messages.")


async def cancel(entity: Entity, sequence_numbers: Sequence[int]) -> list[Refused]:
    """Remove scheduled messages durably. Returns why some could not be removed: they are not scheduled (any
    more), or their partition is down. The others are removed all the same."""
    missing, refusals = await _change(entity, sequence_numbers, CancelScheduled)
    return [_not_scheduled(number) for number in missing] + refusals


async def reschedule(entity: Entity, sequence_numbers: Sequence[int], at_ms: int) -> list[int]:
    """Give scheduled messages another time, in wall time; one that has passed means now. Each partition
    writes its part in one commit.

    Returns the numbers that no scheduled message has (any more). Raises Refused if a partition is down;
    messages in other partitions may have the new time by then, and asking again does no harm.
    """
    missing, refusals = await _change(entity, sequence_numbers, lambda part: Reschedule(part, at_ms))
    if refusals:
        raise refusals[0]
    return missing


async def _change(
    entity: Entity, sequence_numbers: Sequence[int], make: Callable[[list[int]], Operation]
) -> tuple[list[int], list[Refused]]:
    """Ask the partitions of scheduled messages for an operation on them. Returns the numbers that no
    scheduled message has, and the refusals of partitions."""
    groups: dict[int, list[int]] = {}
    missing: list[int] = []
    refusals: list[Refused] = []
    for number in sequence_numbers:
        groups.setdefault(partition_of(number), []).append(number)
    asked = []
    for place, numbers in groups.items():
        if not 0 <= place < entity.description.partitions:
            missing += numbers
            continue
        for start in range(0, len(numbers), CHANGED_AT_ONCE):
            part = numbers[start : start + CHANGED_AT_ONCE]
            asked.append((part, answer_of(entity.router.handles[place], make(part))))
    answers = await asyncio.gather(*(answer for _, answer in asked))
    for (part, _), answer in zip(asked, answers, strict=True):
        if isinstance(answer, Refused):
            refusals.append(answer)
            continue
        assert isinstance(answer, Settled), f"{answer} is not an answer to such an operation"
        missing += [part[place] for place in answer.failures]
    return missing, refusals


def _not_scheduled(number: int) -> Refused:
    return Refused(
        Reason.MESSAGE_NOT_FOUND, f"No scheduled message has the sequence number {number}; it may be active."
    )
