"""storage/catalogue.py: a durable set of named documents. tests/crash covers power cuts."""

from __future__ import annotations

import asyncio
import errno
import random
from pathlib import Path

import pytest

from storage.catalogue import ATTEMPTS, Catalogue
from storage.disk import LocalDisk
from storage.errors import CommitFailed, DiskFailed, DiskFull
from tests.support.faulty_disk import FaultyDisk
from tests.support.recording_disk import RecordingDisk

DOCUMENTS = {"queues/orders": b'{"lock": 30}', "": b"", "Ünïcode/../x" * 30: b"\0" * 5_000}

FOR_EVER = 1_000_000


async def filled(root: Path) -> Catalogue:
    catalogue = Catalogue(root / "catalogue", LocalDisk())
    for name, document in DOCUMENTS.items():
        await catalogue.put(name, document)
    return catalogue


async def test_documents_come_back_replaced_and_deleted_ones_do_not(tmp_path: Path) -> None:
    catalogue = await filled(tmp_path)
    assert await catalogue.load_all() == DOCUMENTS
    await catalogue.put("queues/orders", b"new")
    await catalogue.delete("")
    await catalogue.delete("never there")
    again = Catalogue(tmp_path / "catalogue", LocalDisk())
    assert await again.load_all() == {
        **{name: DOCUMENTS[name] for name in DOCUMENTS if name},
        "queues/orders": b"new",
    }


async def test_an_empty_catalogue_needs_no_folder(tmp_path: Path) -> None:
    catalogue = Catalogue(tmp_path / "catalogue", LocalDisk())
    assert await catalogue.load_all() == {}
    await catalogue.delete("nothing")
    assert not (tmp_path / "catalogue").exists()


@pytest.mark.parametrize(
    "operation", ["make_directory", "create", "write", "sync", "rename", "sync_directory"]
)
@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
async def test_a_failed_put_leaves_the_old_document_or_the_new_one(
    tmp_path: Path, operation: str, error: int
) -> None:
    await filled(tmp_path)
    disk = FaultyDisk(LocalDisk())
    catalogue = Catalogue(tmp_path / "catalogue", disk)
    disk.fail(operation, error, path_part="catalogue", times=FOR_EVER)
    with pytest.raises(
        DiskFull
        if error == errno.ENOSPC and operation in ("create", "write", "sync", "rename")
        else CommitFailed
    ):
        await catalogue.put("queues/orders", b"new")
    disk.heal()
    after = (await catalogue.load_all())["queues/orders"]
    assert after == (b"new" if operation == "sync_directory" else DOCUMENTS["queues/orders"])
    await catalogue.put("queues/orders", b"newer")
    assert (await catalogue.load_all())["queues/orders"] == b"newer"


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("failures", [1, ATTEMPTS - 1])
async def test_a_change_whose_outcome_is_not_known_is_made_anew_until_it_is(
    failures: int, error: int
) -> None:
    inner = RecordingDisk()
    disk = FaultyDisk(inner, lose=inner.lose)
    catalogue = Catalogue(Path("/catalogue"), disk)
    await catalogue.put("kept", b"1")
    await catalogue.put("gone", b"1")
    disk.fail("sync_directory", error, path_part="catalogue", times=failures)
    await catalogue.put("kept", b"2")
    assert await Catalogue(Path("/catalogue"), inner.after_power_cut()).load_all() == {
        "kept": b"2",
        "gone": b"1",
    }
    disk.fail("sync_directory", error, path_part="catalogue", times=failures)
    await catalogue.delete("gone")
    after = Catalogue(Path("/catalogue"), inner.after_power_cut())
    assert (await after.load_all(), await after.load_deleted()) == ({"kept": b"2"}, ["gone"])


async def test_a_full_disk_behind_an_unknown_outcome_does_not_make_it_known() -> None:
    inner = RecordingDisk()
    disk = FaultyDisk(inner, lose=inner.lose)
    catalogue = Catalogue(Path("/catalogue"), disk)
    await catalogue.put("orders", b"1")
    disk.fail("sync_directory", path_part="catalogue")
    disk.fail("write", errno.ENOSPC, nth=3, times=FOR_EVER)
    with pytest.raises(CommitFailed, match="No space"):
        await catalogue.put("orders", b"2")
    with pytest.raises(CommitFailed, match="No space"):
        await catalogue.put("orders", b"3")
    disk.heal()
    disk.fail("write", errno.ENOSPC, times=FOR_EVER)
    await catalogue.delete("orders")
    with pytest.raises(DiskFull):
        await catalogue.put("orders", b"4")
    assert await Catalogue(Path("/catalogue"), inner.after_power_cut()).load_all() == {}


async def test_a_deletion_whose_outcome_is_not_known_is_made_good_by_the_next_one_or_by_a_put() -> None:
    for again in (True, False):
        inner = RecordingDisk()
        disk = FaultyDisk(inner, lose=inner.lose)
        catalogue = Catalogue(Path("/catalogue"), disk)
        await catalogue.put("orders", b"1")
        disk.fail("sync_directory", path_part="catalogue", times=ATTEMPTS)
        with pytest.raises(CommitFailed):
            await catalogue.delete("orders")
        await (catalogue.delete("orders") if again else catalogue.put("orders", b"1"))
        after = Catalogue(Path("/catalogue"), inner.after_power_cut())
        assert await after.load_all() == ({} if again else {"orders": b"1"})
        assert await after.load_deleted() == (["orders"] if again else [])


async def test_a_deleted_document_is_remembered_until_it_is_forgotten(tmp_path: Path) -> None:
    catalogue = await filled(tmp_path)
    for name in ("queues/orders", ""):
        await catalogue.delete(name)
    await catalogue.delete("never there")
    assert sorted(await catalogue.load_deleted()) == ["", "queues/orders"]
    await catalogue.put("", b"again")
    await catalogue.forget("never there")
    assert await catalogue.load_deleted() == ["queues/orders"]
    await catalogue.forget("queues/orders")
    assert await catalogue.load_deleted() == []
    assert (await catalogue.load_all())[""] == b"again"


async def test_a_deleted_document_that_is_deleted_again_stays_so_at_every_moment() -> None:
    disk = RecordingDisk()
    catalogue = Catalogue(Path("/catalogue"), disk)
    await catalogue.put("orders", b"1")
    await catalogue.delete("orders")
    await catalogue.delete("orders")
    for seed in range(20):
        assert await Catalogue(Path("/catalogue"), disk.after_power_cut(random.Random(seed))).load_all() == {}


async def test_a_disk_that_cannot_be_read_or_deleted_from_says_so(tmp_path: Path) -> None:
    await filled(tmp_path)
    disk = FaultyDisk(LocalDisk())
    catalogue = Catalogue(tmp_path / "catalogue", disk)
    disk.fail("names")
    with pytest.raises(DiskFailed):
        await catalogue.load_all()
    disk.fail("read", times=2)
    assert len(await catalogue.load_all()) == len(DOCUMENTS) - 1
    assert len(catalogue.damaged) == 1
    assert await catalogue.load_all() == DOCUMENTS and catalogue.damaged == []
    disk.fail("rename", times=ATTEMPTS)
    with pytest.raises(CommitFailed):
        await catalogue.delete("queues/orders")
    assert await catalogue.load_all() == DOCUMENTS
    await catalogue.delete("queues/orders")
    disk.fail("names")
    with pytest.raises(DiskFailed):
        await catalogue.load_deleted()
    disk.fail("read")
    assert await catalogue.load_deleted() == ["queues/orders"]
    disk.fail("remove")
    with pytest.raises(DiskFailed):
        await catalogue.forget("queues/orders")
    assert await catalogue.load_deleted() == ["queues/orders"]


async def test_many_at_once_are_done_one_after_the_other(tmp_path: Path) -> None:
    catalogue = Catalogue(tmp_path / "catalogue", LocalDisk(), timeout_ms=60_000)
    await asyncio.gather(*(catalogue.put("same", b"%d" % number) for number in range(20)))
    assert await catalogue.load_all() == {"same": b"19"}


async def test_a_change_costs_the_same_however_many_documents_there_are(tmp_path: Path) -> None:
    disk = FaultyDisk(LocalDisk())
    catalogue = Catalogue(tmp_path / "catalogue", disk)
    await catalogue.load_all()
    await catalogue.put("first", b"")
    before = disk.calls.copy()
    for number in range(20):
        await catalogue.put(f"{number}", b"document")
        await catalogue.delete(f"{number - 5}")
    calls = disk.calls - before
    assert calls["names"] == 0, "the folder is not listed"
    assert calls["sync_directory"] == 20 + 15, "one for each change"
    assert set(await Catalogue(tmp_path / "catalogue", LocalDisk()).load_all()) == {
        "first",
        *map(str, range(15, 20)),
    }
