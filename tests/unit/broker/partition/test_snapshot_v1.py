"""Checkpoints of format version 1, which earlier releases wrote."""

from __future__ import annotations

from collections import deque
from itertools import pairwise

import pytest

from broker.message.changes import encode_changes
from broker.partition import records
from broker.partition.block_content import STEP_BYTES
from broker.partition.records import Mark
from broker.partition.snapshot import Snapshot
from broker.partition.snapshot_v1 import load
from broker.partition.tables import UnreadableRecord
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


@pytest.mark.parametrize("state", [b"", b"PbS1", b"PbS9" + bytes(100), state_of_version_1(varied())[:-1]])
def test_a_state_of_an_earlier_release_that_is_none_is_not_read(state: bytes) -> None:
    with pytest.raises(UnreadableRecord):
        loaded(Checkpoint(Position(0), (Section("", 1, {0: state}),)))
