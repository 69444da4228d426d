"""Counts of a partition, and reports of what has changed. The models in tests/property compare them after
each cycle."""

from __future__ import annotations

from broker.entities.descriptions import MAIN, QueueSettings
from broker.operations.columns import SESSION_ID
from broker.operations.message_states import SubqueueCounts
from broker.operations.receiving import Locked, LockExactly
from broker.operations.sending import Send
from broker.operations.sessions import AcceptSession
from broker.operations.settling import Release
from broker.partition.counting import Counting
from tests.support.partition_harness import Harness, one
from tests.support.topics import BLUE, ONLY_RED, RED, A, B, topic, with_subscription

WINDOW_MS = 60_000


def counting_of(harness: Harness) -> Counting:
    partition = harness.task._partition
    assert partition is not None
    return partition.counting


async def test_a_report_has_the_subqueues_in_which_something_has_happened() -> None:
    description = with_subscription(topic("a"), "b", ONLY_RED)
    harness = Harness(description=description)
    await harness.send(BLUE)
    counting = counting_of(harness)
    assert counting.has_news and counting.report(whole=False) == (counting.counts(), True), "the first one"
    assert not counting.has_news and counting.report(whole=False)[0].keys() == {MAIN}
    number = await harness.send(RED)
    assert counting.report(whole=False)[0].keys() == {MAIN, A, B}
    tokens = one(await harness.do(1, LockExactly(A, [number])), Locked).tokens
    found, is_whole = counting.report(whole=False)
    assert found[A].locked == 1 and found.keys() == {MAIN, A} and not is_whole
    await harness.do(1, Release(tokens))
    assert counting.has_news and counting.report(whole=False)[0][A].locked == 0
    assert counting.report(whole=True) == (counting.counts(), True)


async def test_what_belonged_to_a_deleted_subscription_is_forgotten() -> None:
    description = topic("a", "b")
    harness = Harness(description=description)
    await harness.send(BLUE)
    counting = counting_of(harness)
    counting.report(whole=False)
    deleted = description.subscription("b")
    assert deleted is not None
    await harness.describe(description.without(deleted.number))
    found, is_whole = counting.report(whole=False)
    assert is_whole and B not in found
    await harness.describe(with_subscription(description.without(deleted.number), "c"))
    assert not counting.report(whole=False)[1], "only once"


async def test_message_ids_that_are_forgotten_are_news() -> None:
    settings = QueueSettings(requires_duplicate_detection=True, duplicate_detection_window_ms=WINDOW_MS)
    harness = Harness(settings)
    await harness.do(1, Send([b"a"], None, identities=[b"1" * 15]))
    counting = counting_of(harness)
    assert counting.report(whole=False)[0][MAIN].message_ids == 1
    assert not counting.has_news
    await harness.advance(2 * WINDOW_MS)
    assert counting.has_news and counting.report(whole=False)[0][MAIN].message_ids == 0


async def test_a_session_without_messages_is_news() -> None:
    harness = Harness(QueueSettings(requires_session=True))
    await harness.do(1, Send([b"a"], None, columns={SESSION_ID: [b"s"]}))
    counting = counting_of(harness)
    before = counting.report(whole=False)[0][MAIN].bytes
    await harness.do(1, AcceptSession(MAIN, b"other", is_shared=False))
    assert counting.has_news and counting.report(whole=False)[0][MAIN].bytes > before


async def test_what_was_noted_has_neither_locks_nor_the_cycle() -> None:
    harness = Harness()
    await harness.send(b"a")
    counting = counting_of(harness)
    counting.note()
    await harness.receive(1)
    assert counting.by_number()[0].locked == 1
    noted = counting.counts(as_noted=True)[MAIN]
    assert (noted.active, noted.locked) == (1, 0) and counting.by_number(only=[1]) == {1: SubqueueCounts()}
