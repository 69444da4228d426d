"""When messages expire: the shorter of their own time to live and that of their entity decides."""

from __future__ import annotations

from broker.partition.expiries import expiries, later_expiries


def test_the_default_of_the_entity_caps_what_messages_ask_for() -> None:
    assert expiries([None, 50, 500], 100, 3, 1000) == [1100, 1050, 1100]
    assert expiries(None, 100, 2, 1000) == [1100, 1100]


def test_messages_without_a_time_to_live_never_expire_where_the_entity_has_none() -> None:
    assert expiries([None, 50], None, 2, 1000) == [0, 1050]
    assert expiries([None, None], None, 2, 1000) is None
    assert expiries(None, None, 2, 1000) is None


def test_a_time_to_live_of_zero_still_ends_after_the_message_was_enqueued() -> None:
    assert expiries([0], None, 1, 1000) == [1001]


def test_the_time_to_live_of_scheduled_messages_counts_from_their_time() -> None:
    assert later_expiries([1050, 1050, 0], [0, 3000, 3000], 1000) == [1050, 3050, 0]
    assert later_expiries(None, [3000], 1000) is None
