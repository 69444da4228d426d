"""Ask several partitions at once. A partition that is down does not affect the answers of the others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from broker.base.errors import Reason, Refused
from broker.identifiers import LockToken, partition_of_token
from broker.namespace.entity import Entity, ask
from broker.namespace.router import PartitionHandle
from broker.operations.interface import Answer, Operation
from broker.operations.settling import GiveBack, Renewed, RenewLocks


def lock_lost() -> Refused:
    """The refusal of a settlement that came too late."""
    return Refused(
        Reason.LOCK_LOST,
        (
            "The lock supplied is invalid. Either the lock expired, or the message has already been "
            "removed from the queue."
        ),
    )


def without_lock(why: Refused) -> Refused:
    """The refusal of a request that had taken its locks itself: if its partition went down, the request can
    be repeated."""
    ended = why.reason is Reason.LOCK_ENDED
    return Refused(Reason.PARTITION_UNAVAILABLE, why.description) if ended else why


def by_partition(tokens: Sequence[LockToken]) -> dict[int, list[LockToken]]:
    """Lock tokens by the partition that issued them."""
    groups: dict[int, list[LockToken]] = {}
    for token in tokens:
        groups.setdefault(partition_of_token(token), []).append(token)
    return groups


async def answer_of(handle: PartitionHandle | None, operation: Operation) -> Answer | Refused:
    """Ask one partition; returns its refusal as an answer too. Without a partition the lock is lost, because
    no partition issued the token."""
    if handle is None:
        return lock_lost()
    try:
        return await ask(handle, operation)
    except Refused as why:
        return why


async def give_back(handle: PartitionHandle, tokens: Sequence[LockToken]) -> None:
    """Release messages on behalf of a request that fails; returns once they are not locked any more. If the
    partition is down, its locks are gone."""
    await answer_of(handle, GiveBack(tokens))


async def ask_about(
    entity: Entity, tokens: Sequence[LockToken], make: Callable[[list[LockToken]], Operation]
) -> list[tuple[list[int], Answer | Refused]]:
    """Ask the partitions of these lock tokens, all at once. `make` builds the operation for the tokens of one
    partition.

    Returns each partition's answer, in the order of the tokens, with the positions of its tokens in `tokens`.
    """
    groups: dict[bytes, list[int]] = {}
    for place, token in enumerate(tokens):
        groups.setdefault(token[:2], []).append(place)
    find = entity.router.of_token
    asked = [
        answer_of(find(tokens[places[0]]), make([tokens[place] for place in places]))
        for places in groups.values()
    ]
    answers = await asyncio.gather(*asked)
    return list(zip(groups.values(), answers, strict=True))


async def renew_locks(
    entity: Entity, subqueue: str, tokens: Sequence[LockToken], duration_ms: int | None = None
) -> list[int]:
    """Renew these locks of a subqueue, by the entity's lock duration unless another is given. Returns when
    each of them ends, in monotonic time. Raises the first refusal; the locks that could be renewed are
    renewed all the same."""
    until_ms = [0] * len(tokens)
    refusals: list[Refused] = []
    for places, answer in await ask_about(
        entity, tokens, lambda own: RenewLocks(own, duration_ms=duration_ms, subqueue=subqueue)
    ):
        if isinstance(answer, Refused):
            refusals.append(answer)
            continue
        assert isinstance(answer, Renewed), f"{answer} is not an answer to RenewLocks"
        if answer.failures:
            refusals.append(lock_lost())
        for place in places:
            until_ms[place] = answer.locked_until_ms
    if refusals:
        raise refusals[0]
    return until_ms
