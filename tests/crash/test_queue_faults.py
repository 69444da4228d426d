"""Whatever fails while a change is written, it has happened as a whole or not at all: states of sessions,
schedules, message-ids, delays, dead letters that are sent again, and transactions that do all of this.

`change_faults.py` says where something fails.
"""

from __future__ import annotations

import asyncio
from hashlib import blake2b

from broker.base.clock import ManualClock
from broker.entities.descriptions import DEAD_LETTER, MAIN, QueueDescription, QueueSettings
from broker.identifiers import LockToken
from broker.message.changes import encode_changes
from broker.operations.browsing import Peek
from broker.operations.deleting import Delete, DeleteExactly
from broker.operations.general import Updated
from broker.operations.interface import Answer, Operation
from broker.operations.receiving import Demand, Locked, LockExactly
from broker.operations.redriving import Redrive
from broker.operations.scheduling import CancelScheduled
from broker.operations.sending import Send, Sent
from broker.operations.sessions import AcceptSession, SessionAccepted, SetSessionState
from broker.operations.settling import Abandon, Complete, DeadLetter, Defer, Settled
from broker.operations.transactions import Transact
from broker.partition.duplicates import IDENTITY_BYTES
from broker.partition.task import PartitionTask
from tests.crash.change_faults import Changes, Prepare
from tests.support.partition_asking import CLIENT, WAIT_S, ask

SETTINGS = QueueSettings(requires_session=True, requires_duplicate_detection=True)
QUEUE = QueueDescription("orders", "5" * 32, 1, SETTINGS)
SESSION = b"cart"
LATER_MS = 1_000


# --- changes ------------------------------------------------------------------------------------------------


def send_of(clock: ManualClock, *ids: str, later_ms: int | None = None) -> Send:
    """New messages of the session, the first of which becomes active later."""
    send = Send([each.encode() * 20 for each in ids], None)
    send.columns = {"session_id": [SESSION] * len(ids)}
    send.identities = [blake2b(each.encode(), digest_size=IDENTITY_BYTES).digest() for each in ids]
    if later_ms is not None:
        send.scheduled_ms = [clock.now_ms() + later_ms, *[None] * (len(ids) - 1)]
    return send


async def sent(task: PartitionTask, clock: ManualClock, later_ms: int | None = None) -> int:
    """Send four messages; gives the first sequence number."""
    answer = await ask(task, send_of(clock, "a", "b", "c", "d", later_ms=later_ms))
    assert isinstance(answer, Sent)
    return answer.first


async def locked(task: PartitionTask, clock: ManualClock) -> list[LockToken]:
    """Send messages, accept their session and lock them."""
    await sent(task, clock)
    assert isinstance(await ask(task, AcceptSession(MAIN, SESSION)), SessionAccepted)
    locked: asyncio.Future[Locked] = asyncio.get_running_loop().create_future()

    def take(answer: Answer) -> None:  # the client hears of it when the partition goes down
        if isinstance(answer, Locked):
            locked.set_result(answer)

    task.post(Demand(MAIN, 4), CLIENT, take)
    return (await asyncio.wait_for(locked, WAIT_S)).tokens


async def sends(task: PartitionTask, clock: ManualClock) -> Operation:
    await ask(task, Peek(MAIN, 0, 1))  # open the log
    return send_of(clock, "a", "b", later_ms=LATER_MS)


async def sets_state(task: PartitionTask, clock: ManualClock) -> Operation:
    await locked(task, clock)
    assert isinstance(await ask(task, SetSessionState(MAIN, SESSION, CLIENT, b"first", 9)), Updated)
    return SetSessionState(MAIN, SESSION, CLIENT, b"second", 9)


async def clears_state(task: PartitionTask, clock: ManualClock) -> Operation:
    operation = await sets_state(task, clock)
    assert isinstance(operation, SetSessionState)
    operation.state = None
    return operation


async def cancels(task: PartitionTask, clock: ManualClock) -> Operation:
    return CancelScheduled([await sent(task, clock, LATER_MS)])


async def lets_time_pass(task: PartitionTask, clock: ManualClock) -> Operation:
    await sent(task, clock, LATER_MS)
    clock.advance(LATER_MS)
    return Peek(MAIN, 0, 1)


async def delays(task: PartitionTask, clock: ManualClock) -> Operation:
    tokens = await locked(task, clock)
    return Abandon(tokens[1:3], encode_changes({"note": "n"}), delay_ms=60_000)


async def purges(task: PartitionTask, clock: ManualClock) -> Operation:
    await sent(task, clock, LATER_MS)
    return Delete(MAIN, 3, 1 << 60, states=(0, 2))


async def deletes(task: PartitionTask, clock: ManualClock) -> Operation:
    first = await sent(task, clock, LATER_MS)
    return DeleteExactly(MAIN, [first, first + 2])


async def redrives(task: PartitionTask, clock: ManualClock) -> Operation:
    tokens = await locked(task, clock)
    assert await ask(task, DeadLetter(tokens)) == Settled(None)
    numbers = [int.from_bytes(token[:8], "big") for token in tokens[:2]]
    answer = await ask(task, LockExactly(DEAD_LETTER, numbers))
    assert isinstance(answer, Locked)
    return Redrive(answer.tokens, answer.messages, None)


async def transacts(task: PartitionTask, clock: ManualClock) -> Operation:
    tokens = await locked(task, clock)
    settlements: list[Complete | Abandon | Defer | DeadLetter] = [
        Complete(tokens[:1]),
        Abandon(tokens[1:2], delay_ms=60_000),
        Defer(tokens[2:3], encode_changes({"note": "n"})),
        DeadLetter(tokens[3:]),
    ]
    return Transact(send_of(clock, "e", "a", "f", later_ms=LATER_MS), settlements)


CHANGES: list[Prepare] = [
    *(sends, sets_state, clears_state, cancels, lets_time_pass, delays, purges, deletes, redrives, transacts)
]
(
    test_a_process_that_dies_while_it_writes_leaves_all_of_a_change_or_nothing,
    test_a_disk_that_fails_within_a_change_leaves_nothing_of_it,
    test_a_sync_that_fails_leaves_nothing_of_a_change,
) = Changes(QUEUE, 8_000, lets_time_pass).tests(CHANGES)
