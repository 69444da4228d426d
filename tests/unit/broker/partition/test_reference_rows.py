"""References that are made of rows."""

from __future__ import annotations

import pytest

from broker.operations.columns import COLUMNS
from broker.partition.reference_rows import Rows, references_of
from broker.partition.references import ACTIVE, STATES, StoredFrame
from broker.partition.tables import UnreadableRecord
from storage.log import Position

TIME_MS, SIZE, EXPIRY_MS = 1_700_000_000_000, 70_000, 1_800_000_000_000


def frames() -> list[StoredFrame]:
    return [StoredFrame(Position(100)), StoredFrame(Position(200))]


def numbers(*given: int) -> list[int]:
    """Objects of their own, as reading a table makes them."""
    return [int(str(each)) for each in given]


def test_each_row_becomes_a_reference_that_its_frame_counts() -> None:
    stored = frames()
    rows = Rows(
        [1, 3, 4], numbers(5, 6, 6), numbers(0, 9, 0), [1, 0, 1], [8, 16, 24], [7, 0, 7], [0, 2, 0], [0, 1, 0]
    )
    made = references_of(rows, stored, 1 << 48)
    assert [each.sequence_number - (1 << 48) for each in made] == [1, 3, 4]
    assert [(each.frame, each.offset, each.size) for each in made] == [
        (stored[1], 8, 7),
        (stored[0], 16, 0),
        (stored[1], 24, 7),
    ]
    assert [(each.enqueued_at_ms, each.expires_at_ms) for each in made] == [(5, None), (6, 9), (6, None)]
    assert [(each.delivery_count, each.state) for each in made] == [(0, ACTIVE), (2, STATES[1]), (0, ACTIVE)]
    assert [frame.live for frame in stored] == [1, 2]


def test_tables_that_are_left_out_mean_the_default_and_columns_are_given() -> None:
    column = COLUMNS[0]
    values = [None, b"x"] if not column.code else [0, 1]
    made = references_of(
        Rows([1, 2], [5, 5], [], [0, 0], [8, 16], [7, 7], [], []), frames(), 0, {column.name: values}
    )
    assert [(each.expires_at_ms, each.delivery_count, each.state) for each in made] == [(None, 0, ACTIVE)] * 2
    assert [getattr(each, column.name) for each in made] == values


def test_equal_times_and_sizes_are_one_object() -> None:
    rows = Rows(
        [1, 2],
        numbers(TIME_MS, TIME_MS),
        numbers(EXPIRY_MS, EXPIRY_MS),
        [0, 0],
        [8, 16],
        numbers(SIZE, SIZE),
        [],
        [],
    )
    one, other = references_of(rows, frames())
    assert one.enqueued_at_ms is other.enqueued_at_ms and one.size is other.size
    assert one.expires_at_ms is other.expires_at_ms


def test_an_unknown_state_is_not_read() -> None:
    with pytest.raises(UnreadableRecord, match=f"the state {len(STATES)}"):
        references_of(Rows([1], [5], [], [0], [8], [7], [], [len(STATES)]), frames())
