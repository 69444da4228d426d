"""Dead-lettering: where messages go, in which order, and that they go no further."""

from __future__ import annotations

import pytest

from broker.base.errors import Reason
from broker.entities.descriptions import DEAD_LETTER, TRANSFER_DEAD_LETTER, QueueSettings
from broker.message.changes import encode_changes
from broker.operations.settling import Abandon, Complete, DeadLetter, Settled
from tests.support.partition_harness import LOCK_MS, Harness, in_dead_letters, one


async def test_the_dead_letter_subqueue_is_a_queue_that_leads_no_further() -> None:
    harness = Harness(QueueSettings(max_delivery_count=1, default_time_to_live_ms=LOCK_MS // 2))
    number = await harness.send(b"a")
    await harness.do(1, DeadLetter((await harness.receive(1)).tokens))
    await harness.advance(LOCK_MS)
    for _ in range(3):
        locked = await harness.receive(1, subqueue=DEAD_LETTER)
        assert locked.sequence_numbers == [number] and locked.delivery_counts == [0]
        await harness.do(1, Abandon(locked.tokens))
    assert harness.task.counts()[DEAD_LETTER].active == 1
    await harness.do(1, Complete((await harness.receive(1, subqueue=DEAD_LETTER)).tokens))
    assert harness.task.counts()[DEAD_LETTER].active == 0 and harness.live_bytes == 0


@pytest.mark.parametrize("subqueue", [DEAD_LETTER, TRANSFER_DEAD_LETTER])
async def test_dead_lettering_in_a_dead_letter_subqueue_is_refused_and_the_lock_goes_on(
    subqueue: str,
) -> None:
    harness = Harness()
    await in_dead_letters(harness, subqueue)
    before = await harness.peek(subqueue)
    locked = await harness.receive(1, subqueue=subqueue)
    await harness.send(b"main")
    in_main = (await harness.receive(1)).tokens[0]
    tokens = [bytes(16), locked.tokens[0], in_main, in_main]
    settled = one(
        await harness.do(1, DeadLetter(tokens, encode_changes({"DeadLetterReason": "again"}))), Settled
    )
    assert settled.failures == {0: Reason.LOCK_LOST, 1: Reason.NOT_ALLOWED, 3: Reason.LOCK_LOST}
    after = await harness.peek(subqueue)
    assert (after.changed[0], after.delivery_counts[0]) == (before.changed[0], before.delivery_counts[0])
    assert harness.task.counts()[subqueue].locked == 1
    assert one(await harness.do(1, Complete(locked.tokens)), Settled).failures == {}


async def test_messages_dead_lettered_out_of_order_are_handed_out_and_shown_in_order() -> None:
    harness = Harness()
    await harness.send(*[b"%d" % index for index in range(6)])
    tokens = (await harness.receive(1, 6)).tokens
    for index in (4, 1, 3):
        await harness.do(1, DeadLetter([tokens[index]]))
    assert (await harness.peek(DEAD_LETTER)).messages == [b"1", b"3", b"4"]
    assert (await harness.receive(2, 2, DEAD_LETTER)).messages == [b"1", b"3"]
    await harness.do(1, DeadLetter([tokens[0]]))
    assert (await harness.receive(2, 2, DEAD_LETTER)).messages == [b"0", b"4"]
