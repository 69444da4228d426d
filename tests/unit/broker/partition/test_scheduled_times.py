"""When messages are enqueued, of what their senders ask for."""

from __future__ import annotations

from broker.partition.scheduled_times import LATEST_MS, times_of

NOW_MS = 1_000_000


def test_a_time_that_has_passed_means_now() -> None:
    assert times_of([NOW_MS + 1, NOW_MS, None, 0], NOW_MS) == [NOW_MS + 1, 0, 0, 0]


def test_nothing_is_kept_of_times_if_all_messages_are_enqueued_now() -> None:
    assert times_of(None, NOW_MS) is times_of([None, NOW_MS - 1], NOW_MS) is None


def test_a_time_that_clients_cannot_show_is_the_latest_that_they_can() -> None:
    assert times_of([LATEST_MS + 1, 1 << 62], NOW_MS) == [LATEST_MS, LATEST_MS]
