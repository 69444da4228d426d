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
from itertools import chain, islice

from broker.entities.roles import OWN_END
from broker.identifiers import PARTITION_SHIFT
from broker.partition._untracked import untrack
from broker.partition.delays import Delays, delayed
from broker.partition.references import Reference
from broker.partition.subqueue import Subqueue
from broker.partition.workspace import Workspace

_OF_SUBSCRIPTION = 1 << 15
"""Above all numbers of partitions."""
_COUNTER_MASK = (1 << PARTITION_SHIFT) - 1
RESTORED_AT_ONCE = 512
"""Entries that one step of `restore` handles: less than a millisecond."""


def delay(space: Workspace, subqueue: Subqueue, references: Sequence[Reference], delay_ms: int) -> None:
    """Offer messages again after a delay. Their locks have just ended."""
    cycle = space.cycle
    numbers = [_key_of(subqueue, reference) for reference in references]
    space.record(delayed(cycle.wall_ms + delay_ms, numbers))
    until_ms = cycle.now_ms + delay_ms
    if space.held is not None:
        space.held.append(lambda: _hold(space, subqueue, references, until_ms))
    else:
        _hold(space, subqueue, references, until_ms)


def ended(space: Workspace, subqueue: Subqueue, references: Sequence[Reference]) -> None:
    """The delay of these messages has ended. Where the clock was set back meanwhile, wall time has not
    reached the noted end: forget it, or a restart would hold the messages until then."""
    delays, wall_ms = space.messages.states.of(Delays), space.cycle.wall_ms
    keys = [_key_of(subqueue, each) for each in references]
    numbers = [key for key in keys if delays.lasts(key, wall_ms)]
    if numbers:
        space.record(delayed(0, numbers))


def restore(space: Workspace, wall_ahead_ms: int) -> Iterator[int]:
    """Hold delayed messages again after the partition was opened, in steps. `wall_ahead_ms` is how far wall
    time is ahead of monotonic time."""
    kinds = [state.entries() for state in space.messages.states.all if isinstance(state, Delays)]
    entries = chain.from_iterable(kinds)
    while part := list(islice(entries, RESTORED_AT_ONCE)):
        found: dict[tuple[int, int], list[Reference]] = {}
        for key, until_ms in part:
            for subqueue, number in _places_of(space, key):
                reference = subqueue.references.get(number)
                if reference is not None:
                    found.setdefault((subqueue.number, until_ms), []).append(reference)
        for (subqueue_number, until_ms), references in found.items():
            _hold(space, space.subqueues[subqueue_number], references, until_ms - wall_ahead_ms)
        yield len(part)


def _key_of(subqueue: Subqueue, reference: Reference) -> int:
    """What a delayed message is noted as: its sequence number. Several subscriptions may have a message of
    the same number, so the number of the subscription is in the upper bits there, and one bit says so."""
    number = reference.sequence_number
    if subqueue.number < OWN_END:
        return number
    return (_OF_SUBSCRIPTION | subqueue.number // OWN_END) << PARTITION_SHIFT | number & _COUNTER_MASK


def _places_of(space: Workspace, key: int) -> Iterator[tuple[Subqueue, int]]:
    """Where a delayed message may be: subqueues that hold messages, and its sequence number there."""
    occupied = space.messages.work.occupied
    upper = key >> PARTITION_SHIFT
    if upper & _OF_SUBSCRIPTION:
        first = (upper ^ _OF_SUBSCRIPTION) * OWN_END
        for place in range(first, first + OWN_END):
            if place in occupied:
                yield occupied[place], key & _COUNTER_MASK | space.messages.first_number
    else:
        for subqueue in occupied.values():
            yield subqueue, key


def _hold(space: Workspace, subqueue: Subqueue, references: Sequence[Reference], until_ms: int) -> None:
    lease = space.locks.new_lease(subqueue.number, until_ms)
    lease.is_delay = True
    untrack([lease])  # no client has it, and its end or `Messages.drop` frees its messages of it
    subqueue.lock_by_number(references, lease)
    space.locks.start(lease)
