"""Partitions in another process: what the broker sees of them, and what happens when either process ends."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from broker.base.errors import Reason, Refused
from broker.entities.descriptions import MAIN
from broker.hosting.remote import ProcessEnded, RemoteHost, RemotePartition
from broker.namespace.entity import ask, next_client
from broker.operations.browsing import Peek, Peeked
from broker.operations.general import Detach, Unavailable, Update
from broker.operations.interface import Answer
from broker.operations.receiving import Demand, Locked, LockExactly
from broker.operations.sending import Send, Sent
from broker.operations.settling import Complete, Defer, Release, RenewLocks, Settled
from broker.operations.transactions import Transact
from broker.partition.summary import Summary
from storage.file_store import FolderInUse
from tests.support.hosting import QUEUE, Meter, Register, settings_of
from tests.support.topics import BLUE, ONLY_RED, RED, A, B, topic, with_subscription
from tests.support.waiting import WAIT_S


class Stack:
    """A host with one partition."""

    def __init__(self, folder: Path) -> None:
        self.failures: list[tuple[str, BaseException]] = []
        self.failed = asyncio.Event()
        self.host = RemoteHost(
            settings_of(folder), log_format="json", log_level="info", failed=self._part_failed
        )
        self.register, self.meter = Register(), Meter()

    def _part_failed(self, name: str, error: BaseException) -> None:
        self.failures.append((name, error))
        self.failed.set()

    def start(self) -> RemotePartition:
        return self.host.start(QUEUE, 3, self.meter, self.register)


@asynccontextmanager
async def stack(folder: Path) -> AsyncIterator[Stack]:
    made = Stack(folder)
    async with asyncio.timeout(WAIT_S):
        await made.host.open()
        try:
            yield made
        finally:
            await made.host.close()


async def test_operations_pass_and_cookies_come_back_as_they_were(tmp_path: Path) -> None:
    async with stack(tmp_path) as made:
        partition = made.start()
        cookie = object()
        sent = await ask(partition, Send([b"one", b"two"], None, cookie))
        assert isinstance(sent, Sent) and sent.cookie is cookie
        assert partition.counts()[MAIN].active == 2, "known before the answer"
        assert partition.health == "healthy" and partition.available
        answers: asyncio.Queue[Answer] = asyncio.Queue()
        client = next_client()
        partition.post(Demand(MAIN, 2), client, answers.put_nowait)
        locked = await answers.get()
        assert isinstance(locked, Locked) and locked.messages == [b"one", b"two"]
        partition.post(Complete(locked.tokens[:1], cookie), client, answers.put_nowait)
        assert await answers.get() == Settled(cookie, {})
        renewed = await ask(partition, RenewLocks([*locked.tokens], cookie))
        assert renewed.failures == {0: Reason.LOCK_LOST}  # type: ignore[union-attr]
        partition.post(Detach(), client, answers.put_nowait)
        await ask(partition, Update(QUEUE))
        await partition.stop()
        assert partition.counts()[MAIN].active == 1
        assert made.register.entries[0] == "open" and isinstance(made.register.entries[-1], Summary)
        assert made.register.entries[-1].counts[0].active == 1
        assert made.meter.records >= 2
        assert not made.host._cookies and not partition._sinks, "nothing is kept of clients that are gone"
        assert made.failures == []


async def test_room_is_kept_for_entities_whose_partitions_have_not_started(tmp_path: Path) -> None:
    async with stack(tmp_path) as made:
        made.host.keep_room("1" * 32, {0: (1 << 60, 0)})
        partition = made.start()
        with pytest.raises(Refused, match="the disk is full"):
            await ask(partition, Send([b"one"], None))
        await made.host.delete("1" * 32)
        assert isinstance(await ask(partition, Send([b"one"], None)), Sent)
        await partition.stop()


async def test_the_counts_of_a_topic_are_known_and_those_of_deleted_subscriptions_are_forgotten(
    tmp_path: Path,
) -> None:
    description = with_subscription(topic("a"), "b", ONLY_RED)
    async with stack(tmp_path) as made:
        partition = made.host.start(description, 3, made.meter, made.register)
        for message in (BLUE, RED, BLUE):
            await ask(partition, Send([message], None))
        assert (partition.counts()[A].active, partition.counts()[B].active) == (3, 1)
        first, second = (await ask(partition, Peek(A, 0, 2))).sequence_numbers  # type: ignore[union-attr]
        locked = await ask(partition, LockExactly(A, [first, second]))
        assert isinstance(locked, Locked) and partition.counts()[A].locked == 2
        await ask(partition, Defer(locked.tokens[:1]))
        await ask(partition, Complete(locked.tokens[1:]))
        counts = partition.counts()
        assert (counts[A].active, counts[A].locked, counts[A].deferred, counts[B].active) == (1, 0, 1, 1)
        assert partition.size() == sum(each.bytes for each in counts.values())
        deleted = description.subscription("b")
        assert deleted is not None
        await ask(partition, Update(description.without(deleted.number)))
        assert B not in partition.counts() and partition.counts()[A].active == 1
        await partition.stop()


async def test_clients_that_send_or_give_back_and_ask_nothing_more_are_forgotten(tmp_path: Path) -> None:
    async with stack(tmp_path) as made:
        partition = made.start()
        answers: asyncio.Queue[Answer] = asyncio.Queue()
        for number in range(20):
            partition.post(Send([b"one"], None, number), next_client(), answers.put_nowait)
            partition.post(Transact(Send([], None), [], number), next_client(), answers.put_nowait)
            partition.post(Release([]), next_client(), answers.put_nowait)
        cookies = Counter([(await answers.get()).cookie for _ in range(40)])  # type: ignore[union-attr]
        await partition.stop()
        assert cookies == dict.fromkeys(range(20), 2)
        assert not made.host._cookies and not partition._sinks


async def test_a_partition_that_has_stopped_refuses(tmp_path: Path) -> None:
    async with stack(tmp_path) as made:
        partition = made.start()
        await ask(partition, Send([b"one"], None))
        await asyncio.gather(partition.stop(), partition.stop())
        with pytest.raises(Refused):
            await ask(partition, Peek(MAIN, 0, 1))
        assert await ask(partition, Demand(MAIN, 1)) == Unavailable(3, for_good=True)


async def test_a_partition_that_has_stopped_is_not_opened_again(tmp_path: Path) -> None:
    async with stack(tmp_path) as made:
        stopped = made.start()
        await stopped.stop()
        other = made.start()
        await stopped.opened()
        assert isinstance(await ask(other, Send([b"one"], None)), Sent), "the process serves the others"


async def test_logs_are_listed_deleted_and_found_again(tmp_path: Path) -> None:
    async with stack(tmp_path) as made:
        partition = made.start()
        await ask(partition, Send([b"one"], None))
        assert await made.host.entities() == [QUEUE.generation]
        assert await made.host.partitions(QUEUE.generation) == [3]
        assert not await made.host.is_without_logs(QUEUE.generation) and await made.host.missing() == {}
        await partition.stop()
    async with stack(tmp_path) as made:
        partition = made.start()
        peeked = await ask(partition, Peek(MAIN, 0, 10))
        assert isinstance(peeked, Peeked) and peeked.messages == [b"one"]
        await partition.stop(is_deleted=True)
        await made.host.delete(QUEUE.generation)
        assert await made.host.is_without_logs(QUEUE.generation)


async def test_a_folder_that_another_broker_has_locked_is_named(tmp_path: Path) -> None:
    async with stack(tmp_path) as made, stack(tmp_path) as second:
        await made.host.entities()
        with pytest.raises(FolderInUse, match=str(tmp_path)):
            await second.host.entities()


async def test_a_process_that_ends_unasked_is_reported_and_everybody_is_answered(tmp_path: Path) -> None:
    async with stack(tmp_path) as made:
        partition = made.start()
        await ask(partition, Send([b"one"], None))
        process = made.host._process
        assert process is not None
        os.kill(process.pid, signal.SIGKILL)
        await made.failed.wait()
        (name, error), *more = made.failures
        assert name == "partitions" and isinstance(error, ProcessEnded) and more == []
        with pytest.raises(Refused):
            await ask(partition, Send([b"two"], None))


async def test_operations_under_way_when_the_process_ends_are_refused(tmp_path: Path) -> None:
    async with stack(tmp_path) as made:
        partition = made.start()
        await ask(partition, Send([b"one"], None))
        process = made.host._process
        assert process is not None
        os.kill(process.pid, signal.SIGSTOP)
        asked = asyncio.create_task(ask(partition, Send([b"two"], None, "mine")))
        await asyncio.sleep(0)
        os.kill(process.pid, signal.SIGKILL)
        with pytest.raises(Refused) as refused:
            await asked
        assert refused.value.reason is Reason.PARTITION_UNAVAILABLE
