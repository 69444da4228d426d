"""Replaying a log: what ends a replay, and what it passes over."""

from __future__ import annotations

from collections import deque

import pytest

from broker.entities.descriptions import QUEUE_SUBQUEUES
from broker.partition import records
from broker.partition.messages import Messages
from broker.partition.payloads import PayloadBudget
from broker.partition.records import Mark
from broker.partition.replay import LogReplay
from broker.partition.tables import UnreadableRecord
from storage.log import Commit, Position
from tests.support.partition_messages import frame_of


def test_a_record_kind_of_a_later_release_ends_the_replay() -> None:
    commit = Commit(Position(0))
    commit.add(200, [b"?"])
    with pytest.raises(UnreadableRecord, match="kind 200"):
        deque(
            LogReplay(Messages(3, QUEUE_SUBQUEUES, PayloadBudget(0, 0), 20)).steps([frame_of(commit)]),
            maxlen=0,
        )


def test_a_record_about_a_message_that_cannot_be_unknown_ends_the_replay() -> None:
    commit = Commit(Position(0))
    records.add_enqueued(commit, 3 << 48 | 10, 1, [1], None, [b"x"])
    commit.add(records.REMOVED, [records.encode_mark(Mark(records.REMOVED, 0, [3 << 48 | 11]))])
    with pytest.raises(UnreadableRecord, match="not there"):
        deque(
            LogReplay(Messages(3, QUEUE_SUBQUEUES, PayloadBudget(0, 0), 20)).steps([frame_of(commit)]),
            maxlen=0,
        )


def test_a_record_about_a_message_of_a_trimmed_part_is_passed_over() -> None:
    messages = Messages(3, QUEUE_SUBQUEUES, PayloadBudget(0, 0), 20)
    commit = Commit(Position(0))
    commit.add(records.REMOVED, [records.encode_mark(Mark(records.REMOVED, 0, [3 << 48 | 2]))])
    records.add_enqueued(commit, 3 << 48 | 10, 1, [1], None, [b"x"])
    commit.add(
        records.RETURNED, [records.encode_mark(Mark(records.RETURNED, 0, [3 << 48 | 4, 3 << 48 | 10]))]
    )
    deque(LogReplay(messages).steps([frame_of(commit)]), maxlen=0)
    deque(messages.finish_steps(0), maxlen=0)
    messages.check()
    assert [each.delivery_count for each in messages.main.browse(0)] == [1]
