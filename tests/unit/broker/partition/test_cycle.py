"""A cycle: one answer per client, and answers whose messages are not in memory."""

from __future__ import annotations

import pytest

from broker.entities.descriptions import MAIN
from broker.operations.browsing import Peek, Peeked
from broker.operations.general import Failed
from broker.operations.receiving import Demand, Locked
from broker.operations.sending import Send, Sent
from broker.operations.transfers import HandedOver, HandOver, LockNext
from broker.partition.disk_timeout import Hung
from broker.partition.health import Health
from storage.errors import CommitFailed, StorageError
from tests.support.partition_harness import Harness, one


async def test_one_cycle_gives_a_client_one_answer_for_all_its_messages() -> None:
    harness = Harness()
    harness.post(1, Demand(MAIN, 100))
    for _ in range(5):
        harness.post(2, Send([b"x", b"y"], None))
    await harness.until_quiet()
    assert len(one(harness.take(1), Locked).tokens) == 10


async def test_without_any_budget_every_message_still_arrives() -> None:
    harness = Harness(payload_bytes=0)
    await harness.do(1, Demand(MAIN, 1))
    await harness.send(b"passes through")
    assert one(harness.take(1), Locked).messages == [b"passes through"] and harness.log.fetches == 0
    await harness.send(b"a", b"b", b"")
    await harness.restart()
    assert (await harness.peek()).messages == [b"passes through", b"a", b"b", b""]
    assert (await harness.receive(1, 4)).messages == [b"passes through", b"a", b"b", b""]


def fail_next_sync(harness: Harness, error: StorageError) -> None:
    """Make the next sync of the log fail, once."""

    def fault() -> StorageError:
        harness.log.on_sync = lambda: None
        return error

    harness.log.on_sync = fault


@pytest.mark.parametrize("error", [CommitFailed("no sync"), Hung("no answer")])
async def test_a_failed_sync_refuses_only_who_waits_for_it(error: StorageError) -> None:
    harness = Harness()
    await harness.send(b"before")
    fail_next_sync(harness, error)
    harness.post(1, Send([b"sent"], None, "send"))
    harness.post(2, HandOver(b"source", [7], [b"handed over"], cookie="hand over"))
    harness.post(3, LockNext(MAIN, 1, 1_000, 1_000, "lock"))
    await harness.until_quiet()
    assert one(harness.take(1), Sent).cookie == "send"
    assert one(harness.take(2), Failed).cookie == "hand over"
    assert one(harness.take(3), Failed).cookie == "lock"
    assert harness.healths.count(Health.RECOVERING) == 1 and harness.task.health is Health.HEALTHY
    assert (await harness.peek()).messages == [b"before", b"sent", b"handed over"], "no lock is left either"
    assert one(await harness.do(2, HandOver(b"source", [7], [b"handed over"])), HandedOver).known == [0]
    assert one(await harness.do(3, LockNext(MAIN, 1, 1_000, 1_000)), Locked).messages == [b"before"]


async def test_what_was_stored_before_a_failed_sync_counts_while_the_log_cannot_be_acquired() -> None:
    harness = Harness()
    await harness.send(b"before")
    fail_next_sync(harness, CommitFailed("no sync"))
    harness.log.on_acquire = lambda: CommitFailed("not yet")
    harness.post(1, Send([b"sent"], None))
    harness.post(2, LockNext(MAIN, 1, 1_000, 1_000))
    await harness.until_quiet()
    assert harness.task.health is Health.RECOVERING
    assert harness.task.counts()[MAIN].active == 2


async def test_after_a_failed_sync_answers_without_their_messages_are_refused() -> None:
    harness = Harness(payload_bytes=0)
    await harness.send(b"a")
    await harness.restart()
    fail_next_sync(harness, CommitFailed("no sync"))
    harness.post(1, Peek(MAIN, 0, 1, "peek"))
    harness.post(2, LockNext(MAIN, 1, 1_000, 1_000))
    await harness.until_quiet()
    assert one(harness.take(1), Failed).cookie == "peek"
    one(harness.take(2), Failed)
    assert one(await harness.do(1, Peek(MAIN, 0, 1)), Peeked).messages == [b"a"]
