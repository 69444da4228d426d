"""What each subqueue holds, for the counts."""

from __future__ import annotations

import pytest

from broker.entities.rules import FalseFilter, RuleDescription
from broker.operations.columns import SESSION_ID
from broker.operations.general import Failed
from broker.operations.sending import Send, Sent
from broker.operations.settling import Defer
from broker.partition import totals
from broker.partition.health import Health
from broker.partition.message_sessions import SESSION_BYTES
from broker.partition.state import Partition
from broker.partition.subqueue import Subqueue
from broker.partition.totals import totals_of
from storage.errors import CommitFailed, DiskFailed
from tests.support.partition_harness import Harness, one
from tests.support.topics import BLUE, ONLY_RED, RED, A, number_of, topic, with_subscription


async def test_a_queue_counts_the_messages_of_each_subqueue() -> None:
    harness = Harness()
    later_ms = harness.clock.now_ms() + 1_000
    await harness.do(1, Send([b"a", b"b", b"c"], None, scheduled_ms=[None, None, later_ms]))
    await harness.do(1, Defer((await harness.receive(1)).tokens))
    partition = harness.task._partition
    assert partition is not None
    assert totals_of(partition.messages)[0][:3] == (3, 1, 1)


async def test_a_topic_counts_what_is_stored_once() -> None:
    description = topic("a", "b")
    harness = Harness(description=description)
    await harness.send(b"x" * 1_000)
    partition = harness.task._partition
    assert partition is not None
    totals = totals_of(partition.messages)
    assert totals[0][0] == 0 and totals[0][3] == 1_000
    assert totals[number_of(description, "a")][0] == 1 and totals[number_of(description, "b")][3] < 1_000
    assert (await harness.peek(A)).messages == [b"x" * 1_000]


async def test_a_publish_looks_only_at_the_subscriptions_that_get_the_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    description = with_subscription(topic(*(f"s{number}" for number in range(100))), "red", ONLY_RED)
    harness = Harness(description=description)
    await harness.send(BLUE)  # which the others keep
    none = RuleDescription("none", FalseFilter())
    for each in description.subscriptions[:-1]:
        description = description.with_changed(each.with_rules([none], 0))
    await harness.describe(description)
    looks: list[int] = []
    row_of = totals._row_of

    def counted(subqueue: Subqueue) -> totals._Row:
        looks.append(subqueue.number)
        return row_of(subqueue)

    monkeypatch.setattr(totals, "_row_of", counted)
    monkeypatch.setattr(Partition, "check", lambda partition: None)
    for _ in range(10):
        await harness.send(RED)
    # Symptom: 1,010. Each cycle noted what every subscription held, in case its commit would fail.
    assert {*looks} == {number_of(description, "red")} and len(looks) <= 10


@pytest.mark.parametrize("shared", [1, 2])
async def test_a_commit_that_fails_leaves_the_counts_that_were_durable(shared: int) -> None:
    harness = Harness(description=topic(*"ab"[:shared]))
    await harness.send(b"x" * 1_000, b"z")
    await harness.do(1, Defer((await harness.receive(1, 1, A)).tokens))
    before = harness.task.counts()
    harness.log.fail_append(CommitFailed("no"))
    harness.log.on_acquire = lambda: DiskFailed("down")
    one(await harness.do(1, Send([b"y" * 500], None)), Failed)
    assert harness.task.health is Health.RECOVERING and harness.task.counts() == before


async def test_the_quota_is_checked_without_a_look_at_the_sessions_of_each_subscription(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    description = topic()
    for number in range(50):
        description = with_subscription(description, f"s{number}", requires_session=True)
    harness = Harness(description=description)
    session: dict[str, list[int | bytes | None]] = {SESSION_ID: [b"s"]}
    one(await harness.do(1, Send([BLUE], None, columns=session)), Sent)
    partition = harness.task._partition
    assert partition is not None
    size = partition.messages.size_bytes
    assert size == sum(each.bytes for each in harness.task.counts().values())
    assert size > 50 * SESSION_BYTES
    monkeypatch.setattr(Subqueue, "session_bytes", property(lambda subqueue: 1 / 0))
    # Symptom: each send looked at all of them, several times.
    assert partition.messages.size_bytes == size
