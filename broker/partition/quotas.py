"""The quotas of a partition: for its messages, and for the properties that settlements change. Pure.

Each partition may hold the entity's whole `max_size_mb`, so a partitioned entity can hold a multiple of it
(HTTP contract 3.2). A message counts with its size as sent, its changed properties, and
MESSAGE_OVERHEAD_BYTES for its state, so a quota limits memory as well. The other durable state of a partition
(`durable_state.py`) also counts.

Changed properties stay in memory, up to 64 KiB per message. They are refused only when they alone would
exceed the whole quota: a full queue can still dead-letter with a reason, and yet abandoning and deferring
cannot add properties without limit. While memory is scarce in the whole broker, a settlement may change only
a few properties, the states of sessions stay small, and all of them together may add only so much to what was
there (`payloads.py`). Before that, they may grow up to the memory mark and a little beyond it. Messages with
the same changed properties share them (`changed_properties.py`), so in memory these count once. A settlement
counts with the most that it may take: each different value that its messages have, with the change that is
merged into it. A settlement that changes none is never refused here: it frees memory or uses none.

The same holds for a full disk: what adds to durable state may add little at once, and only as much in all as
the disk has left for it (`check_growth`). So the room that is kept for settlements is left to those that free
some.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from broker.base.errors import Reason, Refused
from broker.entities.descriptions import MESSAGE_OVERHEAD_BYTES, EntityDescription
from broker.partition.bodies import Bodies
from broker.partition.columns import value_bytes
from broker.partition.payloads import PayloadShare
from broker.partition.references import Reference

MIB = 1024 * 1024
SCARCE_CHANGE_BYTES_MAX = 1024
"""How many bytes a settlement may change in each message while memory is scarce: enough for a dead-letter
reason and a sentence. The state of a session may not grow beyond it either."""

FULL_DISK_GROWTH_BYTES_MAX = 1024
"""As much may be added to each message, or to a session, by one operation while the disk is full."""


class DiskRoom(Protocol):
    """What the disk says of its room, as `storage.log.Log` does."""

    @property
    def is_full(self) -> bool:
        """Whether there is no room for new messages."""

    def take_growth(self, each: int, count: int = 1) -> int:
        """How many of `count` additions of `each` bytes to durable state may be made, apart from new
        messages. All of them, unless the disk is full; then few, and those allowed are counted."""


def check_size(description: EntityDescription, number: int, used: int, added: int) -> None:
    """Check that there is room for `added` bytes of messages or state in a partition that holds `used`. What
    does not grow fits, also if the quota was lowered. Raises Refused(QUOTA_EXCEEDED)."""
    limit = description.settings.max_size_mb * MIB
    if added > 0 and used + added > limit:
        raise Refused(
            Reason.QUOTA_EXCEEDED,
            f"The maximum entity size has been reached or exceeded for {description.KIND}: "
            f"'{description.name}', partition {number}. "
            f"Size of partition in bytes: {used}, Max partition size in bytes: {limit}",
        )


def room_of(description: EntityDescription, used: int) -> int:
    """How many more bytes of messages or state a partition that holds `used` may hold."""
    return description.settings.max_size_mb * MIB - used


def freed_by(references: Sequence[Reference], bodies: Bodies) -> int:
    """How many bytes of a partition's quota messages give back at least when they are removed."""
    if not references:
        return 0
    freed = value_bytes(references) + MESSAGE_OVERHEAD_BYTES * len(references)
    for reference in references:
        freed += len(reference.changed or b"")
        if not bodies.is_shared(reference):
            freed += reference.size
    return freed


def check_state(payloads: PayloadShare, size: int, added: int) -> None:
    """Check that the state of a session may grow by `added` bytes to this size. Raises Refused(SERVER_BUSY)
    while memory is scarce, but not for a small state: a client that works on a session must be able to
    finish, which frees memory."""
    if payloads.is_scarce and size > SCARCE_CHANGE_BYTES_MAX:
        raise Refused(
            Reason.SERVER_BUSY,
            "The broker has little memory left, so the state of a session may grow to at most "
            f"{SCARCE_CHANGE_BYTES_MAX} bytes; this one has {size}. Please wait 2 seconds and try again.",
        )
    _check_memory(payloads, added)


def _check_memory(payloads: PayloadShare, added: int) -> None:
    if not payloads.may_grow(added):
        raise _no_room(added)


def _no_room(size: int) -> Refused:
    return Refused(
        Reason.SERVER_BUSY,
        "The broker has little memory left, and changed properties and the states of sessions have taken "
        f"what there was for them: there is no room for {size} bytes more. Settle messages without "
        "changing their properties; completing some makes room.",
    )


def check_growth(disk: DiskRoom, number: int, each: int, messages: int = 1) -> bool:
    """Check that `each` bytes of durable state may be added to each of some messages. Returns whether the
    disk has counted them, because it is full. Raises Refused(DISK_FULL) if it has no room for them."""
    is_full = disk.is_full
    if is_full and (each > FULL_DISK_GROWTH_BYTES_MAX or not disk.take_growth(each * messages)):
        raise Refused(
            Reason.DISK_FULL,
            f"Partition {number}: the disk is full, so there is no room for {each * messages} bytes of "
            "properties or state. Complete messages to make room, or try again later.",
        )
    return is_full


def check_changes(
    description: EntityDescription,
    number: int,
    used: int,
    payloads: PayloadShare,
    change: bytes,
    messages: int,
    memory: int,
    added: int = 0,
    taken: int = 0,
) -> None:
    """Check that a settlement may change properties of some messages. Raises Refused(QUOTA_EXCEEDED), or
    Refused(SERVER_BUSY) if memory is scarce or becomes so.

    `used` are the bytes of all changed properties in the partition, summed over the messages. `memory` is
    what the changed properties take once they are merged with those that the messages have. `added` and
    `taken` are the bytes (summed over the messages) and the memory of changes earlier in the same
    transaction.
    """
    if payloads.is_scarce and len(change) > SCARCE_CHANGE_BYTES_MAX:
        raise Refused(
            Reason.SERVER_BUSY,
            "The broker has little memory left, so a settlement may change at most "
            f"{SCARCE_CHANGE_BYTES_MAX} bytes of properties; "
            f"these take {len(change)}. Please wait 2 seconds and try again.",
        )
    size = len(change) * messages
    _check_memory(payloads, memory + taken)
    limit = description.settings.max_size_mb * MIB
    used += added
    if used + size > limit:
        raise Refused(
            Reason.QUOTA_EXCEEDED,
            f"Properties changed by settlements take {used} bytes in partition {number} of "
            f"'{description.name}', and {limit} are the "
            "maximum. Settle the messages without changing their properties.",
        )
    if not (payloads.is_scarce or payloads.take_room(memory)):
        raise _no_room(memory)
