"""What a partition may hold: messages, and the properties that settlements change. Pure.

Each partition may hold the entity's whole `max_size_mb`, so a partitioned one holds a multiple (HTTP contract
3.2). A message counts with its bytes as it was sent, its changed properties and MESSAGE_OVERHEAD_BYTES for
its state, so a quota bounds memory too. What a partition keeps beside its messages (`durable_state.py`)
counts as well.

Changed properties rest in memory, up to 64 KiB for a message. They are refused where they alone would take
the whole quota: so a full queue still dead-letters with a reason, and what abandoning and deferring add has
an end. While memory is scarce in the whole broker, settlements may only change a little. A settlement without
changed properties is never refused here: it frees memory, or takes none.
"""

from __future__ import annotations

from collections.abc import Iterable

from broker.base.errors import Reason, Refused
from broker.entities.descriptions import QueueDescription
from broker.partition.payloads import PayloadShare
from broker.partition.subqueue import Subqueue

MIB = 1024 * 1024
SCARCE_CHANGE_BYTES_MAX = 1024
"""What a settlement may change of each message while memory is scarce: the reason of a dead-lettering and a
sentence."""


def check_size(
    description: QueueDescription, number: int, subqueues: Iterable[Subqueue], state_bytes: int, added: int
) -> None:
    """`added` bytes are to be stored: messages, or state, which takes `state_bytes` now. Raises
    Refused(QUOTA_EXCEEDED) if there is no room for them."""
    limit = description.settings.max_size_mb * MIB
    used = sum([subqueue.size_bytes for subqueue in subqueues]) + state_bytes
    if used + added > limit:
        raise Refused(
            Reason.QUOTA_EXCEEDED,
            f"The maximum entity size has been reached or exceeded for Queue: '{description.name}', "
            f"partition {number}. "
            f"Size of partition in bytes: {used}, Max partition size in bytes: {limit}",
        )


def check_changes(
    description: QueueDescription,
    number: int,
    subqueues: Iterable[Subqueue],
    payloads: PayloadShare,
    change: bytes | None,
    messages: int,
) -> None:
    """A settlement changes properties of some messages. Raises Refused: QUOTA_EXCEEDED, SERVER_BUSY while
    memory is scarce."""
    if change is None:
        return
    if payloads.is_scarce and len(change) > SCARCE_CHANGE_BYTES_MAX:
        raise Refused(
            Reason.SERVER_BUSY,
            "The broker has little memory left, so a settlement may change at most "
            f"{SCARCE_CHANGE_BYTES_MAX} bytes of properties; "
            f"these take {len(change)}. Please wait 2 seconds and try again.",
        )
    limit = description.settings.max_size_mb * MIB
    used = sum([subqueue.changed_bytes for subqueue in subqueues])
    if used + len(change) * messages > limit:
        raise Refused(
            Reason.QUOTA_EXCEEDED,
            f"Properties changed by settlements take {used} bytes in partition {number} of "
            f"'{description.name}', and {limit} are the "
            "maximum. Settle the messages without changing their properties.",
        )
