"""The task around the state machine: commits, faults, recovery, health, the timer, the end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import pytest

from broker.base.clock import SystemClock
from broker.base.errors import Reason
from broker.entities.descriptions import MAIN, QueueSettings
from broker.identifiers import ClientId
from broker.operations.browsing import Peek
from broker.operations.general import Detach, Failed, Unavailable, Update, Updated
from broker.operations.interface import Operation
from broker.operations.receiving import Demand, Locked, Recalled, ReceiveDeferred, Withdraw, Withdrawn
from broker.operations.sending import Send, Sent
from broker.operations.settling import Abandon, Complete, Defer, Release, RenewLocks, Settled
from broker.partition import records
from broker.partition.health import Health
from broker.partition.rest import Rest
from broker.partition.state import Partition
from broker.partition.task import PartitionTask
from broker.partition.task_limits import TaskLimits
from storage.errors import CommitFailed, CorruptRecord, DiskFull, Fenced, StorageError
from storage.log import Checkpoint, Commit
from tests.support.partition_harness import NUMBER, Harness, one, running
from tests.support.topics import A, B, topic, with_subscription
from tests.support.waiting import WAIT_S, until

# --- commits ------------------------------------------------------------------------------------------------


async def test_nothing_is_answered_before_the_commit_is_durable() -> None:
    harness = Harness()
    async with running(harness):
        await harness.task.opened()
        harness.log.gate = asyncio.Event()
        harness.post(1, Demand(MAIN, 1))
        harness.post(2, Send([b"a"], None))
        await until(lambda: harness.log._appending)
        assert not harness.received[1] and not harness.received[2]
        harness.log.gate.set()
        await until(lambda: harness.received[1] and harness.received[2])


async def test_while_one_commit_runs_the_next_cycle_gathers() -> None:
    harness = Harness()
    async with running(harness):
        await harness.task.opened()
        harness.log.gate = asyncio.Event()
        harness.post(1, Send([b"first"], None))
        await until(lambda: harness.log._appending)
        for _ in range(50):
            harness.post(1, Send([b"x", b"y"], None))
        harness.log.gate.set()
        await until(lambda: len(harness.received[1]) == 51)
        assert harness.log.appends == 2


async def test_a_few_messages_wait_for_a_lull_of_the_disk_and_gather() -> None:
    harness = Harness()
    async with running(harness):
        await harness.task.opened()
        waiting: list[Callable[[], None]] = []
        harness.log.at_next_lull = waiting
        for number in range(5):
            harness.post(1, Send([b"x"], None, number))
            await asyncio.sleep(0)
        assert harness.log.appends == 0 and len(waiting) == 1
        waiting.pop()()
        await until(lambda: len(harness.received[1]) == 5)
        assert harness.log.appends == 1


async def test_a_partition_awaits_more_while_it_has_nothing_to_do_and_while_messages_gather() -> None:
    harness = Harness()
    task = harness.task
    async with running(harness):
        await task.opened()
        await until(lambda: task.awaits_more)
        harness.log.gate = asyncio.Event()
        harness.post(1, Send([b"first"], None))
        assert not task.awaits_more, "it is about to begin a cycle"
        await until(lambda: harness.log._appending)
        assert not task.awaits_more
        harness.log.gate.set()
        await until(lambda: task.awaits_more)
        harness.log.at_next_lull = []
        harness.post(1, Send([b"gathers"], None))
        assert task.awaits_more


async def test_messages_that_come_during_a_commit_wait_for_a_lull_as_well() -> None:
    harness = Harness()
    async with running(harness):
        await harness.task.opened()
        harness.log.gate = asyncio.Event()
        harness.post(1, Send([b"first"], None))
        await until(lambda: harness.log._appending)
        waiting: list[Callable[[], None]] = []
        harness.log.at_next_lull = waiting
        harness.post(1, Send([b"x"], None))
        harness.log.gate.set()
        await until(lambda: bool(waiting))
        assert harness.log.appends == 1 and len(harness.received[1]) == 1
        waiting.pop()()
        await until(lambda: len(harness.received[1]) == 2)


async def test_what_cannot_wait_for_a_lull_takes_along_the_messages_that_do() -> None:
    harness = Harness()
    async with running(harness):
        await harness.task.opened()
        waiting: list[Callable[[], None]] = []
        harness.log.at_next_lull = waiting
        harness.post(1, Send([b"x"], None))
        await asyncio.sleep(0)
        assert harness.log.appends == 0
        harness.post(2, Demand(MAIN, 1))
        await until(lambda: harness.received[1] and harness.received[2])
        assert harness.log.appends == 1
        for comes in waiting:  # nobody waits any more
            comes()
        harness.post(1, Send([b"x"] * 100, None))  # many messages do not wait
        await until(lambda: len(harness.received[1]) == 2)


async def test_a_cycle_is_bounded_in_operations_and_bytes() -> None:
    harness = Harness(limits=TaskLimits(cycle_operations_max=10, cycle_bytes_max=1000))
    await harness.do(1, *[Send([b"x"], None) for _ in range(25)])
    assert harness.log.appends == 3
    await harness.do(1, *[Send([b"x" * 600], None) for _ in range(6)])
    assert harness.log.appends == 6


async def test_answers_to_one_client_come_in_the_order_of_its_operations() -> None:
    harness = Harness()
    answers = await harness.do(1, *[Send([b"x"], None, cookie) for cookie in range(20)])
    assert [answer.cookie for answer in answers if isinstance(answer, Sent)] == list(range(20))


async def test_a_commit_with_settlements_only_is_urgent() -> None:
    harness = Harness()
    await harness.send(b"a")
    urgency: list[bool] = []
    harness.log.on_append = lambda commit, urgent: urgency.append(urgent)
    await harness.do(1, Complete((await harness.receive(1)).tokens))
    await harness.send(b"b")
    assert urgency == [True, False]


# --- lazily opened ------------------------------------------------------------------------------------------


async def test_a_log_is_opened_by_the_first_operation_that_needs_it() -> None:
    harness = Harness()
    answers = await harness.do(
        1,
        Withdraw(MAIN),
        Release([bytes(16)]),
        Recalled(MAIN, ()),
        Update(harness.description, "u"),
        Detach(),
    )
    assert answers == [Withdrawn(NUMBER, MAIN), Updated("u")]
    assert harness.task.health is Health.CLOSED and harness.log.disk.epoch == 0 and harness.task.available
    assert harness.task.counts()[MAIN].active == 0
    await harness.send(b"a")
    assert harness.healths == [Health.OPENING, Health.HEALTHY]


async def test_opening_for_the_counts_needs_no_operation() -> None:
    harness = Harness()
    await harness.send(b"a", b"b")
    await harness.restart()
    async with running(harness):
        assert harness.task.counts()[MAIN].active == 0
        await asyncio.wait_for(harness.task.opened(), WAIT_S)
        assert harness.task.counts()[MAIN].active == 2 and harness.live_bytes == 2


# --- a failed commit (durability rule 4) --------------------------------------------------------------------


async def test_a_failed_commit_is_refused_and_never_seen_and_the_partition_comes_back() -> None:
    harness = Harness()
    await harness.send(b"before")
    locked = await harness.receive(1)
    await harness.do(1, Demand(MAIN, 1))
    harness.log.fail_append(CommitFailed("the disk said no"))
    refused = one(await harness.do(2, Send([b"lost"], None, "mine")), Failed)
    assert refused.reason is Reason.PARTITION_UNAVAILABLE and refused.cookie == "mine"
    assert harness.take(1) == [Unavailable(NUMBER)], "told once; its locks and its demand are void"
    assert harness.task.health is Health.HEALTHY and harness.healths[-2:] == [
        Health.RECOVERING,
        Health.HEALTHY,
    ]
    assert await harness.do(1, Complete(locked.tokens)) == [Settled(None, {0: Reason.LOCK_LOST})]
    await harness.send(b"after")
    assert harness.take(1) == []
    await harness.restart()
    assert (await harness.peek()).messages == [b"before", b"after"]


async def test_a_partition_that_is_down_counts_what_was_durable_and_not_what_failed() -> None:
    harness = Harness()
    await harness.send(b"kept", b"kept too", b"kept three")
    tokens = (await harness.receive(1, 2)).tokens
    durable = harness.task.counts()[MAIN]
    harness.log.fail_append(CommitFailed("no"))
    harness.log.on_acquire = lambda: StorageError("still no")
    # Symptom: its gauges had the refused message, and not those that it still held.
    await harness.do(1, Send([b"refused"], None), Complete([tokens[0]]), Defer([tokens[1]]))
    assert harness.task.health is Health.RECOVERING
    assert harness.task.counts()[MAIN] == replace(durable, locked=0)
    harness.log.on_acquire = lambda: None
    await harness.advance(10_000)
    assert harness.healths[-1] is Health.HEALTHY
    assert harness.task.counts()[MAIN] == replace(durable, locked=0)


async def test_a_partition_found_damaged_goes_on_counting_what_it_held() -> None:
    harness = Harness()
    await harness.send(b"kept", b"kept too")
    durable = harness.task.counts()
    harness.log.fail_append(CorruptRecord("the log", 0, "no checksum fits"))
    await harness.do(1, Send([b"refused"], None))
    assert harness.task.health is Health.DAMAGED
    assert harness.task.counts() == durable, "its messages may still be saved"


async def test_every_operation_of_a_failed_cycle_is_answered() -> None:
    harness = Harness()
    number = await harness.send(b"a", b"b", b"c")
    tokens = (await harness.receive(1, 3)).tokens
    await harness.do(1, Defer([tokens[2]]))
    harness.log.fail_append(CommitFailed("no"))
    operations: list[Operation] = [
        Send([b"x"], None, 1), Complete([tokens[0]], 2), Abandon([tokens[1]], None, 3), RenewLocks(tokens,
        4), Peek(MAIN, 0, 1, 5),
        ReceiveDeferred(MAIN, [number + 2], 6), Update(harness.description, 7), Withdraw(MAIN), Release(()),
        Detach(),
    ]  # fmt: skip
    answers = await harness.do(9, *operations)
    assert [answer.cookie for answer in answers if isinstance(answer, Failed)] == [1, 2, 3, 4, 5, 6, 7]
    reasons = [answer.reason for answer in answers if isinstance(answer, Failed)]
    assert set(reasons[1:4]) == {Reason.LOCK_ENDED}
    assert {reasons[0], *reasons[4:]} == {Reason.PARTITION_UNAVAILABLE}
    assert answers[7:] == [Withdrawn(NUMBER, MAIN)]


async def test_nobody_is_refused_before_the_log_was_reopened() -> None:
    """Otherwise a refused message could still appear."""
    harness = Harness()
    await harness.send(b"a")
    seen: list[int] = []
    harness.log.fail_append(CommitFailed("no"))
    harness.log.on_acquire = lambda: seen.append(len(harness.received[2]))
    await harness.do(2, Send([b"b"], None))
    assert seen == [0]


async def test_a_partition_that_is_down_takes_note_of_new_settings_and_works_with_them_once_back() -> None:
    harness = Harness()
    await harness.send(b"a")
    harness.log.fail_append(CommitFailed("no"))
    harness.log.on_acquire = lambda: StorageError("still no")
    await harness.do(1, Send([b"b"], None))
    harness.change(lock_duration_ms=7_000)
    assert isinstance(one(await harness.do(1, Update(harness.description, "mine")), Failed), Failed)
    harness.log.on_acquire = lambda: None
    await harness.advance(10_000)
    assert harness.task.health is Health.HEALTHY
    assert (await harness.receive(1)).locked_until_ms == harness.clock.monotonic_ms() + 7_000


@pytest.mark.parametrize("error", [CommitFailed("no"), DiskFull("no room")])
async def test_new_settings_that_come_while_the_log_is_read_again_count(
    error: StorageError, monkeypatch: pytest.MonkeyPatch
) -> None:
    description = topic("a")
    harness = Harness(description=description)
    await harness.send(b"a")
    tokens = (await harness.receive(1, 1, A)).tokens
    load = harness.log.load_checkpoint

    async def change_and_load() -> Checkpoint | None:
        harness.post(2, Update(with_subscription(description, "b")))
        return await load()

    monkeypatch.setattr(harness.log, "load_checkpoint", change_and_load)
    harness.log.fail_append(error)
    await harness.do(1, Complete(tokens))
    assert isinstance(one(harness.take(2), Failed), Failed), "it is refused, as everything that waits"
    assert harness.task.health is Health.HEALTHY
    await harness.send(b"b")
    # Symptom: the new subscription got nothing, and receivers from it were refused.
    assert (await harness.peek(B)).messages == [b"b"]


async def test_a_message_that_cannot_be_read_refuses_the_looker_and_not_the_durable_rest() -> None:
    harness = Harness(payload_bytes=0)
    await harness.send(b"a")
    harness.log.on_fetch = lambda: StorageError("read failed")
    answers = await harness.do(1, Send([b"b"], None, "send"), Peek(MAIN, 0, 1, "peek"))
    assert isinstance(answers[0], Sent)
    assert (
        isinstance(answers[1], Failed)
        and answers[1].cookie == "peek"
        and answers[1].reason is Reason.PARTITION_UNAVAILABLE
    )
    harness.log.on_fetch = lambda: None
    assert harness.task.health is Health.HEALTHY
    assert (await harness.peek()).messages == [b"a", b"b"]


@pytest.mark.parametrize("error", [CorruptRecord("log", 77, "flipped"), Fenced("another owner")])
async def test_damage_and_another_owner_stop_the_partition_for_good(error: StorageError) -> None:
    harness = Harness()
    harness.log.on_acquire = lambda: error
    assert one(await harness.do(1, Send([b"a"], None)), Failed).reason is Reason.PARTITION_UNAVAILABLE
    expected = Health.DAMAGED if isinstance(error, CorruptRecord) else Health.FAILED
    assert harness.task.health is expected and not harness.task.available
    harness.log.on_acquire = lambda: None
    harness.post(1, Send([b"a"], None, "later"))
    harness.post(2, Demand(MAIN, 1))
    await until(lambda: harness.received[2])
    assert isinstance(one(harness.take(1), Failed), Failed) and harness.take(2) == [
        Unavailable(NUMBER, for_good=True)
    ]
    assert harness.log.disk.epoch == 0, "nobody touches the log again"


async def test_a_message_that_is_damaged_stops_the_partition() -> None:
    harness = Harness(payload_bytes=0)
    await harness.send(b"a")
    harness.log.damage(list(harness.log.disk.frames)[-1])
    answers = await harness.do(1, Demand(MAIN, 1), Peek(MAIN, 0, 1))
    assert [type(answer) for answer in answers] == [Failed, Unavailable]
    assert harness.task.health is Health.DAMAGED


async def test_a_record_of_a_later_release_stops_the_partition() -> None:
    harness = Harness()
    await harness.send(b"a")
    commit = Commit(harness.log.end)
    commit.add(200, [b"?"], records.VERSION)
    await harness.log.append(commit)
    await harness.restart()
    assert isinstance(one(await harness.do(1, Peek(MAIN, 0, 1)), Failed), Failed)
    assert harness.task.health is Health.FAILED


async def test_a_bug_ends_this_partition_loudly_and_nothing_else() -> None:
    harness = Harness()

    def broken_sink(answer: object) -> None:
        raise RuntimeError("a bug")

    run = asyncio.create_task(harness.task.run())
    harness.post(1, Demand(MAIN, 1))
    harness.task.post(Send([b"a"], None), ClientId(2), broken_sink)
    await asyncio.wait_for(run, WAIT_S)
    assert harness.task.health is Health.FAILED
    assert Unavailable(NUMBER, for_good=True) in harness.take(1)
    await harness.task.stop()
    assert harness.task.health is Health.FAILED


@pytest.mark.parametrize("where", [(Partition, "committed"), (PartitionTask, "_release"), (Rest, "changed")])
async def test_a_bug_after_a_commit_refuses_nothing_of_it(
    where: tuple[type, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = Harness()
    harness.log.takes_at_once = False
    async with running(harness):
        harness.post(1, Send([b"first"], None))
        await until(lambda: harness.received[1])

        def bug(*_: object) -> None:
            raise ValueError("a bug")

        with monkeypatch.context() as patched:
            patched.setattr(*where, bug)
            harness.post(2, Send([b"stored"], None))
            await until(lambda: harness.task.health is Health.FAILED)
        assert not harness.received[2], "neither accepted nor refused"
    await harness.restart()
    assert (await harness.peek()).messages == [b"first", b"stored"]


async def test_a_bug_in_a_commit_whose_disk_hangs_ends_the_partition_after_the_time_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    harness = Harness(limits=TaskLimits(disk_timeout_ms=20))
    async with running(harness):
        harness.post(1, Send([b"first"], None))
        await until(lambda: harness.received[1] and harness.task._sleeps)

        def bug(*_: object) -> None:
            raise ValueError("a bug")

        harness.log.gate = asyncio.Event()
        with monkeypatch.context() as patched:
            patched.setattr(Partition, "finish", bug)
            harness.post(2, Send([b"refused"], None))
            await until(lambda: harness.task.health is Health.FAILED)
        one(harness.take(2), Failed)
        harness.log.gate.set()
    await harness.restart()
    assert (await harness.peek()).messages == [b"first"]


# --- timer and end ------------------------------------------------------------------------------------------


async def test_the_timer_returns_a_lock_although_nobody_asks() -> None:
    harness = Harness(QueueSettings(lock_duration_ms=30))
    harness.clock = SystemClock()  # type: ignore[assignment]
    await harness.restart()
    async with running(harness):
        harness.post(1, Send([b"a"], None))
        harness.post(1, Demand(MAIN, 1))
        await until(lambda: len(harness.received[1]) == 2)
        harness.post(2, Demand(MAIN, 1))
        await until(lambda: harness.received[2])
        assert one(harness.take(2), Locked).delivery_counts == [1]


async def test_a_clean_stop_serves_the_mailbox_saves_a_checkpoint_and_closes_the_log() -> None:
    harness = Harness()
    run = asyncio.create_task(harness.task.run())
    await harness.task.opened()
    harness.post(1, Demand(MAIN, 5))
    for _ in range(3):
        harness.post(2, Send([b"x"], None))
    await asyncio.wait_for(harness.task.stop(), WAIT_S)
    await asyncio.wait_for(run, WAIT_S)
    await harness.task.stop()
    assert [type(answer) for answer in harness.take(2)] == [Sent] * 3
    assert harness.take(1)[-1] == Unavailable(NUMBER, for_good=True)
    assert harness.task.health is Health.STOPPED and not harness.log.usable
    assert harness.log.disk.checkpoint is not None and harness.log.disk.checkpoint.position == harness.log.end
    assert harness.budget.used == 0
    harness.post(2, Send([b"late"], None))
    await until(lambda: harness.received[2])
    assert isinstance(one(harness.take(2), Failed), Failed)
    await harness.restart()
    assert (await harness.peek()).messages == [b"x"] * 3


async def test_a_partition_that_was_never_used_stops_without_touching_its_log() -> None:
    harness = Harness()
    await harness.task.stop()
    assert (
        harness.task.health is Health.STOPPED and harness.log.disk.epoch == 0 and not harness.log.disk.frames
    )


async def test_cancelling_the_task_ends_it_and_lets_stop_return() -> None:
    harness = Harness()
    run = asyncio.create_task(harness.task.run())
    await harness.task.opened()
    run.cancel()
    with suppress(asyncio.CancelledError):
        await run
    assert run.cancelled() and harness.task.health is Health.STOPPED
    await asyncio.wait_for(harness.task.stop(), WAIT_S)


async def test_clients_of_single_requests_are_not_remembered() -> None:
    harness = Harness()
    for client in range(100, 200):
        await harness.do(client, Peek(MAIN, 0, 1))
    await harness.do(1, Demand(MAIN, 1))
    assert list(harness.task._mailbox.attached) == [1]
    await harness.do(1, Detach())
    assert not harness.task._mailbox.attached


async def test_a_partition_that_is_deleted_writes_no_checkpoint_and_forgets_expiries_in_steps() -> None:
    for is_deleted in (False, True):
        harness = Harness()
        for number in range(10):
            await harness.send(b"x", b"y", ttl=[60_000 + 50 * number, None])
        assert harness.task._partition is not None
        wheel = harness.task._partition.messages.main.expiry
        await harness.task.stop(is_deleted=is_deleted)
        assert wheel is not None and wheel.next_due_ms() is None and not harness.task._coming_back._to_free
        assert len(harness.log.checkpoints) == (0 if is_deleted else 1)
