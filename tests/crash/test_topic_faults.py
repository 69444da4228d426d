"""Whatever fails while a topic's partition writes a change, no subscription misses or doubles a message:
publishing, with copies that actions make and messages that filters fail on; what is scheduled; transactions,
forwarded messages and re-drives; what receivers of a subscription do; and the removal of what a deleted
subscription held. `change_faults.py` says where something fails.
"""

from __future__ import annotations

import asyncio

from broker.base.clock import ManualClock
from broker.entities.topics import TopicDescription
from broker.identifiers import LockToken
from broker.message.changes import encode_changes
from broker.operations.browsing import Peek
from broker.operations.interface import Answer, Operation
from broker.operations.receiving import Demand, Locked, LockExactly
from broker.operations.redriving import Redrive
from broker.operations.sending import Send, Sent
from broker.operations.settling import Abandon, Complete, DeadLetter, Defer, Settled
from broker.operations.streams import SettleThrough
from broker.operations.transactions import Transact
from broker.operations.transfers import HandOver
from broker.partition.task import PartitionTask
from tests.crash.change_faults import Changes, Prepare
from tests.support.partition_asking import CLIENT, WAIT_S, ask
from tests.support.topics import (
    BLUE,
    CHANGING,
    DEAD,
    FAILING,
    ONLY_RED,
    RED,
    A,
    topic,
    with_subscription,
)

LATER_MS = 1_000


def described() -> TopicDescription:
    """A topic with subscriptions that get every message, some, changed copies, and dead letters alone."""
    description = with_subscription(topic("a", partitions=1), "b", ONLY_RED)
    description = with_subscription(description, "c", CHANGING)
    return with_subscription(description, "d", FAILING, dead_lettering_on_filter_errors=True)


TOPIC = described()


async def publishes(task: PartitionTask, clock: ManualClock) -> Operation:
    await ask(task, Peek(A, 0, 1))  # open the log
    return Send([RED, BLUE], None)


async def published(task: PartitionTask, clock: ManualClock, later_ms: int | None = None) -> int:
    """Publish three messages; gives the first sequence number."""
    times: list[int | None] | None = None if later_ms is None else [clock.now_ms() + later_ms] * 3
    answer = await ask(task, Send([BLUE, RED, BLUE], None, scheduled_ms=times))
    assert isinstance(answer, Sent)
    return answer.first


async def locked(task: PartitionTask, clock: ManualClock) -> list[LockToken]:
    """Publish messages, and lock those of the first subscription."""
    await published(task, clock)
    locked: asyncio.Future[Locked] = asyncio.get_running_loop().create_future()

    def take(answer: Answer) -> None:  # the client hears of it when the partition goes down
        if isinstance(answer, Locked):
            locked.set_result(answer)

    task.post(Demand(A, 3), CLIENT, take)
    return (await asyncio.wait_for(locked, WAIT_S)).tokens


async def schedules(task: PartitionTask, clock: ManualClock) -> Operation:
    await ask(task, Peek(A, 0, 1))
    return Send([RED, BLUE, RED], None, scheduled_ms=[clock.now_ms() + LATER_MS, clock.now_ms() - 1, None])


async def lets_time_pass(task: PartitionTask, clock: ManualClock) -> Operation:
    await published(task, clock, LATER_MS)
    clock.advance(LATER_MS)
    return Peek(A, 0, 1)


async def completes(task: PartitionTask, clock: ManualClock) -> Operation:
    return Complete((await locked(task, clock))[:2])


async def settles_through(task: PartitionTask, clock: ManualClock) -> Operation:
    first = await published(task, clock)
    return SettleThrough(A, first + 2)


async def abandons(task: PartitionTask, clock: ManualClock) -> Operation:
    return Abandon((await locked(task, clock))[1:], encode_changes({"note": "n"}), delay_ms=60_000)


async def defers(task: PartitionTask, clock: ManualClock) -> Operation:
    return Defer((await locked(task, clock))[:2], encode_changes({"note": "n"}))


async def dead_letters(task: PartitionTask, clock: ManualClock) -> Operation:
    return DeadLetter((await locked(task, clock))[1:], encode_changes({"DeadLetterReason": "r"}))


async def redrives(task: PartitionTask, clock: ManualClock) -> Operation:
    tokens = await locked(task, clock)
    assert await ask(task, DeadLetter(tokens)) == Settled(None)
    numbers = [int.from_bytes(token[:8], "big") for token in tokens[:2]]
    answer = await ask(task, LockExactly(A + DEAD, numbers))
    assert isinstance(answer, Locked)
    return Redrive(answer.tokens, answer.messages, None)


async def transacts(task: PartitionTask, clock: ManualClock) -> Operation:
    tokens = await locked(task, clock)
    settlements: list[Complete | Abandon | Defer | DeadLetter] = [
        Complete(tokens[:1]),
        DeadLetter(tokens[1:2]),
        Defer(tokens[2:]),
    ]
    return Transact(Send([RED, BLUE], None), settlements)


async def changes_rules(task: PartitionTask, clock: ManualClock) -> Operation:
    tokens = await locked(task, clock)
    send = Send([RED], None)
    return Transact(send, [Complete(tokens[:1])], change_id=b"id" * 8, rule_changes=b"changes" * 9)


async def is_handed_over(task: PartitionTask, clock: ManualClock) -> Operation:
    await published(task, clock)
    return HandOver(b"source", [7, 9], [RED, BLUE])


CHANGES: list[Prepare] = [
    *(publishes, schedules, lets_time_pass, completes, settles_through, abandons, defers, dead_letters),
    *(redrives, transacts, changes_rules, is_handed_over),
]
(
    test_a_process_that_dies_while_it_writes_leaves_all_of_a_change_or_nothing,
    test_a_disk_that_fails_within_a_change_leaves_nothing_of_it,
    test_a_sync_that_fails_leaves_nothing_of_a_change,
) = Changes(TOPIC, 16_000, lets_time_pass).tests(CHANGES)
