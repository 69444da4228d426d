"""broker/maintenance/giving_up.py: the numbers it begins with. What it does to folders is in
tests/crash/test_given_up_folder.py."""

from __future__ import annotations

from pathlib import Path

from broker.cli.repair import lost_text
from broker.identifiers import PARTITION_SHIFT, partition_of
from broker.maintenance.giving_up import GivenUp, LostPartition, first_number

NOW_MS = 1_800_000_000_000


def test_new_numbers_belong_to_the_partition_and_leave_room_for_ever() -> None:
    for partition in (0, 3, 255):
        number = first_number(partition, NOW_MS)
        assert partition_of(number) == partition
        later = first_number(partition, NOW_MS + 1_000)
        assert later - number == 1 << 15, "more than a partition stores in a second, on average"
        century_ms = 100 * 365 * 86_400_000
        counter_max = (1 << PARTITION_SHIFT) - 1
        assert first_number(0, NOW_MS + century_ms) < counter_max


def test_what_is_known_and_what_is_not_are_counted_apart() -> None:
    parts = [
        LostPartition("q", "g", number, held, last)
        for number, held, last in ((0, 3, None), (1, None, 5), (2, None, None))
    ]
    plan = GivenUp(Path("/lost"), 1, Path("/new"), parts)
    assert (plan.messages, plan.uncertain) == (3, 2)
    assert [lost_text(each) for each in parts] == ["3", "not known; 5 when last counted", "not known"]
    assert plan.as_json()["partitions"][1] == {
        "queue": "q", "entity": "g", "partition": 1, "messages": None, "last_known": 5
    }  # fmt: skip
