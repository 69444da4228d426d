"""Receiving deferred messages by sequence number, from any partitions: all that are named are locked, or none
is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from broker.base.errors import Refused
from broker.identifiers import partition_of
from broker.message.changes import count_of
from broker.message.property_sizes import METADATA_BYTES_MAX
from broker.messaging.asking import give_back
from broker.messaging.receive_and_delete import remove
from broker.namespace.entity import Entity, ask, next_client
from broker.namespace.router import PartitionHandle
from broker.operations.interface import Answer
from broker.operations.receiving import Locked, ReceiveDeferred
from broker.operations.settling import Release

RECEIVED_BYTES_MAX = 4 * 1024 * 1024
"""Bytes of messages in one answer over all partitions. A single message may have more."""

PREPARED_AT_ONCE = 8_192
"""Changed properties that are laid over messages at once: about a millisecond."""
LAID_PROPERTIES = 32
"""What each message counts besides, as that many properties."""
LAID_BYTES = 32
"""The bytes of a message that count as one property, because they may be properties of its own."""

Held = list[tuple[PartitionHandle, Locked]]
"""Locked messages, with the partition that has locked them."""


async def receive_deferred(entity: Entity, subqueue: str, numbers: Sequence[int]) -> Held:
    """Lock deferred messages in their partitions.

    One partition is asked after the other, each for what fits beside the messages before. If a partition
    refuses, because a message does not exist, the partition is down, or the messages do not fit into one
    answer, those that others have locked are released, and its Refused is raised.
    """
    groups: dict[int, list[int]] = {}
    for number in numbers:
        groups.setdefault(partition_of(number), []).append(number)
    handles = [entity.router.of_sequence_number(group[0]) for group in groups.values()]
    held: Held = []
    left = room(numbers)
    try:
        for handle, group in zip(handles, groups.values(), strict=True):
            answer = await ask(handle, ReceiveDeferred(subqueue, group, bytes_max=left))
            assert isinstance(answer, Locked), f"{answer} is not an answer to ReceiveDeferred"
            held.append((handle, answer))
            if left is not None:
                left -= sum(map(len, answer.messages)) + sum(len(each) for each in answer.changed if each)
    except Refused:
        await asyncio.gather(*(give_back(handle, locked.tokens) for handle, locked in held))
        raise
    except BaseException:  # nobody waits for an answer any more
        release(held)
        raise
    return held


def room(numbers: Sequence[int]) -> int | None:
    """The bytes that the answer to a request for these messages may have; None for any number."""
    return RECEIVED_BYTES_MAX if len(set(numbers)) > 1 else None


async def remove_all(held: Held) -> Held:
    """Remove messages that were just locked; returns those that were removed. Raises Refused if none was."""
    results = await asyncio.gather(
        *(remove(handle, locked) for handle, locked in held), return_exceptions=True
    )
    removed: Held = []
    for (handle, _), result in zip(held, results, strict=True):
        if isinstance(result, Locked):
            removed.append((handle, result))
        elif not isinstance(result, Refused):
            raise result
    if not removed:
        raise next(result for result in results if isinstance(result, Refused))
    return removed


def release(held: Held) -> None:
    """Give locked messages back."""
    release_later(held)()


def release_later(held: Held) -> Callable[[], None]:
    """A function that gives locked messages back. It keeps their tokens and not the messages."""
    tokens = [(handle, locked.tokens) for handle, locked in held]

    def give_all_back() -> None:
        for handle, each in tokens:
            handle.post(Release(each), next_client(), _ignore)

    return give_all_back


def portions_of(locked: Locked) -> Iterator[Locked]:
    """Locked messages, as many at a time as can be prepared for a client at once, and at least one."""
    begin = properties = 0
    for place, changed in enumerate(locked.changed):
        if changed is None:
            continue
        own = min(len(locked.messages[place]), METADATA_BYTES_MAX)
        properties += LAID_PROPERTIES + count_of(changed) + own // LAID_BYTES
        if properties >= PREPARED_AT_ONCE and place + 1 < len(locked.changed):
            yield _slice_of(locked, begin, place + 1)
            begin, properties = place + 1, 0
    yield _slice_of(locked, begin, len(locked.tokens)) if begin else locked


def _slice_of(locked: Locked, begin: int, end: int) -> Locked:
    some = slice(begin, end)
    return replace(
        locked,
        tokens=locked.tokens[some],
        sequence_numbers=locked.sequence_numbers[some],
        enqueued_at_ms=locked.enqueued_at_ms[some],
        delivery_counts=locked.delivery_counts[some],
        expires_at_ms=locked.expires_at_ms[some],
        messages=locked.messages[some],
        changed=locked.changed[some],
        columns={name: values[some] for name, values in locked.columns.items()},
    )


def _ignore(answer: Answer) -> None:
    """Ignore the answer."""
