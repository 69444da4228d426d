"""The process that runs partitions, served here over a socket pair: what it says, and in which order.

`test_remote.py` and the crash tests run it as a process.
"""

from __future__ import annotations

import asyncio
import gc
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import FunctionType
from typing import TypeVar
from unittest.mock import Mock

import pytest

from broker.base.collector import THRESHOLDS
from broker.entities.descriptions import MAIN
from broker.entities.rules import CorrelationFilter, RuleDescription
from broker.entities.topics import TOPIC_SUBQUEUES
from broker.hosting.channel import Channel
from broker.hosting.messages import (
    Answered,
    Close,
    Configure,
    Counted,
    DeleteLogs,
    Detached,
    Done,
    FindLogs,
    FolderStates,
    Forget,
    IndexClosed,
    IndexOpening,
    ListPartitions,
    MemoryUsed,
    Post,
    Ready,
    Start,
    Status,
    StopPartition,
    ToBroker,
    ToPartitions,
)
from broker.hosting.process import PartitionProcess, _Hosted, _main
from broker.hosting.schema import decode_to_broker, encode
from broker.identifiers import ClientId
from broker.operations.general import Detach
from broker.operations.message_states import SubqueueCounts
from broker.operations.receiving import Demand, Locked, LockExactly
from broker.operations.sending import Send, Sent
from broker.operations.settling import Release
from broker.partition import totals
from broker.partition.summary import Summary, decode
from tests.support.hosting import QUEUE, settings_of
from tests.support.logging_kept import logging_kept
from tests.support.topics import BLUE, ONLY_RED, RED, topic, with_subscription
from tests.support.waiting import WAIT_S

M = TypeVar("M")
PARTITION, CLIENT = 9, ClientId(77)
ONLY_BLUE = RuleDescription("blue", CorrelationFilter(label="blue"))


class Broker:
    """The broker's end of the channel."""

    def __init__(self, channel: Channel) -> None:
        self._channel, self._bodies = channel, channel.bodies()
        self.started: set[int] = set()

    def say(self, message: ToPartitions) -> None:
        if isinstance(message, Start):
            self.started.add(message.partition)
        elif isinstance(message, Forget):
            self.started.discard(message.partition)
        self._channel.send(encode(message))

    async def hear(self, *, until: type[M]) -> tuple[list[ToBroker], M]:
        """What the process says up to a message of this kind, without its regular reports. Lets it open what
        it asks to open."""
        before: list[ToBroker] = []
        async for body in self._bodies:
            match decode_to_broker(body):
                case IndexOpening() as opening:
                    self.say(Done(opening.request))
                    before.append(opening)
                case until() as found:
                    return before, found
                case MemoryUsed() | FolderStates():
                    pass
                case other:
                    before.append(other)
        raise AssertionError(f"the process has ended without {until}; it said {before}")


@asynccontextmanager
async def process(folder: Path) -> AsyncIterator[Broker]:
    """A process that is ready, and its end on `Close`."""
    one, other = socket.socketpair()
    broker_end = await Channel.of(one)
    broker = Broker(broker_end)
    with logging_kept():
        async with asyncio.timeout(WAIT_S):
            running = asyncio.create_task(PartitionProcess(await Channel.of(other)).run())
            try:
                broker.say(Configure(settings_of(folder), "json", "info"))
                await broker.hear(until=Ready)
                yield broker
                for partition in broker.started:
                    broker.say(StopPartition(999, partition, is_deleted=False))
                    await broker.hear(until=Done)
                broker.say(Close(1_000))
                assert (await broker.hear(until=Done))[1] == Done(1_000)
                await running
            finally:
                running.cancel()  # before the channel: without a broker, it would end this process
                await asyncio.wait([running])
                await broker_end.close()


async def test_the_process_collects_garbage_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    thresholds: list[tuple[int, int, int]] = []
    broker_end, own_end = socket.socketpair()

    class Served:
        """Serves no requests."""

        def __init__(self, channel: Channel) -> None:
            self._channel = channel

        async def run(self) -> None:
            thresholds.append(gc.get_threshold())
            await self._channel.close()

    monkeypatch.setattr("broker.hosting.process.PartitionProcess", Served)
    before = gc.get_threshold()
    try:
        await _main(own_end.detach())
    finally:
        gc.set_threshold(*before)
        broker_end.close()
    assert thresholds == [THRESHOLDS]


async def test_a_partitions_status_comes_before_the_answers_of_its_commit(tmp_path: Path) -> None:
    async with process(tmp_path) as broker:
        broker.say(Start(PARTITION, 3, QUEUE, None, 0))
        broker.say(Post(PARTITION, CLIENT, Send([b"one", b"two"], None, 5)))
        before, answered = await broker.hear(until=Answered)
        assert answered == Answered(PARTITION, CLIENT, Sent(3 << 48 | 1, 5))
        assert isinstance(before[0], IndexOpening), "the index knows of it before anything changes"
        (status,) = [each for each in before[-2:] if isinstance(each, Status)]
        (counted,) = [each for each in before[-2:] if isinstance(each, Counted)]
        assert (status.health, status.available, status.counts[MAIN].active) == ("healthy", True, 2)
        assert sum(records for records, _, _ in counted.commits) == 1 and counted.commit_failures == 0


@pytest.mark.parametrize("subscriptions", [3, 200])
async def test_what_is_published_costs_nothing_for_subscriptions_that_do_not_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, subscriptions: int
) -> None:
    description = with_subscription(topic(), "red", ONLY_RED)
    for number in range(subscriptions):
        description = with_subscription(description, f"s{number}", ONLY_BLUE)
    async with process(tmp_path) as broker:
        broker.say(Start(PARTITION, 3, description, None, 0))
        broker.say(Post(PARTITION, CLIENT, Send([BLUE], None)))  # which all others keep
        before, _ = await broker.hear(until=Answered)
        known: dict[str, SubqueueCounts] = {}
        for status in [each for each in before if isinstance(each, Status)]:
            known = status.counts if status.is_whole else known | status.counts
        assert len(known) == len(TOPIC_SUBQUEUES) + subscriptions
        looks = Mock(wraps=totals._row_of)
        monkeypatch.setattr(totals, "_row_of", looks)
        for count in (1, 2):
            broker.say(Post(PARTITION, CLIENT, Send([RED], None)))
            before, _ = await broker.hear(until=Answered)
            (status,) = [each for each in before if isinstance(each, Status)]
            # Symptom: the counts of all subscriptions were found out and sent with each answer.
            assert not status.is_whole and status.counts.keys() == {MAIN, "subscriptions/red"}
            assert status.counts["subscriptions/red"].active == count
            known |= status.counts
            assert status.size == sum(each.bytes for each in known.values())
            if count == 1:
                looks.reset_mock()
        assert {each.args[0].name for each in looks.mock_calls} == {"subscriptions/red"}
        assert looks.call_count <= 2


async def test_the_broker_hears_of_counts_that_change_without_an_answer(tmp_path: Path) -> None:
    async with process(tmp_path) as broker:
        broker.say(Start(PARTITION, 3, QUEUE, None, 0))
        broker.say(Post(PARTITION, CLIENT, Send([b"one"], None)))
        await broker.hear(until=Answered)
        broker.say(Post(PARTITION, CLIENT, LockExactly(MAIN, [3 << 48 | 1])))
        before, answered = await broker.hear(until=Answered)
        assert isinstance(answered.answer, Locked)
        (status,) = [each for each in before if isinstance(each, Status)]
        assert status.counts[MAIN].locked == 1
        broker.say(Post(PARTITION, CLIENT, Release(answered.answer.tokens)))
        _, status = await broker.hear(until=Status)
        # Symptom: the message counted as locked until something else happened.
        assert status.counts[MAIN].locked == 0


async def test_a_client_that_has_detached_gets_this_as_the_last_it_hears(tmp_path: Path) -> None:
    async with process(tmp_path) as broker:
        broker.say(Start(PARTITION, 3, QUEUE, None, 0))
        broker.say(Post(PARTITION, CLIENT, Demand(MAIN, 1)))
        broker.say(Post(PARTITION, ClientId(1), Send([b"one"], None)))
        _, granted = await broker.hear(until=Answered)
        if not isinstance(granted.answer, Locked):
            _, granted = await broker.hear(until=Answered)
        assert isinstance(granted.answer, Locked) and granted.client == CLIENT
        broker.say(Post(PARTITION, CLIENT, Detach()))
        _, detached = await broker.hear(until=Detached)
        assert detached == Detached(PARTITION, CLIENT)
        broker.say(Post(PARTITION, ClientId(1), Send([b"two"], None)))
        before, answered = await broker.hear(until=Answered)
        assert answered.client == 1 and not any(isinstance(each, Answered) for each in before)


async def test_a_client_that_detaches_at_once_still_gets_its_outcome(tmp_path: Path) -> None:
    async with process(tmp_path) as broker:
        broker.say(Start(PARTITION, 3, QUEUE, None, 0))
        broker.say(Post(PARTITION, CLIENT, Send([b"one"], None, 5)))
        broker.say(Post(PARTITION, CLIENT, Detach()))
        before, _ = await broker.hear(until=Detached)
        assert Answered(PARTITION, CLIENT, Sent(3 << 48 | 1, 5)) in before


def sinks() -> int:
    """How many sinks for clients exist in this process."""
    gc.collect()
    functions = [each for each in gc.get_objects() if isinstance(each, FunctionType)]
    return sum(each.__module__ == "broker.hosting.process" and "sink" in each.__name__ for each in functions)


async def test_clients_that_ask_nothing_more_are_forgotten(tmp_path: Path) -> None:
    before = sinks()
    async with process(tmp_path) as broker:
        broker.say(Start(PARTITION, 3, QUEUE, None, 0))
        for number in range(1, 51):
            broker.say(Post(PARTITION, ClientId(number), Send([b"one"], None, number)))
            broker.say(Post(PARTITION, ClientId(100 + number), Release([])))
        for _ in range(50):
            await broker.hear(until=Answered)
        broker.say(Post(PARTITION, CLIENT, Send([b"last"], None, 51)))
        await broker.hear(until=Answered)
        assert sinks() - before < 10, "at most those of the last commit"


async def test_a_partition_that_stops_says_what_it_holds_and_its_log_is_found_until_it_is_deleted(
    tmp_path: Path,
) -> None:
    async with process(tmp_path) as broker:
        broker.say(Start(PARTITION, 3, QUEUE, None, 0))
        broker.say(Post(PARTITION, CLIENT, Send([b"one"], None)))
        await broker.hear(until=Answered)
        broker.say(StopPartition(1, PARTITION, is_deleted=False))
        before, done = await broker.hear(until=Done)
        assert done == Done(1)
        (closed,) = [each for each in before if isinstance(each, IndexClosed)]
        summary = decode(closed.summary, QUEUE.subqueues.end)
        assert summary is not None and summary.counts[0].active == 1
        broker.say(Forget(PARTITION))
        broker.say(Post(PARTITION, CLIENT, Demand(MAIN, 1)))  # too late: nobody is there to answer
        found: list[dict[str, list[int]]] = []
        requests = (
            ListPartitions(2, QUEUE.generation),
            FindLogs(3, QUEUE.generation),
            DeleteLogs(4, QUEUE.generation),
            FindLogs(5, QUEUE.generation),
        )
        for message in requests:
            broker.say(message)
            before, done = await broker.hear(until=Done)
            assert (before, done.request, done.error) == ([], message.request, None)
            found.append(done.found)
        assert found == [{QUEUE.generation: [3]}, {QUEUE.generation: []}, {}, {}]


async def test_a_request_that_fails_is_answered_with_the_name_of_its_error(tmp_path: Path) -> None:
    (tmp_path / "logs").touch()  # a file where a folder belongs
    async with process(tmp_path) as broker:
        broker.say(ListPartitions(2, QUEUE.generation))
        _, done = await broker.hear(until=Done)
        assert (done.request, done.error, done.found) == (2, "DiskFailed", {}) and str(
            tmp_path
        ) in done.message


def test_what_a_partition_takes_in_memory_once_it_is_open_is_known_without_its_note() -> None:
    """Symptom: a partition that had been open at a crash was expected to need no memory for its messages."""
    hosted = _Hosted(Mock(), Start(PARTITION, 3, QUEUE, None, 70_000))
    assert (hosted.summary(), hosted.expected_bytes()) == (None, 70_000)
    summary = Summary({0: SubqueueCounts(active=70)}, {})
    hosted.closed(summary)
    assert (hosted.summary(), hosted.expected_bytes()) == (summary, summary.state_bytes)
