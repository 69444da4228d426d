"""storage/sizing.py: segments and reserves in proportion to the disk and the log."""

from __future__ import annotations

from itertools import pairwise

import pytest

from storage import sizing
from storage.sizing import (
    SEGMENT_BYTES_FIRST,
    SEGMENT_BYTES_MIN,
    SPREAD,
    is_confined,
    reserve_bytes_of,
    segment_bytes,
)

MIB = 1 << 20
SETTING = 64 * MIB


@pytest.mark.parametrize(
    ("log_bytes", "free_bytes", "expected"),
    [
        (0, 100_000 * MIB, SEGMENT_BYTES_FIRST),
        (160 * MIB, 100_000 * MIB, 10 * MIB),
        (100_000 * MIB, 100_000 * MIB, SETTING),
        (100_000 * MIB, 640 * MIB, 10 * MIB),
        (0, 64 * MIB, MIB),
        (100_000 * MIB, 0, SEGMENT_BYTES_MIN),
    ],
)
def test_a_segment_suits_the_log_and_the_room_that_is_left(
    log_bytes: int, free_bytes: int, expected: int
) -> None:
    assert segment_bytes(0, log_bytes, free_bytes, SETTING) == expected
    assert segment_bytes(0, log_bytes, free_bytes, 400) == 400, "the setting is the bound in any case"


def test_a_segment_that_is_filled_fast_is_followed_by_one_that_lasts() -> None:
    free_bytes = 100_000 * MIB
    assert segment_bytes(0, 0, free_bytes, SETTING, 3 * MIB) == sizing.SEGMENT_S * 3 * MIB
    assert segment_bytes(0, 0, free_bytes, SETTING, 1000) == SEGMENT_BYTES_FIRST
    assert segment_bytes(0, 0, free_bytes, SETTING, 1000 * MIB) == SETTING
    assert segment_bytes(0, 0, 640 * MIB, SETTING, 1000 * MIB) == 10 * MIB, "where there is room for it"
    assert not is_confined(0, 0, 640 * MIB, SETTING), "for that alone, no checkpoint is due earlier"


def test_a_log_is_confined_where_the_room_that_is_left_makes_its_segments_shorter() -> None:
    assert is_confined(0, 0, 64 * MIB, SETTING) and is_confined(0, 0, 0, 400)
    assert not is_confined(0, 0, 320 * MIB, SETTING) and not is_confined(0, 0, 64 * MIB, MIB)


@pytest.mark.parametrize("free_bytes", [1_000 * MIB, 100_000 * MIB])
@pytest.mark.parametrize(("log_bytes", "pace"), [(0, 0), (160 * MIB, 0), (0, 2 * MIB), (0, 1000 * MIB)])
def test_no_two_partitions_that_fill_alike_begin_their_segments_together(
    log_bytes: int, pace: int, free_bytes: int
) -> None:
    largest = segment_bytes(0, log_bytes, free_bytes, SETTING, pace)
    bounds = sorted(segment_bytes(number, log_bytes, free_bytes, SETTING, pace) for number in range(32))
    assert largest * (1 - SPREAD) <= bounds[0] and bounds[-1] == largest
    for later in (1, 2, 5):  # in the same segment of each, and further on
        ends = sorted(later * bound for bound in bounds)
        assert min(end - before for before, end in pairwise(ends)) >= largest // 200


def test_a_reserve_is_a_part_of_a_small_disk() -> None:
    assert reserve_bytes_of(100_000 * MIB) == sizing.RESERVE_BYTES_MAX
    assert reserve_bytes_of(2 * MIB) == 2 * MIB // 10
