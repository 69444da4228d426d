"""broker/partition/renumbered.py: which messages a frame holds under an earlier number."""

from __future__ import annotations

from collections import deque

from broker.partition.references import Reference, StoredFrame
from broker.partition.renumbered import DROPPED_AT_ONCE, Renumbered
from storage.log import Position


def message(number: int, position: int) -> Reference:
    return Reference(number, StoredFrame(Position(position)), 0, 1, 0, None)


def test_messages_are_found_by_their_frame_whatever_the_order_in_which_they_were_added() -> None:
    table = Renumbered()
    assert not table
    for number in (5, 9, 7, 7):
        table.add(message(number, 100))
    table.add(message(6, 200))
    assert table and list(table.of_frame(100)) == [5, 7, 9] and list(table.of_frame(200)) == [6]
    assert [table.has(message(number, 100)) for number in (4, 5, 6, 7, 9, 10)] == [
        False,
        True,
        False,
        True,
        True,
        False,
    ]
    assert not table.has(message(5, 300)), "it was relocated"
    table.check([100, 200, 300])


def test_a_frame_is_forgotten_with_its_last_message() -> None:
    table = Renumbered()
    table.add(message(5, 100))
    table.forget(100)
    table.forget(200)
    assert not table and list(table.of_frame(100)) == []
    table.check([])


def test_it_is_freed_in_steps() -> None:
    table = Renumbered()
    for number in range(DROPPED_AT_ONCE + 1):
        table.add(message(number, number))
    assert len(deque(table.drop())) == 2 and not table
