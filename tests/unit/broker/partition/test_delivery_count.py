"""Failed deliveries: which are counted, and what happens at the maximum delivery count."""

from __future__ import annotations

import pytest

from broker.base.errors import Reason
from broker.entities.descriptions import DEAD_LETTER, TRANSFER_DEAD_LETTER
from broker.message.changes import encode_changes
from broker.operations.receiving import Locked, ReceiveDeferred
from broker.operations.settling import Abandon, Complete, Defer, Release, Settled
from tests.support.partition_harness import LOCK_MS, Harness, in_dead_letters, one, properties


async def test_abandon_counts_a_delivery_and_release_does_not() -> None:
    harness = Harness()
    await harness.send(b"a")
    await harness.do(1, Release((await harness.receive(1)).tokens))
    locked = await harness.receive(1)
    assert locked.delivery_counts == [0]
    await harness.do(1, Abandon(locked.tokens))
    assert (await harness.receive(1)).delivery_counts == [1]
    await harness.restart()
    assert (await harness.receive(1)).delivery_counts == [1]


async def test_after_ten_failed_deliveries_a_message_is_dead_lettered_with_the_reason() -> None:
    harness = Harness()
    await harness.send(b"a")
    for count in range(10):
        locked = await harness.receive(1)
        assert locked.delivery_counts == [count]
        await harness.do(1, Abandon(locked.tokens))
    assert (await harness.peek()).messages == []
    dead = await harness.receive(1, subqueue=DEAD_LETTER)
    assert dead.messages == [b"a"] and dead.delivery_counts == [10]
    changed = properties(dead.changed[0])
    assert changed["DeadLetterReason"] == "MaxDeliveryCountExceeded" and isinstance(
        changed["DeadLetterErrorDescription"], str
    )


@pytest.mark.parametrize("subqueue", [DEAD_LETTER, TRANSFER_DEAD_LETTER])
async def test_a_dead_letter_subqueue_counts_no_delivery(subqueue: str) -> None:
    harness = Harness()
    number = await in_dead_letters(harness, subqueue)
    for give_back in (Abandon, Defer):
        await harness.do(
            1,
            give_back(
                (await harness.receive(1, subqueue=subqueue)).tokens,
                encode_changes({"by": give_back.__name__}),
            ),
        )
        await harness.restart()
        (count,), (changed,) = (peeked := await harness.peek(subqueue)).delivery_counts, peeked.changed
        assert count == 1 and properties(changed) == {"by": give_back.__name__}, (
            "the one that the main subqueue counted"
        )
    locked = one(await harness.do(1, ReceiveDeferred(subqueue, [number])), Locked)
    await harness.advance(LOCK_MS)
    assert one(await harness.do(1, Complete(locked.tokens)), Settled).failures == {0: Reason.LOCK_LOST}
    assert (await harness.peek(subqueue)).delivery_counts == [1]


async def test_an_abandon_without_changes_in_a_dead_letter_subqueue_writes_nothing() -> None:
    harness = Harness()
    await in_dead_letters(harness, DEAD_LETTER)
    locked = await harness.receive(1, subqueue=DEAD_LETTER)
    end = harness.log.end
    await harness.do(1, Abandon(locked.tokens))
    assert harness.log.end == end
