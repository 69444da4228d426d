"""Failed deliveries: the message becomes available again or, at the maximum delivery count, moves to the
dead-letter subqueue. Pure.

A delivery fails when the client abandons the message or its lock expires (`lock_expiry.py`; AMQP contract
10.3). Releasing a message that no client has seen does not count as a delivery, and dead-letter subqueues
count none. If the disk is full and has no room for the reason, a message that had its last delivery is given
back once more.
"""

from __future__ import annotations

from broker.message.changes import merge_changes
from broker.partition import records
from broker.partition.dead_lettering import MAX_DELIVERIES, dead_letter
from broker.partition.delaying import delay
from broker.partition.records import Mark
from broker.partition.references import Reference
from broker.partition.subqueue import Subqueue
from broker.partition.time_to_live import TimeToLive
from broker.partition.workspace import Workspace


def failed_delivery(
    space: Workspace,
    time_to_live: TimeToLive,
    subqueue: Subqueue,
    references: list[Reference],
    changed: bytes | None,
    delay_ms: int = 0,
) -> None:
    """Handle a failed delivery: give unlocked messages back, after a delay if there is one, or dead-letter
    those that had their last allowed delivery."""
    kind = records.RETURNED
    if (last := spent_from_of(space, subqueue)) is None:
        kind = records.CHANGED
    else:
        spent = [reference for reference in references if reference.delivery_count >= last]
        if spent:
            references = [reference for reference in references if reference.delivery_count < last]
            fitting = space.take_growth(len(MAX_DELIVERIES), len(spent))
            references += spent[fitting:]
            if fitting:
                changes = merge_changes(changed, MAX_DELIVERIES)
                dead_letter(space, subqueue, spent[:fitting], changes, counts_delivery=True)
    if references:
        if kind == records.RETURNED or changed is not None:
            space.mark(
                Mark(kind, subqueue.number, [reference.sequence_number for reference in references], changed)
            )
        if delay_ms:
            delay(space, subqueue, references, delay_ms)
        else:
            time_to_live.give_back(subqueue, references)


def spent_from_of(space: Workspace, subqueue: Subqueue) -> int | None:
    """How many failed deliveries a message has had when it is delivered for the last time; None if they are
    not counted."""
    if not subqueue.role.counts_deliveries:
        return None
    return space.description.delivery(subqueue.name).max_delivery_count - 1


def failing_together(space: Workspace, subqueue: Subqueue, references: list[Reference]) -> list[Reference]:
    """Those of these messages whose delivery may fail in this cycle: all of them, or the first ones if a
    reason must be merged with much (`MergingRoom`)."""
    if not subqueue.changed_bytes or (spent_from := spent_from_of(space, subqueue)) is None:
        return references
    properties = space.messages.work.properties
    fitting = space.cycle.merging_room.take(properties, references, None, spent_from).fitting
    return references[:fitting]
