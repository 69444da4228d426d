"""Tables of numbers."""

from __future__ import annotations

import pytest

from broker.partition.tables import UnreadableRecord, check_places, read_table, table


@pytest.mark.parametrize("code", ["Q", "I", "H"])
def test_a_table_reads_back_as_it_was_and_not_if_it_is_cut(code: str) -> None:
    encoded = table(code, [1, 2, 65_535])
    numbers, end = read_table(code, memoryview(b"?" + encoded), 1, 3)
    assert (list(numbers), end) == ([1, 2, 65_535], 1 + len(encoded))
    with pytest.raises(UnreadableRecord):
        read_table(code, memoryview(encoded[:-1]), 0, 3)


def test_places_are_among_what_there_is() -> None:
    check_places([], 0, "frame")
    check_places([2, 0], 3, "frame")
    with pytest.raises(UnreadableRecord, match="a checkpoint refers to frame 7, and there are 3"):
        check_places([2, 7, 0], 3, "frame")
