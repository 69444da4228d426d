"""What waits for a partition of the target stays in order, and is tried again one load at a time."""

from __future__ import annotations

from broker.identifiers import LockToken
from broker.messaging.forward_aside import Aside


def tokens(*numbers: int) -> list[LockToken]:
    return [number.to_bytes(8, "big") + b"nonce..." for number in numbers]


def test_only_the_first_load_is_tried_again() -> None:
    aside = Aside()
    aside.add(tokens(1, 2), 0)
    aside.add(tokens(3, 5), 0)
    assert aside and not aside.is_open(1)
    assert aside.release_next() == tokens(1, 2)
    assert [aside.is_open(number) for number in (1, 2, 3)] == [True, True, False]
    assert aside.release_next() == tokens(3, 5) and not aside
    assert aside.release_next() == []


def test_what_was_tried_in_vain_goes_to_the_front_and_what_is_new_to_the_end() -> None:
    aside = Aside()
    for first in (1, 3):
        aside.add(tokens(first, first + 1), 0)
    tried = aside.release_next()
    aside.add(tokens(5), 0)
    aside.add(tried, 0)
    assert [aside.release_next() for _ in range(3)] == [tokens(1, 2), tokens(3, 4), tokens(5)]


def test_loads_whose_locks_end_soon_are_found() -> None:
    aside = Aside()
    aside.add(tokens(1), 10)
    aside.add(tokens(2, 3), 20)
    assert [each.tokens for each in aside.ending(15)] == [tokens(1)]
    assert [each.first for each in aside.ending(30)] == [1, 2]
