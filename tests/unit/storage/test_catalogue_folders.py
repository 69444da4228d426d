"""The folders of a catalogue: copies in the second one, if there is one."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from storage.catalogue_folders import CatalogueFolders
from storage.document_file import COPY_SUFFIX, DELETED_SUFFIX, DOCUMENT_SUFFIX
from storage.errors import DiskFailed
from tests.support.faulty_disk import FaultyDisk
from tests.support.recording_disk import RecordingDisk

ONE, TWO = Path("/a/catalogue"), Path("/b/catalogue")


def disk_with(*files: Path) -> RecordingDisk:
    disk = RecordingDisk()
    for folder in (ONE, TWO):
        disk.make_directory(folder.parent)
        disk.make_directory(folder)
    for file in files:
        disk.close(disk.create(file))
    return disk


def test_a_copy_is_in_the_second_folder_and_everything_else_in_the_first() -> None:
    both = CatalogueFolders(disk_with(), ONE, TWO)
    assert both.are_two and both.directories() == [ONE, TWO]
    assert both.path("orders", DOCUMENT_SUFFIX) == ONE / "orders.document"
    assert both.path("orders", DELETED_SUFFIX) == ONE / "orders.deleted"
    assert both.path("orders", COPY_SUFFIX) == TWO / "orders.copy"
    alone = CatalogueFolders(disk_with(), ONE, ONE)
    assert not alone.are_two and alone.directories() == [ONE]
    assert alone.path("orders", COPY_SUFFIX) == ONE / "orders.copy"


def test_only_files_in_their_proper_folder_count() -> None:
    disk = disk_with(ONE / "a.document", ONE / "b.copy", TWO / "c.copy", TWO / "d.document")
    assert CatalogueFolders(disk, ONE, TWO).names() == {"a.document", "c.copy"}
    assert CatalogueFolders(disk, ONE, ONE).names() == {"a.document", "b.copy"}


def test_one_of_two_folders_may_fail_a_tolerant_caller_and_an_only_one_may_not() -> None:
    disk = FaultyDisk(disk_with(ONE / "a.document", TWO / "a.copy"))
    disk.fail("names", errno.EIO, path_part="/b/", times=2)
    with capture_logs() as lines:
        assert CatalogueFolders(disk, ONE, TWO).names(tolerant=True) == {"a.document"}
    assert [line["event"] for line in lines] == ["catalogue.folder_failed"]
    with pytest.raises(OSError):
        CatalogueFolders(disk, ONE, TWO).names()
    disk.fail("names", errno.EIO, path_part="/a/")
    with pytest.raises(OSError):
        CatalogueFolders(disk, ONE, ONE).names(tolerant=True)


def test_a_folder_that_the_start_has_reported_as_missing_is_neither_asked_nor_reported_again() -> None:
    disk = disk_with(ONE / "a.document", TWO / "a.copy")
    folders = CatalogueFolders(disk, ONE, TWO, absent=frozenset([TWO]))
    with capture_logs() as lines:
        assert folders.names(tolerant=True) == {"a.document"}
    assert lines == []
    with pytest.raises(DiskFailed, match="is missing"):
        folders.admit()


def test_no_change_is_admitted_while_one_of_the_data_folders_is_another_one() -> None:
    CatalogueFolders(disk_with(), ONE, ONE).admit()
    with pytest.raises(DiskFailed):
        CatalogueFolders(disk_with(), ONE, TWO, ("", "another folder's identity")).admit()
