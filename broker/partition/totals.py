"""How many messages each subqueue of a partition holds, and how large they are, apart from locks. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from broker.partition.messages import Messages

Totals = Mapping[int, tuple[int, int, int, int]]
"""Of each subqueue with work, by number: messages, how many of them are deferred and scheduled, and bytes."""


def totals_of(messages: Messages) -> Totals:
    """The totals now. In a topic, stored messages count once, as the topic's own. Cheap enough for every
    cycle."""
    work = messages.work
    totals = {
        number: (subqueue.references.count, subqueue.deferred, subqueue.scheduled, subqueue.size_bytes)
        for held in (work.occupied, work.indexed)
        for number, subqueue in held.items()
    }
    return _shared_once(messages, totals) if messages.bodies else totals


def _shared_once(messages: Messages, totals: dict[int, tuple[int, int, int, int]]) -> Totals:
    held = messages.work.occupied
    for number, (count, deferred, scheduled, size) in totals.items():
        totals[number] = count, deferred, scheduled, size - held[number].bytes if number in held else size
    count, deferred, scheduled, size = totals.get(0, (0, 0, 0, 0))
    totals[0] = count, deferred, scheduled, size + messages.live_bytes
    return totals
