"""Checkpoints of format version 1, which earlier releases wrote."""

from __future__ import annotations

from array import array
from collections import deque
from itertools import pairwise

import pytest

from broker.message.changes import encode_changes
from broker.partition import records, snapshot_v1
from broker.partition.block_content import STEP_BYTES
from broker.partition.records import Mark
from broker.partition.snapshot import Snapshot
from broker.partition.snapshot_v1 import load
from broker.partition.tables import UnreadableRecord, read_table
from storage.log import Checkpoint, Position, Section
from tests.support.old_checkpoint import state_of_version_1
from tests.support.partition_messages import contents, fresh, loaded, mark, new_messages, send, taken, varied


def test_the_state_of_an_earlier_release_is_read_and_taken_as_a_whole() -> None:
    messages = varied()
    again = loaded(Checkpoint(Position(1400), (Section("", 1, {0: state_of_version_1(messages)}),)))
    assert contents(again) == contents(messages)
    assert taken(Snapshot(again), Position(1400), None) == taken(Snapshot(messages), Position(1400), None)


def test_many_bytes_of_changed_properties_are_given_in_steps() -> None:
    messages = new_messages()
    first = send(messages, 100, 60)
    for number in range(first, first + 60):
        note = encode_changes({"note": f"{number:030000}"})
        mark(messages, 1_000 + number - first, Mark(records.DEFERRED, 0, [number], note))
    again = fresh()
    held = [again.work.properties.memory_bytes for _ in load(again, state_of_version_1(messages))]
    assert max(held) > 3 * STEP_BYTES
    assert max(after - before for before, after in pairwise(held)) < STEP_BYTES + 40_000


def test_a_state_is_read_or_refused_whichever_of_its_bytes_differs() -> None:
    state = state_of_version_1(varied())
    refused = 0
    for at in range(len(state)):
        for value in {0, 1, 127, 255, state[at] ^ 1, state[at] ^ 128}:
            try:
                deque(load(fresh(), state[:at] + bytes([value]) + state[at + 1 :]), maxlen=0)
            except UnreadableRecord:
                refused += 1
    assert refused


def test_no_step_reads_the_tables_of_more_than_is_brought_back_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Symptom: a million messages held the event loop for 30 ms."""
    messages = new_messages()
    for turn in range(8):
        first = send(messages, 100 * turn, 5)
        for number in range(first, first + 2):
            mark(messages, 1_000 + number, Mark(records.DEFERRED, 0, [number], encode_changes({"n": turn})))
    state, counts = state_of_version_1(messages), [0]

    def counted(code: str, view: memoryview, offset: int, count: int) -> tuple[array[int], int]:
        counts[-1] += count
        return read_table(code, view, offset, count)

    monkeypatch.setattr(snapshot_v1, "read_table", counted)
    monkeypatch.setattr(snapshot_v1, "AT_ONCE", 3)
    again = fresh()
    counts.extend(0 for _ in load(again, state))
    assert max(counts) <= 8 * 3, "as many rows of eight tables"
    deque(again.finish_steps(0), maxlen=0)
    assert contents(again) == contents(messages)


@pytest.mark.parametrize("state", [b"", b"PbS1", b"PbS9" + bytes(100), state_of_version_1(varied())[:-1]])
def test_a_state_of_an_earlier_release_that_is_none_is_not_read(state: bytes) -> None:
    with pytest.raises(UnreadableRecord):
        loaded(Checkpoint(Position(0), (Section("", 1, {0: state}),)))
