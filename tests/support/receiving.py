"""A client that receives over a `LinkStack`, and the demand that reaches the partitions on its behalf."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from broker.entities.descriptions import EntityStatus
from broker.operations.general import Detach
from broker.operations.receiving import Demand, Locked, Withdraw, Withdrawn
from tests.support import raw_amqp as raw
from tests.support.link_stack import Client, LinkStack, Part
from tests.support.locked import locked

LONG_MS = 60_000
"""A lock duration that outlasts any test."""


def give(stack: LinkStack, number: int, count: int, **given: Any) -> Locked:
    """Answer a partition's oldest demand with `count` messages."""
    messages = locked(number, count, until_ms=stack.clock.monotonic_ms() + LONG_MS, **given)
    part = stack.parts[number]
    part.answer(Demand, lambda demand: messages)
    return messages


def confirm(part: Part) -> None:
    """Answer all withdrawals for the partition."""
    while part.has(Withdraw):
        part.answer(Withdraw, lambda withdraw: Withdrawn(part.number, withdraw.subqueue))


def demands(stack: LinkStack) -> dict[int, int]:
    """Unanswered demand by partition; removes it."""
    asked = {part.number: sum(demand.count for demand in part.take_all(Demand)) for part in stack.parts}
    return {number: count for number, count in asked.items() if count}


def waiting(stack: LinkStack) -> dict[int, int]:
    """Unanswered demand by partition; leaves it in place."""
    asked = {
        part.number: sum(operation.count for operation, _, _ in part.posted if isinstance(operation, Demand))
        for part in stack.parts
    }
    return {number: count for number, count in asked.items() if count}


async def ends_when_receiving_is_disabled(stack: LinkStack, client: Client) -> None:
    """Disable receiving on the queue: the client's link is detached with the reason, and no partition knows
    it any more.
    """
    description = stack.queue.description
    stack.queue.description = replace(
        description, settings=replace(description.settings, status=EntityStatus.RECEIVE_DISABLED)
    )
    for watcher in list(stack.queue.watchers):
        watcher.queue_changed()
    (detach,) = await client.heard(raw.DETACH)
    assert detach.field(2).value[0] == "com.microsoft:entity-disabled" and all(
        part.has(Detach) for part in stack.parts
    )


async def receiving(
    credit: int, *, settled: bool = False, partitions: int = 4, **given: Any
) -> tuple[LinkStack, Client]:
    """A broker, and a client with one link, handle 0, that has granted this credit."""
    stack = LinkStack(partitions, **given)
    client = await stack.connect()
    await client.receiver(0, credit=credit, settled=settled)
    return stack, client
