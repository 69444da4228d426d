"""Cycles that await nothing but their commit go on without the partition's task; the rest is the task's."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from broker.base.errors import Reason
from broker.base.pace import PACE_S
from broker.base.slices import Slices
from broker.entities.descriptions import MAIN, QueueSettings
from broker.operations.browsing import Peek, Peeked
from broker.operations.general import Failed, Unavailable
from broker.operations.receiving import Demand, Locked, Unmet, Withdraw, Withdrawn
from broker.operations.sending import Send, Sent
from broker.operations.settling import Abandon, Complete, Renewed, RenewLocks, Settled
from broker.partition.duplicates import IDENTITY_BYTES
from broker.partition.health import Health
from broker.partition.mailbox import Mailbox
from broker.partition.messages import Messages
from broker.partition.signals import Signal
from broker.partition.state import Partition
from broker.partition.task_limits import TaskLimits
from storage.errors import CommitFailed, DiskFull
from storage.log import Commit, Ended
from tests.support.memory_log import MemoryLog
from tests.support.partition_harness import Harness, one, running
from tests.support.waiting import WAIT_S, until


class _Steps:
    """Counts the steps of a partition's task."""

    def __init__(self, harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
        self.taken = 0
        step = harness.task.step

        def counted() -> object:
            self.taken += 1
            return step()

        monkeypatch.setattr(harness.task, "step", counted)


@asynccontextmanager
async def _quiet(harness: Harness) -> AsyncIterator[None]:
    """A partition that is open, and has nothing to do."""
    async with running(harness):
        await harness.task.opened()
        harness.post(0, Send([b"first"], None))
        await until(lambda: harness.received[0])
        await until(lambda: harness.task._sleeps)
        yield


async def test_messages_are_stored_while_the_task_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = Harness()
    async with _quiet(harness):
        steps, appends = _Steps(harness, monkeypatch), harness.log.appends
        harness.log.gate = asyncio.Event()
        for number in range(3):
            harness.post(1, Send([b"x"], None, number))
        await until(lambda: harness.log._appending)
        assert not harness.received[1], "not durable yet"
        harness.post(1, Send([b"y", b"z"], None, 3))
        harness.log.gate.set()
        await until(lambda: len(harness.received[1]) == 4)
        assert [answer.cookie for answer in harness.take(1) if isinstance(answer, Sent)] == [0, 1, 2, 3]
        assert harness.log.appends == appends + 2 and not steps.taken
    await harness.restart()
    assert (await harness.peek()).messages == [b"first", *[b"x"] * 3, b"y", b"z"]


async def test_the_task_is_not_woken_for_messages_that_find_it_asleep(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    harness = Harness()
    async with _quiet(harness):
        woken, wake = list[Signal](), Signal.set

        def noting(signal: Signal) -> None:
            woken.append(signal)
            wake(signal)

        monkeypatch.setattr(Signal, "set", noting)
        appends = harness.log.appends
        for number in range(3):
            harness.post(1, Send([b"x"], None, number))
        assert harness.log.appends == appends, "what else this turn brings goes with them"
        await until(lambda: len(harness.received[1]) == 3)
        assert harness.log.appends == appends + 1 and harness.task._wake not in woken
        await until(lambda: not harness.task._short.is_under_way)
        harness.post(2, Demand(MAIN, 1))
        await until(lambda: harness.received[2])
        await until(lambda: not harness.task._short.is_under_way)
        harness.post(2, Complete(one(harness.take(2), Locked).tokens))
        await until(lambda: harness.received[2])
        assert harness.task._wake not in woken, "nor for receivers"
        await until(lambda: not harness.task._short.is_under_way)
        harness.post(2, Peek(MAIN, 0, 1))
        await until(lambda: len(harness.received[2]) == 2)
        assert harness.task._wake in woken


async def test_those_who_wait_for_a_lull_begin_in_the_call_that_ends_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    harness = Harness()
    async with _quiet(harness):
        steps, waiting = _Steps(harness, monkeypatch), list[Callable[[], None]]()
        harness.log.at_next_lull = waiting
        harness.post(1, Send([b"x"], None))
        assert len(waiting) == 1 and not harness.task._short.is_under_way
        waiting.pop()()
        assert harness.task._short.is_under_way
        await until(lambda: harness.received[1])
        assert not steps.taken


async def test_what_receivers_want_goes_with_the_messages_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = Harness()
    async with _quiet(harness):
        steps = _Steps(harness, monkeypatch)
        harness.post(1, Send([b"second"], None))
        harness.post(2, Demand(MAIN, 2))
        await until(lambda: harness.received[1] and harness.received[2])
        locked = one(harness.take(2), Locked)
        await until(lambda: harness.task._sleeps and not harness.task._short.is_under_way)
        waiting, appends = list[Callable[[], None]](), harness.log.appends
        harness.log.at_next_lull = waiting
        harness.post(1, Send([b"third"], None))
        harness.post(2, Complete(locked.tokens))
        harness.post(2, Demand(MAIN, 1))
        for _ in range(5):
            await asyncio.sleep(0)
        assert len(waiting) == 1 and harness.log.appends == appends and not harness.received[2]
        waiting.pop()()
        await until(lambda: len(harness.received[2]) == 2)
        assert [type(answer) for answer in harness.received[2]] == [Settled, Locked]
        assert harness.log.appends == appends + 1 and not steps.taken


async def test_messages_are_handed_out_and_settled_while_the_task_sleeps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    harness = Harness()
    async with _quiet(harness):
        steps = _Steps(harness, monkeypatch)
        harness.post(2, Demand(MAIN, 3))
        await until(lambda: harness.received[2])
        first = one(harness.take(2), Locked)
        harness.post(1, Send([b"second", b"third"], None))  # somebody waits: it is delivered in its cycle
        await until(lambda: harness.received[1] and harness.received[2])
        later = one(harness.take(2), Locked)
        harness.log.gate = asyncio.Event()
        harness.post(2, Complete(first.tokens))
        await until(lambda: harness.log._appending)
        harness.post(2, Abandon([later.tokens[0]]))  # waits for the commit under way
        harness.post(2, RenewLocks([later.tokens[1]]))
        harness.post(2, Withdraw(MAIN))
        for _ in range(5):
            await asyncio.sleep(0)
        assert not harness.received[2], "not durable yet"
        harness.log.gate.set()
        await until(lambda: len(harness.received[2]) == 4)
        assert [type(answer) for answer in harness.take(2)] == [Settled, Settled, Renewed, Withdrawn]
        assert not steps.taken
    await harness.restart()
    assert (await harness.peek()).messages == [b"second", b"third"]


async def test_a_cycle_for_which_a_turn_has_no_time_begins_in_a_later_one_without_a_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    harness = Harness(turns=Slices(0, itertools.count(0, PACE_S).__next__))  # everything takes long
    async with _quiet(harness):
        steps, short = _Steps(harness, monkeypatch), harness.task._short
        asyncio.get_running_loop().call_soon(harness.task._turns.pace.may_begin)  # others begin first
        harness.post(1, Demand(MAIN, 1))
        await asyncio.sleep(0)
        assert not short.is_under_way and not harness.received[1]
        harness.post(1, Demand(MAIN, 1, tell_unmet=True))  # goes with it
        await until(lambda: len(harness.received[1]) == 2)
        assert [type(answer) for answer in harness.take(1)] == [Locked, Unmet]
        await until(lambda: not short.is_under_way)
        assert not steps.taken


async def test_messages_that_are_not_in_memory_are_read_by_the_task() -> None:
    harness = Harness(payload_bytes=0)
    async with _quiet(harness):
        harness.post(2, Demand(MAIN, 10))
        await until(lambda: harness.received[2])
        received = one(harness.take(2), Locked)
        assert received.messages == [b"first"] and harness.log.fetches
        harness.post(2, Demand(MAIN, 1))
        harness.post(2, Complete(received.tokens))
        await until(lambda: harness.received[2])
        one(harness.take(2), Settled)
    await harness.restart()
    assert not (await harness.peek()).messages


async def test_settlements_may_use_the_reserve_of_a_full_disk() -> None:
    harness = Harness()
    async with _quiet(harness):
        urgencies = list[bool]()

        def on_append(_: object, urgent: bool) -> None:
            urgencies.append(urgent)

        harness.log.on_append = on_append
        harness.post(1, Send([b"second"], None))
        await until(lambda: harness.received[1])
        received = await _received(harness)
        harness.post(2, Complete(received.tokens))
        await until(lambda: harness.received[2])
        harness.post(1, Send([b"third"], None))
        harness.post(2, Complete(received.tokens))  # their locks have ended
        await until(lambda: harness.received[2] and len(harness.received[1]) == 2)
        assert urgencies == [False, True, False]


async def _received(harness: Harness) -> Locked:
    harness.post(2, Demand(MAIN, 2))
    await until(lambda: harness.received[2])
    return one(harness.take(2), Locked)


async def test_a_full_disk_refuses_what_a_short_cycle_sends_and_settles_the_rest() -> None:
    harness = Harness()
    async with _quiet(harness):
        received = await _received(harness)
        harness.log.at_next_lull = list[Callable[[], None]]()
        harness.post(1, Send([b"lost"], None))
        harness.log.fail_append(DiskFull("no room"))
        harness.post(2, Complete(received.tokens))  # the message waits for a lull, and goes with it
        await until(lambda: harness.received[1] and harness.received[2])
        assert one(harness.take(1), Failed).reason is Reason.DISK_FULL
        assert not one(harness.take(2), Settled).failures
        assert harness.task.health is Health.HEALTHY and not harness.task.counts()[MAIN].active


async def test_a_settlement_whose_commit_fails_is_refused_and_undone() -> None:
    harness = Harness()
    async with _quiet(harness):
        received = await _received(harness)
        harness.log.fail_append(CommitFailed("the disk said no"))
        harness.post(2, Complete(received.tokens))
        await until(lambda: harness.received[2])
        assert isinstance(harness.take(2)[0], Failed | Unavailable)
        await until(lambda: harness.task.health is Health.HEALTHY)
        assert harness.task.counts()[MAIN].active == 1


async def test_whatever_else_comes_meanwhile_is_done_by_the_task_after_it() -> None:
    harness = Harness()
    async with _quiet(harness):
        harness.log.gate = asyncio.Event()
        harness.post(1, Send([b"x"], None))
        await until(lambda: harness.log._appending)
        harness.post(2, Peek(MAIN, 0, 10))
        for _ in range(5):
            await asyncio.sleep(0)
        assert not harness.received[1] and not harness.received[2]
        harness.log.gate.set()
        await until(lambda: harness.received[1] and harness.received[2])
        assert one(harness.take(2), Peeked).messages == [b"first", b"x"]


async def test_a_commit_that_cannot_be_made_at_once_is_made_by_the_task() -> None:
    harness = Harness()
    async with _quiet(harness):
        harness.log.takes_at_once = False
        harness.post(1, Send([b"x"], None))
        await until(lambda: harness.received[1])
        one(harness.take(1), Sent)


async def test_a_failed_short_cycle_is_refused_and_never_seen_and_the_partition_comes_back() -> None:
    harness = Harness()
    async with _quiet(harness):
        harness.log.fail_append(CommitFailed("the disk said no"))
        harness.post(1, Send([b"lost"], None))
        await until(lambda: harness.received[1])
        assert one(harness.take(1), Failed).reason is Reason.PARTITION_UNAVAILABLE
        assert harness.healths[-2:] == [Health.RECOVERING, Health.HEALTHY]
        harness.post(1, Send([b"after"], None))
        await until(lambda: harness.received[1])
        one(harness.take(1), Sent)
    await harness.restart()
    assert (await harness.peek()).messages == [b"first", b"after"]


async def test_a_full_disk_refuses_a_short_cycle_and_keeps_nothing_of_it() -> None:
    harness = Harness()
    async with _quiet(harness):
        harness.log.fail_append(DiskFull("no room"))
        harness.post(1, Send([b"lost"], None))
        await until(lambda: harness.received[1])
        assert one(harness.take(1), Failed).reason is Reason.DISK_FULL
        assert harness.task.health is Health.HEALTHY and harness.task.counts()[MAIN].active == 1


async def test_a_short_cycle_whose_commit_hangs_is_refused_and_never_read() -> None:
    harness = Harness(limits=TaskLimits(disk_timeout_ms=50))
    async with _quiet(harness):
        harness.log.gate = asyncio.Event()
        harness.post(1, Send([b"undecided"], None))
        await until(lambda: harness.received[1])
        assert one(harness.take(1), Failed).reason is Reason.PARTITION_UNAVAILABLE
        assert harness.task.health is Health.RECOVERING
        harness.log.gate.set()
        await until(lambda: harness.task.health is Health.HEALTHY)
        assert harness.task.counts()[MAIN].active == 1


async def test_a_partition_stops_after_the_short_cycle_under_way() -> None:
    harness = Harness()
    async with _quiet(harness):
        harness.log.gate = asyncio.Event()
        harness.post(1, Send([b"x"], None))
        await until(lambda: harness.log._appending)
        harness.post(1, Send([b"y"], None))
        stopping = asyncio.create_task(harness.task.stop())
        for _ in range(5):
            await asyncio.sleep(0)
        assert not stopping.done()
        harness.log.gate.set()
        await asyncio.wait_for(stopping, WAIT_S)
        assert len(harness.received[1]) == 2 and all(isinstance(each, Sent) for each in harness.take(1))


async def test_the_disk_writes_while_the_state_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = Harness()
    async with _quiet(harness):
        partition, append_at_once, known = harness.task._partition, harness.log.append_at_once, list[int]()
        assert partition is not None

        def noting(commit: Commit, ended: Ended, *, urgent: bool = False) -> bool:
            known.append(partition.messages.count)
            return append_at_once(commit, ended, urgent=urgent)

        monkeypatch.setattr(harness.log, "append_at_once", noting)
        for count in (1, 2):
            harness.log.at_next_lull = waiting = list[Callable[[], None]]()
            for number in range(count):
                harness.post(1, Send([b"x"], None, number))
            waiting.pop()()
            assert partition.messages.count == known[-1] + count
            await until(lambda count=count: len(harness.take(1)) == count)  # type: ignore[misc]
            await until(lambda: not harness.task._short.is_open)
        assert known == [1, 2]
    await harness.restart()
    assert (await harness.peek()).messages == [b"first", b"x", b"x", b"x"]


async def test_the_log_hears_whether_more_waits_behind_a_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    """It begins its next segment while nothing does."""
    harness = Harness()
    async with _quiet(harness):
        append_at_once, heard = harness.log.append_at_once, list[bool]()

        def hearing(commit: Commit, ended: Ended, *, urgent: bool = False) -> bool:
            def noting(error: Exception | None) -> bool:
                heard.append(ended(error))
                return heard[-1]

            return append_at_once(commit, noting, urgent=urgent)

        monkeypatch.setattr(harness.log, "append_at_once", hearing)
        for more in ([], [b"z"]):
            harness.log.gate = asyncio.Event()
            harness.post(1, Send([b"y"], None))
            await until(lambda: harness.log._appending)
            for body in more:
                harness.post(1, Send([body], None))
            harness.log.gate.set()
            await until(lambda more=more: len(heard) == 1 + 2 * len(more))  # type: ignore[misc]
            await until(lambda: not harness.task._short.is_open)
        assert heard == [False, True, False]


async def test_a_partition_whose_log_is_at_work_awaits_nothing() -> None:
    harness = Harness()
    async with _quiet(harness):
        assert harness.task.awaits_more
        harness.log._appending = True  # as while its next segment begins
        assert not harness.task.awaits_more
        harness.log._appending = False
        assert harness.task.awaits_more


async def test_sends_that_cannot_go_together_follow_each_other_in_a_quiet_cycle() -> None:
    harness = Harness(QueueSettings(requires_duplicate_detection=True))
    async with _quiet(harness):
        harness.log.at_next_lull = waiting = list[Callable[[], None]]()
        for number, name in enumerate("aba"):
            harness.post(1, Send([name.encode()], None, number, identities=[name.encode() * IDENTITY_BYTES]))
        waiting.pop()()
        await until(lambda: len(harness.received[1]) == 3)
        answers = [answer for answer in harness.take(1) if isinstance(answer, Sent)]
        assert [answer.duplicates for answer in answers] == [[], [], [0]]
    await harness.restart()
    assert (await harness.peek()).messages == [b"first", b"a", b"b"]


def _bug(*_: object) -> None:
    raise ValueError("a bug")


@pytest.mark.parametrize(
    "where",
    [
        (Mailbox, "is_short"),
        (Messages, "apply_enqueued"),
        (Partition, "begin"),
        (Partition, "handle_sends"),
        (MemoryLog, "append_at_once"),
        (Partition, "let_go"),
    ],
    ids=lambda where: where[1],
)
async def test_a_bug_in_a_short_cycle_ends_this_partition_loudly_and_no_other(
    where: tuple[type, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = Harness()
    async with _quiet(harness):
        harness.log.at_next_lull = waiting = list[Callable[[], None]]()
        harness.post(1, Send([b"x"], None))
        monkeypatch.setattr(*where, _bug)
        waiting.pop()()  # it raises nothing: other partitions begin in the same call
        await until(lambda: harness.task.health is Health.FAILED)
        assert harness.received[1]


async def test_after_a_bug_behind_a_commit_that_has_begun_nothing_is_refused_that_is_stored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Symptom: a bug while the disk wrote refused the messages that it stored."""
    harness = Harness()
    async with _quiet(harness):
        harness.log.at_next_lull = waiting = list[Callable[[], None]]()
        harness.post(1, Send([b"refused"], None))
        with monkeypatch.context() as patched:
            patched.setattr(Partition, "finish", _bug)
            waiting.pop()()
        await until(lambda: harness.task.health is Health.FAILED)
        one(harness.take(1), Failed)
    await harness.restart()
    assert (await harness.peek()).messages == [b"first"]


async def test_the_end_of_new_messages_is_minded_by_the_timer() -> None:
    harness = Harness()
    async with _quiet(harness):
        harness.post(1, Send([b"x"], [5_000]))
        await until(lambda: harness.received[1])
        due_ms = harness.task._timer.due_ms
        assert due_ms is not None and due_ms <= harness.clock.monotonic_ms() + 5_000
