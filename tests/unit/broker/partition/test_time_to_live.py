"""Time to live: when messages expire, and what becomes of them."""

from __future__ import annotations

import pytest

from broker.entities.descriptions import DEAD_LETTER, MAIN, QueueSettings
from broker.message.changes import encode_changes, merge_changes
from broker.operations.receiving import Demand, Locked, Withdraw, Withdrawn
from broker.operations.sending import Send, Sent
from broker.operations.settling import Abandon, Complete, Defer, Release, Settled
from broker.partition import changed_properties, time_to_live
from broker.partition.changed_properties import MERGED_AT_ONCE, PROPERTY_COST, cost_of
from broker.partition.cycle_bounds import Bounds
from broker.partition.task_limits import TaskLimits
from tests.support.partition_harness import LOCK_MS, Harness, Lapses, one, properties
from tests.support.topics import BLUE, topic

SOME = 3_000
"""For tests in which each step checks the whole state."""


async def test_a_deferred_message_does_not_expire() -> None:
    harness = Harness()
    await harness.send(b"a", ttl=[1000])
    await harness.do(1, Defer((await harness.receive(1)).tokens))
    await harness.advance(LOCK_MS * 2)
    assert (await harness.peek()).messages == [b"a"]


async def test_an_expired_message_is_dropped_or_dead_lettered_as_the_queue_says() -> None:
    for dead_lettering in (False, True):
        harness = Harness(QueueSettings(dead_lettering_on_expiration=dead_lettering))
        await harness.send(b"a", b"b", b"c", ttl=[1000, None, 3000])
        await harness.advance(1000 + Bounds().tick_ms)
        assert (await harness.peek()).messages == [b"b", b"c"]
        dead = await harness.peek(DEAD_LETTER)
        assert dead.messages == ([b"a"] if dead_lettering else [])
        if dead_lettering:
            assert properties(dead.changed[0])["DeadLetterReason"] == "TTLExpiredException"
        await harness.restart()
        assert (await harness.peek()).messages == [b"b", b"c"]
        await harness.advance(2000 + Bounds().tick_ms)
        assert (await harness.peek()).messages == [b"b"]


async def test_the_queues_time_to_live_caps_the_messages_own() -> None:
    harness = Harness(QueueSettings(default_time_to_live_ms=5000))
    await harness.send(b"a", b"b", b"c", ttl=[1000, 9000, None])
    now_ms = harness.clock.now_ms()
    assert (await harness.peek()).expires_at_ms == [now_ms + 1000, now_ms + 5000, now_ms + 5000]


async def test_an_expired_message_is_never_handed_out_although_no_timer_has_fired() -> None:
    harness = Harness()
    harness.clock.advance(3)
    await harness.send(b"a", b"b", ttl=[10, None])
    harness.clock.advance(10)
    assert (await harness.receive(1, 2)).messages == [b"b"]
    assert (await harness.peek()).messages == [b"b"]


async def test_a_locked_message_expires_when_its_lock_ends() -> None:
    for end in ("complete", "release", "abandon", "time"):
        harness = Harness(QueueSettings(dead_lettering_on_expiration=True))
        await harness.send(b"a", ttl=[1000])
        locked = await harness.receive(1)
        await harness.advance(2000)
        assert (await harness.peek()).messages == [b"a"]
        if end == "complete":
            assert await harness.do(1, Complete(locked.tokens)) == [Settled(None, {})]
        elif end == "time":
            await harness.advance(LOCK_MS)
        else:
            await harness.do(1, Release(locked.tokens) if end == "release" else Abandon(locked.tokens))
        assert harness.task.counts()[MAIN].active == 0
        assert harness.task.counts()[DEAD_LETTER].active == (0 if end == "complete" else 1)


async def test_many_messages_that_expire_at_once_go_in_bounded_cycles() -> None:
    harness = Harness(limits=TaskLimits(bounds=Bounds(expired_max=10)))
    await harness.send(*[b"x"] * 35, ttl=[1000] * 35)
    before = harness.log.appends
    await harness.advance(2000)
    assert harness.task.counts()[MAIN].active == 0 and harness.log.appends == before + 4


async def test_messages_that_expire_at_once_leave_in_cycles_of_bounded_size() -> None:
    harness, lapses = Harness(limits=TaskLimits(bounds=Bounds(expired_max=1_000))), Lapses()
    harness.task._meter = lapses
    await harness.send(*[b"x"] * SOME, ttl=[1_000] * SOME)
    harness.clock.advance(1_020)
    await harness.until_quiet()
    assert sum(lapses.messages) == SOME and max(lapses.messages) == 1_000


async def test_messages_that_expired_in_a_long_pause_leave_in_cycles_of_bounded_size() -> None:
    harness, lapses = Harness(limits=TaskLimits(bounds=Bounds(expired_max=100))), Lapses()
    harness.task._meter = lapses
    await harness.send(*[b"x"] * 1_000, ttl=list(range(20, 20_020, 20)))
    harness.clock.advance(1_000_000)
    partition = harness.task._partition
    assert partition is not None
    await harness.task.step()
    ticks = partition.messages.main.expiry._ticks  # type: ignore[union-attr]
    assert len(ticks) == 900, "one cycle goes through all the ticks of the pause"
    while (due_ms := partition.next_due_ms()) is not None:
        assert due_ms <= harness.clock.monotonic_ms(), "the timer fires at once"
        await harness.until_quiet()
    assert sum(lapses.messages) == 1_000 and max(lapses.messages) == 100


async def test_messages_of_many_subscriptions_that_expire_together_go_in_bounded_cycles() -> None:
    """Symptom: each subscription of a topic had a limit of its own, so a thousand had a thousand times as
    many messages expire in one cycle."""
    harness = Harness(
        description=topic(*(f"s{number}" for number in range(30))),
        limits=TaskLimits(bounds=Bounds(expired_max=10)),
    )
    lapses = harness.task._meter = Lapses()
    await harness.send(BLUE, BLUE, ttl=[1_000] * 2)
    harness.clock.advance(1_020)
    await harness.until_quiet()
    assert sum(lapses.messages) == 60 and max(lapses.messages) == 10
    assert not any(each.references for each in harness.subqueues)


async def test_messages_whose_reason_must_be_merged_with_much_expire_over_several_cycles() -> None:
    """Symptom: 200 messages with 4,000 changed properties each expired together, which took 1.7 s."""
    harness = Harness(QueueSettings(dead_lettering_on_expiration=True, max_delivery_count=100))
    await harness.send(*[b"x"] * 60, ttl=[5_000] * 60)
    for number, token in enumerate((await harness.receive(1, 60)).tokens):
        changed = {f"{number} {key}": None for key in range(2_000)}
        await harness.do(1, Abandon([token], encode_changes(changed)))
    harness.clock.advance(5_020)
    most = MERGED_AT_ONCE // (2_000 * PROPERTY_COST)
    dead: list[int] = [0]
    while dead[-1] < 60:
        await harness.task.step()
        harness.task.check()
        dead.append(len(harness.subqueues[1].references))
        assert dead[-1] - dead[-2] <= most
    assert len(dead) > 3


async def _with_much_to_merge(harness: Harness, count: int, properties: int = 2_000) -> None:
    """Send messages that live for 5 s, and give each of them many changed properties of its own."""
    await harness.send(*[b"x"] * count, ttl=[5_000] * count)
    for number, token in enumerate((await harness.receive(1, count)).tokens):
        changed = {f"{number} {key}": None for key in range(properties)}
        await harness.do(1, Abandon([token], encode_changes(changed)))


@pytest.fixture
def merged(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What changing the properties of messages merges, in units of `changed_properties.py`. The last element
    counts; a test adds one for each step."""
    costs = [0]

    def counting(earlier: bytes | None, later: bytes | None) -> bytes | None:
        if earlier is not None:
            costs[-1] += cost_of(earlier) + cost_of(later)
        return merge_changes(earlier, later)

    monkeypatch.setattr(changed_properties, "merge_changes", counting)
    return costs


@pytest.mark.parametrize("has_receiver", [False, True])
@pytest.mark.parametrize("end", ["none", "release", "releases", "time", "times", "last", "half"])
async def test_one_step_merges_reasons_up_to_a_limit_however_messages_expire(
    merged: list[int], end: str, has_receiver: bool
) -> None:
    """Symptom: up to 16 messages expired together, whatever their reasons had to be merged with. Messages
    with thousands of changed properties each took 17.6 ms of the event loop."""
    last = 2 if end == "last" else 100
    harness = Harness(QueueSettings(dead_lettering_on_expiration=True, max_delivery_count=last))
    await _with_much_to_merge(harness, 24, 4_000)
    demands = {"none": [], "half": [12], "releases": [1] * 24, "times": [1] * 24}.get(end, [24])
    for client, count in enumerate(demands):
        harness.post(client, Demand(MAIN, count))
    await harness.until_quiet()
    harness.clock.advance(LOCK_MS + 20 if end in ("time", "times", "last", "half") else 5_020)
    if end.startswith("release"):
        await harness.until_quiet()
        for client in range(len(demands)):
            for answer in harness.take(client):
                assert isinstance(answer, Locked)
                harness.post(client, Release(answer.tokens))
    if has_receiver:
        harness.post(100, Demand(MAIN, 50))
    dead = harness.subqueues[1].references
    assert not dead
    while len(dead) < 24:
        merged.append(0)
        await harness.task.step()
        harness.task.check()
    assert max(merged) <= MERGED_AT_ONCE and merged.count(0) <= 2, "and no step is idle"
    assert all(b"DeadLetterReason" in (each.changed or b"") for each in dead.values())


async def test_expired_messages_that_are_given_no_reason_go_together_whatever_has_changed(
    merged: list[int],
) -> None:
    harness, lapses = Harness(), Lapses()
    harness.task._meter = lapses
    await _with_much_to_merge(harness, 40, 4_000)
    await harness.advance(5_020)
    assert max(lapses.messages) == 40 and not harness.subqueues[0].references


async def _expired_while_locked(harness: Harness, count: int) -> list[bytes]:
    """Have a client lock messages with much to merge, which expire then; returns the tokens."""
    await _with_much_to_merge(harness, count)
    harness.post(1, Demand(MAIN, count))
    tokens: list[bytes] = []
    while len(tokens) < count:
        await harness.task.step()
        tokens += [token for each in harness.take(1) if isinstance(each, Locked) for token in each.tokens]
    await harness.advance(5_020)
    assert not harness.subqueues[1].references
    return tokens


async def test_messages_that_expired_while_locked_go_over_several_cycles_if_much_must_be_merged() -> None:
    harness = Harness(QueueSettings(dead_lettering_on_expiration=True, max_delivery_count=100))
    harness.post(1, Release(await _expired_while_locked(harness, 60)))
    dead: list[int] = [0]
    while dead[-1] < 60:
        has_more = await harness.task.step()
        harness.task.check()
        dead.append(len(harness.subqueues[1].references))
        assert dead[-1] - dead[-2] <= MERGED_AT_ONCE // (2_000 * PROPERTY_COST)
        assert has_more or dead[-1] == 60, "the next cycle follows at once"
    assert len(dead) > 3


async def test_messages_that_expired_while_locked_go_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_to_live, "LOOKED_AT_TOGETHER", 5)
    harness = Harness(QueueSettings(dead_lettering_on_expiration=True, max_delivery_count=100))
    harness.post(1, Release(await _expired_while_locked(harness, 40)))
    expected = sorted(harness.subqueues[0].references)
    dead = harness.subqueues[1].references
    while len(dead) < 40:
        await harness.task.step()
        assert sorted(dead) == expected[: len(dead)]


async def test_what_expiring_released_messages_takes_counts_as_work_of_the_cycle() -> None:
    bounds = Bounds(work_max=1_000)
    queue = QueueSettings(dead_lettering_on_expiration=True, max_delivery_count=100)
    harness = Harness(queue, limits=TaskLimits(bounds=bounds))
    harness.post(1, Release(await _expired_while_locked(harness, 40)))
    harness.post(2, Send([b"x"], None))
    await harness.task.step()
    assert not harness.take(2)
    await harness.task.step()
    one(harness.take(2), Sent)


async def test_expired_messages_that_a_client_would_be_given_go_over_several_cycles() -> None:
    """A cycle expires only some of them, and a client asks for messages meanwhile."""
    harness = Harness(QueueSettings(dead_lettering_on_expiration=True, max_delivery_count=100))
    await _with_much_to_merge(harness, 80)
    await harness.send(b"live")
    harness.clock.advance(5_020)
    harness.post(1, Demand(MAIN, 80))
    harness.post(1, Withdraw(MAIN))
    dead: list[int] = [0]
    most = MERGED_AT_ONCE // (2_000 * PROPERTY_COST)
    while dead[-1] < 80:
        await harness.task.step()
        harness.task.check()
        dead.append(len(harness.subqueues[1].references))
        assert dead[-1] - dead[-2] <= most
    assert len(dead) > 2
    await harness.until_quiet()
    locked, withdrawn = harness.take(1)
    assert isinstance(locked, Locked) and locked.messages == [b"live"] and isinstance(withdrawn, Withdrawn)
