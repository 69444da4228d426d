"""Messages without a key that a partition refuses: which other partition may take them, and what the client
hears if none does.

A partition that refuses messages guarantees that they will never be read there, so they cannot be stored
twice (except if a process ends while that disk still refuses, see `partition/task.py`). Each partition is
tried once, for WITHIN_S in all: a partition whose disk hangs takes seconds to say so, and the client must
hear in time that it can try again. A full disk counts only if the partitions are on several disks; otherwise
they would all write to the same one in vain.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from broker.base.errors import Reason, Refused
from broker.namespace.entity import Entity
from broker.operations.general import Failed

ONE_DISK = frozenset((Reason.PARTITION_UNAVAILABLE, Reason.QUOTA_EXCEEDED))
SEVERAL_DISKS = ONE_DISK | {Reason.DISK_FULL}
"""Reasons for which another partition may take what one refused, if the queue is in one data folder or in
several."""
WITHIN_S = 7.0
"""Try no further partition after this many seconds (clients wait 15 s and more for an outcome)."""


class Tried(Protocol):
    """Messages that partitions are asked to store, one after the other."""

    number: int | None
    """The partition that is asked now; None if a key pins them to theirs."""
    began: float
    """When the first one was asked."""
    refused_by: dict[int, Reason]
    """Partitions that refused them, and why."""


def fail_over(entity: Entity, tried: Tried, failed: Failed, count: int, now: float) -> int | None:
    """Choose another partition for `count` messages, in place of the one that has refused them. Returns its
    number; None if none may take them, or they have a key."""
    if tried.number is None:
        return None
    number = another_partition(
        entity, tried.number, failed.reason, tried.refused_by, count, began=tried.began, now=now
    )
    if number is not None:
        tried.number = number
    return number


def refusal_of(entity: Entity, tried: Tried, failed: Failed) -> Refused:
    """The refusal for the client, once no partition has taken the messages."""
    why = Refused(failed.reason, failed.description)
    return why if tried.number is None else refusal_of_all(entity, tried.refused_by, why)


def another_partition(
    entity: Entity,
    number: int,
    reason: Reason,
    refused_by: dict[int, Reason],
    count: int,
    *,
    began: float,
    now: float,
) -> int | None:
    """Partition `number` has refused `count` messages. Returns another one that may take them, or None.

    `refused_by` holds the partitions that refused them before. `began` is when the first one was asked.
    """
    if reason not in (ONE_DISK if entity.description.folders == 1 else SEVERAL_DISKS):
        return None
    if now - began > WITHIN_S:
        return None
    if reason is not Reason.PARTITION_UNAVAILABLE:
        entity.router.full(number, now)
    refused_by[number] = reason
    return entity.router.another(refused_by, count, now)


def refusal_of_all(entity: Entity, refused_by: Mapping[int, Reason], last: Refused) -> Refused:
    """The refusal for the client, given the partition's last one. A queue is full only if every partition is,
    because one that is down may come back with room."""
    partitions = entity.description.partitions
    others = [number for number in range(partitions) if refused_by.get(number) is not Reason.QUOTA_EXCEEDED]
    if last.reason is not Reason.QUOTA_EXCEEDED or not others:
        return last
    return Refused(
        Reason.PARTITION_UNAVAILABLE,
        f"{partitions - len(others)} of the {partitions} partitions of '{entity.name}' are full, the others "
        f"are not available. {entity.outlook(others)}",
    )
