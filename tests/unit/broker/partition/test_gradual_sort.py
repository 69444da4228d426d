"""Sorting in steps gives the items in order, a bounded number at a time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.partition import gradual_sort


@given(st.lists(st.integers(0, 20)), st.integers(1, 5))
def test_what_is_sorted_in_steps_is_sorted(items: list[int], at_once: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gradual_sort, "AT_ONCE", at_once)
        parts = list(gradual_sort.sort_gradually(items, lambda each: each))
    assert [each for part in parts for each in part] == sorted(items)
    assert all(len(part) <= at_once for part in parts)
