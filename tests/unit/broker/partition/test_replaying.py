"""broker/partition/replaying.py: long records in parts."""

from __future__ import annotations

import pytest

from broker.partition.records import Enqueued, Relocated
from broker.partition.references import STATES
from broker.partition.replaying import REPLAYED_AT_ONCE, parts_of, relocated_parts, shared, state_of
from broker.partition.tables import UnreadableRecord

COUNT = REPLAYED_AT_ONCE + 1


def test_the_parts_of_sent_messages_continue_each_other() -> None:
    numbers = list(range(1, COUNT + 1))
    first, rest = parts_of(Enqueued(10, 99, numbers, numbers, 1_000, {"c": numbers}, numbers))
    assert len(first.sizes) == REPLAYED_AT_ONCE and first.messages_offset == 1_000
    assert rest == Enqueued(
        10 + REPLAYED_AT_ONCE,
        99,
        [COUNT],
        [COUNT],
        1_000 + sum(numbers[:-1]),
        {"c": [COUNT]},
        [COUNT],
    )
    short = Enqueued(10, 99, [1], None, 1_000)
    assert list(parts_of(short)) == [short]


def test_the_parts_of_relocated_messages_continue_each_other() -> None:
    numbers = list(range(1, COUNT + 1))
    n = numbers
    first, rest = relocated_parts(Relocated(n, n, n, n, n, n, n, [None] * COUNT, 1_000))
    assert len(first.sizes) == REPLAYED_AT_ONCE and first.messages_offset == 1_000
    assert rest.sequence_numbers == [COUNT] and rest.messages_offset == 1_000 + sum(numbers[:-1])


def test_equal_numbers_become_one_object() -> None:
    large = [int("100000"), int("100000")]
    assert large[0] is not large[1]
    found = shared(Enqueued(1, 2, large, list(large), 0))
    assert found.sizes[0] is found.sizes[1] and found.expires_at_ms is not None
    assert found.expires_at_ms[0] is found.expires_at_ms[1]


def test_an_unknown_state_cannot_be_read() -> None:
    assert [state_of(number) for number in range(len(STATES))] == list(STATES)
    with pytest.raises(UnreadableRecord):
        state_of(len(STATES))
