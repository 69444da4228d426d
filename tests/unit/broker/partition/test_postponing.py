"""broker/partition/postponing.py: the times and states of scheduled messages."""

from __future__ import annotations

from broker.partition.postponing import activate, put_off
from broker.partition.records import Activated
from broker.partition.references import ACTIVE, SCHEDULED, Reference, StoredFrame
from storage.log import Position

FRAME = StoredFrame(Position(0))


def message(number: int, expires_at_ms: int | None = None) -> Reference:
    return Reference(number, FRAME, 0, 1, 1_000, expires_at_ms)


def test_messages_with_a_time_show_it_as_the_time_at_which_they_are_enqueued() -> None:
    now, later, also = message(1), message(2), message(3)
    assert put_off([now, later, also], [0, 1 << 40, 1 << 40]) == [later, also]
    assert now.enqueued_at_ms == 1_000
    assert later.enqueued_at_ms == 1 << 40 and later.enqueued_at_ms is also.enqueued_at_ms


def test_an_active_message_has_its_new_number_and_its_whole_time_to_live() -> None:
    brief, lasting = message(1, expires_at_ms=1_700), message(2)
    brief.state = lasting.state = SCHEDULED
    lives = activate([brief, lasting], Activated(10, 5_000, (1, 2)), 40)
    assert (brief.sequence_number, brief.state, brief.enqueued_at_ms) == (10, ACTIVE, 5_000)
    assert (brief.expires_at_ms, brief.lives_until_ms) == (5_700, 740)
    assert (lasting.sequence_number, lasting.expires_at_ms, lasting.lives_until_ms) == (11, None, None)
    assert lives == {5_700: 740, 0: None}


def test_a_replay_sets_no_deadlines() -> None:
    brief = message(1, expires_at_ms=1_700)
    brief.state = SCHEDULED
    assert activate([brief], Activated(10, 5_000, (1,)), None) == {}
    assert (brief.expires_at_ms, brief.lives_until_ms) == (5_700, None)
