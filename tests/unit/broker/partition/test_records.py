"""Records and the payload budget: records are written and read back, and unreadable ones are refused."""

from __future__ import annotations

from typing import Any

import pytest

from broker.partition import records
from broker.partition.records import Counters, Mark, Relocated, Rescheduled
from broker.partition.tables import UnreadableRecord
from storage.log import Commit, Position, Record
from tests.support.partition_messages import frame_of


def only_record(commit: Commit) -> Record:
    (record,) = frame_of(commit).records()
    return record


@pytest.mark.parametrize("expiries", [None, [5, 0, 1 << 41]])
def test_enqueued_messages_are_found_where_the_record_says(expiries: list[int] | None) -> None:
    commit = Commit(Position(4096))
    commit.add(9, [b"something before"])
    bodies = [b"one", b"", b"three"]
    offset = records.add_enqueued(commit, 77, 1_700_000_000_000, [3, 0, 5], expiries, bodies)
    frame = frame_of(commit)
    enqueued = records.read_enqueued(frame.records()[1])
    assert (enqueued.first, enqueued.enqueued_at_ms, list(enqueued.sizes)) == (
        77,
        1_700_000_000_000,
        [3, 0, 5],
    )
    assert (None if enqueued.expires_at_ms is None else list(enqueued.expires_at_ms)) == expiries
    assert enqueued.messages_offset == offset
    assert frame.data[offset : offset + 8] == b"onethree"


def test_a_mark_reads_back_as_it_was() -> None:
    for mark in (
        Mark(records.REMOVED, 0, [1, 1 << 63]),
        Mark(records.RETURNED, 1, [5], b"\xc1\x01\x00"),
        Mark(records.DEFERRED, 0, []),
        Mark(records.DEFERRED, 0, [7], counts_delivery=True),
        Mark(records.CHANGED, 1, [7], b"\xc1\x01\x00"),
        Mark(records.MOVED, 0, [9, 8], b"x" * 300, target=1, counts_delivery=True),
    ):
        commit = Commit(Position(0))
        commit.add(mark.kind, [records.encode_mark(mark)])
        again = records.read_mark(only_record(commit))
        assert again._replace(sequence_numbers=list(again.sequence_numbers)) == mark


def test_runs_of_removed_messages_read_back_as_a_mark() -> None:
    commit = Commit(Position(0))
    commit.add(records.REMOVED_RUNS, [records.encode_runs(2, [5, 1 << 63], [3, 1])])
    again = records.read_mark(only_record(commit))
    assert again._replace(sequence_numbers=list(again.sequence_numbers)) == Mark(
        records.REMOVED, 2, [5, 6, 7, 1 << 63]
    )


def test_counters_and_relocated_messages_read_back_as_they_were() -> None:
    commit = Commit(Position(0))
    commit.add(records.COUNTERS, [records.encode_counters(Counters(12, 34))])
    assert records.read_counters(only_record(commit)) == Counters(12, 34)
    commit = Commit(Position(0))
    commit.add(records.RESCHEDULED, [records.encode_rescheduled(Rescheduled(55, [7, 1 << 63]))])
    at_ms, numbers = records.read_rescheduled(only_record(commit))
    assert (at_ms, list(numbers)) == (55, [7, 1 << 63])
    commit = Commit(Position(0))
    relocated = Relocated([5, 9], [1, 2], [0, 77], [3, 2], [4, 0], [0, 1], [1, 0], [b"changed", None], 0)
    offset = records.add_relocated(commit, relocated, [b"abc", b"de"])
    again = records.read_relocated(only_record(commit))
    assert [list(column) for column in again[:8]] == [list(column) for column in relocated[:8]]
    assert again.messages_offset == offset and frame_of(commit).data[offset:] == b"abcde"


def shared() -> tuple[Commit, Relocated, int]:
    """A record of two messages, one of which three subqueues share."""
    commit = Commit(Position(0))
    relocated = Relocated(
        [5, 5, 5, 9],
        [1, 1, 1, 2],
        [0, 77, 0, 0],
        [3, 3, 3, 2],
        [0, 4, 0, 1],
        [4, 8, 12, 4],
        [0, 1, 0, 0],
        [None, b"changed", None, None],
        0,
        shares_bodies=True,
    )
    return commit, relocated, records.add_relocated(commit, relocated, [b"abc", b"de"])


def test_messages_that_subscriptions_share_read_back_as_they_were() -> None:
    commit, relocated, offset = shared()
    record = only_record(commit)
    again = records.read_relocated(record)
    assert record.version == records.VERSION_PACKED
    assert [list(column) for column in again[:8]] == [list(column) for column in relocated[:8]]
    assert again.messages_offset == offset and frame_of(commit).data[offset:] == b"abcde"


def test_packed_rows_that_do_not_fit_are_not_read() -> None:
    record = only_record(shared()[0])
    whole = bytes(record.body)
    count, flags = records._RELOCATED.unpack_from(whole)
    head = records._RELOCATED.size
    packed, unpacked = records._PACKED.unpack_from(whole, head)
    at = head + records._PACKED.size
    for body in (
        whole[: head + 3],
        whole[: at + packed - 1],
        whole[:head] + records._PACKED.pack(packed - 1, unpacked) + whole[at:],
        whole[:head] + records._PACKED.pack(packed, unpacked - 1) + whole[at:],
        whole[:head] + records._PACKED.pack(packed, unpacked + 1) + whole[at:],
        whole[:at] + b"\xff" + whole[at + 1 :],
        records._RELOCATED.pack(count - 1, flags) + whole[head:],
        records._RELOCATED.pack(count + 1, flags) + whole[head:],
        whole + b"x",
    ):
        with pytest.raises(UnreadableRecord):
            records.read_relocated(Record(records.RELOCATED, 3, 72, memoryview(body)))


@pytest.mark.parametrize(
    ("kind", "read", "body"),
    [
        (records.ENQUEUED, records.read_enqueued, b"short"),
        (records.ENQUEUED, records.read_enqueued, records._ENQUEUED.pack(1, 2, 1000, 0, 0)),
        (records.REMOVED, records.read_mark, records._MARK.pack(0, 0, 0, 0, 3, 0) + bytes(8)),
        (records.MOVED, records.read_mark, records._MARK.pack(0, 1, 0, 0, 0, 9) + bytes(8)),
        (records.REMOVED_RUNS, records.read_mark, records._RUNS.pack(0, 0, 3) + bytes(8)),
        (records.COUNTERS, records.read_counters, b""),
        (records.RESCHEDULED, records.read_rescheduled, records._RESCHEDULED.pack(1, 2, 0) + bytes(8)),
        (records.RELOCATED, records.read_relocated, records._RELOCATED.pack(7, 0)),
    ],
)
def test_a_record_whose_tables_do_not_fit_is_not_read(kind: int, read: Any, body: bytes) -> None:
    with pytest.raises(UnreadableRecord):
        read(Record(kind, records.VERSION, 72, memoryview(body)))
    with pytest.raises(UnreadableRecord, match="version 9"):
        read(Record(kind, 9, 72, memoryview(body + bytes(100))))
