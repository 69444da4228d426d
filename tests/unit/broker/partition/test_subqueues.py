"""The subqueues of one partition: made when they are needed, and abandoned when they are deleted."""

from __future__ import annotations

import pytest

from broker.base.errors import Refused
from broker.entities.descriptions import QUEUE_SUBQUEUES
from broker.entities.roles import SERVES_RECEIVERS, SubqueueDescription, SubqueueTable
from broker.partition.references import Reference, StoredFrame
from broker.partition.subqueues import Subqueues
from broker.partition.tables import UnreadableRecord
from storage.log import Position


def table(*others: int, end: int = 1000) -> SubqueueTable:
    """A queue's subqueues, and others with these numbers."""
    added = {number: SubqueueDescription(f"s{number}", SERVES_RECEIVERS) for number in others}
    return SubqueueTable({**QUEUE_SUBQUEUES, **added}, end)


def test_the_own_subqueues_of_an_entity_are_there_and_the_others_when_they_are_needed() -> None:
    subqueues = Subqueues(table(*range(4, 400)), 20)
    assert [each.number for each in subqueues] == [0, 1, 2, 3]
    assert subqueues.find("s77") is subqueues[77]
    assert len(subqueues) == 5
    with pytest.raises(Refused):
        subqueues.find("s400")


def test_a_subqueue_that_was_deleted_is_abandoned_and_its_name_is_free() -> None:
    subqueues = Subqueues(table(8), 20)
    before = subqueues.find("s8")
    before.bring_back([Reference(1, StoredFrame(Position(0)), 0, 1, 0, None)])
    assert subqueues.abandoned() == []
    named_alike = SubqueueDescription("s8", SERVES_RECEIVERS)
    subqueues.describe(SubqueueTable({**QUEUE_SUBQUEUES, 12: named_alike}, 16))
    assert subqueues.abandoned() == [before] and before.name != "s8"
    assert subqueues.find("s8").number == 12


def test_what_a_log_says_of_a_deleted_subqueue_is_understood_but_not_of_one_that_never_was() -> None:
    subqueues = Subqueues(table(end=16), 20)
    assert subqueues[12].role.enforces_time_to_live is False
    with pytest.raises(UnreadableRecord):
        subqueues[16]
