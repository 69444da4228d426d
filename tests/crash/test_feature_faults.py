"""Whatever fails while a change is written, it has happened as a whole or not at all: states of sessions,
schedules, message-ids, delays, dead letters that are sent again, and transactions that do all of this.

The disk fails at places in each record of the change, its sync fails, and the process dies there. What a new
process then finds is the state before the change, or the state after it if the change was acknowledged.
`PARTIBUS_CRASH_ROUNDS` above 10 (`make crash`) tries every byte, otherwise a few of them.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from hashlib import blake2b

import pytest

from broker.base.clock import ManualClock
from broker.entities.descriptions import DEAD_LETTER, MAIN, QueueDescription, QueueSettings
from broker.message.changes import encode_changes
from broker.operations import (
    Abandon,
    Answer,
    CancelScheduled,
    Complete,
    DeadLetter,
    Defer,
    Delete,
    DeleteExactly,
    Demand,
    Failed,
    Locked,
    LockExactly,
    LockToken,
    Operation,
    Peek,
    Redrive,
    Send,
    Sent,
    Settled,
    Transact,
    Updated,
)
from broker.partition.delays import Delays
from broker.partition.duplicates import IDENTITY_BYTES
from broker.partition.session_states import SessionStates
from broker.partition.task import PartitionTask
from broker.session_operations import AcceptSession, SessionAccepted, SetSessionState
from storage.disk import Disk
from storage.log import FRAME_HEADER_BYTES, Log, Position
from tests.crash.rounds import ROUNDS
from tests.support.dying_process import Snapshots, partition_on
from tests.support.faulty_disk import FaultyDisk
from tests.support.partition_asking import CLIENT, WAIT_S, ask
from tests.support.recording_disk import RecordingDisk

SETTINGS = QueueSettings(requires_session=True, requires_duplicate_detection=True)
QUEUE = QueueDescription("orders", "5" * 32, 1, SETTINGS)
SESSION = b"cart"
LATER_MS = 1_000

State = tuple[object, ...]


def partition(disk: Disk, clock: ManualClock) -> AbstractAsyncContextManager[tuple[PartitionTask, Log]]:
    return partition_on(disk, QUEUE, clock, segment_bytes_max=8_000)


async def state(task: PartitionTask) -> State:
    """Everything durable that a partition knows, once it is open and has done what is due."""
    await ask(task, Peek(MAIN, 0, 1))
    return state_now(task)


def state_now(task: PartitionTask) -> State:
    task.check()
    assert task._partition is not None
    messages = task._partition.messages
    states = messages.states
    return (
        {
            number: (
                subqueue.name,
                each.state,
                each.delivery_count,
                each.changed,
                each.size,
                each.enqueued_at_ms,
                each.session_id,
            )
            for subqueue in messages.subqueues
            for number, each in subqueue.references.items()
        },
        dict(states.of(SessionStates).entries),
        dict(states.of(Delays).entries()),
        {each for slot in states.duplicates.slots.values() for each in slot.identities},
        messages.next_number,
    )


async def state_on(disk: Disk) -> State:
    """What a new process finds, before anything comes due."""
    async with partition(disk, ManualClock()) as (task, _):
        return await state(task)


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


Prepare = Callable[[PartitionTask, ManualClock], Awaitable[Operation]]
CHANGES: list[Prepare] = [
    *(sends, sets_state, clears_state, cancels, lets_time_pass, delays, purges, deletes, redrives, transacts)
]
changes = pytest.mark.parametrize("prepare", CHANGES, ids=lambda each: each.__name__)


@dataclass
class Story:
    """What a change does if nothing fails."""

    before: State
    after: State
    places: list[int]
    """Offsets in its frame at which something may fail, up to its end."""


async def story_of(prepare: Prepare) -> Story:
    clock = ManualClock()
    async with partition(RecordingDisk(), clock) as (task, log):
        operation = await prepare(task, clock)
        before, start = state_now(task), log.end
        assert not isinstance(await ask(task, operation), Failed)
        after = state_now(task)
        assert before != after
        (frame,) = await log.fetch([Position(start)])
        size = log.end - start
        if ROUNDS > 10:
            return Story(before, after, list(range(1, size + 1)))
        records = frame.records()
        places = {1, FRAME_HEADER_BYTES, size, *(each.offset for each in records)}
        places |= {each.offset + len(each.body) // 2 for each in records}
        return Story(before, after, sorted(places))


@changes
async def test_a_process_that_dies_while_it_writes_leaves_all_of_a_change_or_nothing(
    prepare: Prepare,
) -> None:
    story = await story_of(prepare)
    for place in story.places:
        inner, clock = Snapshots(), ManualClock()
        disk = FaultyDisk(inner)
        async with partition(disk, clock) as (task, _):
            operation = await prepare(task, clock)
            inner.after_write = None
            disk.shorten(place)
            disk.fail("write", times=-1)
            answer = await ask(task, operation)
            disk.heal()
        is_whole = place == story.places[-1]
        assert is_whole or isinstance(answer, Failed)
        assert inner.after_write is not None
        assert await state_on(inner.after_write) == (story.after if is_whole else story.before), place


@changes
@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC], ids=["fails", "is full"])
async def test_a_disk_that_fails_within_a_change_leaves_nothing_of_it(prepare: Prepare, error: int) -> None:
    story = await story_of(prepare)
    places = story.places[:-1] if ROUNDS > 10 else story.places[1:-1:2]
    for place in places:
        inner, clock = RecordingDisk(), ManualClock()
        disk = FaultyDisk(inner)
        async with partition(disk, clock) as (task, _):
            operation = await prepare(task, clock)
            disk.shorten(place)
            disk.fail("write", error, times=1 if error == errno.EIO else -1)
            answer = await ask(task, operation)
            on_disk = inner.after_power_cut()
            disk.heal()
            assert isinstance(answer, Failed)
            assert await state_on(on_disk) == story.before, place
            left = await state(task)
            assert left == (story.after if prepare is lets_time_pass else story.before), place
        assert await state_on(inner.after_power_cut()) == left


@changes
async def test_a_sync_that_fails_leaves_nothing_of_a_change(prepare: Prepare) -> None:
    story = await story_of(prepare)
    inner, clock = RecordingDisk(), ManualClock()
    disk = FaultyDisk(inner)
    async with partition(disk, clock) as (task, _):
        operation = await prepare(task, clock)
        disk.fail("sync")
        assert isinstance(await ask(task, operation), Failed)
        left = await state(task)
        assert left == (story.after if prepare is lets_time_pass else story.before)
    assert await state_on(inner.after_power_cut()) == left
