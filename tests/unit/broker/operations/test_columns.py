"""The columns that are declared, and those that all messages have."""

from __future__ import annotations

import dataclasses

from broker.operations.browsing import Peeked
from broker.operations.columns import COLUMNS, KNOWN_COLUMNS
from broker.operations.receiving import Locked


def test_columns_have_names_and_numbers_of_their_own() -> None:
    assert len({each.number for each in COLUMNS}) == len({each.name for each in COLUMNS}) == len(COLUMNS)
    assert not {each.name for each in COLUMNS} & {*KNOWN_COLUMNS, *KNOWN_COLUMNS.values()}
    for answer in (Locked, Peeked):
        assert KNOWN_COLUMNS.keys() <= {each.name for each in dataclasses.fields(answer)}
