"""broker/maintenance/giving_up.py: the numbers it begins with. What it does to folders is in
tests/crash/test_given_up_folder.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.cli.repair import lost_text
from broker.identifiers import PARTITION_SHIFT, partition_of
from broker.maintenance.giving_up import CannotGiveUp, GivenUp, GivingUp, LostPartition, first_number
from storage.disk import LocalDisk
from storage.folders import arrange

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


def test_every_other_folder_that_is_there_must_be_named_so_that_it_learns_of_it(tmp_path: Path) -> None:
    a, b, c, d = (tmp_path / name for name in "abcd")
    arrange(LocalDisk(), [a, b, c])
    c.rename(tmp_path / "away")
    work = GivingUp([a, d], c)
    work.open()
    with pytest.raises(CannotGiveUp, match=f"{b} is a data folder of this broker, too: name it"):
        work.plan()
    work.close()
    b.rename(tmp_path / "also away")
    work.open()
    work.carry_out(work.plan())
    work.close()
    (tmp_path / "also away").rename(b)
    assert [folder.path for folder in arrange(LocalDisk(), [b, d, a])] == [a, b, d]


def test_what_was_given_up_is_said_again_when_asked_again(tmp_path: Path) -> None:
    a, b, c = (tmp_path / name for name in "abc")
    arrange(LocalDisk(), [a, b])
    b.rename(tmp_path / "away")
    for _ in range(2):
        work = GivingUp([a, c], b)
        work.open()
        plan = work.plan()
        work.carry_out(plan)
        work.close()
        assert (plan.done, plan.number, plan.place) == (True, 1, c)
