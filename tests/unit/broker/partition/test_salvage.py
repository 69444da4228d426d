"""Salvage: what is left of a damaged log, and which messages are lost.

`tests/crash/test_repair.py` does this with files."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from pathlib import Path

import pytest

from broker.entities.descriptions import DEAD_LETTER, QUEUE_SUBQUEUES
from broker.entities.roles import SubqueueTable
from broker.entities.topics import MAIN_PLACE, SubscriptionSettings, TopicDescription
from broker.identifiers import PARTITION_SHIFT
from broker.partition import records
from broker.partition.doubts import Older
from broker.partition.records import Mark
from broker.partition.replay import LogReplay
from broker.partition.salvage import UNSEEN_NUMBERS, Range, Salvage
from broker.partition.snapshot import Snapshot
from broker.partition.tables import UnreadableRecord
from storage.errors import CorruptRecord
from storage.log import Block, Commit, Frame, Position
from storage.survey import Gap
from tests.support.partition_messages import NUMBER, frame_of, new_messages, send, taken

FIRST = NUMBER << PARTITION_SHIFT | 1


def enqueued(position: int, number: int, count: int) -> Frame:
    commit = Commit(Position(position))
    records.add_enqueued(commit, FIRST - 1 + number, 1_000, [1] * count, None, [b"x"] * count)
    return frame_of(commit)


def marked(position: int, *marks: Mark) -> Frame:
    commit = Commit(Position(position))
    for mark in marks:
        commit.add(mark.kind, [records.encode_mark(mark)], records.VERSION)
    return frame_of(commit)


def test_without_a_checkpoint_nobody_knows_what_stood_before_the_start() -> None:
    salvage = Salvage(NUMBER, QUEUE_SUBQUEUES)
    salvage.begin([], Position(500), is_start_known=False)
    salvage.frame(enqueued(500, 6, 2))
    salvage.finish()
    assert salvage.gone == [Range(None, FIRST + 4)]
    assert salvage.older == Older(FIRST + 5, 0)


class Damaged(dict[int, Block]):
    """Blocks that were whole when they were checked."""

    def __getitem__(self, number: int) -> Block:
        if number:
            raise CorruptRecord("file", 0, "it was cut off since")
        return super().__getitem__(number)


def test_of_two_checkpoints_the_older_is_loaded_if_the_newer_was_damaged_since_it_was_checked() -> None:
    newer, older = new_messages(), new_messages()
    send(older, 100, 3)
    send(newer, 100, 2_000)
    checkpoint = taken(Snapshot(newer), Position(600), None)
    sections = tuple(replace(each, blocks=Damaged(each.blocks)) for each in checkpoint.sections)
    sections = tuple(replace(each, taken=dict.fromkeys(each.blocks, Position(600))) for each in sections)
    whole = taken(Snapshot(older), Position(500), None)
    there = tuple(replace(each, taken=dict.fromkeys(each.blocks, Position(500))) for each in whole.sections)
    salvage = Salvage(NUMBER, QUEUE_SUBQUEUES)
    found = [replace(checkpoint, sections=sections), replace(whole, sections=there)]
    salvage.begin(found, Position(500), is_start_known=True)
    assert salvage.since == 500 and salvage.messages.count == 3


def test_where_nothing_says_that_the_log_ends_here_more_may_be_gone() -> None:
    salvage = Salvage(NUMBER, QUEUE_SUBQUEUES)
    salvage.begin([], Position(0), is_start_known=False)
    salvage.frame(enqueued(0, 1, 2))
    salvage.finish(is_end_known=False)
    assert salvage.gone == [Range(FIRST + 2, None)]
    assert salvage.messages.next_number == FIRST + 2 + UNSEEN_NUMBERS, "no number is given twice"
    assert salvage.older == Older(None, 2)


def gap(position: int, end: int | None) -> Gap:
    return Gap(Path("log"), 0, Position(position), None if end is None else Position(end), "flipped")


def salvaged(*parts: Frame | Gap, subqueues: SubqueueTable = QUEUE_SUBQUEUES) -> Salvage:
    salvage = Salvage(NUMBER, subqueues)
    salvage.begin([], Position(0), is_start_known=True)
    for part in parts:
        if isinstance(part, Gap):
            salvage.gap(part)
        else:
            salvage.frame(part)
    salvage.finish()
    deque(salvage.messages.finish_steps(0), maxlen=0)
    salvage.messages.check()
    return salvage


def numbers(salvage: Salvage, subqueue: int = 0) -> list[int]:
    return [each - FIRST + 1 for each in salvage.messages.subqueues[subqueue].references]


def gone(salvage: Salvage) -> list[tuple[int | None, int | None]]:
    return [(first and first - FIRST + 1, last and last - FIRST + 1) for first, last in salvage.gone]


def test_the_numbers_between_those_before_a_gap_and_those_behind_it_are_lost() -> None:
    salvage = salvaged(enqueued(0, 1, 2), gap(500, 900), enqueued(900, 5, 2))
    assert numbers(salvage) == [1, 2, 5, 6] and gone(salvage) == [(3, 4)]
    assert salvage.messages.next_number == FIRST + 6


def test_a_number_that_a_later_record_removes_was_settled_and_is_not_lost() -> None:
    settled = marked(950, Mark(records.REMOVED, 0, [FIRST + 2]))
    salvage = salvaged(enqueued(0, 1, 2), gap(500, 900), enqueued(900, 6, 1), settled)
    assert gone(salvage) == [(4, 5)]


def test_a_message_of_a_topic_was_settled_only_if_all_subscriptions_removed_it() -> None:
    topic = TopicDescription("t", "0" * 32, 1)
    for name in ("one", "two"):
        topic = topic.with_new(name, SubscriptionSettings(), [], 1)
    one, two = (each.subqueue(MAIN_PLACE) for each in topic.subscriptions)
    settled = marked(
        950,
        Mark(records.REMOVED, one, [FIRST + 2, FIRST + 3]),
        Mark(records.REMOVED, two, [FIRST + 3, FIRST + 4]),
        Mark(records.REMOVED, 0, [FIRST + 5]),
    )
    parts = (enqueued(0, 1, 2), gap(500, 900), enqueued(900, 7, 1), settled)
    assert gone(salvaged(*parts, subqueues=topic.subqueues)) == [(3, 3), (5, 5)]
    assert gone(salvaged(*parts, subqueues=topic.without(2).subqueues)) == [(5, 5)]


def test_numbers_that_a_later_record_removes_in_runs_were_settled_and_are_not_lost() -> None:
    commit = Commit(Position(950))
    runs = records.encode_runs(0, [FIRST + 1, FIRST + 5], [3, 1])
    commit.add(records.REMOVED_RUNS, [runs], records.VERSION)
    salvage = salvaged(enqueued(0, 1, 2), gap(500, 900), enqueued(900, 6, 2), frame_of(commit))
    assert numbers(salvage) == [1, 7] and gone(salvage) == [(5, 5)]


def test_a_number_that_a_later_record_relocates_is_not_lost() -> None:
    source = new_messages()
    source.next_number = FIRST + 2
    deque(LogReplay(source).steps([enqueued(500, 3, 1)]), maxlen=0)
    deque(source.finish_steps(0), maxlen=0)
    commit = Commit(Position(950))
    relocated = source.relocate(deque(source.living_in(enqueued(500, 3, 1))), commit, 1 << 20)
    assert relocated is not None
    salvage = salvaged(enqueued(0, 1, 2), gap(500, 900), enqueued(900, 5, 1), frame_of(commit))
    assert numbers(salvage) == [1, 2, 5, 3] and gone(salvage) == [(4, 4)]


def test_when_nothing_follows_a_gap_all_further_numbers_are_lost_and_none_is_given_again() -> None:
    salvage = salvaged(enqueued(0, 1, 2), gap(500, None))
    assert gone(salvage) == [(3, None)]
    assert salvage.messages.next_number >= FIRST + 2 + UNSEEN_NUMBERS


def test_a_message_that_a_later_record_finds_elsewhere_was_moved_there_in_the_gap() -> None:
    dead = QUEUE_SUBQUEUES.number_of(DEAD_LETTER)
    assert dead is not None
    found = marked(900, Mark(records.CHANGED, dead, [FIRST + 1], b"\xc1\x01\x00"))
    salvage = salvaged(enqueued(0, 1, 2), gap(500, 900), found, enqueued(950, 3, 1))
    assert (numbers(salvage), numbers(salvage, dead)) == ([1, 3], [2])
    assert salvage.gone == []


def test_a_message_whose_bytes_were_in_the_gap_is_lost() -> None:
    salvage = Salvage(NUMBER, QUEUE_SUBQUEUES)
    salvage.begin([], Position(0), is_start_known=True)
    salvage.frame(enqueued(0, 1, 2))
    salvage.frame(enqueued(500, 3, 1))
    salvage.gap(gap(500, 900))  # as if the checkpoint had known of message 3
    salvage.frame(enqueued(900, 4, 1))
    salvage.finish()
    assert numbers(salvage) == [1, 2, 4] and salvage.gone == [Range(FIRST + 2, FIRST + 2)]


def test_a_record_of_a_later_release_ends_the_salvage() -> None:
    with pytest.raises(UnreadableRecord, match="subqueue 9"):
        salvaged(enqueued(0, 1, 1), marked(500, Mark(records.REMOVED, 9, [FIRST])))
