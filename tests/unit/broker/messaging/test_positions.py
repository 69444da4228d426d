"""Positions belong to partitions, one to each."""

from __future__ import annotations

import pytest

from broker.base.errors import Reason, Refused
from broker.identifiers import PARTITION_SHIFT
from broker.messaging.positions import by_partition
from tests.support.link_stack import LinkStack


def at(partition: int, number: int) -> int:
    return partition << PARTITION_SHIFT | number


async def test_positions_are_sorted_by_partition() -> None:
    queue = LinkStack(3).queue
    assert by_partition(queue, [at(2, 7), at(0, 5)]) == {2: at(2, 7), 0: at(0, 5)}
    for wrong in ([at(3, 1)], [-1], [at(1, 1), at(1, 1)]):
        with pytest.raises(Refused) as refused:
            by_partition(queue, wrong)
        assert refused.value.reason is Reason.ARGUMENT
