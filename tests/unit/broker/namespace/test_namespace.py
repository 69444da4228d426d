"""The namespace over a real catalogue and store, with partitions that a test makes."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from broker.base.clock import ManualClock
from broker.base.counters import exposition
from broker.base.errors import Reason, Refused
from broker.base.metrics import Metrics
from broker.entities.descriptions import AuthorizationRule, QueueDescription, QueueSettings
from broker.entities.documents import decode_description, encode_description
from broker.namespace.closed_partitions import Resting
from broker.namespace.entity import Entity, ask
from broker.namespace.meter import EntityMeter
from broker.namespace.namespace import OPENING_MAX, Namespace, not_found_text
from broker.namespace.queue import Queue
from broker.operations import (
    ClientId,
    Demand,
    Detach,
    Failed,
    Operation,
    Recalled,
    Release,
    Send,
    Sink,
    SubqueueCounts,
    Update,
    Updated,
)
from storage.catalogue import ATTEMPTS, Catalogue
from storage.disk import LocalDisk
from storage.errors import DiskFailed
from storage.file_store import FileLogStore
from storage.log import LogStore
from storage.partition_index import PartitionIndex
from tests.support.faulty_disk import FaultyDisk

ALL = frozenset({"Manage", "Send", "Listen"})


class Part:
    """A partition that answers as a test says."""

    def __init__(self) -> None:
        self.available, self.health, self.stopped = True, "healthy", False
        self.held: dict[str, SubqueueCounts] = {}
        self.posted: list[Operation] = []

    def counts(self) -> dict[str, SubqueueCounts]:
        return self.held

    async def opened(self) -> None:
        await asyncio.sleep(0)

    async def stop(self, *, is_deleted: bool = False) -> None:
        self.stopped = True

    def post(self, operation: Operation, client: ClientId, sink: Sink) -> None:
        self.posted.append(operation)
        if isinstance(operation, Update):
            answer = (
                Updated(operation.cookie)
                if self.available
                else Failed(Reason.PARTITION_UNAVAILABLE, "down", operation.cookie)
            )
            asyncio.get_running_loop().call_soon(sink, answer)


class World:
    """A namespace on a folder, and the partitions that it made."""

    def __init__(self, folder: Path, entities_max: int = 100, confirm_retry_ms: int = 60_000) -> None:
        self.disk = FaultyDisk(LocalDisk())
        self.folder, self.clock, self.metrics = folder, ManualClock(), Metrics()
        self.parts: dict[tuple[str, int], Part] = {}
        self.store = FileLogStore(
            folder / "logs",
            self.disk,
            fsync="always",
            fsync_interval_ms=100,
            segment_bytes_max=1 << 20,
            committer_threads=1,
        )
        self.resting = Resting(PartitionIndex(folder / "catalogue", self.disk), self.clock)
        self.namespace = Namespace(
            "test",
            catalogue=Catalogue(folder / "catalogue", self.disk),
            store=cast(LogStore, self.store),
            clock=self.clock,
            make_entity=self._make_queue,
            resting=self.resting,
            partitions_default=4,
            entities_max=entities_max,
            confirm_retry_ms=confirm_retry_ms,
        )

    def _make_queue(self, description: QueueDescription) -> Queue:
        return Queue(description, EntityMeter(self.metrics, description.name), self._start, self.resting)

    def _start(self, queue: Entity, number: int) -> Any:
        part = self.parts[queue.name, number] = Part()
        return part

    def queue(self, name: str) -> Entity:
        queue = self.namespace.find(name)
        assert queue is not None
        return queue


class Watcher:
    def __init__(self) -> None:
        self.changes, self.ended = 0, list[Refused]()

    def queue_changed(self) -> None:
        self.changes += 1

    def queue_ended(self, why: Refused) -> None:
        self.ended.append(why)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    made = World(tmp_path)
    await made.namespace.load()
    yield made
    await made.namespace.close()
    await made.store.close()


async def again(world: World) -> World:
    """The same folder, opened as after a restart."""
    await world.namespace.close()
    await world.store.close()
    restarted = World(world.folder)
    await restarted.namespace.load()
    return restarted


# --- creating -----------------------------------------------------------------------------------------------


async def test_a_queue_that_was_created_is_found_in_any_case_and_after_a_restart(world: World) -> None:
    created = await world.namespace.create_entity("Orders/New", QueueSettings(lock_duration_ms=5_000), 7)
    assert (created.partitions, created.created_at_ms, created.name) == (
        7,
        world.clock.now_ms(),
        "Orders/New",
    )
    for name in ("Orders/New", "orders/new", "/ORDERS/NEW/"):
        assert world.namespace.describe(name) == created
    restarted = await again(world)
    assert restarted.namespace.describe("orders/new") == created and list(
        restarted.namespace.descriptions()
    ) == [created]
    await restarted.store.close()


async def test_partitions_are_the_default_where_nothing_is_said_and_one_where_the_queue_is_not_partitioned(
    world: World,
) -> None:
    assert (await world.namespace.create_entity("a", QueueSettings())).partitions == 4
    assert (
        await world.namespace.create_entity("b", QueueSettings(enable_partitioning=False), 9)
    ).partitions == 1


async def test_a_name_can_be_taken_once(world: World) -> None:
    await world.namespace.create_entity("orders", QueueSettings())
    with pytest.raises(Refused) as refused:
        await world.namespace.create_entity("ORDERS", QueueSettings())
    assert refused.value.reason is Reason.ENTITY_EXISTS


async def test_of_two_that_create_a_name_at_once_one_succeeds(world: World) -> None:
    results = await asyncio.gather(
        *(world.namespace.create_entity("orders", QueueSettings()) for _ in range(5)), return_exceptions=True
    )
    assert sum(isinstance(result, QueueDescription) for result in results) == 1
    assert all(
        isinstance(result, QueueDescription) or cast(Refused, result).reason is Reason.ENTITY_EXISTS
        for result in results
    )


async def test_a_wrong_description_and_one_entity_too_many_leave_nothing_behind(tmp_path: Path) -> None:
    world = World(tmp_path, entities_max=1)
    await world.namespace.load()
    with pytest.raises(Refused) as wrong:
        await world.namespace.create_entity("orders", QueueSettings(lock_duration_ms=0))
    await world.namespace.create_entity("orders", QueueSettings())
    with pytest.raises(Refused) as many:
        await world.namespace.create_entity("more", QueueSettings())
    assert (wrong.value.reason, many.value.reason) == (Reason.ARGUMENT, Reason.QUOTA_EXCEEDED)
    assert [each.name for each in world.namespace.descriptions()] == ["orders"]
    await world.store.close()


async def test_a_new_queue_costs_no_partition_until_it_is_used(world: World) -> None:
    await world.namespace.create_entity("orders", QueueSettings())
    queue = world.queue("orders")
    assert world.parts == {} and queue.health() == ["closed"] * 4 and queue.available
    for operation in (Detach(), Release([]), Recalled("", [])):
        queue.router.handles[1].post(operation, ClientId(1), lambda answer: None)
    assert world.parts == {}, "what ends something starts nothing"
    queue.router.handles[2].post(Demand("", 1), ClientId(1), lambda answer: None)
    assert list(world.parts) == [("orders", 2)] and queue.health() == [
        "closed",
        "closed",
        "healthy",
        "closed",
    ]


# --- changing -----------------------------------------------------------------------------------------------


async def test_an_update_is_durable_reaches_every_partition_that_lives_and_is_told_to_watchers(
    world: World,
) -> None:
    created = await world.namespace.create_entity("orders", QueueSettings())
    queue, watcher = world.queue("orders"), Watcher()
    queue.watchers.add(watcher)
    queue.partition(0)
    queue.partition(3)
    world.clock.advance(1_000)
    updated = await world.namespace.update_entity("Orders", QueueSettings(max_delivery_count=3))
    assert (updated.generation, updated.created_at_ms, updated.updated_at_ms) == (
        created.generation,
        created.created_at_ms,
        created.created_at_ms + 1_000,
    )
    assert queue.description is updated and watcher.changes == 1
    assert (
        all(any(isinstance(each, Update) for each in part.posted) for part in world.parts.values())
        and len(world.parts) == 2
    )
    restarted = await again(world)
    assert restarted.namespace.describe("orders") == updated
    await restarted.store.close()


async def test_an_update_while_a_partition_is_down_is_carried_out(world: World) -> None:
    await world.namespace.create_entity("orders", QueueSettings())
    queue, watcher = world.queue("orders"), Watcher()
    queue.watchers.add(watcher)
    queue.partition(0)
    world.parts["orders", 0].available = False
    updated = await world.namespace.update_entity("orders", QueueSettings(max_delivery_count=3))
    assert world.namespace.describe("orders") == updated and watcher.changes == 1


async def test_what_is_fixed_at_creation_cannot_be_changed(world: World) -> None:
    await world.namespace.create_entity("orders", QueueSettings())
    for settings in (QueueSettings(requires_session=True), QueueSettings(enable_partitioning=False)):
        with pytest.raises(Refused) as refused:
            await world.namespace.update_entity("orders", settings)
        assert refused.value.reason is Reason.ARGUMENT
    assert world.queue("orders").description.settings == QueueSettings()


async def test_a_deleted_queue_is_gone_with_its_partitions_and_who_is_attached_hears_of_it(
    world: World,
) -> None:
    await world.namespace.create_entity("orders", QueueSettings())
    queue, watcher = world.queue("orders"), Watcher()
    queue.watchers.add(watcher)
    queue.partition(1)
    await world.namespace.delete_entity("ORDERS")
    assert world.namespace.find("orders") is None and world.parts["orders", 1].stopped
    (why,) = watcher.ended
    assert why.reason is Reason.ENTITY_NOT_FOUND and "could not be found" in why.description
    restarted = await again(world)
    assert list(restarted.namespace.descriptions()) == []
    await restarted.store.close()


async def test_a_queue_created_again_is_another_one(world: World) -> None:
    first = await world.namespace.create_entity("orders", QueueSettings())
    await world.namespace.delete_entity("orders")
    second = await world.namespace.create_entity("orders", QueueSettings())
    assert first.generation != second.generation


@pytest.mark.parametrize("act", ["update", "delete", "runtime"])
async def test_what_does_not_exist_is_not_found_in_the_words_that_clients_know(
    world: World, act: str
) -> None:
    with pytest.raises(Refused) as refused:
        match act:
            case "update":
                await world.namespace.update_entity("nothing", QueueSettings())
            case "delete":
                await world.namespace.delete_entity("nothing")
            case _:
                await world.namespace.runtime("nothing")
    assert refused.value.reason is Reason.ENTITY_NOT_FOUND
    assert (
        refused.value.description
        == not_found_text("nothing")
        == "The messaging entity 'nothing' could not be found."
    )


async def make_logs(world: World, generation: str) -> None:
    log = world.store.log(generation, 0)
    await log.claim()
    await log.close()


# --- start --------------------------------------------------------------------------------------------------


async def test_a_folder_that_another_broker_uses_is_not_touched(world: World) -> None:
    await world.namespace.create_entity("orders", QueueSettings())
    being_written = world.folder / "catalogue" / "orders-0.document.tmp"
    being_written.write_bytes(b"half")
    second = World(world.folder)
    with pytest.raises(DiskFailed, match="another process"):
        await second.namespace.load()
    assert being_written.exists()
    await second.store.close()


async def test_logs_without_an_entry_are_kept_and_reported_unless_it_is_known_that_their_entry_was_deleted(
    world: World,
) -> None:
    kept, deleted = [
        (await world.namespace.create_entity(name, QueueSettings())).generation for name in ("orders", "gone")
    ]
    for generation in (kept, deleted, "f" * 32):
        await make_logs(world, generation)
    world.disk.fail("sync_directory", path_part="/logs/logs", times=1_000)
    await world.namespace.delete_entity("gone")
    world.disk.heal()
    (world.folder / "logs" / "logs" / f"{deleted}#deleted").rename(
        world.folder / "logs" / "logs" / deleted
    )  # a power cut: the rename was not synced
    assert set(await world.store.entities()) == {kept, deleted, "f" * 32}
    with capture_logs() as lines:
        restarted = await again(world)
    assert set(await restarted.store.entities()) == {kept, "f" * 32}
    assert [line["generation"] for line in lines if line["event"] == "entity.logs_without_entry"] == [
        "f" * 32
    ]
    with capture_logs() as lines:
        restarted = await again(restarted)
    assert not [line for line in lines if line["event"] == "entity.cleared"], "what was cleared is forgotten"
    await restarted.store.close()


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


@pytest.mark.parametrize("with_logs", ["none", "older", "newer", "both"])
async def test_of_two_entries_of_one_name_none_that_has_logs_is_deleted(world: World, with_logs: str) -> None:
    older, newer = (
        QueueDescription("Orders", "a" * 32, 4, created_at_ms=1),
        QueueDescription("orders", "9" * 32, 4, created_at_ms=2),
    )
    catalogue = Catalogue(world.folder / "catalogue", LocalDisk())
    for which, description in (("older", older), ("newer", newer)):
        await catalogue.put(description.generation, encode_description(description))
        if with_logs in (which, "both"):
            await make_logs(world, description.generation)
    served = older if with_logs == "older" else newer
    other = newer if with_logs == "older" else older
    for _ in range(2):
        with capture_logs() as lines:
            world = await again(world)
        assert list(world.namespace.descriptions()) == [served]
        (reported,) = [
            line["kept_unserved"] for line in lines if line["event"] == "entity.name_taken_twice"
        ] or [None]
        assert reported == (other.generation if with_logs == "both" else None)
        assert set(await world.store.entities()) == {
            each.generation
            for which, each in (("older", older), ("newer", newer))
            if with_logs in (which, "both")
        }
        assert set(await catalogue.load_all()) == {
            served.generation,
            *([other.generation] if with_logs == "both" else []),
        }
        assert await catalogue.load_deleted() == []
    await world.store.close()


# --- changes that fail on disk (tests/crash/test_namespace_faults.py covers every call) ---------------------


async def entries(world: World) -> list[QueueDescription]:
    """What a restart would find."""
    return [
        decode_description(content)
        for content in (await Catalogue(world.folder / "catalogue", LocalDisk()).load_all()).values()
    ]


async def refused_change(change: Awaitable[object]) -> Refused:
    with pytest.raises(Refused) as refused:
        await change
    return refused.value


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
    again_served = world.queue("orders")
    assert again_served is not queue and again_served.description == created and again_served.available
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


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while True:  # the broker retries every millisecond
            if condition():
                return
            await asyncio.sleep(0.001)


# --- counts -------------------------------------------------------------------------------------------------


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


async def test_only_partitions_that_have_a_log_are_opened_to_be_counted_and_so_many_at_a_time(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    description = await world.namespace.create_entity("orders", QueueSettings(), 200)
    await world.namespace.runtime("orders")
    assert world.parts == {} and await world.store.entities() == []
    for number in (7, *range(100, 160)):
        log = world.store.log(description.generation, number)
        await log.claim()
        await log.close()
    opening, most = 0, 0

    async def opened(part: Part) -> None:
        nonlocal opening, most
        opening += 1
        most = max(most, opening)
        await asyncio.sleep(0)
        opening -= 1

    monkeypatch.setattr(Part, "opened", opened)
    world.queue("orders").partition(3)  # in use, though its log does not exist yet
    await asyncio.gather(*(world.namespace.runtime("orders") for _ in range(3)))
    assert {number for _, number in world.parts} == {3, 7, *range(100, 160)}
    assert most == OPENING_MAX


async def test_where_the_disk_does_not_say_which_logs_there_are_all_partitions_are_opened(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.namespace.create_entity("orders", QueueSettings(), 3)

    async def fails(entity: str) -> list[int]:
        raise DiskFailed("broken")

    monkeypatch.setattr(world.store, "partitions", fails)
    await world.namespace.runtime("orders")
    assert {number for _, number in world.parts} == {0, 1, 2}


async def test_who_counts_all_queues_waits_once_for_the_check_and_for_what_is_unknown(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited = list[float]()

    async def all_known(within_s: float) -> bool:
        waited.append(within_s)
        return False

    monkeypatch.setattr(world.resting, "all_known", all_known)
    world.namespace._checking = asyncio.create_task(asyncio.sleep(3_600))  # a disk that hangs
    await world.namespace.counted(0.02)
    assert waited == [0.0], "Prometheus gives up after 10 s, and this took twice the 8 s that it may"


async def test_a_queue_that_is_deleted_while_it_is_counted_wakes_no_partition_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    description = await world.namespace.create_entity("orders", QueueSettings(), 2)
    queue, listing, go_on = world.queue("orders"), asyncio.Event(), asyncio.Event()

    async def partitions(entity: str) -> list[int]:
        listing.set()
        await go_on.wait()
        return [0, 1]

    monkeypatch.setattr(world.store, "partitions", partitions)
    counting = asyncio.create_task(world.namespace.runtime("orders"))
    await listing.wait()
    await world.namespace.delete_entity("orders")
    go_on.set()
    with pytest.raises(Refused) as refused:
        await counting
    assert refused.value.reason is Reason.ENTITY_NOT_FOUND and world.parts == {}
    with pytest.raises(Refused) as refused:  # a link that has not heard of the deletion yet
        await ask(queue.router.keyed("a"), Send([b""], None))
    assert refused.value.reason is Reason.ENTITY_NOT_FOUND and world.parts == {}
    assert description.generation not in await world.store.entities()


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


async def test_closing_stops_every_partition_that_lives(world: World) -> None:
    for name in ("a", "b"):
        await world.namespace.create_entity(name, QueueSettings())
        world.queue(name).partition(1)
    await world.namespace.close()
    assert len(world.parts) == 2 and all(part.stopped for part in world.parts.values())


# --- rights -------------------------------------------------------------------------------------------------


async def test_the_rules_of_an_entity_are_found_by_its_path_and_a_missing_one_has_none(world: World) -> None:
    rule = AuthorizationRule("app", "primary", "secondary", ALL)
    await world.namespace.create_entity("orders", QueueSettings(authorization_rules=(rule,)))
    assert (
        list(world.namespace.rules_of("ORDERS")) == [rule] and list(world.namespace.rules_of("nothing")) == []
    )


async def test_stored_settings_without_effect_stay_and_are_listed_at_the_start(world: World) -> None:
    stored = QueueSettings(requires_session=True, auto_delete_on_idle_ms=300_000)
    await world.namespace.create_entity("kept", stored, file_settings=stored)
    await world.namespace.create_entity("plain", QueueSettings())
    with capture_logs() as lines:
        restarted = await again(world)
    named = [
        (line["entity"], line["settings"])
        for line in lines
        if line["event"] == "entity.settings_without_effect"
    ]
    assert named == [("kept", ["RequiresSession", "AutoDeleteOnIdle"])]
    assert restarted.queue("kept").description.settings == stored
    await restarted.namespace.close()
    await restarted.store.close()


async def test_whoever_keeps_claims_hears_when_rules_change_or_go_and_not_otherwise(world: World) -> None:
    heard: list[str] = []
    rules = (AuthorizationRule("app", "one", "", frozenset({"Send"})),)
    with_rules = QueueSettings(authorization_rules=rules)
    await world.namespace.create_entity("orders", with_rules)
    await world.namespace.create_entity("plain", QueueSettings())
    world.namespace.rules_changed = lambda: heard.append("changed")
    await world.namespace.update_entity(
        "orders", QueueSettings(authorization_rules=rules, max_delivery_count=4)
    )
    await world.namespace.delete_entity("plain")
    assert heard == []
    await world.namespace.update_entity("orders", QueueSettings())
    assert len(heard) == 1
    await world.namespace.update_entity("orders", with_rules)
    await world.namespace.delete_entity("orders")
    assert len(heard) == 3 and world.namespace.rules_of("orders") == ()
