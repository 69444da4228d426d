"""Damage to the documents that describe queues: one damaged copy costs nothing; two stop only their queue,
which keeps its messages.
"""

from __future__ import annotations

import errno
from collections.abc import Awaitable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from broker.base.errors import Reason, Refused
from broker.entities.descriptions import QueueSettings
from broker.namespace.apply_file import apply_file
from broker.settings.config_file import QueueSpec
from storage.document_file import file_name_of
from tests.crash.lives import ROOT, Life
from tests.crash.test_namespace_faults import NEW, OLD
from tests.support.recording_disk import RecordingDisk

MESSAGES = {b"message to 0", b"message to 1"}


async def made() -> tuple[RecordingDisk, list[Path]]:
    """A disk with two queues that hold messages, and the files that describe one of the queues."""
    life = Life(RecordingDisk())
    await life.namespace.load()
    for name in ("orders", "bystander"):
        await life.namespace.create_entity(name, OLD)
        await life.namespace.update_entity(name, NEW)
        assert await life.send(name, b"message") == MESSAGES
    queue = life.namespace.describe("orders")
    assert queue is not None
    path = ROOT / "catalogue" / file_name_of(queue.generation)
    await life.close()
    return life.inner, [path, path.with_suffix(".copy")]


async def restarted(disk: RecordingDisk) -> Life:
    life = Life(disk)
    await life.namespace.load()
    return life


async def refused(change: Awaitable[object]) -> Reason:
    with pytest.raises(Refused) as why:
        await change
    return why.value.reason


@pytest.mark.parametrize("which", [0, 1])
async def test_every_byte_flipped_once_and_each_file_cut_off_or_missing_costs_nothing(which: int) -> None:
    disk, files = await made()
    size = len(disk.contents(files[which]))
    harms = (
        [("flip", offset) for offset in range(size)]
        + [("cut", at) for at in range(0, size, 20)]
        + [("remove", 0)]
    )
    for number, (harm, at) in enumerate(harms):
        copy = disk.after_power_cut()
        if harm == "flip":
            copy.contents(files[which])[at] ^= 1 << at % 8
        elif harm == "cut":
            del copy.contents(files[which])[at:]
        else:
            copy.remove(files[which])
        with capture_logs() as lines:
            life = await restarted(copy)
        reported = "document.copy_missing" if harm == "remove" else "document.damaged"
        assert [line["event"] for line in lines if line["event"].startswith("document.")] == [
            reported,
            "document.repaired",
        ]
        assert {queue.name: queue.settings for queue in life.namespace.descriptions()} == {
            "orders": NEW,
            "bystander": NEW,
        }
        if number % 100 == 0 or harm == "remove":
            for name in ("orders", "bystander"):
                assert set(await life.messages(name)) == MESSAGES
        await life.close()
        assert copy.contents(files[which]) == disk.contents(files[which]), "it was repaired"


async def test_a_queue_whose_description_is_lost_is_out_of_service_alone_and_keeps_its_messages() -> None:
    disk, files = await made()
    good = [bytes(disk.contents(path)) for path in files]
    for path in files:
        disk.contents(path)[-3] ^= 1
    for _ in range(2):
        with capture_logs() as lines:
            life = await restarted(disk)
        [reported] = [line for line in lines if line["event"] == "entity.damaged"]
        generation = files[0].name.split("-")[0]
        assert (reported["log_level"], reported["entity"], reported["generation"]) == (
            "error",
            "orders",
            generation,
        )
        assert reported["files"] == [str(path) for path in files]
        assert "entity.logs_without_entry" not in [line["event"] for line in lines]
        namespace = life.namespace
        assert (
            namespace.find("Orders") is None
            and namespace.missing("Orders").reason is Reason.PARTITION_UNAVAILABLE
        )
        assert namespace.missing("others").reason is Reason.ENTITY_NOT_FOUND
        assert await refused(namespace.create_entity("ORDERS", NEW)) is Reason.PARTITION_UNAVAILABLE
        assert await refused(namespace.update_entity("orders", NEW)) is Reason.PARTITION_UNAVAILABLE
        await apply_file(
            [QueueSpec("orders", QueueSettings(), None), QueueSpec("more", QueueSettings(), None)], namespace
        )
        assert [queue.name for queue in namespace.descriptions()] == ["bystander", "more"]
        assert set(await life.messages("bystander")) == MESSAGES
        await life.close()
    healed = disk.after_power_cut()
    for path, content in zip(files, good, strict=True):
        healed.contents(path)[:] = content
    life = await restarted(healed)
    assert set(await life.messages("orders")) == MESSAGES, "restored, it has all its messages"
    await life.close()

    life = await restarted(disk)
    await life.namespace.delete_entity("orders")
    assert life.namespace.missing("orders").reason is Reason.ENTITY_NOT_FOUND
    assert generation not in await life.store.entities()
    await life.namespace.create_entity("orders", OLD)
    await life.close()
    with capture_logs() as lines:
        life = await restarted(disk)
    assert [line for line in lines if line["log_level"] != "debug"] == [] and await life.messages(
        "orders"
    ) == {}
    await life.close()


async def test_a_whole_document_that_describes_no_queue_costs_nothing_else() -> None:
    disk, _ = await made()
    life = await restarted(disk)
    for name, content in (
        ("a" * 32, b"{}"),
        ("b" * 32, b"not JSON"),
        ("settings", b'{"version": 9, "kind": "topic",\n "name": "t"\n}'),
    ):
        await life.namespace._catalogue.put(name, content)
    await life.close()
    with capture_logs() as lines:
        life = await restarted(disk)
    assert len([line for line in lines if line["event"] == "entity.damaged"]) == 3
    assert [queue.name for queue in life.namespace.descriptions()] == ["bystander", "orders"]
    assert life.namespace.missing("t").reason is Reason.PARTITION_UNAVAILABLE
    await life.close()


@pytest.mark.parametrize("how", ["unreadable", "emptied", "damaged in the name"])
async def test_a_queue_whose_name_nobody_knows_is_not_replaced_by_an_empty_one(how: str) -> None:
    disk, files = await made()
    good = [bytes(disk.contents(path)) for path in files]
    faulty = Life(disk)
    for path in files:
        if how == "unreadable":
            faulty.disk.fail("open_read", errno.EACCES, path_part=path.name, times=1_000)
        elif how == "emptied":
            disk.contents(path).clear()
    if how == "damaged in the name":
        disk.contents(files[0])[:] = good[0].replace(b'"orders"', b'"arders"')
        disk.remove(files[1])
    with capture_logs() as lines:
        await faulty.namespace.load()
    [reported] = [line for line in lines if line["event"] == "entity.damaged"]
    assert "no entity is created" in reported["reason"]
    assert [line["event"] for line in lines if line["event"].startswith("document.")] == (
        ["document.unreadable"] * 2
        if how == "unreadable"
        else ["document.damaged"] * (2 if how == "emptied" else 1)
    )
    namespace = faulty.namespace
    with capture_logs() as lines:
        await apply_file([QueueSpec(name, NEW, None) for name in ("orders", "more", "bystander")], namespace)
    assert [line["entity"] for line in lines if line["event"] == "config.not_applied"] == ["orders", "more"]
    assert await refused(namespace.create_entity("orders", NEW)) is Reason.PARTITION_UNAVAILABLE
    assert await refused(namespace.update_entity("orders", NEW)) is Reason.PARTITION_UNAVAILABLE
    assert len(namespace.damaged) == 1
    assert set(await faulty.messages("bystander")) == MESSAGES
    await faulty.close()

    for path, content in zip(files, good, strict=True):
        disk.close(disk.create(path))
        disk.contents(path)[:] = content
    with capture_logs() as lines:
        life = await restarted(disk)
    await apply_file([QueueSpec(name, NEW, None) for name in ("orders", "more")], life.namespace)
    assert not [line for line in lines if line["event"] == "entity.name_taken_twice"]
    assert [queue.name for queue in life.namespace.descriptions()] == ["bystander", "more", "orders"]
    assert set(await life.messages("orders")) == MESSAGES
    await life.close()
