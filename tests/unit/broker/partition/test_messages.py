"""What a partition knows durably: replayed, relocated and dropped in steps of bounded size."""

from __future__ import annotations

from collections import deque
from itertools import pairwise

import pytest

from broker.entities.descriptions import QUEUE_SUBQUEUES
from broker.operations.sending import Send
from broker.operations.settling import Complete, Defer
from broker.partition import messages as messages_module
from broker.partition.cycle_bounds import Bounds
from broker.partition.messages import DROPPED_AT_ONCE, RELOCATED_AT_ONCE, Messages
from broker.partition.payloads import PayloadBudget
from broker.partition.replay import LogReplay
from broker.partition.replaying import REPLAYED_AT_ONCE
from broker.partition.subqueue import REBUILT_AT_ONCE
from broker.partition.task_limits import TaskLimits
from storage.log import Position
from tests.support.partition_harness import NUMBER, Harness
from tests.support.partition_messages import live_frames
from tests.support.topics import topic

MANY = 20_000


SOME = 3_000
"""For tests in which each step checks the whole state."""


async def test_a_log_is_replayed_in_steps_of_bounded_size_and_to_the_same_state() -> None:
    harness = Harness(limits=TaskLimits(bounds=Bounds(work_max=1 << 40, granted_max=1 << 40)))
    await harness.send(*[b"x%d" % index for index in range(MANY)])
    locked = await harness.receive(1, 5_000)
    await harness.do(1, Complete(locked.tokens[:3_000]), Defer(locked.tokens[3_000:]))
    messages = Messages(NUMBER, QUEUE_SUBQUEUES, PayloadBudget(0, 0), 20)
    steps = list(LogReplay(messages).steps([frame async for frame in harness.log.replay(harness.log.start)]))
    assert max(steps) <= REPLAYED_AT_ONCE and len(steps) > MANY // REPLAYED_AT_ONCE
    assert max(messages.finish_steps(0)) <= REBUILT_AT_ONCE
    messages.check()
    assert messages.count == MANY - 3_000 and messages.main.deferred == 2_000
    assert max(messages.drop()) <= DROPPED_AT_ONCE
    assert messages.count == 0 and not live_frames(messages)
    await harness.restart()
    assert (await harness.receive(1, 1)).messages == [b"x5000"]


async def test_schedules_and_shared_messages_are_freed_in_steps_too() -> None:
    harness = Harness(description=topic("a", "b"))
    await harness.send(*[b"x"] * SOME)
    due_ms = harness.clock.now_ms() + 60_000
    await harness.do(1, Send([b"y"] * SOME, None, scheduled_ms=[due_ms + 20 * each for each in range(SOME)]))
    assert harness.task._partition is not None
    messages = harness.task._partition.messages
    wheel, bodies = messages.main.schedule, messages.bodies
    assert wheel is not None and wheel.next_due_ms() is not None and bodies
    steps = list(messages.drop())
    assert max(steps) <= DROPPED_AT_ONCE
    # Symptom: they were freed all at once, with the object.
    assert steps.count(0) >= SOME // DROPPED_AT_ONCE and wheel.next_due_ms() is None and not bodies


async def test_a_relocated_frame_is_replayed_in_steps_of_bounded_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    harness = Harness()
    monkeypatch.setattr(messages_module, "RELOCATED_AT_ONCE", SOME)
    await harness.send(*[b"%d" % index for index in range(SOME)])
    (position,) = [position for position, data in harness.log.disk.frames.items() if len(data) > SOME]
    (frame,) = await harness.log.fetch([Position(position)])
    messages = Messages(NUMBER, QUEUE_SUBQUEUES, PayloadBudget(0, 0), 20)
    deque(LogReplay(messages).steps([frame]), maxlen=0)
    commit = harness.log.begin()
    assert messages.relocate(deque(messages.living_in(frame)), commit, 1 << 30) is not None
    await harness.log.append(commit)
    (moved,) = await harness.log.fetch([commit.start])
    again = Messages(NUMBER, QUEUE_SUBQUEUES, PayloadBudget(0, 0), 20)
    again.next_number = messages.next_number
    assert max(LogReplay(again).steps([moved])) <= REPLAYED_AT_ONCE
    deque(again.finish_steps(0), maxlen=0)
    again.check()
    for index in (0, 1, REPLAYED_AT_ONCE - 1, REPLAYED_AT_ONCE, SOME - 1):
        reference = again.main.references[NUMBER << 48 | index + 1]
        assert moved.part(reference.offset, reference.size) == b"%d" % index


async def test_dead_frames_behind_a_live_one_are_looked_at_once() -> None:
    harness = Harness()
    for _ in range(300):
        harness.post(1000, Send([b"x"], None))
        await harness.task.step()
    kept = await harness.receive(1, 1)
    gone = await harness.receive(1, 250)
    await harness.do(1, Complete(gone.tokens))
    assert harness.task._partition is not None
    messages = harness.task._partition.messages
    before = len(messages._frames)
    oldest = messages.oldest_frames(2, 1 << 30, harness.log.end)
    assert len(oldest) == 2 and oldest == sorted(oldest)
    assert len(messages._frames) <= before - 250
    assert messages.oldest_frames(2, 1 << 30, harness.log.end) == oldest
    assert messages.first_live() == oldest[0]
    harness.task.check()
    await harness.do(1, Complete(kept.tokens))
    assert messages.oldest_frames(1, 1 << 30, harness.log.end) == oldest[1:]


async def test_dead_frames_before_a_live_one_are_dropped_in_steps_of_bounded_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(messages_module, "FRAMES_LOOKED_AT", 50)
    harness = Harness()
    for _ in range(300):
        harness.post(1000, Send([b"x"], None))
        await harness.task.step()
    gone, kept = await harness.receive(1, 250), await harness.receive(1, 1)
    harness.post(1, Complete(gone.tokens))
    await harness.task.step()
    assert harness.task._partition is not None
    messages = harness.task._partition.messages
    left = [len(messages._frames)]
    messages.first_live()
    left.append(len(messages._frames))
    assert messages.begins_dead
    left += [len(messages._frames) for _ in messages.drop_dead_frames()]
    # Symptom: all went at once, a million in 127 ms.
    assert max(before - after for before, after in pairwise(left)) == 50 and left[-1] <= left[0] - 250
    assert messages.first_live() == messages.main.references[kept.sequence_numbers[0]].frame.position
    harness.task.check()


async def test_a_compaction_moves_a_bounded_number_of_messages_with_each_commit() -> None:
    harness = Harness()
    await harness.send(*[b"x"] * SOME)
    assert harness.task._partition is not None
    messages = harness.task._partition.messages
    frames = [frame async for frame in harness.log.replay(harness.log.start)]
    steps = list(messages.living_steps(frames))
    assert max(map(len, steps)) <= REPLAYED_AT_ONCE
    candidates = deque(each for step in steps for each in step)
    moved = []
    while candidates:
        commit = harness.log.begin()
        relocated = messages.relocate(candidates, commit, 1 << 30)
        assert relocated is not None
        await harness.log.append(commit)
        messages.apply_relocated(commit.start, relocated)
        moved.append(len(relocated.sizes))
    assert moved == [RELOCATED_AT_ONCE, SOME - RELOCATED_AT_ONCE]
    harness.task.check()
