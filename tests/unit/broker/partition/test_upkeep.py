"""Checkpoints, trimming and compaction: the log stays in proportion and is complete at every moment."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress

import pytest

from broker.entities.descriptions import DEAD_LETTER, MAIN, QueueSettings
from broker.identifiers import ClientId
from broker.operations.general import Failed, Updated
from broker.operations.receiving import Demand, Locked
from broker.operations.sending import Send
from broker.operations.sessions import (
    AcceptSession,
    GetSessionState,
    SessionAccepted,
    SessionState,
    SetSessionState,
)
from broker.operations.settling import Abandon, Complete, DeadLetter, Defer
from broker.partition import messages as messages_module
from broker.partition import records, snapshot
from broker.partition.drain_need import BLOCK_BYTES
from broker.partition.full_disk import PAUSE_MS_MAX
from broker.partition.health import Health
from broker.partition.task_limits import TaskLimits
from broker.partition.upkeep import UpkeepLimits
from storage.errors import CommitFailed, DiskFull, StorageError
from storage.log import RECORD_HEADER, Block, Checkpoint, Commit
from tests.support.memory_log import MemoryLog
from tests.support.partition_harness import NUMBER, Harness, one
from tests.support.topics import topic
from tests.support.waiting import until

SEGMENT_BYTES = 4_000
LIMITS = TaskLimits(
    upkeep=UpkeepLimits(checkpoint_bytes=20_000, garbage_bytes_max=8_000, relocation_bytes=2_000)
)


NEVER_DUE = UpkeepLimits(checkpoint_bytes=1 << 30, garbage_bytes_max=1 << 30, garbage_bytes_at_rest=1 << 30)


def small_log(**settings: int) -> Harness:
    return Harness(limits=LIMITS, segment_bytes=SEGMENT_BYTES, **settings)  # type: ignore[arg-type]


def log_bytes(harness: Harness) -> int:
    return harness.log.end - harness.log.start


async def flow(harness: Harness, messages: int, size: int = 200) -> None:
    """Send and complete messages, ten at a time."""
    for _ in range(messages // 10):
        await harness.send(*[b"x" * size] * 10)
        answers = await harness.do(1, Demand(MAIN, 10))
        tokens = [token for answer in answers if isinstance(answer, Locked) for token in answer.tokens]
        assert len(tokens) == 10
        await harness.do(1, Complete(tokens))


async def test_a_log_through_which_messages_flow_does_not_grow() -> None:
    harness = small_log()
    await flow(harness, 2_000)
    assert log_bytes(harness) < 4 * SEGMENT_BYTES
    await harness.restart()
    assert await harness.send(b"next") == NUMBER << 48 | 2_001


@pytest.mark.parametrize("deferred", [0, 3])
async def test_a_log_at_rest_gives_back_all_but_a_little_without_traffic(deferred: int) -> None:
    limits = UpkeepLimits(checkpoint_bytes=1 << 30, garbage_bytes_max=1 << 30, garbage_bytes_at_rest=4_000)
    harness = Harness(limits=TaskLimits(upkeep=limits))
    await harness.send(*[b"old %d" % index for index in range(deferred)], b"x")
    await harness.do(7, Defer((await harness.receive(7, deferred + 1)).tokens[:deferred]))
    await harness.advance(60_000)
    await flow(harness, 1_000)
    await harness.advance(limits.look_ms)
    assert log_bytes(harness) > 200_000, "it may be a pause"
    assert harness.task._upkeep is not None
    for _ in range(3):
        await harness.advance(limits.look_ms)
    assert log_bytes(harness) < 6_000
    assert harness.task._upkeep.due_ms is None, "nothing is written, so nothing is looked at"
    assert len((await harness.peek()).messages) == deferred + 1
    await harness.restart()
    assert len((await harness.peek()).messages) == deferred + 1


@pytest.mark.parametrize("is_confined", [True, False])
async def test_on_a_disk_with_little_room_a_log_at_rest_keeps_less(is_confined: bool) -> None:
    limits = UpkeepLimits()
    harness = Harness(limits=TaskLimits(upkeep=limits))
    harness.log.confined = is_confined
    await flow(harness, 1_000)
    for _ in range(4):
        await harness.advance(limits.look_ms)
    assert (log_bytes(harness) < limits.confined_garbage_bytes) is is_confined
    assert log_bytes(harness) < limits.garbage_bytes_at_rest


async def test_however_many_dead_frames_there_are_upkeep_drops_all_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(messages_module, "FRAMES_LOOKED_AT", 4)
    limits = UpkeepLimits(checkpoint_bytes=1 << 30, garbage_bytes_max=1 << 30, garbage_bytes_at_rest=4_000)
    harness = Harness(limits=TaskLimits(upkeep=limits))
    for _ in range(200):
        await harness.send(b"x" * 200)
    locked = await harness.receive(1, 200)
    await harness.do(1, Complete(locked.tokens[:199]), Defer(locked.tokens[199:]))
    for _ in range(5):
        await harness.advance(limits.look_ms)
    assert log_bytes(harness) < 6_000
    await harness.restart()
    assert len((await harness.peek()).messages) == 1, "frames of before are not missed"


async def test_what_is_written_by_and_by_leaves_no_more_behind_than_a_log_at_rest() -> None:
    limits = UpkeepLimits(checkpoint_bytes=1 << 30, garbage_bytes_max=1 << 30, garbage_bytes_at_rest=4_000)
    harness = Harness(limits=TaskLimits(upkeep=limits))
    for _ in range(100):
        await flow(harness, 10, size=10)
        await harness.advance(limits.look_ms)
    assert log_bytes(harness) < 8_000


async def test_the_two_checkpoints_that_a_trim_needs_are_encoded_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    encoded: list[int] = []
    encode = snapshot._MessagesSection.encode

    def counted(section: snapshot._MessagesSection, block: int) -> Block:
        encoded.append(block)
        return encode(section, block)

    monkeypatch.setattr(snapshot._MessagesSection, "encode", counted)
    limits = UpkeepLimits(checkpoint_bytes=1 << 30, garbage_bytes_max=1 << 30, garbage_bytes_at_rest=20_000)
    harness = Harness(limits=TaskLimits(upkeep=limits), segment_bytes=SEGMENT_BYTES)
    await flow(harness, 200)
    await harness.send(*[b"x"] * 5)
    assert not encoded
    assert not harness.log.checkpoints
    for _ in range(3):
        await harness.advance(limits.look_ms)
    assert len(harness.log.checkpoints) == 2
    assert log_bytes(harness) < 20_000
    assert len(encoded) == len(set(encoded)) > 0
    await harness.restart()
    assert len((await harness.peek()).messages) == 5


async def half_drained() -> Harness:
    """A log with no bound on its garbage. It had 60 messages of 1,000 bytes, about four per segment; every
    other one is gone."""
    harness = Harness(limits=TaskLimits(upkeep=NEVER_DUE), segment_bytes=SEGMENT_BYTES)
    for _ in range(60):
        await harness.send(b"x" * 1_000)
    for _ in range(30):
        gone, kept = [(await harness.receive(1)).tokens for _ in range(2)]
        await harness.do(1, Complete(gone))
        await harness.do(1, Defer(kept))
    assert log_bytes(harness) > 60_000
    return harness


async def a_little_drained() -> Harness:
    """The same with 40 messages, of which the first three are gone."""
    harness = Harness(limits=TaskLimits(upkeep=NEVER_DUE), segment_bytes=SEGMENT_BYTES)
    for _ in range(40):
        await harness.send(b"x" * 1_000)
    await harness.do(1, Complete((await harness.receive(1, 3)).tokens))
    return harness


@pytest.mark.parametrize("told_by", ["the log", "another log", "a refused send"])
async def test_on_a_full_disk_all_that_can_be_freed_is_freed_without_traffic(told_by: str) -> None:
    harness = await half_drained()
    if told_by == "the log":
        harness.log.full = True
        await harness.until_quiet()
    elif told_by == "another log":
        harness.log.on_full()
        await harness.until_quiet()
    else:
        harness.log.fail_append(DiskFull("no room"))
        one(await harness.do(1, Send([b"y"], None)), Failed)
    live_bytes = 30 * 1_100
    assert log_bytes(harness) < 1.25 * live_bytes + 2 * SEGMENT_BYTES
    before = await harness.peek()
    assert len(before.messages) == 30
    await harness.restart()
    assert (await harness.peek()).messages == before.messages


async def test_what_has_come_due_and_finds_no_room_does_not_keep_upkeep_from_making_some() -> None:
    harness = await half_drained()
    await harness.send(b"y", ttl=[1_000])
    before = log_bytes(harness)

    def refuse(commit: Commit, urgent: bool) -> DiskFull | None:
        kind = RECORD_HEADER.unpack(commit.parts[0])[1]
        return None if kind in (records.COUNTERS, records.RELOCATED) else DiskFull("no room")

    harness.log.on_append = refuse
    for _ in range(20):
        await harness.advance(100)
    assert log_bytes(harness) < before // 2
    live_bytes = harness.live_bytes
    harness.log.empty_disk()
    await harness.advance(PAUSE_MS_MAX)
    assert harness.live_bytes == live_bytes - 1


async def with_states(limits: UpkeepLimits, count: int) -> Harness:
    """A queue whose sessions have states of 10,000 bytes each, most of them in both checkpoints."""
    harness = Harness(QueueSettings(requires_session=True), limits=TaskLimits(upkeep=limits))
    for number in range(count):
        await set_state(harness, number, bytes(10_000))
    for _ in range(3):
        await harness.advance(limits.look_ms)
    assert harness.log.checkpoint_bytes > count * 10_000
    return harness


async def set_state(harness: Harness, number: int, state: bytes | None) -> None:
    session = b"session %d" % number
    if state is not None:
        await harness.do(number, AcceptSession(MAIN, session))
    one(await harness.do(number, SetSessionState(MAIN, session, ClientId(number), state, 100)), Updated)


@pytest.mark.parametrize("left", [0, 2])
async def test_states_of_sessions_that_are_cleared_leave_the_checkpoints_without_traffic(left: int) -> None:
    limits = UpkeepLimits(checkpoint_bytes=100_000, garbage_bytes_at_rest=50_000)
    harness = await with_states(limits, 20)
    for number in range(left, 20):
        await set_state(harness, number, None)
    for _ in range(3):
        await harness.advance(limits.look_ms)
    live_bytes = 2 * left * 10_000
    assert harness.log.checkpoint_bytes < live_bytes + max(50_000, 2 * live_bytes) + 1_000
    assert harness.task._upkeep is not None and not harness.task._upkeep.has_garbage
    await harness.restart()
    for number in range(20):
        session, client = b"session %d" % number, ClientId(number)
        one(await harness.do(number, AcceptSession(MAIN, session)), SessionAccepted)
        answer = one(await harness.do(number, GetSessionState(MAIN, session, client)), SessionState)
        assert answer.state == (bytes(10_000) if number < left else None)


async def test_on_a_full_disk_states_that_are_cleared_leave_the_checkpoints() -> None:
    harness = await with_states(UpkeepLimits(checkpoint_bytes=100_000, garbage_bytes_at_rest=50_000), 20)
    before, harness.log.full, harness.log.room_bytes = harness.log.checkpoints, True, 5_000
    for number in range(20):
        await set_state(harness, number, None)
        assert harness.log.checkpoints == before or number == 19, "there is no room for what is left"
    for _ in range(2):
        harness.log.on_full()
        await harness.advance(harness.limits.upkeep.pause_ms)
    assert harness.log.checkpoint_bytes < 1_000


async def test_on_a_full_disk_checkpoints_that_free_nothing_are_replaced_less_and_less_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    harness, stored_bytes, saved = Harness(limits=LIMITS), 300_000, 0
    await harness.send(*[b"x" * 100] * 200)
    save = MemoryLog.save_checkpoint

    async def counts(log: MemoryLog, checkpoint: Checkpoint, *, is_complete: bool = False) -> None:
        nonlocal saved
        saved += 1
        await save(log, checkpoint, is_complete=is_complete)

    monkeypatch.setattr(MemoryLog, "save_checkpoint", counts)
    # Files of checkpoints whose blocks are mostly dead.
    monkeypatch.setattr(MemoryLog, "checkpoint_bytes", property(lambda _: stored_bytes))
    harness.log.full = True

    async def defer_one_each_second(seconds: int) -> int:
        before = saved
        for _ in range(seconds):
            await harness.do(1, Defer((await harness.receive(1)).tokens))
            harness.log.on_full()
            await harness.advance(LIMITS.upkeep.pause_ms)
        return saved - before

    # Symptom: both were replaced each second.
    assert 2 <= await defer_one_each_second(40) <= 16
    assert await defer_one_each_second(5) <= 2
    stored_bytes = 900_000  # states have been cleared
    assert await defer_one_each_second(2) == 2, "at once"
    stored_bytes = 300_000
    assert await defer_one_each_second(20) <= 10


async def test_a_segment_is_compacted_only_where_there_is_room_for_what_it_holds() -> None:
    harness = await half_drained()
    before, harness.log.full, harness.log.room_bytes = harness.log.start, True, 500
    await harness.until_quiet()
    assert harness.log.start == before
    assert (
        harness.task._upkeep is not None
        and harness.task._upkeep.due_ms == harness.clock.monotonic_ms() + LIMITS.upkeep.pause_ms
    )
    harness.log.room_bytes = 5_000
    await harness.advance(LIMITS.upkeep.pause_ms)
    assert log_bytes(harness) < 1.25 * 30 * 1_100 + 2 * SEGMENT_BYTES


async def test_while_not_even_settlements_find_room_no_garbage_is_tolerated() -> None:
    limits = UpkeepLimits(
        checkpoint_bytes=1 << 30,
        garbage_bytes_max=1 << 30,
        garbage_bytes_at_rest=1 << 30,
        live_per_garbage_on_full_disk=4,
    )
    harness = Harness(
        QueueSettings(max_delivery_count=100), limits=TaskLimits(upkeep=limits), segment_bytes=SEGMENT_BYTES
    )
    for _ in range(60):
        await harness.send(b"x" * 1_000)
    for _ in range(60):
        await harness.do(1, Abandon((await harness.receive(1)).tokens))
    before, harness.log.full = log_bytes(harness), True
    await harness.advance(limits.pause_ms)
    assert log_bytes(harness) >= before, "a little garbage is tolerated"
    locked = await harness.receive(1)
    harness.log.fail_append(DiskFull("no room"))
    assert isinstance((await harness.do(1, Complete(locked.tokens)))[0], Failed)
    for _ in range(3):
        await harness.advance(limits.pause_ms)
    assert log_bytes(harness) < before - 2_000
    assert len((await harness.peek()).messages) == 60


async def test_on_a_full_disk_each_partition_comes_back_at_a_time_of_its_own() -> None:
    harnesses = [await a_little_drained() for _ in range(5)]
    before = log_bytes(harnesses[0])
    turns, clock, limits = harnesses[0].log.making_room, harnesses[0].clock, LIMITS.upkeep
    for harness in harnesses[1:]:
        harness.log.share_turns(turns)
        assert harness.clock.monotonic_ms() == clock.monotonic_ms()

    def dues() -> list[int]:
        upkeeps = [harness.task._upkeep for harness in harnesses]
        found = [upkeep.due_ms for upkeep in upkeeps if upkeep is not None]
        return [due_ms - clock.monotonic_ms() for due_ms in found if due_ms is not None]

    for _ in range(3):  # while the disk is full, the owners are told about once a second
        for harness in harnesses:
            harness.log.on_full()
    assert dues() == [place * limits.next_pause_ms for place in range(5)], (
        "a thousand at once would stop everybody"
    )
    async with turns:
        for harness in harnesses:
            await harness.advance(4 * limits.next_pause_ms)
            assert log_bytes(harness) == before, "somebody else makes room"
        assert dues() == [(place + 1) * limits.next_pause_ms for place in range(5)]
    for harness in harnesses:
        await harness.advance(5 * limits.next_pause_ms)
        assert log_bytes(harness) < before - 2_000


@pytest.mark.parametrize("is_confined", [True, False])
async def test_a_disk_with_little_room_has_two_checkpoints_of_a_log_before_it_is_full(
    is_confined: bool,
) -> None:
    limits = UpkeepLimits(confined_look_bytes=1_000)
    harness = Harness(limits=TaskLimits(upkeep=limits), segment_bytes=SEGMENT_BYTES)
    harness.log.confined = is_confined
    for _ in range(25):
        await harness.send(b"x" * 1_000)
    assert len(harness.log.checkpoints) == (2 if is_confined else 0)
    if is_confined:
        assert harness.log.trim_points[0] < harness.log.checkpoints[1], (
            "so that a segment can go without more"
        )


async def test_on_a_full_disk_little_garbage_goes_too_where_no_checkpoint_has_to_be_written_first() -> None:
    limits = UpkeepLimits(live_per_garbage_on_full_disk=4)  # so that nothing is compacted
    harness = Harness(limits=TaskLimits(upkeep=limits), segment_bytes=SEGMENT_BYTES)
    harness.log.confined = True
    for _ in range(100):
        await harness.send(b"x" * 1_000)
    harness.log.full = True
    harness.log.on_checkpoint = lambda: DiskFull("no room")
    before = log_bytes(harness)
    for _ in range(8):
        await harness.do(1, Complete((await harness.receive(1)).tokens))
    await harness.until_quiet()
    assert log_bytes(harness) < before - SEGMENT_BYTES
    await harness.restart()
    assert len((await harness.peek()).messages) == 92


async def test_partitions_make_room_one_at_a_time() -> None:
    harness = await a_little_drained()
    before, harness.log.full = log_bytes(harness), True
    async with harness.log.making_room:
        await harness.until_quiet()
        assert log_bytes(harness) == before, "it comes back later"
    await harness.advance(LIMITS.upkeep.next_pause_ms)
    assert log_bytes(harness) < before - 2_000


@pytest.mark.parametrize("is_scarce", [False, True])
async def test_a_partition_with_more_garbage_than_was_foreseen_writes_nothing_before_its_turn(
    is_scarce: bool,
) -> None:
    harness = await half_drained()
    if is_scarce:
        await harness.send(b"x" * 200_000)
        harness.log.scarce = True
    harness.log.full = True
    async with harness.log.making_room:
        harness.post(1, Send([b"next"], None))
        quiet = asyncio.create_task(harness.until_quiet())
        await until(lambda: bool(harness.received[1]))
        harness.post(1, Send([b"last"], None))
        for _ in range(10):
            await asyncio.sleep(0)
        assert len(harness.received[1]) == 1 and not quiet.done()
    await quiet
    assert len(harness.received[1]) == 2
    assert log_bytes(harness) < 50_000 + 200_000 * is_scarce


@pytest.mark.parametrize("subscriptions", [0, 10])
async def test_what_draining_needs_counts_the_segments_that_large_messages_have_and_will_have(
    subscriptions: int,
) -> None:
    """Those that subscriptions share count once."""
    lasting = []
    for segment_bytes in (1 << 30, SEGMENT_BYTES):
        description = topic(*(f"s{number}" for number in range(subscriptions))) if subscriptions else None
        harness = Harness(
            limits=TaskLimits(upkeep=NEVER_DUE), segment_bytes=segment_bytes, description=description
        )
        for _ in range(3):
            await harness.send(b"x" * 20_000)
        need = harness.log.need()
        assert need is not None and len(harness.log.trim_points) == (
            0 if segment_bytes > SEGMENT_BYTES else 2
        )
        lasting.append(need[0])
    assert lasting[0] - lasting[1] == 2 * BLOCK_BYTES


async def test_what_draining_needs_is_known_before_the_messages_are_written() -> None:
    harness = Harness(limits=TaskLimits(upkeep=NEVER_DUE), segment_bytes=SEGMENT_BYTES)
    assert harness.log.need() is None and harness.log.needs == (0, 0)
    await harness.send(b"first")
    kept, told = harness.log.needs, [harness.log.need()]

    def append(commit: Commit, urgent: bool) -> None:
        told.append(harness.log.need())

    harness.log.on_append = append
    await harness.send(*[b"x" * 1_000] * 100)
    before, while_written = told
    assert before is not None and while_written is not None and before == kept == harness.log.needs
    assert while_written[0] > kept[0] + 100 * 50 and while_written[1] > kept[1] + 100 * 16
    harness.log.fill_disk()
    await harness.do(1, Send([b"x" * 1_000] * 100, None))
    after = harness.log.need()
    assert after is not None and after[0] <= while_written[0], "what was refused needs nothing"


async def test_on_a_full_disk_empty_segments_go_as_soon_as_on_any_other_disk() -> None:
    """An eighth of a large log may be hours of traffic, for which messages would be refused."""
    upkeep = UpkeepLimits(live_per_garbage_on_full_disk=1, garbage_bytes_at_rest=8_000)
    harness = Harness(limits=TaskLimits(upkeep=upkeep), segment_bytes=SEGMENT_BYTES)
    await harness.send(b"first")
    harness.log.full = True
    await harness.until_quiet()
    assert len(harness.log.checkpoints) == 2
    for _ in range(60):
        await harness.send(b"x" * 1_000)
    before = log_bytes(harness)
    await harness.do(1, Complete((await harness.receive(1, 20)).tokens))
    for _ in range(3):
        await harness.advance(upkeep.look_ms)
    assert log_bytes(harness) < before - 16_000


async def test_on_a_full_disk_a_log_has_two_checkpoints_before_anything_is_drained() -> None:
    """Otherwise nobody knows what they take, and they may find no room."""
    harness = Harness(limits=TaskLimits(upkeep=NEVER_DUE), segment_bytes=SEGMENT_BYTES)
    await harness.send(*[b"x" * 10] * 500)
    before, harness.log.full = harness.log.need(), True
    await harness.advance(LIMITS.upkeep.pause_ms)
    assert len(harness.log.checkpoints) == 2
    assert before is not None and harness.log.needs[0] < before[0] // 2


async def test_sequence_numbers_go_on_when_all_records_are_trimmed_and_the_checkpoint_is_lost() -> None:
    harness = small_log()
    await flow(harness, 500)
    harness.log.disk.checkpoint = None
    await harness.restart()
    assert await harness.send(b"next") == NUMBER << 48 | 501


@pytest.mark.parametrize("with_checkpoint", [True, False])
async def test_a_few_old_messages_do_not_keep_the_log_long(with_checkpoint: bool) -> None:
    harness = small_log()
    first = await harness.send(*[b"old %d" % index for index in range(6)])
    tokens = (await harness.receive(7, 3)).tokens
    await harness.do(7, Defer([tokens[0]], b"\xc1\x01\x00"))
    await harness.do(7, DeadLetter([tokens[1]]))
    held = (await harness.receive(7, 3)).tokens
    await flow(harness, 3_000)
    assert log_bytes(harness) < 2 * 8_000 + 4 * SEGMENT_BYTES
    assert harness.log.start > 0
    await harness.do(7, Complete([held[0]]))
    for _ in range(2):
        main, dead = await harness.peek(), await harness.peek(DEAD_LETTER)
        assert main.messages == [b"old 0", b"old 2", b"old 4", b"old 5"]
        assert (
            main.sequence_numbers[0] == first and main.states[0] == 1 and main.changed[0] == b"\xc1\x01\x00"
        )
        assert dead.messages == [b"old 1"]
        if not with_checkpoint:
            harness.log.disk.checkpoint = None
        await harness.restart()


async def test_the_log_stays_in_proportion_to_what_is_live_under_a_random_load() -> None:
    chance = random.Random(4)
    harness = small_log()
    held: list[bytes] = []
    for _ in range(600):
        await harness.send(
            *[
                b"%d" % chance.randrange(1 << 60) * chance.randrange(1, 30)
                for _ in range(chance.randrange(1, 6))
            ]
        )
        answers = await harness.do(1, Demand(MAIN, 5))
        held += [token for answer in answers if isinstance(answer, Locked) for token in answer.tokens]
        chance.shuffle(held)
        done, held = held[: len(held) // 3], held[len(held) // 3 :]
        await harness.do(1, Complete(done))
        live = harness.live_bytes
        assert log_bytes(harness) <= live + max(8_000, 2 * live) + live + 4 * SEGMENT_BYTES
    before = await harness.peek()
    await harness.restart()
    assert (await harness.peek()).messages == before.messages


async def test_a_checkpoint_shortens_the_replay() -> None:
    harness = Harness(limits=LIMITS)
    for _ in range(50):
        await harness.send(b"x" * 1000)
    checkpoint = harness.log.disk.checkpoint
    assert checkpoint is not None and harness.log.end - checkpoint.position < 22_000
    read: list[int] = []
    original = harness.log._read
    await harness.restart()
    harness.log._read = lambda position: (read.append(position), original(position))[1]  # type: ignore[func-returns-value, method-assign]
    await harness.send(b"y")
    assert min(read) >= checkpoint.position
    assert len((await harness.peek()).messages) == 51


@pytest.mark.parametrize("kind", [records.COUNTERS, records.RELOCATED])
@pytest.mark.parametrize("error", [CommitFailed("no"), DiskFull("no room")])
async def test_a_fault_in_the_upkeep_loses_nothing(kind: int, error: Exception) -> None:
    harness = small_log()
    await harness.send(*[b"old %d" % index for index in range(20)])
    faults = [error]

    def fault(commit: object, urgent: bool) -> Exception | None:
        parts: list[bytes] = commit.parts  # type: ignore[attr-defined]
        return faults.pop() if faults and parts[0][4] == kind else None

    await harness.receive(7, 20)
    harness.log.on_append = fault
    await flow_despite_faults(harness, lambda: bool(faults))
    harness.clock.advance(LIMITS.upkeep.pause_ms)
    assert harness.task.health is Health.HEALTHY and not faults
    await harness.restart()
    assert (await harness.peek()).messages[:20] == [b"old %d" % index for index in range(20)]


async def flow_despite_faults(harness: Harness, going_on: Callable[[], bool]) -> None:
    for _ in range(1000):
        if not going_on():
            return
        await harness.do(1, Send([b"x" * 500], None))
        answers = await harness.do(1, Demand(MAIN, 1))
        tokens = [token for answer in answers if isinstance(answer, Locked) for token in answer.tokens]
        await harness.do(1, Complete(tokens))
    raise AssertionError("the upkeep never wrote what was to fail")


async def test_a_checkpoint_that_cannot_be_saved_is_tried_again_and_nothing_is_trimmed_before() -> None:
    harness = small_log()
    harness.log.on_checkpoint = lambda: StorageError("no")
    await flow(harness, 200)
    assert harness.log.start == 0 and harness.task.health is Health.HEALTHY
    harness.log.on_checkpoint = lambda: None
    harness.clock.advance(LIMITS.upkeep.pause_ms)
    await flow(harness, 10)
    assert harness.log.start > 0


class Crash(Exception):
    """The power is gone."""


class Countdown:
    """Permits this many writes and fails all later ones."""

    def __init__(self, left: int) -> None:
        self.left = left

    def __call__(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise Crash


async def test_a_crash_at_every_point_of_compaction_and_trimming_loses_nothing() -> None:
    """Whichever of the upkeep's writes was the last, a restart finds the same messages."""
    for crash_at in range(1, 60):
        harness = small_log()
        await harness.send(*[b"old %d" % index for index in range(12)])
        await harness.receive(7, 12)
        crash = Countdown(crash_at)
        harness.log.on_append = lambda commit, urgent, crash=crash: crash()  # type: ignore[misc]
        harness.log.on_checkpoint = crash
        with suppress(Crash):
            await flow(harness, 400)
        assert crash.left < 0
        for checkpoint in (harness.log.disk.checkpoint, None):
            harness.log.disk.checkpoint = checkpoint
            await harness.restart()
            assert (await harness.peek()).messages[:12] == [b"old %d" % index for index in range(12)]


async def test_a_stop_leaves_a_short_tail_of_the_log_to_the_next_start_and_shortens_a_long_one() -> None:
    upkeep = UpkeepLimits(tail_bytes_at_stop=2_000)
    harness = Harness(limits=TaskLimits(upkeep=upkeep))
    sent = [b"%d" % number for number in range(5)]
    for message in sent:
        await harness.send(message)
    await harness.restart(clean=True)
    assert not harness.log.disk.checkpoints, "a few records are replayed as fast as a checkpoint is read"
    assert (await harness.peek()).messages == sent
    await harness.send(bytes(2_000))
    await harness.restart(clean=True)
    assert harness.log.disk.checkpoint is not None
    saved_at = harness.log.disk.checkpoint.position
    await harness.send(b"more")
    await harness.restart(clean=True)
    assert harness.log.disk.checkpoint.position == saved_at, "the tail counts from the last checkpoint"
    assert (await harness.peek()).messages == [*sent, bytes(2_000), b"more"]


async def test_a_stop_replaces_a_checkpoint_that_was_damaged_however_short_the_tail_is() -> None:
    upkeep = UpkeepLimits(checkpoint_bytes=20_000, garbage_bytes_max=8_000, tail_bytes_at_stop=1 << 30)
    harness = Harness(limits=TaskLimits(upkeep=upkeep), segment_bytes=SEGMENT_BYTES)
    await flow(harness, 2_000)
    disk = harness.log.disk
    assert harness.log.start > 0 and len(disk.checkpoints) == 2
    disk.checkpoints.pop()
    await harness.restart()
    await harness.peek()
    await harness.restart(clean=True)
    assert len(disk.checkpoints) == 2
