"""The rows of messages in a checkpoint, and the references that are made of them. Pure.

`snapshot.py` and `snapshot_v1.py` say in which tables the rows are.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import NamedTuple

from broker.partition import columns
from broker.partition._untracked import untrack
from broker.partition.columns import NO_COLUMNS, Columns
from broker.partition.references import Reference, StoredFrame
from broker.partition.replaying import state_of


class Rows(NamedTuple):
    """The tables of some messages, with a row for each of them. The places are among the frames."""

    numbers: Sequence[int]
    """Sequence numbers, less one that they have in common."""
    enqueued: Sequence[int]
    expiries: Sequence[int]
    """0 for never; empty if no message has one."""
    places: Sequence[int]
    """Of each message's frame, among those of the checkpoint or block."""
    offsets: Sequence[int]
    sizes: Sequence[int]
    deliveries: Sequence[int]
    """Delivery counts; empty if all are 0."""
    states: Sequence[int]
    """Empty if all messages are active."""


def references_of(
    rows: Rows, frames: Sequence[StoredFrame], first: int = 0, column_lists: Columns = NO_COLUMNS
) -> list[Reference]:
    """The messages of these rows, without changed properties. `first` is what their numbers have in common.
    Raises UnreadableRecord."""
    # Let equal times and sizes share one object each; reading a table creates one per message.
    shared: dict[int, int] = {}
    share = shared.setdefault
    references = list(
        map(
            columns.class_for(column_lists),
            map(first.__add__, rows.numbers),
            map(frames.__getitem__, rows.places),
            rows.offsets,
            map(share, rows.sizes, rows.sizes),
            map(share, rows.enqueued, rows.enqueued),
            [share(each, each) or None for each in rows.expiries] if rows.expiries else repeat(None),
        )
    )
    untrack(references)
    columns.give(references, column_lists)
    for place in rows.places:
        frames[place].live += 1
    for reference, delivery_count in zip(references, rows.deliveries, strict=False):
        reference.delivery_count = delivery_count
    for reference, state in zip(references, rows.states, strict=False):
        reference.state = state_of(state)
    return references
