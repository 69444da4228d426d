"""Clock settings by sequence number: they replace one another and stay bounded."""

from __future__ import annotations

from broker.partition.clock_settings import SETTINGS_MAX, ClockSettings


def test_clock_settings_follow_numbers_that_come_again_and_stay_bounded() -> None:
    settings = ClockSettings()
    settings.read_back(1_000_000)
    settings.add(10, 5_000_000)
    settings.add(20, 5_000_999)
    settings.add(10, 1_000_500)
    settings.read_back(7)
    assert list(settings.spans([1, 10, 20])) == [(1_000_000, 0, 3)]
    for step in range(3 * SETTINGS_MAX):
        settings.add(30 + step, 2_000 * step)
    spans = list(settings.spans(range(3 * SETTINGS_MAX)))
    assert len(spans) <= SETTINGS_MAX and spans[-1][2] == 3 * SETTINGS_MAX
