"""broker/messaging/fail_over.py: which other partition is tried, for how long, and what is reported."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from broker.base.errors import Reason, Refused
from broker.messaging.fail_over import WITHIN_S, another_partition, fail_over, refusal_of, refusal_of_all
from broker.operations.general import Failed
from tests.support.link_stack import LinkStack

FULL = Failed(Reason.QUOTA_EXCEEDED, "full", None)


@dataclass
class Messages:
    number: int | None
    began: float = 0.0
    refused_by: dict[int, Reason] = field(default_factory=dict)


@pytest.mark.parametrize(
    ("reason", "after_s", "expected"),
    [
        (Reason.PARTITION_UNAVAILABLE, 0.0, 1),
        (Reason.QUOTA_EXCEEDED, WITHIN_S, 1),
        (Reason.QUOTA_EXCEEDED, WITHIN_S + 0.1, None),
        (Reason.DISK_FULL, 0.0, None),  # both partitions are on the same disk
        (Reason.SERVER_BUSY, 0.0, None),
    ],
)
async def test_another_partition_is_tried_if_it_may_help_and_there_is_time(
    reason: Reason, after_s: float, expected: int | None
) -> None:
    queue = LinkStack(2).queue
    refused_by: dict[int, Reason] = {}
    number = another_partition(queue, 0, reason, refused_by, 1, began=100.0, now=100.0 + after_s)
    assert number == expected and refused_by == ({} if expected is None else {0: reason})


async def test_each_partition_is_tried_once() -> None:
    queue, refused_by = LinkStack(2).queue, dict[int, Reason]()
    down = Reason.PARTITION_UNAVAILABLE
    assert another_partition(queue, 0, down, refused_by, 1, began=0.0, now=0.0) == 1
    assert another_partition(queue, 1, down, refused_by, 1, began=0.0, now=0.0) is None


async def test_a_queue_is_full_if_all_its_partitions_are() -> None:
    queue, full = LinkStack(2).queue, Refused(Reason.QUOTA_EXCEEDED, "full")
    both = dict.fromkeys((0, 1), Reason.QUOTA_EXCEEDED)
    assert refusal_of_all(queue, both, full) is full
    one = refusal_of_all(queue, both | {0: Reason.PARTITION_UNAVAILABLE}, full)
    assert one.reason is Reason.PARTITION_UNAVAILABLE and "1 of the 2" in one.description
    assert one.description.endswith("Please try again.")


async def test_who_must_act_is_said_if_the_partitions_that_are_not_full_are_damaged() -> None:
    stack = LinkStack(2)
    stack.queue.partition(0).health = "damaged"  # type: ignore[misc]
    refused_by = {0: Reason.PARTITION_UNAVAILABLE, 1: Reason.QUOTA_EXCEEDED}
    why = refusal_of_all(stack.queue, refused_by, Refused(Reason.QUOTA_EXCEEDED, "full"))
    assert why.description.endswith("the others are not available. An operator must repair 0 (damaged).")


async def test_messages_move_on_until_no_partition_is_left() -> None:
    queue, messages = LinkStack(2).queue, Messages(0)
    assert fail_over(queue, messages, FULL, 1, 0.0) == messages.number == 1
    assert fail_over(queue, messages, FULL, 1, 0.0) is None
    assert refusal_of(queue, messages, FULL).reason is Reason.QUOTA_EXCEEDED


async def test_messages_with_a_key_stay_with_their_partition() -> None:
    queue, messages = LinkStack(2).queue, Messages(None)
    assert fail_over(queue, messages, FULL, 1, 0.0) is None and not messages.refused_by
    assert refusal_of(queue, messages, FULL).reason is Reason.QUOTA_EXCEEDED
