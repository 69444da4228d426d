"""Moving messages to the dead-letter subqueue, and the reasons that the broker itself gives (AMQP contract
10.3, 10.4). Pure.

A client that dead-letters a message gives its own reason. Messages already in a dead-letter subqueue stay
there.
"""

from __future__ import annotations

from collections.abc import Sequence

from broker.message.changes import DEAD_LETTER_DESCRIPTION, DEAD_LETTER_REASON, encode_changes
from broker.partition import records
from broker.partition.records import Mark
from broker.partition.references import Reference
from broker.partition.subqueue import Subqueue
from broker.partition.workspace import Workspace


def _reason(reason: str, description: str) -> bytes:
    changed = encode_changes({DEAD_LETTER_REASON: reason, DEAD_LETTER_DESCRIPTION: description})
    assert changed is not None, "it changes properties"
    return changed


MAX_DELIVERIES = _reason(
    "MaxDeliveryCountExceeded", "Message could not be consumed after maximum delivery attempts."
)
EXPIRED = _reason("TTLExpiredException", "The message expired and was dead lettered.")


def dead_letter(
    space: Workspace,
    subqueue: Subqueue,
    references: Sequence[Reference],
    changed: bytes | None,
    counts_delivery: bool = False,
) -> None:
    """Move messages to the dead-letter subqueue. `changed`: the properties that give the reason.
    `counts_delivery`: the move follows a failed delivery, which is counted."""
    target = subqueue.dead_letters_to
    assert target is not None, "its messages go no further"
    numbers = [reference.sequence_number for reference in references]
    space.cycle.dead_lettered += len(numbers)
    space.cycle.arrived_in.add(target)
    space.mark(Mark(records.MOVED, subqueue.number, numbers, changed, target, counts_delivery))


def fail_transfer(
    space: Workspace, subqueue: Subqueue, references: Sequence[Reference], changed: bytes | None
) -> None:
    """Move messages that another entity does not take to the transfer dead-letter subqueue. `changed`: the
    properties that give the reason."""
    target = subqueue.transfers_fail_to
    assert target is not None, "none of its messages are forwarded"
    numbers = [reference.sequence_number for reference in references]
    space.cycle.dead_lettered += len(numbers)
    space.cycle.arrived_in.add(target)
    space.mark(Mark(records.MOVED, subqueue.number, numbers, changed, target))
