"""Applies records with targets: what a topic got becomes references in its subscriptions. Pure.

A message has the same sequence number in all subqueues, and its bytes are in the log once. What differs is
its expiry, and whether it belongs to a session.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from broker.partition import columns
from broker.partition._untracked import untrack
from broker.partition.columns import Columns
from broker.partition.messages import Messages
from broker.partition.postponing import activate, put_off
from broker.partition.records import Activated, Enqueued
from broker.partition.references import ColumnedReference, Reference, StoredFrame, bytes_of
from broker.partition.subqueue import Subqueue
from broker.partition.targets import Target
from storage.log import Position


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
    """Add new messages to their targets. Returns the references whose payloads must leave memory after this
    cycle, because there is no room for them.

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
    lives = _Lives(begun_ms)
    passing: list[Reference] = []
    for subqueue_number, chosen in targets.by_subqueue().items():
        some_columns = _columns_of(column_lists, chosen)
        make = columns.class_for(some_columns)
        references: list[Reference] = []
        for place, target in chosen:
            reference = make(numbers[place], frame, offsets[place], sizes[place], enqueued_ms, None)
            if payloads is not None:
                reference.payload = payloads[place]
            expires_ms = expiries[place] if expiries is not None else None
            reference.expires_at_ms, reference.lives_until_ms = lives.of(expires_ms, target, enqueued_ms)
            references.append(reference)
        columns.give(references, some_columns)
        due_ms = [] if scheduled_ms is None else [scheduled_ms[place] for place, _ in chosen]
        _append(messages, messages.subqueues[subqueue_number], references, position, due_ms)
        if payloads is not None and not keeps:
            passing += references
    for place, index in enumerate(targets.of_messages):
        count = len(targets.sets[index])
        frame.live += count
        if count > 1:
            payload = payloads[place] if payloads is not None and keeps else b""
            messages.bodies.add(numbers[place], sizes[place], count, payload)
    messages.next_number = first + len(sizes)
    messages.latest_enqueued_ms = enqueued_ms
    return passing


def apply_distributed(messages: Messages, activated: Activated, now_ms: int | None) -> None:
    """Move scheduled messages that have become active to their targets. `now_ms` is None in a replay."""
    first, enqueued_ms, old_numbers, targets = activated
    assert targets is not None and first >= messages.next_number, "sequence numbers never come back"
    main = messages.main
    messages.blocks.touch(main.number, old_numbers, messages.position)
    before = main.remove(old_numbers)
    activate(before, activated, now_ms)
    begun_ms = None if now_ms is None else enqueued_ms - now_ms
    if begun_ms is not None:
        messages.clock_settings.add(first, begun_ms)
    lives = _Lives(begun_ms)
    for subqueue_number, chosen in targets.by_subqueue().items():
        references: list[Reference] = []
        for place, target in chosen:
            reference = _copy_of(before[place], target)
            reference.expires_at_ms, reference.lives_until_ms = lives.of(
                before[place].expires_at_ms, target, enqueued_ms
            )
            references.append(reference)
        _append(messages, messages.subqueues[subqueue_number], references, messages.position)
    for place, reference in enumerate(before):
        count = len(targets.sets[targets.of_messages[place]])
        if not count:
            messages.forget([reference])
            continue
        messages.renumbered.add(reference)
        reference.frame.live += count - 1
        if count > 1:
            messages.bodies.add(reference.sequence_number, reference.size, count, reference.payload)
    messages.next_number, messages.latest_enqueued_ms = first + len(before), enqueued_ms


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
