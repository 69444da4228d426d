"""New messages: their record says what they are, also in parts."""

from __future__ import annotations

import pytest

from broker.operations.columns import SESSION_ID
from broker.partition.new_messages import NewMessages
from broker.partition.records import read_enqueued
from broker.partition.targets import Target, Targets
from storage.log import Commit, Position
from tests.support.partition_messages import frame_of

WHOLE = NewMessages(
    1_000, [1, 2, 3], [0, 5_000, 0], [b"a", b"bb", b"ccc"], {SESSION_ID: [b"s", None, b"t"]}, [0, 0, 9_000]
)


@pytest.mark.parametrize("targets", [None, Targets([(), (Target(4), Target(8, 50, 1))], [0, 1, 1])])
def test_a_replay_reads_what_was_added(targets: Targets | None) -> None:
    commit = Commit(Position(64))
    added = WHOLE.add_to(commit, 77, targets)
    (record,) = frame_of(commit).records()
    read = read_enqueued(record)
    assert (list(read.sizes), list(read.expires_at_ms or ()), list(read.scheduled_ms or ())) == (
        [1, 2, 3],
        [0, 5_000, 0],
        [0, 0, 9_000],
    )
    assert (read.first, read.enqueued_at_ms, read.columns) == (77, 1_000, WHOLE.columns)
    assert read.targets == targets or (targets and read.targets and list(read.targets.sets) == targets.sets)
    assert read.messages_offset == added.messages_offset


def test_a_part_has_a_part_of_every_column() -> None:
    assert WHOLE.part(slice(1, 3)) == NewMessages(
        1_000, [2, 3], [5_000, 0], [b"bb", b"ccc"], {SESSION_ID: [None, b"t"]}, [0, 9_000]
    )
    plain = NewMessages(1_000, [1, 2], None, [b"a", b"bb"])
    assert plain.part(slice(0, 1)) == NewMessages(1_000, [1], None, [b"a"])
