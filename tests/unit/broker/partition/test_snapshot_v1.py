"""Checkpoints of format version 1, which earlier releases wrote."""

from __future__ import annotations

import pytest

from broker.partition.snapshot import Snapshot
from broker.partition.tables import UnreadableRecord
from storage.log import Checkpoint, Position, Section
from tests.support.old_checkpoint import state_of_version_1
from tests.support.partition_messages import contents, loaded, taken, varied


def test_the_state_of_an_earlier_release_is_read_and_taken_as_a_whole() -> None:
    messages = varied()
    again = loaded(Checkpoint(Position(1400), (Section("", 1, {0: state_of_version_1(messages)}),)))
    assert contents(again) == contents(messages)
    assert taken(Snapshot(again), Position(1400), None) == taken(Snapshot(messages), Position(1400), None)


@pytest.mark.parametrize("state", [b"", b"PbS1", b"PbS9" + bytes(100), state_of_version_1(varied())[:-1]])
def test_a_state_of_an_earlier_release_that_is_none_is_not_read(state: bytes) -> None:
    with pytest.raises(UnreadableRecord):
        loaded(Checkpoint(Position(0), (Section("", 1, {0: state}),)))
