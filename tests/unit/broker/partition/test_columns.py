"""A column that `broker/operations/columns.py` declares travels with its messages and is never misread."""

from __future__ import annotations

import struct
import subprocess
import sys
from pathlib import Path

import pytest

from broker.operations.browsing import Peeked
from broker.operations.columns import COLUMNS, KNOWN_COLUMNS
from broker.operations.receiving import Locked
from broker.partition import columns, records
from broker.partition.references import Reference, StoredFrame
from broker.partition.tables import UnreadableRecord, table
from storage.log import Position, Record

ROOT = Path(__file__).parents[4]


def test_a_column_that_is_declared_travels_with_its_messages() -> None:
    """Through enqueuing, replay, delivery, peek, checkpoints, compaction and repair: `added_columns.py`
    declares two columns and names them nowhere else."""
    run = subprocess.run(
        [sys.executable, "-m", "tests.support.added_columns"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 0, run.stderr


def test_what_is_known_of_all_messages_is_in_both_answers_and_in_a_reference() -> None:
    reference = Reference(1, StoredFrame(Position(0)), 0, 0, 0, None)
    columns.give([reference], {})
    for name, attribute in KNOWN_COLUMNS.items():
        assert name in Locked.__slots__ and name in Peeked.__slots__
        assert hasattr(reference, attribute)
    assert len({column.number for column in COLUMNS}) == len(COLUMNS)
    assert all(getattr(reference, column.name) == column.default for column in COLUMNS)
    assert columns.of_references([reference]) == {}, "without columns of its own"
    shown = {column.name: [column.default] for column in COLUMNS if column.is_answered}
    assert columns.answered([reference]) == shown


@pytest.mark.parametrize(
    "part",
    [
        struct.pack("<HHHHI", 1, 0, 60_000, 0, 0),  # a later release's column
        struct.pack("<HHHHI", 1, 0, 60_000, 0, 9),
        struct.pack("<HHH", 1, 0, 60_000),
        struct.pack("<HHHHI", 1, 0, COLUMNS[0].number, 0, 3) + b"\xff" * 3,  # cut off
        b"\x01",
    ],
)
def test_a_column_of_a_later_release_is_not_passed_over(part: bytes) -> None:
    head = records._ENQUEUED.pack(1, 1, 1, 2, 0) + table("I", [1])
    with pytest.raises(UnreadableRecord, match="column"):
        records.read_enqueued(Record(records.ENQUEUED, records.VERSION, 72, memoryview(head + part + b"m")))
    head = records._RELOCATED.pack(0, 1)
    with pytest.raises(UnreadableRecord, match="column"):
        records.read_relocated(Record(records.RELOCATED, records.VERSION, 72, memoryview(head + part)))
