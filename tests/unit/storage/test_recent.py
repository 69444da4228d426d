"""storage/recent.py: the latest places of a log, in little memory."""

from __future__ import annotations

from storage.log import Position
from storage.recent import RECENT_MAX, RecentPlaces
from storage.record import Chain


def place(number: int) -> Chain:
    return Chain(Position((1 << 40) + 10 * number), number, number.to_bytes(16, "big"))


def test_the_latest_places_are_found_and_earlier_ones_and_others_are_not() -> None:
    recent = RecentPlaces()
    assert recent.find(place(0).position) is None
    for count in (1, 5, RECENT_MAX - 1, RECENT_MAX, RECENT_MAX + 1, 3 * RECENT_MAX + 7):
        recent.keep_only(place(0))
        for number in range(1, count):
            recent.add(place(number))
        oldest = max(0, count - RECENT_MAX)
        for number in (oldest, (oldest + count) // 2, count - 1):
            assert recent.find(place(number).position) == place(number)
        for position in (place(oldest).position - 10, place(count - 1).position - 5, place(count).position):
            assert recent.find(Position(position)) is None


def test_a_log_keeps_32_kib_of_them_and_an_idle_one_a_single_place() -> None:
    recent = RecentPlaces()
    for number in range(10 * RECENT_MAX):
        recent.add(place(number))
    assert len(recent._ring) == 32 << 10
    recent.keep_only(place(7))
    assert len(recent._ring) == 32 and recent.find(place(7).position) == place(7)
