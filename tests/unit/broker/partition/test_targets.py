"""The targets of messages, as records hold them."""

from __future__ import annotations

import pytest

from broker.partition.tables import UnreadableRecord
from broker.partition.targets import Target, Targets, decode

TARGETS = Targets([(), (Target(4), Target(9, 1 << 40)), (Target(8, 5, 1),)], [1, 0, 2, 1])


def test_targets_read_back_as_they_were_from_any_place() -> None:
    encoded = TARGETS.encode()
    again, end = decode(memoryview(b"??" + encoded + b"rest"), 2, 4)
    assert (list(again.sets), list(again.of_messages), end) == (
        [*TARGETS.sets],
        [1, 0, 2, 1],
        2 + len(encoded),
    )


def test_each_subqueue_gets_its_messages_in_their_order() -> None:
    assert TARGETS.by_subqueue() == {
        4: [(0, Target(4)), (3, Target(4))],
        9: [(0, Target(9, 1 << 40)), (3, Target(9, 1 << 40))],
        8: [(2, Target(8, 5, 1))],
    }
    assert TARGETS.part(slice(2, 3)).by_subqueue() == {8: [(0, Target(8, 5, 1))]}


def test_what_is_cut_off_or_of_a_later_release_is_not_read() -> None:
    encoded = TARGETS.encode()
    for size in range(len(encoded)):
        with pytest.raises(UnreadableRecord):
            decode(memoryview(encoded[:size]), 0, 4)
    for of_messages, flag in (([3], 0), ([0], 2)):
        wrong = Targets([(Target(4, 0, flag),)], of_messages).encode()
        with pytest.raises(UnreadableRecord):
            decode(memoryview(wrong), 0, 1)
