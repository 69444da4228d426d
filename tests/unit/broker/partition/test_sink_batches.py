"""Batches of sinks: their messages and their number in the ledger are one commit, and none comes twice."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from broker.base.errors import Reason
from broker.entities.descriptions import QueueSettings
from broker.operations.general import Failed
from broker.operations.sending import Send
from broker.operations.streams import GetSinkBatch, SendSinkBatch, SinkBatch, SinkBatchSent
from broker.partition.sink_ledger import KEPT_MS
from storage.errors import DiskFull
from storage.log import Commit
from tests.support.partition_harness import NUMBER, Harness, one

FIRST = NUMBER << 48 | 1


def batch(
    number: int, *messages: bytes, sink: bytes = b"s", ids: Sequence[bytes] | None = None
) -> SendSinkBatch:
    return SendSinkBatch(Send(messages, None, identities=ids), sink, number, 2, "mine")


async def send(harness: Harness, operation: SendSinkBatch) -> SinkBatchSent:
    return one(await harness.do(8, operation), SinkBatchSent)


async def committed(harness: Harness, sink: bytes = b"s") -> int | None:
    return one(await harness.do(8, GetSinkBatch(sink)), SinkBatch).batch


@pytest.mark.parametrize("clean", [False, True])
async def test_a_batch_is_stored_once_also_after_a_restart(clean: bool) -> None:
    harness = Harness()
    assert await committed(harness) is None
    assert await send(harness, batch(4, b"a", b"b")) == SinkBatchSent(FIRST, [], True, 4, "mine")
    assert await send(harness, batch(4, b"a", b"b")) == SinkBatchSent(0, [0, 1], False, 4, "mine")
    await harness.restart(clean=clean)
    assert await send(harness, batch(3, b"c")) == SinkBatchSent(0, [0], False, 4, "mine")
    assert await send(harness, batch(5, b"d")) == SinkBatchSent(FIRST + 2, [], True, 5, "mine")
    assert (await harness.peek()).messages == [b"a", b"b", b"d"]
    assert await committed(harness) == 5


@pytest.mark.parametrize("sign", [1, -1], ids=["forward", "back"])
async def test_setting_the_clock_forgets_no_batch(sign: int) -> None:
    harness = Harness()
    await send(harness, batch(4, b"a"))
    harness.clock.step(sign * 2 * KEPT_MS)
    await harness.advance(KEPT_MS - 1)
    assert not (await send(harness, batch(4, b"a"))).is_new
    await harness.advance(1)
    assert await committed(harness) is None, "forgotten in its time"


async def test_a_batch_may_have_no_messages() -> None:
    harness = Harness()
    assert await send(harness, batch(0)) == SinkBatchSent(FIRST, [], True, 0, "mine")
    assert await send(harness, batch(0)) == SinkBatchSent(0, [], False, 0, "mine")
    await harness.restart()
    assert await committed(harness) == 0


async def test_duplicates_in_a_batch_are_counted_and_dropped() -> None:
    harness = Harness(QueueSettings(requires_duplicate_detection=True))
    ids = [b"%015d" % number for number in range(3)]
    await send(harness, batch(1, b"a", b"b", ids=ids[:2]))
    assert await send(harness, batch(2, b"b", b"c", ids=ids[1:])) == SinkBatchSent(
        FIRST + 2, [0], True, 2, "mine"
    )
    assert await send(harness, batch(3, b"a", ids=ids[:1])) == SinkBatchSent(FIRST + 3, [0], True, 3, "mine")
    assert (await harness.peek()).messages == [b"a", b"b", b"c"]


async def test_sinks_are_bounded_and_known_ones_may_always_commit() -> None:
    harness = Harness()
    for sink in (b"1", b"2"):
        await send(harness, batch(1, sink=sink))
    refused = one(await harness.do(8, batch(1, b"a", sink=b"3")), Failed)
    assert (refused.reason, refused.cookie) == (Reason.QUOTA_EXCEEDED, "mine")
    assert "PARTIBUS_SINKS_MAX" in refused.description and (await harness.peek()).messages == []
    assert (await send(harness, batch(2, sink=b"1"))).is_new
    full = one(await harness.do(8, GetSinkBatch(b"3", sinks_max=2, cookie="mine")), Failed)
    assert (full.reason, full.cookie) == (Reason.QUOTA_EXCEEDED, "mine")
    assert one(await harness.do(8, GetSinkBatch(b"3")), SinkBatch).batch is None
    assert one(await harness.do(8, GetSinkBatch(b"1", sinks_max=2)), SinkBatch).batch == 2


async def test_a_batch_that_does_not_fit_is_not_noted() -> None:
    harness = Harness(QueueSettings(max_size_mb=1))
    refused = one(await harness.do(8, batch(1, bytes(2 << 20))), Failed)
    assert refused.reason is Reason.QUOTA_EXCEEDED and await committed(harness) is None


async def test_a_full_disk_leaves_neither_the_messages_nor_the_batch() -> None:
    harness = Harness()
    await send(harness, batch(1, b"a"))
    appended: list[Commit] = []

    def full_at_first(commit: Commit, urgent: bool) -> Exception | None:
        appended.append(commit)
        return DiskFull("no room") if len(appended) == 1 else None

    harness.log.on_append = full_at_first
    refused = one(await harness.do(8, batch(2, b"b")), Failed)
    assert refused.reason is Reason.DISK_FULL
    assert await committed(harness) == 1 and (await harness.peek()).messages == [b"a"]
    assert (await send(harness, batch(2, b"b"))).is_new
    await harness.restart()
    assert await committed(harness) == 2 and (await harness.peek()).messages == [b"a", b"b"]


async def test_a_batch_is_not_noted_if_the_message_that_it_repeats_is_undone() -> None:
    harness = Harness(QueueSettings(requires_duplicate_detection=True))
    identity = bytes(15)
    await harness.send(b"open")
    harness.log.fill_disk()
    answers = await harness.do(8, Send([b"a"], None, identities=[identity]), batch(1, b"a", ids=[identity]))
    assert all(isinstance(answer, Failed) for answer in answers)
    harness.log.empty_disk()
    assert await committed(harness) is None
    assert await send(harness, batch(1, b"a", ids=[identity])) == SinkBatchSent(
        FIRST + 1, [], True, 1, "mine"
    )


async def test_nobody_hears_of_a_batch_that_a_full_disk_undoes() -> None:
    harness = Harness()
    await harness.send(b"open")
    harness.log.fill_disk()
    _, asked = await harness.do(8, batch(1, b"a"), GetSinkBatch(b"s"))
    assert isinstance(asked, Failed) and asked.reason is Reason.PARTITION_UNAVAILABLE
    harness.log.empty_disk()
    assert await committed(harness) is None
