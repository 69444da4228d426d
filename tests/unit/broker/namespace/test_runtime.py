"""What an entity holds at a moment, summed over its partitions."""

from __future__ import annotations

from broker.entities.descriptions import QueueSettings
from broker.operations.message_states import SubqueueCounts
from tests.support.namespace_world import World


async def test_counts_are_those_of_all_partitions_and_availability_is_limited_while_one_is_down(
    world: World,
) -> None:
    await world.namespace.create_entity("orders", QueueSettings())
    queue = world.queue("orders")
    for number in range(4):
        queue.partition(number)
        world.parts["orders", number].held = {
            "": SubqueueCounts(active=2, locked=1, deferred=1, scheduled=3, bytes=10),
            "$deadletterqueue": SubqueueCounts(active=1, deferred=1, bytes=5),
        }
    runtime = await world.namespace.runtime("orders")
    assert (runtime.active, runtime.dead_letter, runtime.scheduled, runtime.transfer_dead_letter) == (
        8,
        8,
        12,
        0,
    )
    assert (runtime.message_count, runtime.size_bytes, runtime.availability) == (
        4 * (2 + 1 + 3 + 1 + 1),
        60,
        "Available",
    )
    world.parts["orders", 2].available = False
    assert (await world.namespace.runtime("orders")).availability == "Limited"
