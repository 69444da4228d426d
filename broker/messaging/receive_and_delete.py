"""Receive-and-delete: a message leaves the broker only once its removal is durable (durability rule 2).

The messages are locked as usual, and completed first. Those that were removed are then handed over, and the
client never settles them.
"""

from __future__ import annotations

from collections.abc import Container

from broker.base.errors import Refused
from broker.messaging.asking import answer_of, give_back, lock_lost, without_lock
from broker.messaging.receive_cache import without
from broker.namespace.router import PartitionHandle
from broker.operations.receiving import Locked
from broker.operations.settling import Complete, Settled


class Removals:
    """One client's messages whose removal is being written to the log."""

    __slots__ = ("_by_cookie", "count")

    def __init__(self) -> None:
        self._by_cookie: dict[int, Locked] = {}
        self.count = 0
        """The number of these messages."""

    def begin(self, locked: Locked, cookie: int) -> Complete:
        """Start a removal; returns the operation to post to the partition. Its answer carries the cookie."""
        self._by_cookie[cookie] = locked
        self.count += len(locked.tokens)
        return Complete(locked.tokens, cookie)

    def end(self, cookie: int) -> Locked | None:
        """The partition has answered: returns the messages of this removal, or None if the cookie belongs to
        something else."""
        locked = self._by_cookie.pop(cookie, None)
        if locked is not None:
            self.count -= len(locked.tokens)
        return locked


def removed(locked: Locked, failures: Container[int]) -> Locked:
    """The messages whose removal is durable. They must be handed over, because no other client can get
    them."""
    return without(locked, failures) if failures else locked


async def remove(handle: PartitionHandle, locked: Locked) -> Locked:
    """Remove messages that were just locked; returns those that were removed.

    If the partition refuses, releases the messages and raises its Refused. Raises Refused(LOCK_LOST) if no
    message could be removed.
    """
    settled = await answer_of(handle, Complete(locked.tokens))
    if isinstance(settled, Refused):
        await give_back(handle, locked.tokens)
        raise without_lock(settled)
    assert isinstance(settled, Settled), f"{settled} is not an answer to Complete"
    if len(settled.failures) == len(locked.tokens):
        raise lock_lost()
    return removed(locked, settled.failures)
