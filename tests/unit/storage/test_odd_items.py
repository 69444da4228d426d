"""One odd item in the data folder, a stray file or an unreadable folder, costs at most the entity to which it
belongs."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from broker.maintenance.check import check_folders
from storage.catalogue import Catalogue
from storage.disk import LocalDisk
from storage.errors import CommitFailed, DiskFailed
from storage.file_store import FileLogStore
from storage.partition_index import COPY_NAME, INDEX_NAME, PartitionIndex
from tests.support.faulty_disk import FaultyDisk
from tests.support.logs import append, contents, flat, small_store

ENTITIES = ("bills", "orders", "parcels")


async def made(root: Path) -> Path:
    """A data folder with three entities of two partitions each."""
    store = small_store(root)
    for entity in ENTITIES:
        await fill(store, entity)
    await store.close()
    return root


async def fill(store: FileLogStore, entity: str) -> None:
    for partition in (0, 1):
        log = store.log(entity, partition)
        await log.acquire()
        await append(log, entity.encode())
        await log.close()


async def serves(store: FileLogStore, entity: str) -> bool:
    log = store.log(entity, 1)
    await log.acquire()
    found = flat(await contents(log))
    await log.close()
    return found == [entity.encode()]


def extents(root: Path, entity: str = "") -> Path:
    return root / "catalogue" / "logs" / entity


def into_a_file(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.write_text("")


@pytest.mark.parametrize(
    "odd", ["stray file", "extents are a file", "extents unreadable", "logs are a file", "logs unreadable"]
)
async def test_a_missing_log_is_noticed_whatever_else_lies_about(tmp_path: Path, odd: str) -> None:
    await made(tmp_path)
    disk = FaultyDisk(LocalDisk())
    expected = {"orders": [0]}
    match odd:
        case "stray file":
            named = extents(tmp_path, ".DS_Store")
            named.write_text("")
        case "extents are a file":
            named = extents(tmp_path, "bills")
            into_a_file(named)
            expected["bills"] = [0, 1]
        case "extents unreadable":
            named = extents(tmp_path, "bills")
            disk.fail("names", errno.EACCES, path_part=str(named), times=1_000)
            expected["bills"] = [0, 1]
        case "logs are a file":
            named = tmp_path / "logs" / "bills"
            into_a_file(named)
            expected["bills"] = [0, 1]
        case _:
            named = tmp_path / "logs" / "bills"
            disk.fail("names", errno.EACCES, path_part=str(named), times=1_000)
            expected["bills"] = [0, 1]
    shutil.rmtree(tmp_path / "logs" / "orders" / "0000")
    store = small_store(tmp_path, disk)
    with capture_logs() as lines:
        assert await store.missing() == expected
    assert [line["path"] for line in lines if line["event"] == "entity.logs_not_checked"] == [str(named)]
    assert await serves(store, "parcels")
    await store.close()
    if odd in ("stray file", "logs are a file"):
        found = [finding.path for finding in check_folders([tmp_path], disk=disk).findings]
        assert str(tmp_path / "logs" / "orders" / "0000") in found and any(
            path.startswith(str(named)) for path in found
        )


@pytest.mark.parametrize("odd", ["a file", "unreadable"])
async def test_without_extents_the_logs_are_known_but_none_opens(tmp_path: Path, odd: str) -> None:
    await made(tmp_path)
    disk = FaultyDisk(LocalDisk())
    if odd == "a file":
        into_a_file(extents(tmp_path))
    else:
        for operation in ("names", "open_read"):
            disk.fail(operation, errno.EACCES, path_part=str(extents(tmp_path)), times=1_000)
    store = small_store(tmp_path, disk)
    with capture_logs() as lines:
        assert set(await store.entities()) == set(ENTITIES)
    [line] = [line for line in lines if line["event"] == "extents.unreadable"]
    assert str(extents(tmp_path)) in line["error"]
    with pytest.raises(DiskFailed, match=r"catalogue.logs.orders.0001\.extent"):
        await serves(store, "orders")
    await store.close()


async def test_a_deletion_that_cannot_be_finished_does_not_stop_the_start(tmp_path: Path) -> None:
    await made(tmp_path)
    (tmp_path / "logs" / "bills").rename(tmp_path / "logs" / "bills#deleted")
    disk = FaultyDisk(LocalDisk())
    disk.fail("remove_tree", errno.EACCES, path_part="bills", times=1_000)
    store = small_store(tmp_path, disk)
    assert set(await store.entities()) == {"orders", "parcels"}
    assert await serves(store, "orders")
    await store.close()


@pytest.mark.parametrize("is_empty", [True, False])
async def test_a_folder_among_the_documents_stops_nothing(tmp_path: Path, is_empty: bool) -> None:
    catalogue = Catalogue(tmp_path / "catalogue", LocalDisk())
    for name in ("orders", "bills"):
        await catalogue.put(name, name.encode())
    odd = tmp_path / "catalogue" / "x.tmp"
    odd.mkdir()
    if not is_empty:
        (odd / "y").write_text("")
    document = next((tmp_path / "catalogue").glob("bills*.document"))
    document.unlink()
    document.mkdir()
    next((tmp_path / "catalogue").glob("orders*.document")).write_text("")
    with capture_logs() as lines:
        assert await catalogue.load_all() == {"orders": b"orders", "bills": b"bills"}
    reported = {line["event"]: line.get("path") for line in lines}
    assert reported["catalogue.not_removed"] == str(odd) and reported["document.unreadable"] == str(document)
    assert {"document.not_repaired", "document.repaired"} <= reported.keys(), "what can be repaired is"


async def test_an_index_that_cannot_be_read_is_as_good_as_none(tmp_path: Path) -> None:
    (tmp_path / "catalogue").mkdir()
    for name in (INDEX_NAME, COPY_NAME):
        (tmp_path / "catalogue" / name).mkdir()
    with capture_logs() as lines:
        assert await PartitionIndex(tmp_path / "catalogue", LocalDisk()).load() is False
    assert [line["event"] for line in lines] == ["index.unreadable"] * 2


@pytest.mark.parametrize("level", ["entity", "all"])
async def test_extents_that_are_removed_while_the_log_is_open_are_made_anew(
    tmp_path: Path, level: str
) -> None:
    await made(tmp_path)
    store = small_store(tmp_path)
    log = store.log("orders", 0)
    await log.acquire()
    await append(log, b"two")
    shutil.rmtree(extents(tmp_path, "orders" if level == "entity" else ""))
    with pytest.raises(CommitFailed):  # the extent's folder is gone
        await log.roll()
    await log.acquire()
    await append(log, b"three")
    assert flat(await contents(log)) == [b"orders", b"two", b"three"]
    assert extents(tmp_path, "orders/0000.extent").exists()
    await store.close()
