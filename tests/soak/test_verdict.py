"""What the soak's verdict notices, and what it lets pass."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.soak.verdict import STOLEN_PERCENT_MAX, Sample, Stretch, growth, slow

STRETCHES = 8
AT_REST = Sample(0.0, 100.0, 40, 0, 30.0)


def stretches(**changed: object) -> list[Stretch]:
    """Equal stretches; in the second half, what the broker holds at rest is different."""
    rested = replace(AT_REST, **changed)  # type: ignore[arg-type]
    half = STRETCHES // 2
    return [
        Stretch(100.0 * number, rested if number >= half else AT_REST, [2.0] * 200)
        for number in range(STRETCHES)
    ]


def test_a_flat_run_is_flat() -> None:
    assert growth(stretches()) == []


@pytest.mark.parametrize(
    ("changed", "within"),
    [
        ({"memory_mib": 130.0}, {"memory_mib": 125.0}),
        ({"descriptors": 49}, {"descriptors": 48}),
        ({"disk_mib": 50.0}, {"disk_mib": 48.0}),
    ],
    ids=["memory", "descriptors", "disk"],
)
def test_what_is_higher_in_the_second_half_has_grown(
    changed: dict[str, object], within: dict[str, object]
) -> None:
    assert growth(stretches(**changed)) and growth(stretches(**within)) == []


def test_one_stretch_that_holds_more_on_disk_is_no_growth_and_a_slow_rise_is() -> None:
    once = stretches()
    once[-1].rested = replace(AT_REST, disk_mib=120.0)
    assert growth(once) == []
    rising = stretches()
    for number, each in enumerate(rising):
        each.rested = replace(AT_REST, disk_mib=30.0 + 6 * number)
    assert growth(rising) == ["the disk at rest went from 39 to 63 MiB"]


def test_a_file_that_stays_open_at_rest_is_noticed_once_it_happens() -> None:
    found = stretches()
    found[2].rested = replace(AT_REST, open_log_files=3)
    assert growth(found) == ["3 files of logs are open at rest"]


def test_memory_is_compared_between_stretches_with_a_restart_and_between_those_without() -> None:
    found = stretches()
    for each in found[1::2]:
        each.rested = replace(AT_REST, memory_mib=60.0)
    assert growth(found) == []
    for each in found[5::2]:
        each.rested = replace(AT_REST, memory_mib=90.0)
    assert growth(found) == ["memory at rest went from 60 to 90 MiB"] * 2


def test_waits_that_grow_are_noticed_on_any_machine() -> None:
    found = stretches()
    for each in found[4:]:
        each.stalls_ms = [60.0] * 200
    assert growth(found) == ["the 99th percentile of another client's wait went from 2 to 60 ms"]


def test_another_client_waits_no_longer_than_the_limit_at_the_99th_percentile() -> None:
    found = stretches()
    assert slow(found, 20.0) == []
    for each in found:
        each.stalls_ms = [2.0] * 995 + [21.0] * 5
    assert slow(found, 20.0) == []
    for each in found:
        each.stalls_ms = [2.0] * 980 + [25.0] * 20
    assert slow(found, 20.0) == ["the 99th percentile of another client's wait is 25 ms, not 20"]


def test_stretches_during_which_the_host_took_the_processors_are_not_held_against_the_limit() -> None:
    found = stretches()
    for each in found[:5]:
        each.stalls_ms, each.stolen_percent = [90.0] * 200, STOLEN_PERCENT_MAX + 1
    assert slow(found, 20.0) == [], "most of them were disturbed"
    found[0].stolen_percent = found[1].stolen_percent = 0.0
    assert slow(found, 20.0) == [], "of the five that count, three are quick"
    for each in found:
        each.stolen_percent = 0.0
    assert slow(found, 20.0)
