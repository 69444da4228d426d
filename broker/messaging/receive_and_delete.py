"""Receive-and-delete: a message leaves the broker when its removal is durable (durability rule 2).

The messages are locked like all others and completed first. Those whose removal succeeded are handed over;
the client never settles them.
"""

from __future__ import annotations

from collections.abc import Container

from broker.base.errors import Refused
from broker.messaging.asking import answer_of, lock_lost
from broker.messaging.receive_cache import without
from broker.namespace.entity import next_client
from broker.namespace.router import PartitionHandle
from broker.operations import Answer, Complete, Locked, Release, Settled


class Removals:
    """Messages of one client whose removal is on its way to the log."""

    __slots__ = ("_by_cookie", "count")

    def __init__(self) -> None:
        self._by_cookie: dict[int, Locked] = {}
        self.count = 0
        """How many messages they are together."""

    def begin(self, locked: Locked, cookie: int) -> Complete:
        """Ask this of the partition; its answer has the cookie."""
        self._by_cookie[cookie] = locked
        self.count += len(locked.tokens)
        return Complete(locked.tokens, cookie)

    def end(self, cookie: int) -> Locked | None:
        """The partition has answered: the messages that were to be removed, or None if it is about something
        else."""
        locked = self._by_cookie.pop(cookie, None)
        if locked is not None:
            self.count -= len(locked.tokens)
        return locked


def removed(locked: Locked, failures: Container[int]) -> Locked:
    """Those whose removal is durable. Nobody else will ever have them, so they are to be handed over."""
    return without(locked, failures) if failures else locked


async def remove(handle: PartitionHandle, locked: Locked) -> Locked:
    """Remove messages that were locked a moment ago; gives those that were removed.

    What is not removed is released. Raises Refused if that is all.
    """
    settled = await answer_of(handle, Complete(locked.tokens))
    if isinstance(settled, Refused):
        handle.post(Release(locked.tokens), next_client(), _ignore)
        raise settled
    assert isinstance(settled, Settled), f"{settled} is no answer to Complete"
    if len(settled.failures) == len(locked.tokens):
        raise lock_lost()
    return removed(locked, settled.failures)


def _ignore(answer: Answer) -> None:
    """Nobody waits for it."""
