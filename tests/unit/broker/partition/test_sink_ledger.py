"""The durable state of the sink ledger: its records, what a full disk undoes, and its end."""

from __future__ import annotations

import pytest

from broker.partition.durable_state import read_back
from broker.partition.sink_ledger import KEPT_MS, SINK_BATCH, Committed, SinkLedger, key_of
from broker.partition.tables import UnreadableRecord
from storage.log import Position, Record

KEY = key_of(b"sink")


def test_a_record_holds_the_highest_batch_and_undoing_it_brings_back_the_one_before() -> None:
    ledger = SinkLedger()
    first, second = Committed(0, None, 10), Committed(7, 0, 20)
    for entry in (first, second):
        ledger.apply(read_back(ledger.record_of(KEY, entry)), Position(1))
        assert ledger.entries == {KEY: entry}
    ledger.undo(read_back(ledger.record_of(KEY, second)), Position(1))
    assert ledger.entries[KEY].batch == 0
    ledger.undo(read_back(ledger.record_of(KEY, first)), Position(1))
    assert ledger.entries == {}
    ledger.check()


def test_a_sink_that_has_not_committed_for_long_is_forgotten() -> None:
    ledger = SinkLedger()
    ledger.apply(read_back(ledger.record_of(KEY, Committed(1, None, 10))), Position(1))
    assert ledger.ends[0][0] == 10 + KEPT_MS
    ledger.expire(9 + KEPT_MS, Position(2))
    assert ledger.entries
    ledger.expire(10 + KEPT_MS, Position(2))
    assert not ledger.entries
    ledger.check()


@pytest.mark.parametrize("body", [b"", bytes(24)], ids=len)
def test_a_record_that_does_not_fit_is_not_read(body: bytes) -> None:
    with pytest.raises(UnreadableRecord):
        SinkLedger().apply(Record(SINK_BATCH, 1, 0, memoryview(body)), Position(1))
