"""A full disk refuses sends and lets receivers settle (durability rule 6)."""

from __future__ import annotations

import asyncio

import pytest
from structlog import get_logger
from structlog.testing import capture_logs

from broker.base.clock import ManualClock
from broker.base.errors import Reason
from broker.entities.descriptions import MAIN
from broker.operations.browsing import Peek, Peeked
from broker.operations.general import Failed, Unavailable
from broker.operations.receiving import Demand, Locked
from broker.operations.sending import Send
from broker.operations.settling import Complete, Settled
from broker.partition.full_disk import PAUSE_MS_MAX, FullDisk
from broker.partition.health import Health
from storage.errors import CommitFailed, DiskFull
from storage.log import Commit
from tests.support.partition_harness import NUMBER, Harness, one, running
from tests.support.waiting import until


async def test_a_full_disk_refuses_sends_and_lets_receivers_settle_and_drain() -> None:
    harness = Harness()
    await harness.send(b"a", b"b", b"c")
    locked = await harness.receive(1, 2)
    harness.log.fill_disk()
    answers = await harness.do(
        1, Send([b"x"], None, "send"), Complete([locked.tokens[0]], "done"), Demand(MAIN, 5)
    )
    assert [type(answer) for answer in answers] == [Failed, Settled, Locked]
    failed, settled, more = answers
    assert isinstance(failed, Failed) and failed.reason is Reason.DISK_FULL and failed.cookie == "send"
    assert "Receive and complete messages to make room" in failed.description
    assert settled == Settled("done", {})
    assert isinstance(more, Locked) and more.messages == [b"c"]
    assert await harness.do(1, Complete([locked.tokens[1], *more.tokens])) == [Settled(None, {})], (
        "no lock was lost"
    )
    assert harness.task.health is Health.HEALTHY and harness.live_bytes == 0
    harness.log.empty_disk()
    assert await harness.send(b"y") == NUMBER << 48 | 4, "the refused number was never shown"
    assert one(harness.take(1), Locked).messages == [b"y"]
    await harness.restart()
    assert (await harness.peek()).messages == [b"y"]


async def test_a_full_disk_refuses_each_of_the_sends_that_were_enqueued_together() -> None:
    harness = Harness()
    await harness.send(b"a")
    locked = await harness.receive(1, 1)
    harness.log.fill_disk()
    harness.post(2, Send([b"x", b"y"], None, "first"))
    harness.post(3, Send([b"z"], None, "second"))
    answers = await harness.do(1, Complete(locked.tokens, "done"))
    assert answers == [Settled("done", {})]
    refused = [one(harness.take(client), Failed) for client in (2, 3)]
    assert [(each.cookie, each.reason) for each in refused] == [
        ("first", Reason.DISK_FULL),
        ("second", Reason.DISK_FULL),
    ]
    harness.log.empty_disk()
    assert await harness.send(b"b") == NUMBER << 48 | 2, "the refused numbers were never shown"
    await harness.restart()
    assert (await harness.peek()).messages == [b"b"]


async def test_the_log_says_when_a_disk_is_full_and_not_for_each_send() -> None:
    harness = Harness()
    with capture_logs() as lines:
        await harness.send(b"a")
        harness.log.fill_disk()
        for _ in range(100):
            assert one(await harness.do(1, Send([b"x"], None)), Failed).reason is Reason.DISK_FULL
        await harness.advance(60_000)
        await harness.do(1, Send([b"x"], None))
        harness.log.empty_disk()
        await harness.send(b"b")
        await harness.send(b"c")
    told = [(line["event"], line["refused_sends"]) for line in lines if line["event"].startswith("disk.")]
    assert told == [("disk.full", 1), ("disk.full", 100), ("disk.has_room", 101)]
    assert all(line["error"] for line in lines if line["event"] == "disk.full")


async def test_clients_that_alternate_between_refused_and_stored_sends_cause_two_lines_a_minute() -> None:
    """Symptom: on a disk with room for small messages and none for large ones, each pair of sends wrote two
    lines, 300 of them in a second."""
    harness = Harness()
    await harness.send(b"a")
    with capture_logs() as lines:
        for _ in range(3):
            for _ in range(60):
                await refused_and_stored(harness)
                await harness.advance(1_000)
    told = [(line["event"], line["refused_sends"]) for line in lines if line["event"].startswith("disk.")]
    assert told == [
        ("disk.full", 1),
        ("disk.has_room", 1),
        ("disk.full", 1),
        ("disk.has_room", 60),
        ("disk.full", 1),
        ("disk.has_room", 60),
        ("disk.full", 1),
    ], "each refused send is in the counts of an end, but for those of the last minute"


async def refused_and_stored(harness: Harness) -> None:
    harness.log.fill_disk()
    assert one(await harness.do(1, Send([b"x"], None)), Failed).reason is Reason.DISK_FULL
    harness.log.empty_disk()
    await harness.send(b"z")


async def test_a_disk_that_is_full_again_is_told_at_once_and_its_end_after_a_minute() -> None:
    """Symptom: the last line said that there is room, while everything was refused."""
    harness = Harness()
    with capture_logs() as lines:
        await refused_and_stored(harness)
        await harness.advance(1_000)
        harness.log.fill_disk()
        for _ in range(58):
            await harness.do(1, Send([b"x"], None))
            await harness.advance(1_000)
        harness.log.empty_disk()
        await harness.send(b"b")
        await harness.advance(1_000)
        await harness.send(b"c")
        await harness.send(b"d")
    told = [(line["event"], line["refused_sends"]) for line in lines if line["event"].startswith("disk.")]
    assert told == [("disk.full", 1), ("disk.has_room", 1), ("disk.full", 1), ("disk.has_room", 58)]


def test_settlements_that_alternate_with_stored_sends_cause_two_lines_a_minute() -> None:
    clock = ManualClock()
    full = FullDisk(clock, get_logger())
    with capture_logs() as lines:
        for _ in range(120):
            full.refuse_all(DiskFull("no room"))
            full.found_room(for_sends=True)
            clock.advance(1_000)
    starved, room = "disk.full_for_settlements", "disk.has_room"
    assert [line["event"] for line in lines] == [starved, room, starved, room, starved]


def test_however_sends_and_settlements_alternate_there_is_one_end_a_minute() -> None:
    clock = ManualClock()
    full = FullDisk(clock, get_logger())
    with capture_logs() as lines:
        for second in range(121):
            full.refuse(1, DiskFull("no room"))
            if second % 60 >= 30:
                full.refuse_all(DiskFull("no room"))
            full.found_room(for_sends=False)
            full.found_room(for_sends=True)
            clock.advance(1_000)
    assert [line["event"] for line in lines] == [
        "disk.full", "disk.has_room",
        "disk.full", "disk.full_for_settlements", "disk.has_room",
        "disk.full", "disk.full_for_settlements", "disk.has_room",
    ]  # fmt: skip
    assert sum(line["refused_sends"] for line in lines if line["event"] == "disk.has_room") == 121


async def test_demand_that_a_refused_send_would_have_met_waits_on() -> None:
    harness = Harness()
    await harness.do(1, Demand(MAIN, 2))
    harness.log.fill_disk()
    for _ in range(3):
        assert one(await harness.do(2, Send([b"x", b"y"], [1000, None])), Failed).reason is Reason.DISK_FULL
    assert harness.take(1) == []
    harness.log.empty_disk()
    await harness.send(b"a", b"b", b"c")
    assert one(harness.take(1), Locked).messages == [b"a", b"b"]


async def test_when_not_even_settlements_find_room_the_state_is_that_of_the_log() -> None:
    harness = Harness()
    await harness.send(b"a")
    harness.log.fill_disk(reserve=False)
    with capture_logs() as lines:
        for _ in range(2):
            locked = await harness.receive(1)
            answers = await harness.do(1, Complete(locked.tokens, "mine"))
            assert isinstance(answers[0], Failed) and answers[0].reason is Reason.DISK_FULL
            assert "no room" not in answers[0].description, "what the disk said is for the log"
            assert answers[1:] == [Unavailable(NUMBER)]
            assert harness.task.health is Health.HEALTHY
    told = [(line["event"], line["error"]) for line in lines if line["log_level"] != "debug"]
    assert told == [("disk.full_for_settlements", "no room")], "once a minute, and it is no failed commit"
    harness.log.empty_disk()
    again = await harness.receive(1)
    assert again.messages == [b"a"] and again.tokens != locked.tokens
    assert await harness.do(1, Complete(again.tokens)) == [Settled(None, {})]


async def test_what_has_come_due_waits_longer_each_time_while_not_even_that_finds_room() -> None:
    """Symptom: an expired message had the state loaded again 700 times a second, and upkeep had no turn."""
    harness = Harness()
    await harness.send(b"a", ttl=[1_000])
    await harness.send(b"b")
    attempts = list[int]()

    def refuse(commit: Commit, urgent: bool) -> Exception:
        attempts.append(harness.clock.monotonic_ms())
        return DiskFull("no room")

    harness.log.on_append = refuse
    began_ms = harness.clock.monotonic_ms()
    for _ in range(60):
        await harness.advance(1_000)
    assert [each - began_ms for each in attempts] == [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 48_000]
    assert harness.task.health is Health.HEALTHY
    assert one(await harness.do(1, Peek(MAIN, 0, 9)), Failed).reason is Reason.DISK_FULL, "at once"
    assert harness.live_bytes == 2
    harness.log.empty_disk()
    await harness.advance(PAUSE_MS_MAX)
    assert harness.live_bytes == 1

    await harness.send(b"c", ttl=[1_000])
    harness.log.on_append = refuse
    attempts.clear()
    began_ms = harness.clock.monotonic_ms()
    for _ in range(4):
        await harness.advance(1_000)
    assert [each - began_ms for each in attempts] == [1_000, 2_000, 4_000], "the pauses are short again"


async def test_what_a_cycle_leaves_to_the_next_one_does_not_wait_for_room() -> None:
    """Symptom: after settlements that found no room, 32 of 100 receivers got messages, and the others waited
    for 16 s or longer."""
    harness = Harness()
    await harness.send(*[b"x"] * 100)
    locked = await harness.receive(1)
    harness.log.fill_disk(reserve=False)
    assert one((await harness.do(1, Complete(locked.tokens)))[:1], Failed).reason is Reason.DISK_FULL
    for client in range(100):
        harness.post(100 + client, Demand(MAIN, 1))
    await harness.until_quiet()
    assert [len(one(harness.take(100 + client), Locked).messages) for client in range(100)] == [1] * 100


async def test_the_timer_does_not_wake_the_partition_before_the_next_attempt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    harness = Harness()
    await harness.send(b"a", ttl=[1_000])
    harness.log.fill_disk(reserve=False)
    harness.clock.advance(1_000)
    steps = 0
    step = harness.task.step

    async def counted() -> bool:
        nonlocal steps
        steps += 1
        return await step()

    monkeypatch.setattr(harness.task, "step", counted, raising=True)
    async with running(harness):
        harness.post(1, Peek(MAIN, 0, 9))
        await until(lambda: bool(harness.received[1]))
        for _ in range(500):
            await asyncio.sleep(0)
        assert steps < 10
        harness.log.empty_disk()


def test_what_a_failed_cycle_has_left_is_not_gone_on_with() -> None:
    full = FullDisk(ManualClock(), get_logger())
    full.goes_on = True
    assert not full.waits
    full.refuse_all(DiskFull("no room"))
    assert full.waits


async def test_what_clients_ask_for_meanwhile_does_not_put_off_what_has_come_due() -> None:
    harness = Harness()
    await harness.send(b"a", ttl=[1_000])
    await harness.send(b"b")
    harness.log.fill_disk(reserve=False)
    await harness.advance(1_000)
    for _ in range(9):
        await harness.advance(100)
        assert one(await harness.do(1, Peek(MAIN, 0, 9)), Failed).reason is Reason.DISK_FULL
    harness.log.empty_disk()
    assert harness.live_bytes == 2
    await harness.advance(100)
    assert harness.live_bytes == 1


async def test_a_failed_write_of_one_disk_full_cycle_recovers() -> None:
    """The disk is full, and the commit of the rest fails: that is a failed commit like any other."""
    harness = Harness()
    await harness.send(b"a")
    locked = await harness.receive(1)
    harness.log.on_append = lambda commit, urgent: CommitFailed("no") if urgent else DiskFull("no room")
    answers = await harness.do(2, Send([b"b"], None, 1), Complete(locked.tokens, 2))
    assert [(type(answer), getattr(answer, "cookie", None)) for answer in answers] == [
        (Failed, 1),
        (Failed, 2),
    ]
    harness.log.empty_disk()
    peeked = one(await harness.do(3, Peek(MAIN, 0, 9)), Peeked)
    assert peeked.messages == [b"a"]
