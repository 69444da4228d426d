"""Changes of the namespace that fail on disk. (tests/crash/test_namespace_faults.py covers every call.)"""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from broker.base.errors import Reason, Refused
from broker.entities.descriptions import QueueSettings
from broker.namespace.entity import ask
from broker.operations.sending import Send
from storage.catalogue import ATTEMPTS
from tests.support.namespace_world import Watcher, World, again, entries, make_logs, refused_change
from tests.support.waiting import until


@pytest.mark.parametrize("operation", ["rename", "sync_directory", "remove_tree"])
async def test_a_deletion_whose_files_stay_has_succeeded_and_is_finished_at_the_next_start(
    world: World, operation: str
) -> None:
    generation = (await world.namespace.create_entity("orders", QueueSettings())).generation
    await make_logs(world, generation)
    world.disk.fail(operation, path_part="/logs/logs", times=1_000)
    with capture_logs() as lines:
        await world.namespace.delete_entity("orders")
    assert [line["log_level"] for line in lines if line["event"] == "entity.not_cleared"] == ["warning"]
    with pytest.raises(Refused) as refused:
        await world.namespace.delete_entity("orders")
    assert refused.value.reason is Reason.ENTITY_NOT_FOUND
    assert (await world.namespace.create_entity("orders", QueueSettings())).generation != generation
    restarted = await again(world)
    assert not [name for name in os.listdir(world.folder / "logs" / "logs") if name.startswith(generation)]
    assert await restarted.namespace.runtime("orders")
    await restarted.store.close()


async def test_a_creation_of_unknown_outcome_is_undone_before_the_name_is_used_again(world: World) -> None:
    world.disk.fail("sync_directory", path_part="catalogue", times=2 * ATTEMPTS)
    for _ in range(2):
        why = await refused_change(world.namespace.create_entity("orders", QueueSettings()))
        assert why.reason is Reason.PARTITION_UNAVAILABLE and list(world.namespace.unconfirmed) == ["orders"]
        assert world.namespace.find("orders") is None
    created = await world.namespace.create_entity("orders", QueueSettings())
    assert await entries(world) == [created] and not world.namespace.unconfirmed


async def test_who_deletes_what_may_have_been_created_hears_that_it_is_not_there_once_that_is_so(
    world: World,
) -> None:
    world.disk.fail("sync_directory", path_part="catalogue", times=ATTEMPTS)
    await refused_change(world.namespace.create_entity("orders", QueueSettings()))
    assert (await refused_change(world.namespace.delete_entity("orders"))).reason is Reason.ENTITY_NOT_FOUND
    assert await entries(world) == [] and not world.namespace.unconfirmed


async def test_an_update_of_unknown_outcome_leaves_the_queue_as_it_was_in_service_and_soon_on_the_disk(
    tmp_path: Path,
) -> None:
    world = World(tmp_path, confirm_retry_ms=1)
    await world.namespace.load()
    created = await world.namespace.create_entity("orders", QueueSettings())
    world.disk.fail("sync_directory", path_part="catalogue", times=ATTEMPTS)
    await refused_change(world.namespace.update_entity("orders", QueueSettings(max_delivery_count=3)))
    assert world.namespace.describe("orders") is created
    await until(lambda: not world.namespace.unconfirmed)
    assert await entries(world) == [created]
    await world.namespace.close()
    await world.store.close()


async def test_a_queue_whose_deletion_has_an_unknown_outcome_is_out_of_service_until_its_entry_is_back(
    tmp_path: Path,
) -> None:
    world = World(tmp_path, confirm_retry_ms=1)
    await world.namespace.load()
    created = await world.namespace.create_entity("orders", QueueSettings())
    queue, attached, later = world.queue("orders"), Watcher(), Watcher()
    queue.watchers.add(attached)
    queue.partition(1)
    world.disk.fail("sync_directory", path_part="catalogue", times=1_000_000)
    await refused_change(world.namespace.delete_entity("orders"))
    assert world.parts["orders", 1].stopped and [why.reason for why in attached.ended] == [
        Reason.PARTITION_UNAVAILABLE
    ]
    assert world.namespace.describe("orders") is created and not queue.available
    queue.watchers.add(later)
    why = await refused_change(ask(queue.router.handles[0], Send([b"x"], None)))
    assert why.reason is Reason.PARTITION_UNAVAILABLE and list(world.parts) == [("orders", 1)]
    assert (await refused_change(world.namespace.runtime("orders"))).reason is Reason.PARTITION_UNAVAILABLE
    world.disk.heal()
    await until(lambda: not world.namespace.unconfirmed)
    again_live = world.queue("orders")
    assert again_live is not queue and again_live.description == created and again_live.available
    assert later.ended, "who has attached meanwhile is to attach anew"
    assert (await world.namespace.runtime("orders")).availability == "Available"
    assert await entries(world) == [created]
    await world.namespace.close()
    await world.store.close()


async def test_a_deletion_that_is_tried_again_succeeds_when_the_disk_does(world: World) -> None:
    created = await world.namespace.create_entity("orders", QueueSettings())
    await make_logs(world, created.generation)
    world.disk.fail("sync_directory", path_part="catalogue", times=2 * ATTEMPTS)
    for _ in range(2):
        await refused_change(world.namespace.delete_entity("orders"))
    await world.namespace.delete_entity("orders")
    assert (await entries(world), await world.store.entities()) == (
        [],
        [],
    ) and not world.namespace.unconfirmed


async def test_a_change_cancelled_while_the_disk_works_leaves_no_queue_that_may_vanish(
    world: World,
) -> None:
    loop, sync_directory = asyncio.get_running_loop(), world.disk.sync_directory

    async def cancelled(change: Coroutine[Any, Any, object]) -> None:
        # New events for each change: the thread of the change before may not have noticed yet that it can go
        # on.
        reached, go_on = asyncio.Event(), threading.Event()

        def hold(path: Path) -> None:
            if path.name == "catalogue":
                loop.call_soon_threadsafe(reached.set)
                assert go_on.wait(20)
            sync_directory(path)

        world.disk.sync_directory = hold  # type: ignore[method-assign]
        task = asyncio.create_task(change)
        await asyncio.wait_for(reached.wait(), 20)
        task.cancel()
        go_on.set()
        await asyncio.wait([task], timeout=20)
        assert task.cancelled()
        world.disk.sync_directory = sync_directory  # type: ignore[method-assign]

    await cancelled(world.namespace.create_entity("orders", QueueSettings()))
    created = await world.namespace.create_entity("orders", QueueSettings())
    assert await entries(world) == [created]
    await cancelled(world.namespace.update_entity("orders", QueueSettings(max_delivery_count=3)))
    await cancelled(world.namespace.delete_entity("orders"))
    assert not world.queue("orders").available
    updated = await world.namespace.update_entity("orders", QueueSettings(max_delivery_count=4))
    assert await entries(world) == [updated] and world.queue("orders").available


async def test_what_is_unconfirmed_is_tried_once_more_when_the_broker_stops(world: World) -> None:
    created = await world.namespace.create_entity("orders", QueueSettings())
    world.disk.fail("sync_directory", path_part="catalogue", times=ATTEMPTS)
    await refused_change(world.namespace.update_entity("orders", QueueSettings(max_delivery_count=3)))
    await world.namespace.close()
    assert await entries(world) == [created]


async def test_a_full_disk_refuses_a_change_for_certain_and_lets_queues_be_deleted(world: World) -> None:
    created = await world.namespace.create_entity("orders", QueueSettings())
    for operation in ("create", "write", "sync"):
        world.disk.fail(operation, errno.ENOSPC, path_part="catalogue", times=1_000_000)
    for change in (
        world.namespace.create_entity("more", QueueSettings()),
        world.namespace.update_entity("orders", QueueSettings(max_delivery_count=3)),
    ):
        assert (await refused_change(change)).reason is Reason.DISK_FULL
    assert not world.namespace.unconfirmed and await entries(world) == [created]
    await world.namespace.delete_entity("orders")
    assert await entries(world) == []


@pytest.mark.parametrize("is_used", [True, False])
async def test_a_stray_copy_of_a_deleted_queue_keeps_nobody_from_creating_queues(
    world: World, is_used: bool
) -> None:
    """Symptom: after a restart, no queue could be created, and the deleted one was out of service."""
    generation = (await world.namespace.create_entity("orders", QueueSettings())).generation
    if is_used:
        await make_logs(world, generation)
    document = next((world.folder / "catalogue").glob("*.document"))
    stray = document.with_name(f"backup-of-{document.name}")
    shutil.copy(document, stray)
    await world.namespace.delete_entity("orders")
    with capture_logs() as lines:
        restarted = await again(world)
    assert "document.damaged" not in [line["event"] for line in lines]
    told = [line for line in lines if line["event"] == "document.stray"]
    assert [line["path"] for line in told] == [str(stray)] and "the queue was deleted" in told[0]["why"]
    assert "moves it aside" in told[0]["advice"] and not restarted.namespace.damaged
    for name in ("orders", "another"):
        await restarted.namespace.create_entity(name, QueueSettings())
    assert stray.exists()
    await restarted.store.close()


async def test_a_queue_with_logs_whose_document_is_left_under_another_name_costs_only_itself(
    world: World,
) -> None:
    generation = (await world.namespace.create_entity("orders", QueueSettings())).generation
    await make_logs(world, generation)
    document, copy = (next((world.folder / "catalogue").glob(f"*.{end}")) for end in ("document", "copy"))
    document.rename(document.with_name(f"backup-of-{document.name}"))
    copy.unlink()
    restarted = await again(world)
    assert restarted.namespace.damaged == ["orders"]
    why = await refused_change(restarted.namespace.create_entity("orders", QueueSettings()))
    assert why.reason is Reason.PARTITION_UNAVAILABLE
    await restarted.namespace.create_entity("another", QueueSettings())
    await restarted.store.close()
