"""Message-ids that do not depend on the order of rows."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_partibus.ids import ContentIds, partition_of_key, random_id, source_id


@given(st.lists(st.binary(max_size=3)), st.randoms(use_true_random=False))
def test_the_same_rows_have_the_same_ids_in_any_order(rows: list[bytes], order: random.Random) -> None:
    shuffled = order.sample(rows, len(rows))
    first, second = ContentIds("sink", 1, 2), ContentIds("sink", 1, 2)
    ids = [first.of(each) for each in rows]
    assert sorted(ids) == sorted(second.of(each) for each in shuffled)
    assert len(set(ids)) == len(ids)


def test_ids_differ_between_batches_tasks_and_ways_to_cut_the_content() -> None:
    ids = {
        ContentIds("sink", 1, 2).of(b"ab", b"c"),
        ContentIds("sink", 1, 3).of(b"ab", b"c"),
        ContentIds("sink", 12).of(b"ab", b"c"),
        ContentIds("sink", 1, 2).of(b"a", b"bc"),
        random_id(),
        random_id(),
        source_id("query", "orders", 1, 2),
        source_id("query", "orders", 12, 2),
        source_id("query", "others", 1, 2),
        source_id("other", "orders", 1, 2),
    }
    assert len(ids) == 10
    assert source_id("query", "Orders", 1, 2) == source_id("query", "orders", 1, 2)


def test_an_id_fits_into_the_128_characters_that_a_message_id_may_have() -> None:
    ids = ContentIds("s")
    assert all(len(ids.of(b"same")) <= 128 for _ in range(11))
    assert len(source_id("q" * 100, "o" * 260, 255, 2**63)) <= 128


@pytest.mark.parametrize(
    ("key", "of_16", "of_256"), [("a", 15, 47), ("order-42", 3, 243), ("Zürich", 8, 8), ("", 4, 180)]
)
def test_the_partition_of_a_key_is_that_of_the_page_on_partitioning(
    key: str, of_16: int, of_256: int
) -> None:
    assert (partition_of_key(key, 16), partition_of_key(key, 256)) == (of_16, of_256)
