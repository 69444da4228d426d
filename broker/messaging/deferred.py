"""Receiving deferred messages by sequence number, from any partitions: all that are named exist, or none is
locked."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from broker.base.errors import Refused
from broker.messaging.asking import answer_of
from broker.messaging.receive_and_delete import remove
from broker.namespace.entity import Entity, next_client
from broker.namespace.router import PartitionHandle
from broker.operations import Answer, Locked, ReceiveDeferred, Release, partition_of

RECEIVED_BYTES_MAX = 4 * 1024 * 1024
"""Bytes of messages in one answer over all partitions. A message of each partition may exceed its share."""

Held = list[tuple[PartitionHandle, Locked]]
"""Locked messages, with the partition that has locked them."""


async def receive_deferred(queue: Entity, subqueue: str, numbers: Sequence[int]) -> Held:
    """Lock deferred messages in their partitions, all at once.

    If a partition refuses, because a message does not exist or the partition is down, the messages that
    others have locked are released, and its Refused is raised. Otherwise locks as many messages as one answer
    may hold, at least one in each partition; the others stay as they are.
    """
    groups: dict[int, list[int]] = {}
    for number in numbers:
        groups.setdefault(partition_of(number), []).append(number)
    handles = [queue.router.of_sequence_number(group[0]) for group in groups.values()]
    share = None if len(groups) == 1 else RECEIVED_BYTES_MAX // len(groups)
    asked = [
        asyncio.ensure_future(answer_of(handle, ReceiveDeferred(subqueue, group, bytes_max=share)))
        for handle, group in zip(handles, groups.values(), strict=True)
    ]
    try:
        answers = await asyncio.gather(*asked)
    except BaseException:  # a request that was cancelled; those without an answer release it themselves
        release([
            (handle, task.result())
            for handle, task in zip(handles, asked, strict=True)
            if task.done() and not task.cancelled() and not task.exception()
        ])  # fmt: skip
        raise
    refused = next((answer for answer in answers if isinstance(answer, Refused)), None)
    if refused is not None:
        release(list(zip(handles, answers, strict=True)))
        raise refused
    held: Held = []
    for handle, answer in zip(handles, answers, strict=True):
        assert isinstance(answer, Locked), f"{answer} is not an answer to ReceiveDeferred"
        held.append((handle, answer))
    return held


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


def release(answers: Sequence[tuple[PartitionHandle, Answer | Refused]]) -> None:
    """Give locked messages back; other answers are ignored."""
    for handle, answer in answers:
        if isinstance(answer, Locked):
            handle.post(Release(answer.tokens), next_client(), _ignore)


def _ignore(answer: Answer) -> None:
    """Ignore the answer."""
