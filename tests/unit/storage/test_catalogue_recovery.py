"""storage/catalogue_recovery.py: what a start reads, repairs and reports."""

from __future__ import annotations

import errno
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from storage.catalogue import Catalogue
from storage.catalogue_recovery import Damaged
from storage.disk import LocalDisk
from storage.document_file import file_name_of
from storage.errors import CommitFailed, DiskFailed, UnknownFormat
from storage.record import crc32c
from tests.support.faulty_disk import FaultyDisk
from tests.support.recording_disk import RecordingDisk

DOCUMENTS = {"queues/orders": b'{"lock": 30}', "": b"", "Ünïcode/../x" * 30: b"\0" * 5_000}

FOR_EVER = 1_000_000


async def filled(root: Path) -> Catalogue:
    catalogue = Catalogue(root / "catalogue", LocalDisk())
    for name, document in DOCUMENTS.items():
        await catalogue.put(name, document)
    return catalogue


def files_of(catalogue_folder: Path, name: str) -> list[Path]:
    path = catalogue_folder / file_name_of(name)
    return [path, path.with_suffix(".copy")]


def harms(good: bytes) -> Iterator[bytes | None]:
    """The content with each byte flipped, cut off at each byte, and None for a missing file."""
    for offset in range(len(good)):
        yield good[:offset] + bytes([good[offset] ^ 1]) + good[offset + 1 :]
    for size in range(len(good)):
        yield good[:size]
    yield None


@pytest.mark.parametrize("which", [0, 1])
async def test_whatever_becomes_of_one_file_of_a_document_it_is_read_reported_and_repaired(
    tmp_path: Path, which: int
) -> None:
    catalogue = await filled(tmp_path)
    path = files_of(tmp_path / "catalogue", "queues/orders")[which]
    good = path.read_bytes()
    for harm in harms(good):
        if harm is None:
            path.unlink()
        else:
            path.write_bytes(harm)
        with capture_logs() as lines:
            assert await catalogue.load_all() == DOCUMENTS
        assert [line["event"] for line in lines] == [
            "document.copy_missing" if harm is None else "document.damaged",
            "document.repaired",
        ]
        assert path.read_bytes() == good and catalogue.damaged == []


async def test_a_document_without_a_whole_file_costs_no_other_and_is_left_as_it_is(tmp_path: Path) -> None:
    catalogue = await filled(tmp_path)
    await catalogue.put("plain", b"document")
    for name in ("plain", "namespace_01-ab"):
        await catalogue.put(name, b"document")
        harmed = files_of(tmp_path / "catalogue", name)
        good = harmed[0].read_bytes()
        for harm in (good[:-1] + b"!", good[:30], b""):
            for path in harmed:
                path.write_bytes(harm)
            with capture_logs() as lines:
                assert await catalogue.load_all() == (
                    DOCUMENTS if name == "plain" else {**DOCUMENTS, "plain": b"document"}
                )
            assert [line["event"] for line in lines] == ["document.damaged"] * 2
            [damaged] = catalogue.damaged
            assert (damaged.name, damaged.files, damaged.remains) == (
                name,
                harmed,
                [harm] * 2,
            )
            assert (
                await catalogue.load_deleted() == [] and [path.read_bytes() for path in harmed] == [harm] * 2
            )
        for path in harmed:
            path.write_bytes(good)
    await catalogue.delete("namespace_01-ab")
    await catalogue.forget("namespace_01-ab")
    await catalogue.load_all()
    for path in files_of(tmp_path / "catalogue", "plain"):
        path.write_bytes(b"")
    await catalogue.delete("plain")
    assert (await catalogue.load_all(), await catalogue.load_deleted(), catalogue.damaged) == (
        DOCUMENTS,
        ["plain"],
        [],
    )


@pytest.mark.parametrize(
    ("stray", "why"),
    [
        ("junk.document", "a copy of the document 'plain', which is whole"),
        ("junk.copy", "no file of the catalogue has such a name"),
        ("folder.document", "no file of the catalogue has such a name"),
        (f"plain-{file_name_of('other')[-41:]}", "no file of the catalogue has such a name"),
    ],
)
@pytest.mark.parametrize("are_two", [False, True])
async def test_a_file_that_is_no_document_s_is_reported_as_such_and_nothing_counts_as_damaged(
    tmp_path: Path, stray: str, why: str, are_two: bool
) -> None:
    directory = tmp_path / "catalogue"
    copies = tmp_path / "copies" if are_two else None
    catalogue = Catalogue(directory, LocalDisk(), copies)
    await catalogue.put("plain", b"document")
    content = files_of(directory, "plain")[0].read_bytes()
    if "folder" in stray:
        (directory / stray).mkdir()
    else:
        (directory / stray).write_bytes(content if stray == "junk.document" else content[:40])
    with capture_logs() as lines:
        assert await catalogue.load_all() == {"plain": b"document"}
    [line] = lines
    assert (line["event"], line["log_level"]) == ("document.stray", "warning")
    assert line["path"] == str(directory / stray) and why in line["why"] and "repair" in line["advice"]
    assert catalogue.damaged == [] and (directory / stray).exists()


async def test_a_document_that_is_whole_only_under_another_name_counts_as_damaged(tmp_path: Path) -> None:
    catalogue = await filled(tmp_path)
    await catalogue.put("plain", b"document")
    document, copy = files_of(tmp_path / "catalogue", "plain")
    content = document.read_bytes()
    moved = document.rename(document.with_name("junk.document"))
    copy.unlink()
    assert await catalogue.load_all() == DOCUMENTS
    assert catalogue.damaged == [Damaged("plain", [moved], [content], is_misnamed=True)]


async def test_a_document_whose_files_hold_another_one_is_damaged_and_nothing_is_left_of_it(
    tmp_path: Path,
) -> None:
    catalogue = await filled(tmp_path)
    for name in ("plain", "other"):
        await catalogue.put(name, b"document")
    files = files_of(tmp_path / "catalogue", "plain")
    for path in files:
        path.write_bytes(files_of(tmp_path / "catalogue", "other")[0].read_bytes())
    assert await catalogue.load_all() == {**DOCUMENTS, "other": b"document"}
    assert catalogue.damaged == [Damaged("plain", files, [b"", b""])]


async def test_the_newer_of_two_files_counts_and_an_older_one_undoes_neither_a_put_nor_a_deletion(
    tmp_path: Path,
) -> None:
    catalogue = await filled(tmp_path)
    files = files_of(tmp_path / "catalogue", "queues/orders")
    stale = [path.read_bytes() for path in files]
    await catalogue.put("queues/orders", b"new")
    for path, old in zip(files, stale, strict=True):
        path.write_bytes(old)
        again = Catalogue(tmp_path / "catalogue", LocalDisk())
        assert (await again.load_all())["queues/orders"] == b"new"
        assert path.read_bytes() != old, "it was repaired"
        await again.put("queues/orders", b"new")
    await catalogue.delete("queues/orders")
    assert "queues/orders" not in await catalogue.load_all()
    for suffix in (".deleted", ".copy-deleted"):
        gone = files[0].with_suffix(suffix)
        content = gone.read_bytes()
        for harm in (None, b"", content[:-1]):
            gone.unlink() if harm is None else gone.write_bytes(harm)
            assert await catalogue.load_deleted() == ["queues/orders"]
        gone.write_bytes(content)


async def test_a_document_under_another_ones_file_name_is_not_taken_for_it(tmp_path: Path) -> None:
    catalogue = await filled(tmp_path)
    (tmp_path / "catalogue" / file_name_of("")).replace(
        tmp_path / "catalogue" / file_name_of("queues/orders")
    )
    with capture_logs() as lines:
        assert await catalogue.load_all() == DOCUMENTS
    assert "not the document" in next(line["why"] for line in lines if line["event"] == "document.damaged")


async def test_what_cannot_be_repaired_is_read_all_the_same(tmp_path: Path) -> None:
    await filled(tmp_path)
    for path in (tmp_path / "catalogue").glob("*.copy"):
        path.unlink()
    disk = FaultyDisk(LocalDisk())
    disk.fail("write", errno.ENOSPC, times=FOR_EVER)
    with capture_logs() as lines:
        assert await Catalogue(tmp_path / "catalogue", disk).load_all() == DOCUMENTS
    assert [line["documents"] for line in lines if line["event"] == "document.not_repaired"] == [
        len(DOCUMENTS)
    ]
    disk.heal()
    assert await Catalogue(tmp_path / "catalogue", disk).load_all() == DOCUMENTS
    assert len(list((tmp_path / "catalogue").iterdir())) == 2 * len(DOCUMENTS)


@pytest.mark.parametrize("absent", [0, 1])
async def test_a_folder_that_does_not_answer_at_the_start_is_not_asked_for_documents(
    absent: int, tmp_path: Path
) -> None:
    disk = FaultyDisk(LocalDisk())
    directories = [tmp_path / "first" / "catalogue", tmp_path / "second" / "catalogue"]
    for directory in directories:
        directory.parent.mkdir()
    catalogue = Catalogue(directories[0], disk, directories[1])
    for name, document in DOCUMENTS.items():
        await catalogue.put(name, document)
    disk.hang("names", str(directories[absent]))
    disk.hang("open_read", str(directories[absent]))
    again = Catalogue(directories[0], disk, directories[1], absent=[directories[absent]])
    try:
        assert await again.load_all() == DOCUMENTS and await again.load_deleted() == []
        assert again.damaged == [] and disk.held == 0
    finally:
        disk.release()
    await again.put("later", b"content")
    assert await Catalogue(directories[0], disk, directories[1]).load_all() == {
        **DOCUMENTS,
        "later": b"content",
    }


async def test_a_document_of_a_later_format_is_refused_as_such(tmp_path: Path) -> None:
    catalogue = await filled(tmp_path)
    path = tmp_path / "catalogue" / file_name_of("queues/orders")
    data = bytearray(path.read_bytes())
    struct.pack_into("<H", data, 12, 3)
    struct.pack_into("<I", data, 8, crc32c(bytes(data[12:])))
    path.write_bytes(data)
    with pytest.raises(UnknownFormat, match="version 3"):
        await catalogue.load_all()


async def test_what_a_crash_left_half_done_is_removed(tmp_path: Path) -> None:
    catalogue = await filled(tmp_path)
    leftover = tmp_path / "catalogue" / "queues-0.document.tmp"
    leftover.write_bytes(b"half")
    assert await catalogue.load_all() == DOCUMENTS
    assert not leftover.exists()


async def test_what_is_read_at_the_start_stays_so_after_a_power_cut() -> None:
    inner = RecordingDisk()
    disk = FaultyDisk(inner)
    catalogue = Catalogue(Path("/catalogue"), disk)
    await catalogue.put("gone", b"1")
    disk.fail(
        "sync_directory", path_part="catalogue", times=FOR_EVER
    )  # as if the process had been killed before its sync
    for change in (catalogue.put("new", b"1"), catalogue.delete("gone")):
        with pytest.raises(CommitFailed):
            await change
    restarted = Catalogue(Path("/catalogue"), disk)
    with pytest.raises(DiskFailed):
        await restarted.load_all()
    disk.heal()
    assert await restarted.load_all() == {"new": b"1"}
    assert await Catalogue(Path("/catalogue"), inner.after_power_cut()).load_all() == {"new": b"1"}
