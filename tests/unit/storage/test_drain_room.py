"""storage/drain_room.py: what is left of a disk besides what draining needs."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.drain_room import SHORT_BYTES, UNKNOWN_BYTES, DrainRoom


def room_of(free: int) -> DrainRoom:
    room = DrainRoom()
    measure(room, free)
    return room


def measure(room: DrainRoom, free: int) -> None:
    assert room.measure(lambda: free) == free
    room.weigh()


def test_lasting_needs_add_up_and_of_the_passing_ones_the_largest_counts() -> None:
    room = room_of(1_000)
    assert room.left == 1_000
    room.keep("a", 100, 50)
    room.keep("b", 200, 70)
    assert room.left == 1_000 - 300 - 70
    room.keep("b", 200, 10)
    assert room.left == 1_000 - 300 - 50
    room.keep("a", 0, 20)
    assert room.left == 1_000 - 200 - 20
    room.forget("a")
    room.forget("a")
    assert room.left == 1_000 - 200 - 10
    room.keep("b", 2_000, 10)
    assert room.left == -1_010


def test_needs_of_many_logs_count_like_those_of_each() -> None:
    room = room_of(1_000)
    room.keep_all((number, (10, number)) for number in range(20))
    assert room.left == 1_000 - 200 - 19
    room.keep_all([(19, (0, 0)), (3, (100, 0))])
    assert room.left == 1_000 - 280 - 18
    room.keep_all([])
    assert room.left == 1_000 - 280 - 18


def test_commits_are_deducted_until_a_measurement_has_seen_them_for_sure() -> None:
    room = room_of(1_000)
    room.keep("a", 100, 0)
    room.take("a", 300)
    room.take("b", 100)
    assert room.left == 500 and room.free == 600, "what is free is not reduced by needs"
    room.end("a")
    room.measure(lambda: 700)
    room.take("a", 50)
    assert room.left == 700 - 100 - 50 - 100, "that of 100 may not be on the disk yet"

    def ends_meanwhile() -> int:
        room.end("b")
        return 600

    room.measure(ends_meanwhile)
    room.weigh()
    assert room.left == 600 - 100 - 50 - 100
    room.end("a")
    room.end("a")
    measure(room, 550)
    assert room.left == 450


def test_a_commit_that_does_not_begin_gives_its_room_back() -> None:
    room = room_of(1_000)
    room.take("a", 300)
    room.give_back("a")
    room.give_back("a")
    assert room.left == 1_000
    room.take("a", 300)
    room.measure(lambda: 800)
    room.take("b", 100)
    room.give_back("a")
    assert room.left == 700
    measure(room, 800)
    assert room.left == 700, "that of 100 may not be on the disk yet"


def test_a_commit_fits_only_with_what_its_log_needs_then() -> None:
    room = room_of(1_000)
    room.keep("a", 500, 0)
    assert room.fits("a", 400, lambda: (600, 0), urgent=False) and room.left == 400
    assert not room.fits("a", 400, lambda: (601, 0), urgent=False)
    assert room.left == 400, "a commit that is refused needs nothing"
    assert not room.fits("a", 400, lambda: (601, 0), urgent=True) and room.left == 399
    assert room.fits("b", 399, lambda: None, urgent=False)
    measure(room, 10 * SHORT_BYTES)
    assert room.fits("a", 400, lambda: pytest.fail("it is not asked while there is room"), urgent=False)


def test_it_is_short_when_little_is_left_in_bytes_or_compared_with_the_needs() -> None:
    room = DrainRoom()
    assert not room.is_short and room.left == UNKNOWN_BYTES
    measure(room, 2 * SHORT_BYTES)
    assert not room.is_short
    room.take("a", SHORT_BYTES + 1)
    room.end("a")
    assert room.is_short
    measure(room, 100 * SHORT_BYTES)
    assert not room.is_short
    room.keep("a", 90 * SHORT_BYTES, 0)
    assert room.is_short and room.left == 10 * SHORT_BYTES


def test_it_is_scarce_when_what_nobody_foresaw_takes_half_of_what_lasts() -> None:
    """What no need foresees, such as abandons, must leave room to make room."""
    room = room_of(1_000)
    room.keep("a", 600, 900)
    room.keep("b", 200, 100)
    room.take("a", 0)
    measure(room, 1_300)
    assert room.left == -400 and not room.is_scarce
    room.take("a", 1)
    assert room.is_scarce
    room.keep("a", 598, 900)
    assert not room.is_scarce, "a settlement that removes needs no more than it was given"


class Counting(dict[object, tuple[int, int]]):
    """Needs; counts how often all of them are gone through."""

    walks = 0

    def values(self) -> Any:
        self.walks += 1
        return super().values()

    def items(self) -> Any:
        self.walks += 1
        return super().items()


def test_the_largest_passing_need_shrinks_without_a_look_at_all_logs() -> None:
    room = room_of(1_000_000)
    for log in range(1_000):
        room.keep(log, 0, 10_000)
    room._needs = needs = Counting(room._needs)
    for passing in range(100_000, 50_000, -10):
        room.keep("largest", 0, passing)
        assert room.left == 1_000_000 - passing
    assert needs.walks < 10 and len(room._largest) < 5_000


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9)), max_size=300))
def test_the_largest_passing_need_is_that_of_some_log(changes: list[tuple[int, int]]) -> None:
    room = room_of(1_000)
    needs: dict[int, int] = {}
    for log, passing in changes:
        if passing == 9:
            room.forget(log)
            needs.pop(log, None)
        else:
            room.keep(log, 0, passing)
            needs[log] = passing
        assert room.left == 1_000 - max(needs.values(), default=0)
