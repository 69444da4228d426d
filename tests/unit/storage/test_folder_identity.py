"""storage/folder_identity.py: what the file `folder` says, and what several of them say together."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage.errors import DiskFailed
from storage.folder_identity import (
    FILE_NAME,
    DamagedIdentity,
    GivenUp,
    GivenUpFolder,
    Identity,
    Latest,
    WrongFolders,
    check_identity,
    latest,
    line_of,
    read_identity,
    write_identity_file,
)
from storage.record import crc32c
from tests.support.recording_disk import RecordingDisk

A, B, C, D = (name * 32 for name in "abcd")
PLACES = {id_: Path(f"/{id_[0]}") for id_ in (A, B, C, D)}


def identity(id_: str, *folders: str, given_up: tuple[str, ...] = ()) -> Identity:
    """`given_up`: all of them were folder 1."""
    return Identity(
        "set",
        id_,
        tuple((each, PLACES[each]) for each in folders),
        tuple(GivenUp(each, PLACES[each], 1) for each in given_up),
    )


def test_what_is_written_is_read_and_what_is_damaged_is_noticed() -> None:
    disk = RecordingDisk()
    disk.make_directory(PLACES[A])
    assert read_identity(disk, PLACES[A]) is None
    for each in (identity(A, A, B), identity(A, A, C, given_up=(B,))):
        write_identity_file(disk, PLACES[A], each)
        assert read_identity(disk, PLACES[A]) == each
    check_identity(disk, PLACES[A], A)
    for id_ in (B, C):
        with pytest.raises(DiskFailed, match="another one is in its place"):
            check_identity(disk, PLACES[A], id_)
    disk.contents(PLACES[A] / FILE_NAME)[20] ^= 1
    with pytest.raises(DamagedIdentity):
        read_identity(disk, PLACES[A])


def test_a_release_that_does_not_know_what_was_given_up_reads_no_file_that_lists_it() -> None:
    assert b'"version": 1' in line_of(identity(A, A, B))
    assert b"given_up" not in line_of(identity(A, A, B))
    assert b'"version": 2' in line_of(identity(A, A, C, given_up=(B,)))


def test_a_file_of_a_later_version_is_refused() -> None:
    disk = RecordingDisk()
    write_identity_file(disk, Path("/"), identity(A, A, B))
    content = b'{"version": 3}'
    disk.contents(Path("/") / FILE_NAME)[:] = b"%08x %s\n" % (crc32c(content), content)
    with pytest.raises(WrongFolders, match="has version 3; only versions up to 2"):
        read_identity(disk, Path("/"))


def test_the_longest_list_and_everything_given_up_count_whatever_the_order() -> None:
    assert latest([]) == Latest()
    old, added, replaced = identity(A, A, B), identity(A, A, B, C), identity(D, A, D, given_up=(B,))
    for some in ([old, added, replaced], [replaced, added, old], [added, old, replaced]):
        assert latest(some) == Latest(
            ((A, PLACES[A]), (D, PLACES[D]), (C, PLACES[C])), (GivenUp(B, PLACES[B], 1),)
        )
    twice = identity(C, A, C, given_up=(B, D))
    assert latest([replaced, twice, old]).folders == twice.folders


def test_a_folder_that_was_given_up_or_is_not_listed_is_refused() -> None:
    known = latest([identity(A, A, C, given_up=(B,)), identity(B, A, B)])
    known.refuse_given_up({PLACES[A]: identity(A, A, B), PLACES[C]: identity(C, A, C, given_up=(B,))})
    with pytest.raises(GivenUpFolder, match=r"/away is data folder 1 .* given up .* at /c: name that one"):
        known.refuse_given_up({Path("/away"): identity(B, A, B)})
    with pytest.raises(WrongFolders, match="do not list /d"):
        known.refuse_given_up({PLACES[D]: identity(D, A, D)})
