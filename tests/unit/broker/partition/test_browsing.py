"""Peeking at messages and being told of new ones: one partition on a log in memory."""

from __future__ import annotations

import asyncio

import pytest

from broker.entities.descriptions import DEAD_LETTER, MAIN, QueueSettings
from broker.identifiers import ClientId
from broker.message.changes import encode_changes
from broker.operations.browsing import Arrived, Peek, Peeked, Watch
from broker.operations.general import Detach, Unavailable
from broker.operations.receiving import Locked, LockExactly
from broker.operations.selecting import CameBack, WatchReturned
from broker.operations.sending import Send, Sent
from broker.operations.settling import Abandon, Complete, DeadLetter, Defer
from broker.partition.changed_properties import PROPERTY_COST
from broker.partition.cycle_bounds import Bounds
from broker.partition.task_limits import TaskLimits
from storage.errors import CommitFailed
from tests.support.partition_harness import NUMBER, Harness, one

FIRST = NUMBER << 48 | 1


async def test_a_watch_is_answered_once_when_something_arrives_and_what_arrived_can_be_seen_then() -> None:
    harness = Harness()
    assert await harness.do(1, Watch(MAIN, FIRST)) == []
    assert await harness.do(1, Watch(MAIN, FIRST)) == [], "the same one"
    await harness.send(b"a")
    assert harness.take(1) == [Arrived(NUMBER, MAIN)]
    assert (await harness.peek()).messages == [b"a"]
    await harness.send(b"b")
    assert harness.take(1) == [], "it is over"


async def test_a_watch_is_answered_at_once_where_there_is_something_to_see() -> None:
    harness = Harness()
    await harness.send(b"a", b"b")
    assert await harness.do(1, Watch(MAIN, FIRST + 1)) == [Arrived(NUMBER, MAIN)]
    assert await harness.do(1, Watch(MAIN, FIRST + 2)) == []


async def test_a_watch_sees_what_is_sent_in_its_own_cycle() -> None:
    harness = Harness()
    harness.post(2, Send([b"a"], None))
    assert await harness.do(1, Watch(MAIN, FIRST)) == [Arrived(NUMBER, MAIN)]
    assert one(harness.take(2), Sent).first == FIRST


async def test_an_expired_message_is_nothing_to_see() -> None:
    harness = Harness()
    await harness.send(b"a", ttl=[1_000])
    harness.clock.advance(1_000)
    assert await harness.do(1, Watch(MAIN, FIRST), Peek(MAIN, FIRST, 1)) == [
        Peeked([], [], [], [], [], [], [], None)
    ]


async def test_a_dead_lettered_message_arrives_in_the_dead_letter_subqueue() -> None:
    harness = Harness(QueueSettings(dead_lettering_on_expiration=True))
    assert await harness.do(1, Watch(DEAD_LETTER, 0)) == []
    assert await harness.do(2, Watch(MAIN, FIRST + 2)) == []
    await harness.send(b"a")
    assert harness.take(1) == [] and harness.take(2) == [Arrived(NUMBER, MAIN)]
    locked = await harness.receive(3)
    await harness.do(3, DeadLetter(locked.tokens))
    assert harness.take(1) == [Arrived(NUMBER, DEAD_LETTER)]
    assert await harness.do(1, Watch(DEAD_LETTER, FIRST + 1)) == []
    await harness.send(b"b", ttl=[1_000])
    harness.clock.advance(2_000)
    await harness.until_quiet()
    assert harness.take(1) == [Arrived(NUMBER, DEAD_LETTER)]


async def test_a_client_that_has_left_is_told_nothing() -> None:
    harness = Harness()
    await harness.do(1, Watch(MAIN, FIRST), Watch(DEAD_LETTER, 0))
    await harness.do(1, Detach())
    await harness.send(b"a")
    assert harness.take(1) == []


async def test_many_watchers_are_told_a_few_in_each_cycle_and_none_is_forgotten() -> None:
    harness = Harness()
    watchers = range(10, 10 + 3 * Bounds().told_max)
    for client in watchers:
        await harness.do(client, Watch(MAIN, FIRST))
    await harness.do(watchers[-1], Detach())
    harness.post(2, Send([b"a"], None))
    assert await harness.task.step(), "there is more to do"
    assert sum(bool(harness.received[client]) for client in watchers) == Bounds().told_max
    await harness.until_quiet()
    assert [harness.take(client) for client in watchers] == [[Arrived(NUMBER, MAIN)]] * (
        len(watchers) - 1
    ) + [[]]


async def test_the_event_loop_goes_on_while_many_watchers_are_told() -> None:
    harness = Harness()
    heard: list[object] = []
    count = 4 * Bounds().told_max
    for client in range(count):
        harness.task.post(Watch(MAIN, FIRST), ClientId(10 + client), heard.append)
    await harness.until_quiet()
    running = asyncio.create_task(harness.task.run())
    harness.post(2, Send([b"a"], None))
    most = before = 0
    async with asyncio.timeout(10):
        while before < count:
            await asyncio.sleep(0)
            most, before = max(most, len(heard) - before), len(heard)
    await harness.task.stop()
    await running
    assert most <= Bounds().told_max


async def test_a_watch_ends_with_the_partition_that_goes_down_and_the_client_hears_of_it() -> None:
    harness = Harness()
    await harness.do(1, Watch(MAIN, FIRST))
    harness.log.fail_append(CommitFailed("injected"))
    harness.post(2, Send([b"a"], None))
    await harness.until_quiet()
    assert harness.take(1) == [Unavailable(NUMBER)]


async def test_a_page_has_the_bound_in_bytes_that_was_asked_for_and_at_least_one_message() -> None:
    harness = Harness()
    await harness.send(*[bytes([number]) * 100 for number in range(10)])
    seen: list[bytes] = []
    start = 0
    for size_max, count in ((250, 3), (1, 1), (10_000, 6)):
        page = one(await harness.do(1, Peek(MAIN, start, 100, bytes_max=size_max)), Peeked)
        assert len(page.messages) == count and page.more is (size_max < 10_000)
        seen += page.messages
        start = page.sequence_numbers[-1] + 1
    assert seen == [bytes([number]) * 100 for number in range(10)]


async def test_pages_behind_many_removed_messages_are_found_in_order() -> None:
    harness = Harness()
    await harness.send(*[b"x"] * 300)
    locked = await harness.receive(1, 200)
    await harness.do(1, Complete(locked.tokens[::2]))
    numbers = [FIRST + place for place in range(300) if place >= 200 or place % 2]
    seen: list[int] = []
    while page := (await harness.peek(start=seen[-1] + 1 if seen else 0, count=7)).sequence_numbers:
        seen += page
    assert seen == numbers


async def test_peeking_pages_through_everything_once_in_any_state() -> None:
    harness = Harness()
    await harness.send(*[b"%d" % index for index in range(9)])
    tokens = (await harness.receive(1, 4)).tokens
    await harness.do(1, Defer([tokens[1]]))
    seen: list[bytes] = []
    start = 0
    while (page := await harness.peek(start=start, count=4)).messages:
        seen += page.messages
        start = page.sequence_numbers[-1] + 1
    assert seen == [b"%d" % index for index in range(9)]


async def test_a_peek_shows_no_more_bytes_than_its_bound_but_at_least_one_message() -> None:
    harness = Harness(limits=TaskLimits(bounds=Bounds(peeked_bytes_max=100)))
    await harness.send(b"x" * 500, b"y" * 60, b"z" * 60)
    first, rest = await harness.peek(), await harness.peek(start=NUMBER << 48 | 2)
    assert (len(first.messages), first.more, len(rest.messages), rest.more) == (1, True, 2, False)


async def test_a_message_is_not_shown_before_it_is_durable() -> None:
    harness = Harness()
    answers = await harness.do(1, Send([b"a"], None), Peek(MAIN, 0, 10))
    assert answers[1].messages == []  # type: ignore[union-attr]
    assert (await harness.peek()).messages == [b"a"]


@pytest.mark.parametrize("looks_max", [7, 4096])
async def test_a_peek_past_many_expired_messages_goes_on_in_the_next_cycle(looks_max: int) -> None:
    bounds = Bounds(looks_max=looks_max, expired_max=1)
    harness = Harness(limits=TaskLimits(bounds=bounds))
    await harness.send(*[b"old"] * 300, ttl=[1_000] * 300)
    number = await harness.send(b"new")
    harness.clock.advance(2_000)
    assert (await harness.peek()).sequence_numbers == [number]
    assert await harness.do(1, Watch(MAIN, number + 1)) == []


async def test_a_peek_that_has_found_something_says_that_there_is_more_where_it_had_to_stop() -> None:
    harness = Harness(limits=TaskLimits(bounds=Bounds(looks_max=5, expired_max=1)))
    first = await harness.send(b"first")
    await harness.send(*[b"old"] * 50, ttl=[1_000] * 50)
    last = await harness.send(b"last")
    harness.clock.advance(2_000)
    page = await harness.peek()
    assert isinstance(page, Peeked) and page.sequence_numbers == [first] and page.more
    page = await harness.peek(start=first + 1)
    assert page.sequence_numbers == [last] and not page.more


async def test_what_comes_back_is_told_as_often_as_it_does() -> None:
    harness = Harness()
    await harness.send(b"a", b"b")
    assert await harness.do(1, WatchReturned(MAIN)) == []
    for _ in range(2):
        locked = await harness.receive(2)
        assert harness.take(1) == [], "what is locked does not come back"
        await harness.do(2, Abandon(locked.tokens))
        assert harness.take(1) == [CameBack(NUMBER, MAIN, locked.sequence_numbers)]
    await harness.do(1, Detach())
    locked = await harness.receive(2)
    await harness.do(2, Abandon(locked.tokens))
    assert harness.take(1) == []


async def test_locks_that_run_out_and_messages_that_are_moved_come_back() -> None:
    harness = Harness()
    await harness.send(b"a")
    await harness.do(1, WatchReturned(MAIN), WatchReturned(DEAD_LETTER))
    locked = await harness.receive(2)
    harness.clock.advance(120_000)
    await harness.do(3, Peek(MAIN, FIRST, 1))
    assert harness.take(1) == [CameBack(NUMBER, MAIN, locked.sequence_numbers)]
    locked = await harness.receive(2)
    await harness.do(2, DeadLetter(locked.tokens))
    assert harness.take(1) == [CameBack(NUMBER, DEAD_LETTER, locked.sequence_numbers)]


async def test_who_is_told_of_what_comes_back_is_told_when_the_partition_goes_down() -> None:
    harness = Harness()
    await harness.send(b"a")
    await harness.do(1, WatchReturned(MAIN))
    harness.log.fail_append(CommitFailed("injected"))
    await harness.do(2, Send([b"b"], None))
    assert harness.take(1) == [Unavailable(NUMBER)]


async def test_messages_are_locked_by_number_in_any_state_or_only_if_they_are_active() -> None:
    harness = Harness()
    await harness.send(b"a", b"b")
    locked = await harness.receive(2, 1)
    await harness.do(2, Defer(locked.tokens))
    numbers = [FIRST, FIRST + 1]
    active = one(await harness.do(1, LockExactly(MAIN, numbers, only_active=True)), Locked)
    assert active.sequence_numbers == [FIRST + 1]
    assert one(await harness.do(1, LockExactly(MAIN, numbers)), Locked).sequence_numbers == [FIRST]


async def test_a_page_has_few_messages_with_thousands_of_changed_properties() -> None:
    """Symptom: one request for 250 of them held the event loop for 2 s."""
    harness = Harness()
    await harness.send(*[b"x"] * 40)
    changed = encode_changes({f"{number:05}": None for number in range(5_000)})
    await harness.do(1, Defer((await harness.receive(1, 40)).tokens, changed))
    page = one(await harness.do(1, Peek(MAIN, 0, 40)), Peeked)
    most = Bounds().peeked_bytes_max // (5_000 * PROPERTY_COST) + 1
    assert 0 < len(page.messages) <= most < 40 and page.more
    small = one(await harness.do(1, Peek(MAIN, 0, 40, bytes_max=1_000)), Peeked)
    assert len(small.messages) == 1 and small.more


async def test_few_messages_with_thousands_of_changed_properties_are_locked_by_number_at_once() -> None:
    harness = Harness()
    first = await harness.send(*[b"x"] * 40)
    changed = encode_changes({f"{number:05}": None for number in range(5_000)})
    await harness.do(1, Defer((await harness.receive(1, 40)).tokens, changed))
    numbers = list(range(first, first + 40))
    locked = one(await harness.do(1, LockExactly(MAIN, numbers)), Locked)
    most = Bounds().granted_bytes_max // (5_000 * PROPERTY_COST)
    assert locked.sequence_numbers == numbers[: len(locked.tokens)] and 0 < len(locked.tokens) <= most
