"""References, frames and the tables of them are hidden from the cyclic garbage collector."""

from __future__ import annotations

import gc
from collections.abc import Iterable

from broker.entities.descriptions import QueueSettings
from broker.operations.settling import Complete, Defer
from tests.support.partition_harness import Harness


def _tracked(objects: Iterable[object]) -> set[int]:
    """The identities of the objects that the garbage collector tracks. (`gc.is_tracked` only looks at the
    type.)"""
    return set(map(id, objects)) & set(map(id, gc.get_objects()))


async def test_a_collection_takes_no_longer_because_messages_wait() -> None:
    harness = Harness()
    await harness.send(b"x")
    assert harness.task._partition is not None
    messages = harness.task._partition.messages
    gc.collect()
    before = len(gc.get_objects())
    for number in range(400):
        await harness.send(b"x", b"y", ttl=[60_000 + 50 * number, None])
    gc.collect()
    assert messages.count == 801 and len(gc.get_objects()) - before < 200, (
        "nothing for each message, frame or expiry"
    )
    assert messages.main.expiry is not None
    chunks = [*messages.main.references._chunks.values(), *messages.main.expiry._buckets._chunks.values()]
    assert len(chunks) == 2 and not _tracked([*chunks, messages._frames])


async def test_the_garbage_collector_does_not_look_at_waiting_messages_and_nothing_of_them_is_left() -> None:
    harness = Harness(QueueSettings(max_delivery_count=1))
    await harness.send(*[b"x"] * 200, ttl=[None, 60_000] * 100)
    locked = await harness.receive(1, 150)
    await harness.do(1, Complete(locked.tokens[:50]), Defer(locked.tokens[50:100]))
    assert harness.task._partition is not None
    before = list(harness.task._partition.messages.main.references.values())
    assert not _tracked([*before, *(each.frame for each in before)])
    await harness.restart(clean=True)  # locks are still held: they end with the state
    assert all(each.lease is None for each in before)
    await harness.receive(1, 10)
    assert harness.task._partition is not None
    after = list(harness.task._partition.messages.main.references.values())
    assert len(after) == 150 and not _tracked(after)
    await harness.task.stop()
    assert all(each.lease is None for each in after)
