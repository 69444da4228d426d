"""Work on many messages of an entity at once: delete exactly these, purge, re-drive dead letters.

A walk over an entity goes through its partitions one after the other, in the order of sequence numbers, and
asks each for a bounded piece of work at a time. It ends after a bounded number of pieces, and says where to
continue: a sequence number, whose top bits name the partition. So no request takes long, and none holds more
than one piece in memory.

A partition that is down is passed over and named in the result. One whose disk hangs takes seconds to say so;
then the walk soon ends, before it has met many of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field

from broker.base.errors import Reason, Refused
from broker.entities.descriptions import MAIN
from broker.entities.roles import DISTRIBUTES
from broker.identifiers import PARTITION_SHIFT, encode_session_id, partition_of
from broker.message.changes import without_reasons
from broker.message.forwarded import without_hops
from broker.message.stored import bare_message_offset
from broker.messaging.asking import answer_of, give_back
from broker.namespace.entity import Entity, ask, next_client
from broker.namespace.router import PartitionHandle
from broker.operations.deleting import Delete, Deleted, DeletedExactly, DeleteExactly
from broker.operations.interface import Answer
from broker.operations.receiving import Locked, LockExactly
from broker.operations.redriving import FindDeadLetters, Found, Redrive, Redriven
from broker.operations.settling import Release

PIECES_MAX = 64
"""Operations that one walk asks of partitions. Each looks at a few thousand messages at most."""
WALKS_ON_S = 7.0
"""A walk ends after so many seconds if a partition has refused, so that its client hears in time, even if
every disk hangs."""
NAMED_AT_ONCE = 1_000
"""Sequence numbers in one operation."""
REDRIVEN_AT_ONCE = 256
"""Dead letters that are locked and enqueued anew by one pair of operations. They are in memory meanwhile, up
to what one answer of a partition may hold."""
REDRIVES_MAX = 8
"""Requests that hold dead letters in memory at a time, in the whole broker."""
PREPARED_AT_ONCE = 32
"""Dead letters whose properties are changed in one turn of the event loop: about half a millisecond."""


@dataclass(slots=True)
class Progress:
    """How far a walk has come."""

    count: int = 0
    """Messages that it has dealt with."""
    next_sequence_number: int | None = None
    """Where to continue; None at the end."""
    refusals: dict[int, Refused] = field(default_factory=dict)
    """Partitions that were passed over, and why."""


@dataclass(slots=True)
class Exactly:
    """What became of the messages that a client named."""

    done: list[int] = field(default_factory=list)
    """Those that were deleted or re-driven."""
    new_numbers: list[int] = field(default_factory=list)
    """The sequence numbers that re-driven messages got, in the order of `done`."""
    locked: list[int] = field(default_factory=list)
    missing: list[int] = field(default_factory=list)


async def delete_exactly(queue: Entity, subqueue: str, numbers: Sequence[int]) -> Exactly:
    """Delete the messages with these sequence numbers, except those that are locked.

    Raises Refused if a partition refuses; messages in other partitions may be deleted by then, and asking
    again does no harm.
    """
    result = Exactly()
    for handle, part in _by_partition(queue, numbers, result):
        answer = await ask(handle, DeleteExactly(subqueue, part))
        assert isinstance(answer, DeletedExactly), f"{answer} is not an answer to DeleteExactly"
        locked = answer.locked
        result.missing += answer.missing
        if answer.recalls:
            again = await ask(handle, DeleteExactly(subqueue, locked))
            assert isinstance(again, DeletedExactly), f"{again} is not an answer to DeleteExactly"
            locked = again.locked  # a missing one was settled meanwhile
        result.locked += locked
        kept = {*locked, *answer.missing}
        result.done += [number for number in part if number not in kept]
    return result


async def purge(
    queue: Entity,
    subqueue: str,
    states: Sequence[int],
    before_ms: int,
    count: int,
    start: int,
    session_id: str | None = None,
) -> Progress:
    """Delete messages in these states that were enqueued before a time, from sequence number `start` on, at
    most `count`: those of all sessions, or of one. Locked messages stay."""
    progress = Progress()
    looked_again_at = -1
    only, session = None, None
    if session_id is not None:
        only, session = queue.router.number_of(session_id), encode_session_id(session_id)
    async for handle, at, left in _walk(queue, start, count, progress, only):
        recalls = at != looked_again_at  # once in each place
        answer = await answer_of(
            handle,
            Delete(subqueue, left, before_ms, at, states=states, recalls=recalls, session_id=session),
        )
        if isinstance(answer, Refused):
            progress.refusals[partition_of(at)] = answer
            progress.next_sequence_number = None
            continue
        assert isinstance(answer, Deleted), f"{answer} is not an answer to Delete"
        progress.count += answer.count
        progress.next_sequence_number = answer.next_sequence_number
        if answer.recalls:
            progress.next_sequence_number = looked_again_at = at
    return progress


Hold = Callable[[], AbstractAsyncContextManager[object]]
"""Waits until some messages may be held in memory."""


def check_redrive(queue: Entity, subqueue: str) -> None:
    """Check that messages of this subqueue can be re-driven. Raises Refused."""
    role = queue.description.subqueues.role_of(subqueue)
    if role is None or not role.keeps_dead_letters:
        raise Refused(
            Reason.NOT_ALLOWED,
            f"'{queue.path_of(subqueue)}' is no dead-letter queue. Ask its dead-letter queue.",
        )
    queue.check_can_receive(subqueue)
    queue.check_can_send(MAIN)


async def redrive(
    queue: Entity, subqueue: str, reason: str | None, before_ms: int, count: int, start: int, hold: Hold
) -> Progress:
    """Re-drive dead letters with this reason (any, if it is None) that were enqueued before a time, from
    sequence number `start` on, at most `count`. Locked messages stay."""
    progress = Progress()
    looked_again_at = -1
    async for handle, at, left in _walk(queue, start, count, progress):
        done = Exactly()
        find = FindDeadLetters(subqueue, min(left, REDRIVEN_AT_ONCE), before_ms, reason, at)
        try:
            found = await ask(handle, find)
            assert isinstance(found, Found), f"{found} is not an answer to FindDeadLetters"
            progress.next_sequence_number = found.next_sequence_number
            if found.recalls and at != looked_again_at:
                progress.next_sequence_number = looked_again_at = at
            await _redrive(queue, handle, subqueue, found.sequence_numbers, hold, done)
        except Refused as why:
            progress.refusals[partition_of(at)] = why
            progress.next_sequence_number = None
        progress.count += len(done.done)
    return progress


async def redrive_exactly(queue: Entity, subqueue: str, numbers: Sequence[int], hold: Hold) -> Exactly:
    """Re-drive the dead letters with these sequence numbers. Those that are locked or missing count as
    missing.

    Raises Refused if a partition refuses; messages in other partitions may be re-driven by then.
    """
    result = Exactly()
    for handle, part in _by_partition(queue, numbers, result):
        for _ in range(2):  # what a receiver holds unseen has come back the second time
            if part:
                await _redrive(queue, handle, subqueue, part, hold, result)
                done = frozenset(result.done)
                part = [number for number in part if number not in done]
        result.missing += part
    return result


def _by_partition(
    queue: Entity, numbers: Sequence[int], result: Exactly
) -> list[tuple[PartitionHandle, list[int]]]:
    """The numbers by partition, a bounded number at a time. Those that no partition can have assigned go to
    `result.missing`."""
    groups: dict[int, list[int]] = {}
    for number in dict.fromkeys(numbers):
        if 0 <= partition_of(number) < queue.description.partitions:
            groups.setdefault(partition_of(number), []).append(number)
        else:
            result.missing.append(number)
    return [
        (queue.router.handles[place], group[at : at + NAMED_AT_ONCE])
        for place, group in groups.items()
        for at in range(0, len(group), NAMED_AT_ONCE)
    ]


async def _walk(
    queue: Entity, start: int, count: int, progress: Progress, only: int | None = None
) -> AsyncIterator[tuple[PartitionHandle, int, int]]:
    """Yield a partition, the sequence number to begin at, and how many messages are left to deal with. Visits
    all partitions, or `only` one.

    The caller counts in `progress`, and sets `next_sequence_number` there to continue in the same partition,
    or None for the next one.
    """
    first, partitions = (0, queue.description.partitions) if only is None else (only, only + 1)
    progress.next_sequence_number = max(start, first << PARTITION_SHIFT)
    number = partition_of(progress.next_sequence_number)
    loop = asyncio.get_running_loop()
    until_s = loop.time() + WALKS_ON_S
    for _ in range(PIECES_MAX):
        if progress.refusals and loop.time() >= until_s:
            break
        if progress.next_sequence_number is None:
            number += 1
            progress.next_sequence_number = number << PARTITION_SHIFT
        if number >= partitions:
            progress.next_sequence_number = None
            return
        if progress.count >= count:
            return
        yield queue.router.handles[number], progress.next_sequence_number, count - progress.count
    if progress.next_sequence_number is None and number + 1 < partitions:
        progress.next_sequence_number = number + 1 << PARTITION_SHIFT


async def _redrive(
    queue: Entity,
    handle: PartitionHandle,
    subqueue: str,
    numbers: Sequence[int],
    hold: Hold,
    result: Exactly,
) -> None:
    """Re-drive dead letters of one partition, and add their old and new sequence numbers to `result`. Raises
    Refused."""
    subqueues = queue.description.subqueues
    # What is published goes by itself, as if each of them had just been sent by a client of its own.
    at_once = 1 if subqueues.role_of(subqueues.main_of(subqueue)) is DISTRIBUTES else REDRIVEN_AT_ONCE
    left = list(numbers)
    while left:
        part = left[:REDRIVEN_AT_ONCE]
        async with hold():
            locked = await ask(handle, LockExactly(subqueue, part))
            assert isinstance(locked, Locked), f"{locked} is not an answer to LockExactly"
            if not locked.tokens:
                left = left[len(part) :]
                continue
            refusal = await _enqueue_anew(handle, locked, at_once, result)
        if refusal is not None:
            raise refusal
        left = left[left.index(locked.sequence_numbers[-1]) + 1 :]


async def _enqueue_anew(
    handle: PartitionHandle, locked: Locked, at_once: int, result: Exactly
) -> Refused | None:
    """Re-drive messages that were just locked, `at_once` with each operation, and add them to `result`. Those
    that cannot be re-driven are released; returns why they cannot."""
    try:
        messages: list[bytes] = []
        for place, (stored, changed) in enumerate(zip(locked.messages, locked.changed, strict=True)):
            begin = bare_message_offset(stored)
            messages.append(without_hops(stored[:begin]) + without_reasons(stored[begin:], changed))
            if place % PREPARED_AT_ONCE == PREPARED_AT_ONCE - 1:
                await asyncio.sleep(0)
        times_to_live_ms = [
            None if expires_ms is None else max(expires_ms - enqueued_ms, 1)
            for expires_ms, enqueued_ms in zip(locked.expires_at_ms, locked.enqueued_at_ms, strict=True)
        ]
        parts = [slice(start, start + at_once) for start in range(0, len(messages), at_once)]
        answers = await asyncio.gather(
            *(
                answer_of(
                    handle,
                    Redrive(
                        locked.tokens[part],
                        messages[part],
                        times_to_live_ms[part],
                        columns={name: values[part] for name, values in locked.columns.items()},
                    ),
                )
                for part in parts
            )
        )
    except BaseException:  # nobody waits for an answer any more
        handle.post(Release(locked.tokens), next_client(), _ignore)
        raise
    refusal: Refused | None = None
    for part, answer in zip(parts, answers, strict=True):
        if isinstance(answer, Refused):
            await give_back(handle, locked.tokens[part])
            refusal = refusal or answer
            continue
        assert isinstance(answer, Redriven), f"{answer} is not an answer to Redrive"
        for old, new in zip(locked.sequence_numbers[part], answer.sequence_numbers, strict=True):
            if new:
                result.done.append(old)
                result.new_numbers.append(new)
    return refusal


def _ignore(answer: Answer) -> None:
    """Ignore the answer."""
