"""Messages that were abandoned with a delay: they keep their sequence numbers, and are offered again after
it. Pure.

Until then a message is held by a lease that no client knows, so nothing else in the partition has to know of
delays: the message counts as locked, is not handed out, and expires when the lease ends. The end of a delay
counts no delivery; the abandon has counted one.

Leases are volatile. `delays.py` keeps the ends of all delays durably, and `restore` makes the leases again
when the partition is opened.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

from broker.partition.delays import Delays, delayed
from broker.partition.references import Reference
from broker.partition.subqueue import Subqueue
from broker.partition.workspace import Workspace

RESTORED_AT_ONCE = 512
"""Entries that one step of `restore` handles: less than a millisecond."""


def delay(space: Workspace, subqueue: Subqueue, references: Sequence[Reference], delay_ms: int) -> None:
    """Offer messages again after a delay. Their locks have just ended."""
    cycle = space.cycle
    numbers = [reference.sequence_number for reference in references]
    space.record(delayed(cycle.wall_ms + delay_ms, numbers))
    until_ms = cycle.now_ms + delay_ms
    if space.held is not None:
        space.held.append(lambda: _hold(space, subqueue, references, until_ms))
    else:
        _hold(space, subqueue, references, until_ms)


def ended(space: Workspace, references: Sequence[Reference]) -> None:
    """The delay of these messages has ended. Where the clock was set back meanwhile, wall time has not
    reached the noted end: forget it, or a restart would hold the messages until then."""
    delays, wall_ms = space.messages.states.of(Delays), space.cycle.wall_ms
    numbers = [each.sequence_number for each in references if delays.lasts(each.sequence_number, wall_ms)]
    if numbers:
        space.record(delayed(0, numbers))


def restore(space: Workspace, wall_ahead_ms: int) -> Iterator[int]:
    """Hold delayed messages again after the partition was opened, in steps. `wall_ahead_ms` is how far wall
    time is ahead of monotonic time."""
    found: dict[tuple[int, int], list[Reference]] = {}
    delays = [state.entries() for state in space.messages.states.all if isinstance(state, Delays)]
    for seen, (number, until_ms) in enumerate(chain.from_iterable(delays)):
        for subqueue in space.messages.work.occupied.values():
            reference = subqueue.references.get(number)
            if reference is not None:
                found.setdefault((subqueue.number, until_ms), []).append(reference)
        if seen % RESTORED_AT_ONCE == RESTORED_AT_ONCE - 1:
            yield RESTORED_AT_ONCE
    for (subqueue_number, until_ms), references in found.items():
        for start in range(0, len(references), RESTORED_AT_ONCE):
            part = references[start : start + RESTORED_AT_ONCE]
            _hold(space, space.subqueues[subqueue_number], part, until_ms - wall_ahead_ms)
            yield len(part)


def _hold(space: Workspace, subqueue: Subqueue, references: Sequence[Reference], until_ms: int) -> None:
    lease = space.locks.new_lease(subqueue.number, until_ms)
    lease.is_delay = True
    subqueue.lock_by_number(references, lease)
    space.locks.start(lease)
