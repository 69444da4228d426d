"""Paging through the partitions by peeking: every message once, and no waiting for a late partition."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from broker.base.errors import Reason
from broker.entities.descriptions import DEAD_LETTER, MAIN
from broker.frontend.nodes.management import PEEK_MESSAGES_MAX
from broker.frontend.nodes.request_node import Request
from broker.identifiers import PARTITION_SHIFT, ClientId
from broker.messaging.page_places import PAGES_AT_ONCE
from broker.messaging.peeking import ASK_ALL_S, LATE_S, PAGE_WITHIN_S
from broker.operations.browsing import Peek, Peeked
from broker.operations.general import Failed
from broker.operations.interface import Answer, Operation, Sink
from tests.support.link_stack import Part
from tests.support.locked import stored
from tests.support.management_bench import Answers, Bench, bench, down, shown, status


def holding(counts: Mapping[int, int], body: bytes = b"hello") -> Answers:
    """Partitions with this many messages each."""

    def peek(number: int, operation: Peek) -> Peeked:
        all_numbers = [number << PARTITION_SHIFT | at for at in range(1, counts.get(number, 0) + 1)]
        shown = [each for each in all_numbers if each >= operation.from_sequence_number][: operation.count]
        count = len(shown)
        return Peeked(
            shown,
            [0] * count,
            [0] * count,
            [None] * count,
            [stored(body)] * count,
            [None] * count,
            [0] * count,
            operation.cookie,
        )

    return {Peek: peek}


async def peek(work: Bench, start: int, count: int, answers: Answers) -> list[int]:
    return shown(
        await work.ask("peek-message", {"from-sequence-number": start, "message-count": count}, answers)
    )


async def pages(work: Bench, count: int, answers: Answers) -> list[list[int]]:
    """The pages that a client sees when it asks for one after another, each time from just after the last
    message."""
    found: list[list[int]] = []
    start = 1
    while page := await peek(work, start, count, answers):
        found.append(page)
        start = page[-1] + 1
        assert len(found) < 100
    return found


@pytest.mark.parametrize("count", [1, 3, 7, 100])
async def test_paging_shows_every_message_of_every_partition_once_in_the_order_of_numbers(count: int) -> None:
    work = await bench()
    held = {0: 5, 1: 1, 3: 7}
    found = await pages(work, count, holding(held))
    expected = [
        number << PARTITION_SHIFT | at for number, messages in held.items() for at in range(1, messages + 1)
    ]
    assert [each for page in found for each in page] == expected
    assert [len(page) for page in found[:-1]] == [count] * (len(found) - 1)


async def test_a_browser_looks_into_the_subqueue_it_has_asked_for_and_nowhere_before_its_number() -> None:
    work = await bench(address="queue/$DeadLetterQueue/$management")
    asked: list[tuple[int, str, int]] = []

    def look(number: int, operation: Peek) -> Answer:
        asked.append((number, operation.subqueue, operation.count))
        return holding({3: 1})[Peek](number, operation)

    assert await peek(work, 2 << PARTITION_SHIFT | 9, 5, {Peek: look}) == [3 << PARTITION_SHIFT | 1]
    assert asked == [(2, DEAD_LETTER, 5), (3, DEAD_LETTER, 5)]


async def test_a_page_has_at_most_250_messages() -> None:
    work = await bench()
    page = await peek(work, 1, 1_000_000, holding(dict.fromkeys(range(4), 100)))
    assert len(page) == PEEK_MESSAGES_MAX == 250
    assert await peek(work, page[-1] + 1, 1_000_000, holding(dict.fromkeys(range(4), 100))) == [
        number << PARTITION_SHIFT | at for number, first in ((2, 51), (3, 1)) for at in range(first, 101)
    ]


async def test_a_page_has_no_more_bytes_than_the_setting_says_but_at_least_one_message() -> None:
    work = await bench(peek_kb_max=1)
    small, large = holding({0: 3, 1: 5}, bytes(300)), holding({1: 2}, bytes(5_000))
    assert [len(page) for page in await pages(work, 100, small)] == [2, 2, 2, 2]
    assert [len(page) for page in await pages(work, 100, large)] == [1, 1]


async def test_when_a_partition_has_more_than_one_answer_holds_the_page_ends_with_it() -> None:
    work = await bench(message_kb_max=1_024)

    def two_at_a_time(number: int, operation: Peek) -> Answer:
        whole = holding({0: 5, 1: 1})[Peek](number, operation)
        part = holding({0: 5, 1: 1})[Peek](number, replace(operation, count=2))
        assert isinstance(whole, Peeked) and isinstance(part, Peeked)
        return replace(part, more=len(part.messages) < len(whole.messages))

    second = 1 << PARTITION_SHIFT
    assert await pages(work, 100, {Peek: two_at_a_time}) == [[1, 2], [3, 4], [5, second | 1]]


async def test_a_partition_that_is_down_is_stepped_over_and_the_others_are_shown() -> None:
    work = await bench(6)
    held = dict.fromkeys(range(6), 2)
    work.stack.parts[1].available = False

    def four_goes_down(number: int, operation: Peek) -> Answer:
        return down(number, operation) if number == 4 else holding(held)[Peek](number, operation)

    found = [each for page in await pages(work, 3, {Peek: four_goes_down}) for each in page]
    assert found == [number << PARTITION_SHIFT | at for number in (0, 2, 3, 5) for at in (1, 2)]
    assert not work.stack.parts[1].has(Peek)


async def test_what_is_not_shown_is_logged_once_for_each_time_that_a_partition_goes_down() -> None:
    work = await bench(3)
    answers = holding(dict.fromkeys(range(3), 2))
    other = Bench(work.stack, await work.stack.connect(), "queue/$management")
    part = work.stack.parts[1]
    with capture_logs() as logs:
        for available, each in [(False, work), (False, work), (False, other), (True, work), (False, other)]:
            part.available = available
            await peek(each, 1, 100, answers)
    lines = [line for line in logs if line["event"] == "peek.partition_unseen"]
    assert (
        lines
        == [{"event": "peek.partition_unseen", "log_level": "warning", "entity": "queue", "partition": 1}] * 2
    )


@pytest.fixture
def late_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    soon(monkeypatch)


def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.frontend.nodes.peek_paging.ASK_ALL_S", 0.002)
    monkeypatch.setattr("broker.frontend.nodes.peek_paging.LATE_S", 0.005)


def silence(work: Bench, number: int) -> None:
    """From now on this partition answers nothing."""
    work.stack.parts[number].has = lambda kind: False  # type: ignore[method-assign]


def speak(work: Bench, number: int) -> None:
    """The partition answers again, including earlier requests."""
    del work.stack.parts[number].has


@pytest.mark.usefixtures("late_soon")
@pytest.mark.parametrize("count", [1, 3, 4, 100])
@pytest.mark.parametrize("late_pages", [1, 2, 3])
async def test_a_partition_that_is_late_is_not_waited_for_and_paging_still_shows_every_message_once(
    count: int, late_pages: int
) -> None:
    work = await bench()
    held = {0: 2, 1: 3, 2: 2, 3: 2}
    silence(work, 1)
    found: list[int] = []
    start = 1
    for number in range(100):
        is_late = number < late_pages and len(found) < sum(held.values()) - held[1]
        if not is_late and number and "has" in vars(work.stack.parts[1]):
            speak(work, 1)
        page = await peek(work, start, count, holding(held))
        if not page:
            break
        assert not is_late or not any(each >> PARTITION_SHIFT == 1 for each in page)
        found += page
        start = page[-1] + 1
    assert sorted(found) == [
        number << PARTITION_SHIFT | at for number in held for at in range(1, held[number] + 1)
    ]


@pytest.mark.usefixtures("late_soon")
async def test_when_one_partition_is_late_all_others_are_asked_at_once() -> None:
    work = await bench(6)
    silence(work, 0)
    request = asyncio.ensure_future(work.ask("peek-message", {"from-sequence-number": 1, "message-count": 5}))
    async with asyncio.timeout(20):
        while not all(part.has(Peek) for part in work.stack.parts[1:]):  # noqa: ASYNC110 (partitions tell nobody)
            await asyncio.sleep(0.001)
    request.cancel()


async def test_once_a_partition_is_known_to_hang_no_page_of_any_client_waits_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    soon(monkeypatch)
    work = await bench()
    other = Bench(work.stack, await work.stack.connect(), "queue/$management")
    held = {0: 2, 1: 1, 3: 4}
    rest = [number << PARTITION_SHIFT | at for number in (1, 3) for at in range(1, held[number] + 1)]
    silence(work, 0)
    assert await peek(work, 1, 3, holding(held)) == rest[:3]
    monkeypatch.setattr("broker.frontend.nodes.peek_paging.LATE_S", 3_600)
    assert await peek(work, rest[2] + 1, 3, holding(held)) == rest[3:]
    for _ in range(10):
        assert await peek(other, 1, 100, holding(held)) == rest
    asked = [operation for operation, _, _ in work.stack.parts[0].posted if isinstance(operation, Peek)]
    assert [each.count for each in asked] == [3, 1], "it is asked again only for the first message"
    speak(work, 0)
    assert await peek(work, rest[-1] + 1, 3, holding(held)) == [1, 2]
    assert await peek(other, 1, 100, holding(held)) == [1, 2, *rest]


@pytest.mark.usefixtures("late_soon")
async def test_clients_that_wait_for_a_partition_that_hangs_keep_no_others_from_looking_elsewhere() -> None:
    def look(number: int, operation: Peek) -> Answer:
        return holding({1: 2} if operation.subqueue == MAIN else {})[Peek](number, operation)

    work = await bench(2)
    silence(work, 0)
    expected = [1 << PARTITION_SHIFT | at for at in (1, 2)]
    assert await peek(work, 1, 5, {Peek: look}) == expected
    crowd = [
        Bench(work.stack, await work.stack.connect(), "queue/$DeadLetterQueue/$management")
        for _ in range(PAGES_AT_ONCE + 1)
    ]
    body = {"from-sequence-number": 1, "message-count": 5}
    waiting = [
        asyncio.ensure_future(
            each.node.respond(Request(None, None, {"operation": "com.microsoft:peek-message"}, body))
        )
        for each in crowd
    ]
    assert await peek(work, 1, 5, {Peek: look}) == expected
    assert not any(each.done() for each in waiting)
    speak(work, 0)
    async with asyncio.timeout(20):
        while not all(each.done() for each in waiting):
            assert await peek(work, 1, 5, {Peek: look}) == expected
    assert [shown(each.result()) for each in waiting] == [[]] * len(crowd)


@pytest.mark.usefixtures("late_soon")
async def test_a_client_that_has_seen_everything_is_shown_what_comes_after_a_partition_was_late() -> None:
    work = await bench()
    silence(work, 0)
    first = await peek(work, 1, 10, holding({0: 1, 3: 1}))
    assert first == [3 << PARTITION_SHIFT | 1]
    speak(work, 0)
    assert (second := await peek(work, first[-1] + 1, 10, holding({0: 1, 3: 1}))) == [1]
    assert await peek(work, second[-1] + 1, 10, holding({0: 1, 3: 1})) == []
    assert await peek(work, second[-1] + 1, 10, holding({0: 1, 3: 2})) == [3 << PARTITION_SHIFT | 2]


def answer_after(work: Bench, seconds: Mapping[int, float], answers: Answers) -> list[Peek]:
    """From now on, each of these partitions answers a peek after so many seconds of the loop's time; gives
    what they are asked, as they are asked it."""
    loop, asked = asyncio.get_running_loop(), list[Peek]()

    def post_of(part: Part, delay_s: float) -> Callable[[Operation, ClientId, Sink], None]:
        def post(operation: Operation, client: ClientId, sink: Sink) -> None:
            if isinstance(operation, Peek):
                asked.append(operation)
                loop.call_later(delay_s, lambda: sink(answers[Peek](part.number, operation)))

        return post

    for number, delay_s in seconds.items():
        part = work.stack.parts[number]
        part.post = post_of(part, delay_s)  # type: ignore[method-assign, assignment]
    return asked


async def timed(work: Bench, start: int, count: int) -> tuple[list[int], float]:
    """A page, and how long it took by the loop's time."""
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    request = Request(
        None,
        None,
        {"operation": "com.microsoft:peek-message"},
        {"from-sequence-number": start, "message-count": count},
    )
    page = shown(await work.node.respond(request))
    return page, loop.time() - began_s


async def test_a_page_waits_for_all_slow_partitions_at_once_and_shows_them_in_order() -> None:
    work = await bench(16)
    held = dict.fromkeys(range(16), 2)
    answer_after(work, {number: 0.2 - number / 1_000 for number in held}, holding(held))
    page, took_s = await timed(work, 1, 100)
    assert page == [number << PARTITION_SHIFT | at for number in held for at in (1, 2)]
    assert took_s < ASK_ALL_S + 0.21


async def test_a_page_waits_once_for_all_partitions_that_hang_and_the_next_ones_not_at_all() -> None:
    work = await bench(16)
    held = dict.fromkeys(range(16), 2)
    answer_after(work, {number: 3_600 if number % 2 else 0.001 for number in held}, holding(held))
    page, took_s = await timed(work, 1, 100)
    assert page == [number << PARTITION_SHIFT | at for number in range(0, 16, 2) for at in (1, 2)]
    assert took_s < LATE_S + 0.01
    other = Bench(work.stack, await work.stack.connect(), "queue/$management")
    again, took_s = await timed(other, 1, 100)
    assert again == page and took_s < ASK_ALL_S


async def test_a_page_that_asks_all_partitions_at_once_reads_hardly_more_than_it_shows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("broker.frontend.nodes.peek_paging.SHARE_BYTES_MIN", 1_024)
    work = await bench(16, peek_kb_max=64)
    held = dict.fromkeys(range(16), 30)

    def cut_to_size(number: int, peek: Peek) -> Peeked:
        whole = holding(held, bytes(1_000))[Peek](number, peek)
        assert isinstance(whole, Peeked) and peek.bytes_max is not None
        count = max(peek.bytes_max // 1_000, 1)
        part = holding(held, bytes(1_000))[Peek](number, replace(peek, count=min(peek.count, count)))
        assert isinstance(part, Peeked)
        return replace(part, more=len(part.messages) < len(whole.messages))

    asked = answer_after(work, dict.fromkeys(held, 0.04), {Peek: cut_to_size})
    found: list[int] = []
    while page := (await timed(work, found[-1] + 1 if found else 1, 250))[0]:
        found += page
        at_once = [peek.bytes_max or 0 for peek in asked]
        assert sum(at_once) <= 5 * 64 * 1_024, "what is asked first, a share of each, and the rest of some"
        asked.clear()
    assert found == [number << PARTITION_SHIFT | at for number in held for at in range(1, 31)]


def open_after(work: Bench, number: int, seconds: float) -> None:
    """The partition is being opened, which takes so many seconds of the loop's time."""
    part = work.stack.parts[number]
    part.health = "opening"

    async def opened() -> None:
        await asyncio.sleep(seconds)
        part.health = "healthy"

    part.opened = opened  # type: ignore[method-assign]


async def test_a_page_with_room_waits_for_partitions_that_are_being_opened() -> None:
    work = await bench()
    held = dict.fromkeys(range(4), 2)
    answer_after(work, {0: 0.001, 1: 2.0, 2: 2.0, 3: 0.001}, holding(held))
    for number in (1, 2):
        open_after(work, number, 2.0)
    full, took_s = await timed(work, 1, 2)
    assert full == [1, 2] and took_s < LATE_S, "a page that others fill waits for nothing"
    loop = asyncio.get_running_loop()
    loop.call_later(2.0, answer_after, work, {1: 0.001, 2: 0.001}, holding(held))
    page, took_s = await timed(work, full[-1] + 1, 100)
    assert page == [number << PARTITION_SHIFT | at for number in (1, 2, 3) for at in (1, 2)]
    assert 2.0 < took_s < 3.0
    assert not work.stack.queue.router.late


async def test_a_partition_that_takes_too_long_to_open_is_late() -> None:
    work = await bench()
    held = dict.fromkeys(range(4), 2)
    answer_after(work, {0: 0.001, 1: 3_600, 2: 0.001, 3: 0.001}, holding(held))
    open_after(work, 1, 3_600)
    page, took_s = await timed(work, 1, 100)
    assert page == [number << PARTITION_SHIFT | at for number in (0, 2, 3) for at in (1, 2)]
    assert PAGE_WITHIN_S < took_s < PAGE_WITHIN_S + 1
    again, took_s = await timed(work, 1, 100)
    assert again == page and took_s < ASK_ALL_S, "and nobody waits again"


async def test_a_partition_that_was_stopped_is_not_logged_as_down() -> None:
    work = await bench(2)
    work.stack.parts[1].available, work.stack.parts[1].health = False, "stopped"
    with capture_logs() as logs:
        await peek(work, 1, 100, holding({0: 2}))
    assert not [line for line in logs if line["event"] == "peek.partition_unseen"]


async def test_with_nothing_to_show_a_client_is_told_whether_a_partition_is_down() -> None:
    work = await bench(3)
    work.stack.parts[1].available = False
    refused = await work.ask("peek-message", {"from-sequence-number": 1, "message-count": 5}, holding({}))
    assert (
        status(refused) == (503, "com.microsoft:server-busy")
        and "1" in refused.properties["statusDescription"]
    )
    assert refused.properties["statusDescription"].endswith("Please try again.")
    work.stack.parts[1].health = "damaged"
    refused = await work.ask("peek-message", {"from-sequence-number": 1, "message-count": 5}, holding({}))
    assert status(refused) == (503, "com.microsoft:server-busy")
    assert refused.properties["statusDescription"].endswith("An operator must repair 1 (damaged).")
    work.stack.parts[1].health = "healthy"
    assert await peek(work, 2 << PARTITION_SHIFT, 5, holding({})) == [], (
        "what is down stands before the number asked for"
    )
    work.stack.parts[1].available = True
    assert await peek(work, 1, 5, holding({})) == []


async def test_a_refusal_with_another_reason_is_the_response() -> None:
    work = await bench(2)
    refused = await work.ask(
        "peek-message",
        {"from-sequence-number": 1, "message-count": 5},
        {
            Peek: lambda _, operation: Failed(
                Reason.ENTITY_NOT_FOUND, "The messaging entity 'x' could not be found.", operation.cookie
            )
        },
    )
    assert status(refused) == (404, "amqp:not-found")


@pytest.mark.parametrize("start", [-5, 0, 4 << PARTITION_SHIFT, (1 << 63) - 1])
async def test_a_browser_may_begin_anywhere(start: int) -> None:
    work = await bench()
    assert await peek(work, start, 10, holding({0: 1})) == ([1] if start <= 1 else [])
