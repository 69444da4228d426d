"""Peek at one partition of a queue, for `$management`'s peek and for browsing links.

While other partitions may have something to show, nobody waits for a late one. The first client that finds a
partition late has waited LATE_S for it. The others learn that from `Router.late` and do not wait, until the
partition has answered.
"""

from __future__ import annotations

from dataclasses import replace

import structlog

from broker.base.errors import Reason, Refused
from broker.namespace.entity import Entity, ask, next_client
from broker.operations.browsing import Peek, Peeked
from broker.operations.interface import Answer

log = structlog.get_logger("peek")

ASK_ALL_S = 0.025
"""A page of several partitions that has taken this long asks all that are left at once."""
LATE_S = 0.25
"""A partition that has not answered a peek within this time is late."""
PAGE_WITHIN_S = 10.0
"""A partition that takes longer than this for a page is passed over as if it were down."""


async def peek_partition(entity: Entity, number: int, peek: Peek) -> Peeked | None:
    """Ask one partition for messages, unless it is spared; returns None while it is down, which is logged
    once per outage. Raises Refused for any other refusal."""
    if entity.spares(number, peek.subqueue):
        return Peeked([], [], [], [], [], [], [], peek.cookie)
    router = entity.router
    handle = router.handles[number]
    answer: object = None
    if handle.available:
        try:
            answer = await ask(handle, peek)
        except Refused as why:
            if why.reason not in (Reason.PARTITION_UNAVAILABLE, Reason.DISK_FULL):
                raise
    if answer is None:
        note_unseen(entity, number)
        return None
    router.unseen.discard(number)
    router.late.discard(number)
    assert isinstance(answer, Peeked), f"{answer} is not an answer to Peek"
    return answer


def note_unseen(entity: Entity, number: int) -> None:
    """Log, once per outage, that a client was not shown what a partition holds, because it is down."""
    unseen = entity.router.unseen
    # A partition that was stopped, with the broker or with its queue, is not down.
    if number not in unseen and entity.health()[number] != "stopped":
        unseen.add(number)
        log.warning("peek.partition_unseen", entity=entity.name, partition=number)


def note_late(entity: Entity, number: int, peek: Peek) -> None:
    """Count a partition that has not answered this peek in time as late, until it answers one for its first
    message. A partition that hangs gets one such peek, however many clients there are."""
    late = entity.router.late
    if number in late:
        return
    late.add(number)

    def answered(answer: Answer) -> None:
        late.discard(number)

    entity.router.handles[number].post(replace(peek, count=1), next_client(), answered)
