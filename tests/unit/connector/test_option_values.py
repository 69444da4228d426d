"""Values of options: where to begin, times and durations."""

from __future__ import annotations

import pytest

from pyspark_partibus.option_values import parse_duration, parse_start, parse_time


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("Earliest", "earliest"),
        ('{"0": -1, "1": -2, "2": 7}', {0: -1, 1: -2, 2: 7}),
        ('{"146": 41095346599755778, "0": 0}', {146: 2, 0: 1}),
    ],
)
def test_starting_offsets(text: str, start: object) -> None:
    assert parse_start(text) == start


def test_times_and_durations() -> None:
    assert parse_time("1700000000000") == 1_700_000_000_000
    assert parse_time("2023-11-14T22:13:20") == parse_time("2023-11-14T23:13:20+01:00") == 1_700_000_000_000
    assert [parse_duration(text) for text in ("500ms", "30s", "15m", "1.5h", "2 s")] == [
        0.5,
        30,
        900,
        5400,
        2,
    ]
    for text in ("5", "s", "5d", "-1s", "5 s m", "infs", "nanms", "1e400h"):
        with pytest.raises(ValueError, match="duration"):
            parse_duration(text)
