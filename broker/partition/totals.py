"""How many messages each subqueue of a partition holds, and how large they are, apart from locks. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from broker.partition.messages import Messages
from broker.partition.subqueue import Subqueue

_Row = tuple[int, int, int, int, int]
"""Of a subqueue: messages, how many of them are deferred and scheduled, the bytes that they take in the
quota, and how many of these bytes are the messages as they were sent."""
_NOTHING = (0, 0, 0, 0, 0)

Sums = Mapping[int, tuple[int, int, int, int]]
"""By number of the subqueue: messages, how many of them are deferred and scheduled, and bytes. In a topic,
stored messages count once, as the topic's own."""


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
        for number in work.touched:
            subqueue = work.occupied.get(number)
            if subqueue is not None:
                rows[number] = _row_of(subqueue)
            else:
                rows.pop(number, None)
        work.touched.clear()
        self._stored_bytes = _stored_bytes(self._messages)

    def sums(self) -> Sums:
        """What was noted. Indexes of sessions count as they are now."""
        return _sums(self._messages, self._rows, self._stored_bytes)


def totals_of(messages: Messages) -> Sums:
    """The totals now. Looks at all subqueues that hold anything."""
    rows = {number: _row_of(subqueue) for number, subqueue in messages.work.occupied.items()}
    return _sums(messages, rows, _stored_bytes(messages))


def _row_of(subqueue: Subqueue) -> _Row:
    size = subqueue.size_bytes - subqueue.session_bytes
    return subqueue.references.count, subqueue.deferred, subqueue.scheduled, size, subqueue.bytes


def _stored_bytes(messages: Messages) -> int | None:
    """The bytes of messages that subqueues share; None if they share none."""
    return messages.live_bytes if messages.bodies else None


def _sums(messages: Messages, rows: Mapping[int, _Row], stored_bytes: int | None) -> Sums:
    indexed = messages.work.indexed
    sums: dict[int, tuple[int, int, int, int]] = {}
    for number in rows.keys() | indexed.keys():
        count, deferred, scheduled, size, sent = rows.get(number, _NOTHING)
        if stored_bytes is not None:
            size -= sent
        if number in indexed:
            size += indexed[number].session_bytes
        sums[number] = count, deferred, scheduled, size
    if stored_bytes is not None:
        count, deferred, scheduled, size = sums.get(0, (0, 0, 0, 0))
        sums[0] = count, deferred, scheduled, size + stored_bytes
    return sums
