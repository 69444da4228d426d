"""Two additional columns, declared as a feature would declare them, pass through a partition.

`python -m tests.support.added_columns`: run as a separate process, because `COLUMNS` is read when the
partition's modules are imported.
"""

# ruff: noqa: E402 - the columns come first

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import replace

from broker.operations import columns
from broker.operations.columns import Column

columns.COLUMNS = (  # type: ignore[misc]
    *columns.COLUMNS,
    Column("priority", 1_001, "H", 0),
    Column("group", 1_002, "", None),
)

from broker.entities.descriptions import DEAD_LETTER, QUEUE_SUBQUEUES
from broker.hosting import schema
from broker.hosting.messages import Answered, Post
from broker.identifiers import ClientId
from broker.messaging.receive_cache import split, without
from broker.operations.columns import ColumnLists
from broker.operations.receiving import Demand, Locked
from broker.operations.sending import Send, Sent
from broker.operations.settling import DeadLetter
from broker.partition import records
from broker.partition.messages import Messages
from broker.partition.payloads import PayloadBudget
from broker.partition.replay import LogReplay
from broker.partition.salvage import Salvage
from broker.partition.snapshot import Snapshot
from storage.log import FRAME_HEADER_BYTES, Commit, Frame, Position, whole
from tests.support.partition_harness import NUMBER, Harness, one

BODIES = [b"one", b"two", b"three"]
COLUMNS: ColumnLists = {"priority": [7, 0, 9], "group": [b"x", None, b"yy"]}
MANY = 5_000
"""Enough messages that enqueueing and replaying take more than one step."""


def frame_of(commit: Commit) -> Frame:
    return Frame(commit.start, bytes(FRAME_HEADER_BYTES) + b"".join(commit.parts))


def seen(messages: Messages) -> list[tuple[object, ...]]:
    """What the partition knows of each message."""
    return [
        (each.sequence_number, *(getattr(each, name) for name in COLUMNS))
        for subqueue in messages.subqueues
        for each in subqueue.browse(0)
    ]


async def sent_peeked_and_delivered() -> None:
    """Pass the columns from the sender through the log to a receiver, then through a restart and the
    dead-letter subqueue.
    """
    harness = Harness()
    one(await harness.do(1, Send(BODIES, None, None, COLUMNS)), Sent)
    one(await harness.do(1, Send([b"plain"], None)), Sent)
    every: ColumnLists = {"priority": [7, 0, 9, 0], "group": [b"x", None, b"yy", None]}
    assert (await harness.peek()).columns == every
    await harness.restart()
    assert (await harness.peek()).columns == every, "replayed"
    locked = one(await harness.do(2, Demand("", 3)), Locked)
    assert locked.columns == COLUMNS
    first, rest = split(locked, 1)
    assert first is not None and first.columns == {"priority": [7], "group": [b"x"]}
    assert rest is not None and rest.messages == [b"two", b"three"]
    assert rest.columns == {"priority": [0, 9], "group": [None, b"yy"]}
    assert without(locked, {1}).columns == {"priority": [7, 9], "group": [b"x", b"yy"]}
    there = schema.encode(Post(NUMBER, ClientId(1), Send(BODIES, None, None, COLUMNS)))[schema.LENGTH.size :]
    assert schema.decode_to_partitions(there) == Post(NUMBER, ClientId(1), Send(BODIES, None, None, COLUMNS))
    back = schema.encode(Answered(NUMBER, ClientId(2), locked))[schema.LENGTH.size :]
    assert schema.decode_to_broker(back) == Answered(NUMBER, ClientId(2), locked), "between processes"
    await harness.do(2, DeadLetter(locked.tokens[:1]))
    await harness.restart(clean=True)
    assert (await harness.peek(DEAD_LETTER)).columns == {"priority": [7], "group": [b"x"]}
    assert (await harness.peek()).columns == {"priority": [0, 9, 0], "group": [None, b"yy", None]}


async def sent_in_steps() -> None:
    """Send so many messages that they are enqueued and replayed in several steps."""
    harness = Harness()
    numbers: list[int | bytes | None] = [*range(MANY)]
    one(await harness.do(1, Send([b"m"] * MANY, None, None, {"priority": numbers})), Sent)
    await harness.restart()
    assert (await harness.peek(count=MANY)).columns == {"priority": numbers, "group": [None] * MANY}


def kept_by_checkpoints_compaction_and_repair() -> None:
    """Columns survive checkpoints, compaction and repair of the log."""
    first = NUMBER << 48 | 1
    commit = Commit(Position(0))
    records.add_enqueued(commit, first, 1_000, list(map(len, BODIES)), None, BODIES, COLUMNS)
    messages = Messages(NUMBER, QUEUE_SUBQUEUES, PayloadBudget(0, 0), 20)
    deque(LogReplay(messages).steps([frame_of(commit)]), maxlen=0)
    deque(messages.finish_steps(0), maxlen=0)
    expected = [(first, 7, b"x"), (first + 1, 0, None), (first + 2, 9, b"yy")]
    assert seen(messages) == expected

    taking = Snapshot(messages).take(None)
    deque(taking.steps(), maxlen=0)
    checkpoint = taking.checkpoint(Position(1_000))
    assert Snapshot(messages).cost(None) >= sum(
        len(whole(block)) for section in checkpoint.sections for block in section.blocks.values()
    )
    again = Messages(NUMBER, QUEUE_SUBQUEUES, PayloadBudget(0, 0), 20)
    sections = [
        replace(section, taken=dict.fromkeys(section.blocks, checkpoint.position))
        for section in checkpoint.sections
    ]
    snapshot, checkpoint = Snapshot(again), replace(checkpoint, sections=tuple(sections))
    deque(snapshot.load_steps(checkpoint), maxlen=0)
    deque(snapshot.loaded_steps(checkpoint), maxlen=0)
    deque(again.finish_steps(0), maxlen=0)
    again.check()
    assert seen(again) == expected, "from a checkpoint"

    moved = Commit(Position(2_000))
    candidates = deque(messages.living_in(frame_of(commit)))
    relocated = messages.relocate(candidates, moved, 1 << 20)
    assert relocated is not None and not candidates
    assert moved.bytes + FRAME_HEADER_BYTES <= records.RELOCATED_FRAME_BYTES + messages.relocatable_bytes
    messages.apply_relocated(moved.start, relocated)
    messages.check()
    assert seen(messages) == expected
    alone = Messages(NUMBER, QUEUE_SUBQUEUES, PayloadBudget(0, 0), 20)
    deque(LogReplay(alone).steps([frame_of(moved)]), maxlen=0)
    deque(alone.finish_steps(0), maxlen=0)
    assert seen(alone) == expected, "from the relocated messages alone"

    salvage = Salvage(NUMBER, QUEUE_SUBQUEUES)
    salvage.begin([], Position(0), is_start_known=True)
    salvage.frame(frame_of(moved))
    salvage.finish()
    deque(salvage.messages.finish_steps(0), maxlen=0)
    assert seen(salvage.messages) == expected, "repaired"


def defaults_take_no_room() -> None:
    """Records that use neither column are the same as those of a release without them."""
    plain, unused = Commit(Position(0)), Commit(Position(0))
    records.add_enqueued(plain, 1, 1, [1], None, [b"m"])
    records.add_enqueued(unused, 1, 1, [1], None, [b"m"], {"priority": [0], "group": [None]})
    assert plain.parts == unused.parts


if __name__ == "__main__":
    asyncio.run(sent_peeked_and_delivered())
    asyncio.run(sent_in_steps())
    kept_by_checkpoints_compaction_and_repair()
    defaults_take_no_room()
