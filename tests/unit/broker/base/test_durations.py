"""Durations as text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.base.durations import UNLIMITED, UNLIMITED_MS, format_duration, parse_duration


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("PT1M", 60_000),
        ("P1D", 86_400_000),
        ("PT30.5S", 30_500),
        ("P14DT1.5S", 14 * 86_400_000 + 1_500),
        ("P1DT2H3M4S", 93_784_000),
        ("PT0.0009S", 0),
        ("P1Y", 365 * 86_400_000),
        ("P1M", 30 * 86_400_000),
        (" PT5M ", 300_000),
    ],
)
def test_a_duration_is_read(text: str, milliseconds: int) -> None:
    assert parse_duration(text) == milliseconds


@pytest.mark.parametrize("text", [UNLIMITED, "P10675199DT2H48M5.477539S", "P10675199D", "P20000000D"])
def test_the_longest_durations_mean_without_limit_however_a_client_rounds_them(text: str) -> None:
    assert parse_duration(text) is None


@pytest.mark.parametrize("text", ["", "P", "PT", "1 minute", "00:01:00", "-PT5S", "PT1X", "PT-5S"])
def test_what_is_no_duration_is_refused_by_name(text: str) -> None:
    with pytest.raises(ValueError, match="is not an ISO 8601 duration"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [
        (None, UNLIMITED),
        (0, "PT0S"),
        (60_000, "PT1M"),
        (30_500, "PT30.5S"),
        (1, "PT0.001S"),
        (86_400_000, "P1D"),
        (93_784_000, "P1DT2H3M4S"),
        (UNLIMITED_MS, UNLIMITED),
    ],
)
def test_a_duration_is_written_without_years_and_months(milliseconds: int | None, text: str) -> None:
    assert format_duration(milliseconds) == text


@given(st.integers(0, UNLIMITED_MS - 1))
def test_every_duration_comes_back_as_it_was(milliseconds: int) -> None:
    assert parse_duration(format_duration(milliseconds)) == milliseconds
