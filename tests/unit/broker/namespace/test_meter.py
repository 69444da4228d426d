"""An entity's counters: exported while the entity exists, and never another one's."""

from __future__ import annotations

from broker.base.counters import exposition
from broker.base.errors import Reason
from broker.base.metrics import Metrics
from broker.entities.descriptions import QueueSettings
from broker.namespace.meter import EntityMeter
from tests.support.namespace_world import World


async def test_names_that_come_and_go_leave_nothing_in_the_metrics(world: World) -> None:
    def series() -> int:
        return "".join(exposition(list(world.metrics.entities.values()))).count("{")

    before = series()
    meters = []
    for number in range(100):
        await world.namespace.create_entity(f"queue{number}", QueueSettings())
        meters.append(world.queue(f"queue{number}").meter)
        meters[-1].incoming_messages += 3
        meters[-1].send_seconds.observe(0.001)
        assert series() > before
        await world.namespace.delete_entity(f"queue{number}")
    for meter in meters:  # links that have not ended yet
        meter.incoming_messages += 1
        meter.refused(Reason.ENTITY_NOT_FOUND, 1)
        meter.send_seconds.observe(0.001)
    assert (series(), len(world.metrics.entities)) == (before, 0)


async def test_a_queue_created_again_counts_from_nothing_and_the_old_ones_links_do_not_count_for_it(
    world: World,
) -> None:
    await world.namespace.create_entity("orders", QueueSettings())
    old = world.queue("orders").meter
    old.incoming_messages += 5
    await world.namespace.delete_entity("orders")
    await world.namespace.create_entity("orders", QueueSettings())
    old.incoming_messages += 5
    world.queue("orders").meter.incoming_messages += 1
    old.end()  # once more, late
    assert world.metrics.entities["orders"] is world.queue("orders").meter
    assert 'partibus_incoming_messages_total{entity="orders"} 1.0\n' in "".join(
        exposition(list(world.metrics.entities.values()))
    )


def test_refusals_count_as_errors_of_the_broker_or_of_its_clients() -> None:
    meter = EntityMeter(Metrics(), "orders")
    for reason in (
        Reason.INTERNAL,
        Reason.DISK_FULL,
        Reason.PARTITION_UNAVAILABLE,
        Reason.LOCK_ENDED,
        Reason.SESSION_LOCK_ENDED,
    ):
        meter.refused(reason, 2)
    meter.refused(Reason.LOCK_LOST, 5)
    assert (meter.server_errors, meter.user_errors) == (10, 5)


def test_what_a_partition_reports_is_added_up() -> None:
    meter = EntityMeter(Metrics(), "orders")
    meter.lapsed(1, 2, 3)
    meter.lapsed(10, 20, 30)
    meter.add("incoming_messages", 4)
    counted = (meter.dead_lettered_messages, meter.expired_messages, meter.expired_locks)
    assert (counted, meter.incoming_messages) == ((11, 22, 33), 4)
