"""storage/catalogue.py: a durable set of named documents. What a power cut leaves has its test in tests/crash."""

from __future__ import annotations

import asyncio
import errno
import struct
from pathlib import Path

import pytest

from storage.catalogue import Catalogue, file_name_of
from storage.disk import LocalDisk
from storage.errors import CommitFailed, CorruptRecord, DiskFailed, DiskFull, UnknownFormat
from storage.record import crc32c
from tests.support.faulty_disk import FaultyDisk

DOCUMENTS = {"queues/orders": b'{"lock": 30}', "": b"", "Ünïcode/../x" * 30: b"\0" * 5_000}


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
    assert await again.load_all() == {**{name: DOCUMENTS[name] for name in DOCUMENTS if name}, "queues/orders": b"new"}


async def test_an_empty_catalogue_needs_no_folder(tmp_path: Path) -> None:
    catalogue = Catalogue(tmp_path / "catalogue", LocalDisk())
    assert await catalogue.load_all() == {}
    await catalogue.delete("nothing")
    assert not (tmp_path / "catalogue").exists()


async def test_a_flipped_byte_anywhere_in_a_document_is_refused_by_file_name(tmp_path: Path) -> None:
    catalogue = await filled(tmp_path)
    path = tmp_path / "catalogue" / file_name_of("queues/orders")
    good = path.read_bytes()
    for offset in range(len(good)):
        path.write_bytes(good[:offset] + bytes([good[offset] ^ 1]) + good[offset + 1 :])
        with pytest.raises(CorruptRecord, match=path.name):
            await catalogue.load_all()
    for size in range(len(good)):
        path.write_bytes(good[:size])
        with pytest.raises(CorruptRecord, match=path.name):
            await catalogue.load_all()


async def test_a_document_under_another_ones_file_name_is_refused(tmp_path: Path) -> None:
    catalogue = await filled(tmp_path)
    (tmp_path / "catalogue" / file_name_of("")).replace(tmp_path / "catalogue" / file_name_of("queues/orders"))
    with pytest.raises(CorruptRecord, match="not the document"):
        await catalogue.load_all()


async def test_a_document_of_a_later_format_is_refused_as_such(tmp_path: Path) -> None:
    catalogue = await filled(tmp_path)
    path = tmp_path / "catalogue" / file_name_of("queues/orders")
    data = bytearray(path.read_bytes())
    struct.pack_into("<H", data, 12, 2)
    struct.pack_into("<I", data, 8, crc32c(bytes(data[12:])))
    path.write_bytes(data)
    with pytest.raises(UnknownFormat, match="version 2"):
        await catalogue.load_all()


async def test_what_a_crash_left_half_done_is_removed(tmp_path: Path) -> None:
    catalogue = await filled(tmp_path)
    leftover = tmp_path / "catalogue" / "queues-0.document.tmp"
    leftover.write_bytes(b"half")
    assert await catalogue.load_all() == DOCUMENTS
    assert not leftover.exists()


@pytest.mark.parametrize("operation", ["make_directory", "create", "write", "sync", "rename", "sync_directory"])
@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
async def test_a_failed_put_leaves_the_old_document_or_the_new_one(tmp_path: Path, operation: str, error: int) -> None:
    await filled(tmp_path)
    disk = FaultyDisk(LocalDisk())
    catalogue = Catalogue(tmp_path / "catalogue", disk)
    disk.fail(operation, error, path_part="catalogue")
    with pytest.raises(DiskFull if error == errno.ENOSPC and operation in ("create", "write", "sync", "rename") else CommitFailed):
        await catalogue.put("queues/orders", b"new")
    after = (await catalogue.load_all())["queues/orders"]
    assert after == (b"new" if operation == "sync_directory" else DOCUMENTS["queues/orders"])
    await catalogue.put("queues/orders", b"newer")
    assert (await catalogue.load_all())["queues/orders"] == b"newer"


async def test_a_disk_that_cannot_be_read_or_deleted_from_says_so(tmp_path: Path) -> None:
    await filled(tmp_path)
    disk = FaultyDisk(LocalDisk())
    catalogue = Catalogue(tmp_path / "catalogue", disk)
    disk.fail("read")
    with pytest.raises(DiskFailed):
        await catalogue.load_all()
    disk.fail("remove")
    with pytest.raises(CommitFailed):
        await catalogue.delete("queues/orders")
    assert await catalogue.load_all() == DOCUMENTS


async def test_many_at_once_are_done_one_after_the_other(tmp_path: Path) -> None:
    catalogue = Catalogue(tmp_path / "catalogue", LocalDisk())
    await asyncio.gather(*(catalogue.put("same", b"%d" % number) for number in range(20)))
    assert await catalogue.load_all() == {"same": b"19"}
