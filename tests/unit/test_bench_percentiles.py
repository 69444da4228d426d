"""Percentiles, as all benchmarks count them."""

from __future__ import annotations

import pytest

from tests.bench.load.percentiles import percentile


@pytest.mark.parametrize(
    ("share", "expected"), [[0.0, 1.0], [0.001, 1.0], [0.07, 7.0], [0.5, 50.0], [0.99, 99.0], [1.0, 100.0]]
)
def test_a_percentile_is_the_smallest_value_that_such_a_share_of_the_values_do_not_exceed(
    share: float, expected: float
) -> None:
    assert percentile([float(value) for value in range(100, 0, -1)], share) == expected


def test_a_percentile_of_few_values_is_one_of_them() -> None:
    assert [percentile([7.0], share) for share in [0.5, 0.99]] == [7.0, 7.0]
    assert [percentile([3.0, 1.0, 2.0], share) for share in [1 / 3, 0.5, 0.99]] == [1.0, 2.0, 3.0]


@pytest.mark.parametrize("thousands", [1, 41, 82, 83, 164])
def test_a_share_that_binary_fractions_do_not_hit_is_not_rounded_up(thousands: int) -> None:
    values = [float(value) for value in range(1, thousands * 1_000 + 1)]
    assert percentile(values, 0.999) == thousands * 999
