"""How many messages each subqueue of a partition holds, and how large they are, apart from locks. Pure.

In a topic, several subqueues may refer to one stored message, so no subqueue of a subscription counts what is
stored: that is the topic's own, once. A subscription's bytes are those that its references take.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from broker.entities.roles import DISTRIBUTES
from broker.partition.messages import Messages
from broker.partition.subqueue import Subqueue

_Row = tuple[int, int, int, int, int]
"""Of a subqueue: messages, how many of them are deferred and scheduled, the bytes that they take in the
quota, and how many of these bytes are the messages as they were sent."""
_NOTHING = (0, 0, 0, 0, 0)

Sums = Mapping[int, tuple[int, int, int, int]]
"""By number of the subqueue: messages, how many of them are deferred and scheduled, and bytes."""


class Totals:
    """What all subqueues held when `note` was called last. That looks only at those that have changed since
    the call before, so it costs little in each cycle, however many subscriptions a topic has."""

    __slots__ = ("_messages", "_rows", "_stored_bytes")

    def __init__(self, messages: Messages) -> None:
        self._messages = messages
        self._rows: dict[int, _Row] = {}
        self._stored_bytes: int | None = None

    def note(self) -> None:
        """Take note of what there is now."""
        work, rows = self._messages.work, self._rows
        for number in work.changed.since_noted:
            subqueue = work.occupied.get(number)
            if subqueue is not None:
                rows[number] = _row_of(subqueue)
            else:
                rows.pop(number, None)
        work.changed.since_noted.clear()
        self._stored_bytes = _stored_bytes(self._messages)

    def sums(self) -> Sums:
        """What was noted. Indexes of sessions count as they are now."""
        numbers = self._rows.keys() | self._messages.work.indexed.keys()
        return _sums(self._messages, numbers, self._rows, self._stored_bytes)


def totals_of(messages: Messages, only: Collection[int] | None = None) -> Sums:
    """The totals now, of all subqueues that hold anything; or of `only` those, whether they do or not."""
    work = messages.work
    numbers = work.occupied.keys() | work.indexed.keys() if only is None else only
    rows = {number: _row_of(work.occupied[number]) for number in numbers if number in work.occupied}
    return _sums(messages, numbers, rows, _stored_bytes(messages))


def _row_of(subqueue: Subqueue) -> _Row:
    size = subqueue.message_bytes
    return subqueue.references.count, subqueue.deferred, subqueue.scheduled, size, subqueue.bytes


def _stored_bytes(messages: Messages) -> int | None:
    """The bytes of all messages of a topic; None in a queue, where each subqueue counts its own."""
    return messages.live_bytes if messages.main.role is DISTRIBUTES else None


def _sums(
    messages: Messages, numbers: Collection[int], rows: Mapping[int, _Row], stored_bytes: int | None
) -> Sums:
    indexed = messages.work.indexed
    sums: dict[int, tuple[int, int, int, int]] = {}
    for number in numbers:
        count, deferred, scheduled, size, sent = rows.get(number, _NOTHING)
        if stored_bytes is not None:
            size -= sent
        if number in indexed:
            size += indexed[number].session_bytes
        sums[number] = count, deferred, scheduled, size
    if stored_bytes:
        count, deferred, scheduled, size = sums.get(0, (0, 0, 0, 0))
        sums[0] = count, deferred, scheduled, size + stored_bytes
    return sums
