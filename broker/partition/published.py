"""Applies records with targets: what a topic got becomes references in its subscriptions. Pure.

A message has the same sequence number in all subqueues, and its bytes are in the log once. What differs is
its expiry, and whether it belongs to a session.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple, TypeVar, cast

from broker.partition import columns
from broker.partition._untracked import untrack
from broker.partition.columns import Columns
from broker.partition.messages import Messages
from broker.partition.postponing import activate, put_off
from broker.partition.records import Activated, Enqueued
from broker.partition.references import ColumnedReference, Reference, StoredFrame, bytes_of
from broker.partition.subqueue import Subqueue
from broker.partition.targets import Target, Targets
from storage.log import Position

WORK_AT_ONCE = 200
"""How much one of several steps adds: references, and `SUBQUEUE_WORK` for each subqueue. That takes about
half a millisecond, and twice as long if the subqueues are made first."""
WORK_IN_ALL = 512
"""What takes no more than this is added in one step: so a message for a hundred subscriptions is."""
SUBQUEUE_WORK = 4
"""What it takes to add anything to a subqueue: as much as so many references."""
PASSING_MAX = 4_096
"""Messages that may have their payloads in memory until a cycle ends, although there is no room for them."""
R = TypeVar("R")


class _Lives:
    """Expiries, each as one number object, and the deadlines that belong to them."""

    def __init__(self, begun_ms: int | None) -> None:
        """`begun_ms`: how far wall time was ahead of monotonic time when the lives began; None in a
        replay."""
        self._begun_ms = begun_ms
        self._shared: dict[int, int] = {}

    def of(self, expires_ms: int | None, target: Target, enqueued_ms: int) -> tuple[int | None, int | None]:
        """When a message expires in a subqueue: in wall time, and in monotonic time."""
        if target.bound_ms:
            bound_ms = enqueued_ms + target.bound_ms
            expires_ms = bound_ms if not expires_ms else min(expires_ms, bound_ms)
        if not expires_ms:
            return None, None
        expires_ms = self._shared.setdefault(expires_ms, expires_ms)
        if self._begun_ms is None:
            return expires_ms, None
        until_ms = expires_ms - self._begun_ms
        return expires_ms, self._shared.setdefault(until_ms, until_ms)


def apply_published(
    messages: Messages,
    position: Position,
    enqueued: Enqueued,
    payloads: Sequence[bytes] | None = None,
    now_ms: int | None = None,
) -> list[Reference]:
    """As `published_steps`, all at once."""
    return _all_at_once(published_steps(messages, position, enqueued, payloads, now_ms))


def published_steps(
    messages: Messages,
    position: Position,
    enqueued: Enqueued,
    payloads: Sequence[bytes] | None = None,
    now_ms: int | None = None,
    passing: int = 0,
) -> Generator[None, None, list[Reference]]:
    """Add new messages to their targets, in steps. Nothing else may happen to the partition before the last
    one; what all subqueues hold together is right after each. Returns the references whose payloads must
    leave memory after this cycle, because there is no room for them. If there are very many such references
    in the cycle, `passing` before this one, payloads are not kept even until then: whoever hands the messages
    out reads them from the log.

    `payloads` and `now_ms` (monotonic time) are None in a replay.
    """
    first, enqueued_ms, sizes, expiries, offset, column_lists, scheduled_ms, targets = enqueued
    assert targets is not None and first >= messages.next_number, "sequence numbers never come back"
    keeps = payloads is not None and messages.payloads.take(sum(sizes))
    frame = messages.frame_at(position)
    offsets = list(accumulate(sizes[:-1], initial=offset))
    numbers = list(range(first, first + len(sizes)))
    begun_ms = None if now_ms is None else enqueued_ms - now_ms
    if begun_ms is not None:
        messages.clock_settings.add(first, begun_ms)
    counts = _counts(targets)
    frame.live += sum(counts)
    passes = payloads is not None and not keeps and passing + sum(counts) <= PASSING_MAX
    messages.next_number = first + len(sizes)
    messages.latest_enqueued_ms = enqueued_ms
    lives = _Lives(begun_ms)
    passed: list[Reference] = []
    for part in _parts(targets):
        if not part.is_all:
            yield
        for subqueue_number, chosen in part.gains:
            some_columns = _columns_of(column_lists, chosen)
            make = columns.class_for(some_columns)
            references: list[Reference] = []
            for place, target in chosen:
                reference = make(numbers[place], frame, offsets[place], sizes[place], enqueued_ms, None)
                if payloads is not None and (keeps or passes):
                    reference.payload = payloads[place]
                expires_ms = expiries[place] if expiries is not None else None
                reference.expires_at_ms, reference.lives_until_ms = lives.of(expires_ms, target, enqueued_ms)
                references.append(reference)
            columns.give(references, some_columns)
            due_ms = [] if scheduled_ms is None else [scheduled_ms[place] for place, _ in chosen]
            _append(messages, messages.subqueues[subqueue_number], references, position, due_ms)
            if passes:
                passed += references
        for place, count in part.references(counts):
            payload = payloads[place] if payloads is not None and keeps else b""
            messages.bodies.add(numbers[place], sizes[place], count, payload)
    return passed


def apply_distributed(messages: Messages, activated: Activated, now_ms: int | None) -> None:
    """As `distributed_steps`, all at once."""
    _all_at_once(distributed_steps(messages, activated, now_ms))


def distributed_steps(
    messages: Messages, activated: Activated, now_ms: int | None
) -> Generator[None, None, None]:
    """Move scheduled messages that have become active to their targets, in steps. Nothing else may happen to
    the partition before the last one. `now_ms` is None in a replay."""
    first, enqueued_ms, old_numbers, targets = activated
    assert targets is not None and first >= messages.next_number, "sequence numbers never come back"
    main = messages.main
    messages.blocks.touch(main.number, old_numbers, messages.position)
    before = main.remove(old_numbers)
    activate(before, activated, now_ms)
    begun_ms = None if now_ms is None else enqueued_ms - now_ms
    if begun_ms is not None:
        messages.clock_settings.add(first, begun_ms)
    counts = _counts(targets)
    for reference, count in zip(before, counts, strict=True):
        if count:
            messages.renumbered.add(reference)
            reference.frame.live += count - 1
        else:
            messages.forget([reference])
    messages.next_number, messages.latest_enqueued_ms = first + len(before), enqueued_ms
    lives = _Lives(begun_ms)
    for part in _parts(targets):
        if not part.is_all:
            yield
        for subqueue_number, chosen in part.gains:
            references: list[Reference] = []
            for place, target in chosen:
                reference = _copy_of(before[place], target)
                reference.expires_at_ms, reference.lives_until_ms = lives.of(
                    before[place].expires_at_ms, target, enqueued_ms
                )
                references.append(reference)
            _append(messages, messages.subqueues[subqueue_number], references, messages.position)
        for place, count in part.references(counts):
            reference = before[place]
            messages.bodies.add(reference.sequence_number, reference.size, count, reference.payload)


class _Part(NamedTuple):
    """What some of the subqueues get."""

    gains: Sequence[tuple[int, list[tuple[int, Target]]]]
    """The number of each subqueue, and the place of each message with its target."""
    is_all: bool
    """No other subqueue gets anything."""

    def references(self, counts: Sequence[int]) -> Iterable[tuple[int, int]]:
        """The place of each message that has several references, and how many of them are new. `counts`: how
        many references each message gets in all."""
        if self.is_all:
            found: Iterable[tuple[int, int]] = enumerate(counts)
        else:
            found = Counter(place for _, chosen in self.gains for place, _ in chosen).items()
        return [(place, count) for place, count in found if counts[place] > 1]


def _parts(targets: Targets) -> Iterator[_Part]:
    """Everything at once if that takes little; otherwise a part for each step."""
    gains = list(targets.by_subqueue().items())
    efforts = [SUBQUEUE_WORK + len(chosen) for _, chosen in gains]
    if sum(efforts) <= WORK_IN_ALL:
        if gains:
            yield _Part(gains, is_all=True)
        return
    for here in slices_of(efforts, WORK_AT_ONCE):
        yield _Part(gains[here], here.stop - here.start == len(gains))


def slices_of(efforts: Sequence[int], effort_max: int) -> Iterator[slice]:
    """Divide things of these efforts into slices; only one that holds a single thing may exceed the limit."""
    start = effort = 0
    for place, each in enumerate(efforts):
        if place > start and effort + each > effort_max:
            yield slice(start, place)
            start, effort = place, 0
        effort += each
    if start < len(efforts):
        yield slice(start, len(efforts))


def _counts(targets: Targets) -> list[int]:
    """How many references each message gets."""
    return [len(targets.sets[index]) for index in targets.of_messages]


def _all_at_once(steps: Generator[None, None, R]) -> R:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return cast(R, end.value)


def _append(
    messages: Messages,
    subqueue: Subqueue,
    references: list[Reference],
    position: Position,
    due_ms: Sequence[int] = (),
) -> None:
    """Append messages to a subqueue. `due_ms`: per message, when it is to be enqueued, in wall time, and 0
    for at once; empty if all are."""
    is_put_off = any(due_ms)
    if is_put_off:
        for reference, at_ms in zip(references, due_ms, strict=True):
            if at_ms:
                reference.lives_until_ms = None  # its time to live has not begun
    untrack(references)
    numbers = [reference.sequence_number for reference in references]
    messages.blocks.touch(subqueue.number, numbers, position)
    subqueue.append(references, numbers, bytes_of(references))
    subqueue.watch_each(references)
    if is_put_off:
        subqueue.postpone(put_off(references, due_ms))


def _columns_of(column_lists: Columns, chosen: Sequence[tuple[int, Target]]) -> Columns:
    """The columns of some messages in a subqueue. Without sessions there, they have none: a subscription's
    messages have no other column."""
    if not column_lists or not any(target.has_sessions for _, target in chosen):
        return columns.NO_COLUMNS
    return {
        name: [values[place] if target.has_sessions else None for place, target in chosen]
        for name, values in column_lists.items()
    }


def _copy_of(reference: Reference, target: Target) -> Reference:
    frame: StoredFrame = reference.frame
    session_id = reference.session_id
    make = ColumnedReference if target.has_sessions and session_id is not None else Reference
    copy = make(
        reference.sequence_number,
        frame,
        reference.offset,
        reference.size,
        reference.enqueued_at_ms,
        None,
        reference.payload,
    )
    if type(copy) is ColumnedReference:
        columns.give((copy,), {"session_id": [session_id]})
    return copy
