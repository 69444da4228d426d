"""storage/folders.py: which folders a broker has, and their order."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path

import pytest
import structlog
from structlog.testing import capture_logs

from storage.disk import LocalDisk, close_quietly, make_root, publish, read_file
from storage.errors import DiskFailed, DiskHangs, StorageError
from storage.folder_identity import (
    FILE_NAME,
    UNFINISHED_NAME,
    GivenUpFolder,
    WrongFolders,
    check_identity,
    read_identity,
)
from storage.folder_survey import replace_folder, survey_folders
from storage.folders import Folder, arrange, check_together
from tests.support.faulty_disk import FaultyDisk
from tests.support.logs import flip
from tests.support.recording_disk import RecordingDisk

A, B, C, D, E = (Path(f"/{name}") for name in "abcde")


def write(disk: RecordingDisk, path: Path, content: bytes) -> None:
    close_quietly(disk, publish(disk, path, [content]))


def paths(folders: Sequence[Folder]) -> list[Path]:
    return [folder.path for folder in folders]


def test_one_folder_needs_no_identity() -> None:
    disk = RecordingDisk()
    assert arrange(disk, [A]) == [Folder(A)]
    assert not disk.names(A)


def test_folders_keep_their_numbers_in_whatever_order_they_are_named() -> None:
    disk = RecordingDisk()
    first = arrange(disk, [A, B])
    assert paths(first) == [A, B] and len({folder.id for folder in first}) == 2
    assert arrange(disk, [B, A]) == arrange(disk, [A, B]) == first


def test_a_folder_with_data_comes_first_when_others_are_added() -> None:
    disk = RecordingDisk()
    disk.make_directory(B)
    disk.make_directory(B / "catalogue")
    assert paths(arrange(disk, [A, B])) == [B, A]


def test_a_folder_that_is_added_is_the_last_one() -> None:
    disk = RecordingDisk()
    first = arrange(disk, [B, C])
    assert paths(arrange(disk, [A, B, C])) == [B, C, A]
    assert arrange(disk, [A, B, C])[:2] == first


def test_an_empty_folder_is_not_taken_for_a_new_one_while_one_is_missing() -> None:
    disk = RecordingDisk()
    known = arrange(disk, [A, B])
    disk.remove_tree(B)
    disk.make_directory(B)
    assert arrange(disk, [A, B]) == [known[0], Folder(B, known[1].id, is_missing=True)]
    assert arrange(disk, [A, C]) == [known[0], Folder(C, known[1].id, is_missing=True)]
    assert arrange(disk, [A, C, B]) == [known[0], Folder(B, known[1].id, is_missing=True)]
    assert FILE_NAME not in disk.names(B)
    with pytest.raises(DiskFailed, match="is missing"):
        check_identity(disk, B, known[1].id)
    with pytest.raises(DiskFailed, match="another one is in its place"):
        check_identity(disk, A, known[1].id)


def test_a_folder_that_is_not_named_any_more_is_used_while_it_is_there() -> None:
    disk = RecordingDisk()
    known = arrange(disk, [A, B])
    with capture_logs() as lines:
        assert arrange(disk, [B]) == known
        disk.remove_tree(A)
        assert arrange(disk, [B]) == [Folder(A, known[0].id, is_missing=True), known[1]]
    assert [(line["event"], line["path"], line["log_level"]) for line in lines] == [
        ("folder.not_named", "/a", "warning"),
        ("folder.missing", "/a", "error"),
    ]
    assert "Name it again" in lines[0]["advice"]


def test_a_copy_of_a_broker_leaves_the_folders_of_the_original_alone() -> None:
    """Symptom: a broker on a copy of one folder used the other one where the original has it, and drained
    it."""
    disk = RecordingDisk()
    known = arrange(disk, [A, B])
    disk.make_directory(C)
    disk.make_directory(D)
    write(disk, C / FILE_NAME, read_file(disk, A / FILE_NAME))
    with pytest.raises(WrongFolders, match=r"folder 1 of this broker is not named.*one in /b"):
        arrange(disk, [C])
    with capture_logs() as lines:
        assert arrange(disk, [C, D]) == [Folder(C, known[0].id), Folder(D, known[1].id, is_missing=True)]
    assert [(line["event"], line["path"], line["was"]) for line in lines] == [("folder.missing", "/d", "/b")]
    write(disk, D / FILE_NAME, read_file(disk, B / FILE_NAME))
    assert paths(arrange(disk, [C, D])) == [C, D]
    assert paths(arrange(disk, [A, B])) == [A, B]


def test_a_copy_of_a_folder_is_not_used_while_the_disk_of_another_one_is_away() -> None:
    """Symptom: with nothing at the place of the second folder, an old copy of the first one was used, and
    what it was sent was gone when the second one was back."""
    disk = RecordingDisk()
    arrange(disk, [A, B])
    disk.make_directory(C)
    write(disk, C / FILE_NAME, read_file(disk, A / FILE_NAME))
    second = read_file(disk, B / FILE_NAME)
    disk.remove_tree(B)
    disk.make_directory(B)
    for is_readable in (True, False):  # an empty mount point, then a damaged file
        for second_path in (B, B / ".." / B.name):
            with pytest.raises(WrongFolders, match=twice(C, A, 0, used=A, spare=C)):
                arrange(disk, [C, second_path])
        if is_readable:
            write(disk, B / FILE_NAME, b"damaged")
    write(disk, B / FILE_NAME, second)
    assert paths(arrange(disk, [A, B])) == [A, B]


def test_a_copy_of_a_folder_is_not_used_beside_the_others_while_that_folder_is_still_there() -> None:
    """Symptom: an old copy of the second folder was used without a word, and messages that the original had
    were gone from view."""
    disk = RecordingDisk()
    known = arrange(disk, [A, B])
    disk.make_directory(C)
    write(disk, C / FILE_NAME, read_file(disk, B / FILE_NAME))
    for named in ([A, C], [C, A]):
        with pytest.raises(WrongFolders, match=twice(C, B, 1, used=B, spare=C)):
            arrange(disk, named)
        with pytest.raises(WrongFolders, match=twice(C, B, 1, used=B, spare=C)):
            check_together(disk, named)
    for one, other in ((B, C), (C, B)):
        with pytest.raises(WrongFolders, match=twice(one, other, 1, used=B, spare=C)):
            arrange(disk, [one, A, other])
    assert arrange(disk, [A, B]) == known
    disk.remove_tree(B)
    assert arrange(disk, [A, C]) == [known[0], Folder(C, known[1].id)], "it was moved"


def twice(one: Path, other: Path, number: int, *, used: Path, spare: Path) -> str:
    """What is said of two folders that are the same one."""
    return (
        f"the data folders {one} and {other} both say that they are folder {number} of this broker, which "
        f"last used {used}: name {used} and not {spare}, or move {used} away if {spare} is to take its place"
    )


def test_the_original_is_refused_beside_the_others_while_its_copy_is_there_and_was_used_last() -> None:
    """Symptom: the original was called a copy of its copy; and if it was named first, it was used."""
    disk = RecordingDisk()
    arrange(disk, [A, B])
    identity = read_file(disk, B / FILE_NAME)
    disk.rename(B, C)
    arrange(disk, [A, C])
    disk.make_directory(B)
    write(disk, B / FILE_NAME, identity)
    for named in ([A, B], [B, A]):
        with pytest.raises(WrongFolders, match=twice(B, C, 1, used=C, spare=B)):
            arrange(disk, named)
    for named in ([A, B, C], [B, C, A]):
        with pytest.raises(WrongFolders, match=twice(B, C, 1, used=C, spare=B)):
            arrange(disk, named)


def test_of_two_copies_whose_original_is_gone_only_one_may_be_named() -> None:
    disk = RecordingDisk()
    known = arrange(disk, [A, B])
    for path in (C, D):
        disk.make_directory(path)
        write(disk, path / FILE_NAME, read_file(disk, B / FILE_NAME))
    disk.remove_tree(B)
    text = "/c and /d both say that they are folder 1 of this broker, which last used /b: name only the one"
    for named in ([A, C, D], [C, D]):
        with pytest.raises(WrongFolders, match=text):
            arrange(disk, named)
    assert arrange(disk, [A, D]) == [known[0], Folder(D, known[1].id)]


def test_a_copy_is_refused_if_all_others_were_moved() -> None:
    """Symptom: that was taken for a copy of the whole broker."""
    disk = RecordingDisk()
    known = arrange(disk, [A, B])
    disk.make_directory(C)
    write(disk, C / FILE_NAME, read_file(disk, B / FILE_NAME))
    disk.rename(A, D)
    with pytest.raises(WrongFolders, match=twice(C, B, 1, used=B, spare=C)):
        arrange(disk, [D, C])
    assert paths(arrange(disk, [D, B])) == [D, B]
    disk.rename(B, E)
    assert arrange(disk, [D, C]) == [Folder(D, known[0].id), Folder(C, known[1].id)]


def test_folders_of_a_broker_and_of_its_copy_are_not_mixed() -> None:
    disk = RecordingDisk()
    arrange(disk, [A, B])
    for original, copy in ((A, C), (B, D)):
        disk.make_directory(copy)
        write(disk, copy / FILE_NAME, read_file(disk, original / FILE_NAME))
    arrange(disk, [C, D])
    for named in ([A, D], [D, A], [C, B], [B, C]):
        with pytest.raises(WrongFolders, match="both say that they are folder"):
            arrange(disk, named)
    check_together(disk, [C, D])
    assert paths(arrange(disk, [A, B])) == [A, B] and paths(arrange(disk, [C, D])) == [C, D]


def test_a_folder_was_moved_if_another_one_is_where_it_was() -> None:
    disk = RecordingDisk()
    known = arrange(disk, [A, B])
    disk.rename(B, C)
    arrange(disk, [B, E])
    assert arrange(disk, [A, C]) == [known[0], Folder(C, known[1].id)]


def test_if_a_start_that_adds_a_folder_breaks_off_the_next_one_ends_it() -> None:
    """Otherwise the folder counts as missing from then on."""
    for failing in (A, B, C):
        disk = FaultyDisk(RecordingDisk())
        known = arrange(disk, [A, B])
        disk.fail("rename", path_part=f"{failing}/")
        with pytest.raises(StorageError):
            arrange(disk, [A, B, C])
        again = arrange(disk, [A, B, C])
        assert again[:2] == known and again[2].path == C and not again[2].is_missing
        assert arrange(disk, [C, B, A]) == again


def test_an_empty_folder_that_cannot_be_read_any_more_is_an_error_and_not_left_out() -> None:
    disk = FaultyDisk(RecordingDisk())
    arrange(disk, [A, B])
    disk.make_directory(C)
    disk.fail("names", path_part=str(C), nth=4)
    with pytest.raises(DiskFailed):
        arrange(disk, [A, B, C])


def test_a_folder_that_is_mounted_in_two_places_is_no_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = RecordingDisk()
    known = arrange(disk, [A, B])
    disk.make_directory(C)
    write(disk, C / FILE_NAME, read_file(disk, B / FILE_NAME))
    monkeypatch.setattr(os.path, "samefile", lambda one, other: {one, other} == {B, C})
    assert arrange(disk, [A, C]) == [known[0], Folder(C, known[1].id)]


def test_a_folder_that_is_not_named_is_not_used_while_an_empty_one_is() -> None:
    disk = RecordingDisk()
    known = arrange(disk, [A, B])
    assert arrange(disk, [A, D]) == [known[0], Folder(D, known[1].id, is_missing=True)]


def test_a_folder_that_was_missing_is_found_where_it_is_named_now_without_another_start() -> None:
    disk = RecordingDisk()
    first = arrange(disk, [A, B])
    identity = bytes(disk.contents(B / FILE_NAME))
    disk.remove_tree(B)
    second = arrange(disk, [A, C])[1]
    assert second == Folder(C, first[1].id, is_missing=True)
    disk.make_directory(C)
    write(disk, C / FILE_NAME, identity)
    check_identity(disk, second.path, second.id)


def test_a_folder_that_is_not_named_and_cannot_be_written_to_counts_as_missing() -> None:
    disk = FaultyDisk(RecordingDisk())
    known = arrange(disk, [A, B])
    disk.fail("lock", errno.EROFS, path_part=str(A))
    with capture_logs() as lines:
        assert arrange(disk, [B]) == [Folder(A, known[0].id, is_missing=True), known[1]]
    assert [line["event"] for line in lines] == ["folder.missing"]


def give_up(disk: RecordingDisk, lost: int, place: Path, *named: Path) -> None:
    """The folder of this number is given up, and the one at `place` takes its place."""
    make_root(disk, place)
    replace_folder(disk, survey_folders(disk, named), lost, "e" * 32, place)


def test_a_folder_that_was_given_up_is_refused_beside_the_new_one_and_in_its_place() -> None:
    """Symptom: in its place, it was served."""
    disk = RecordingDisk()
    known = arrange(disk, [A, B, C])
    give_up(disk, 2, D, A, B)
    after = disk.after_power_cut()
    for named in ([A, B, C], [C, B, A], [A, B, D, C], [C], [B, C], [C, D]):
        with pytest.raises(GivenUpFolder, match=r"/c is data folder 2 .* given up .* at /d: name that one"):
            arrange(after, named)
    assert arrange(after, [D, B, A]) == [*known[:2], Folder(D, "e" * 32)]
    with pytest.raises(DiskFailed, match="another one is in its place"):
        check_identity(after, C, "e" * 32)


def test_a_folder_that_was_away_meanwhile_learns_what_was_given_up() -> None:
    disk = RecordingDisk()
    known = arrange(disk, [A, B, C])
    disk.rename(B, E)
    give_up(disk, 2, D, A)
    disk.rename(E, B)
    with pytest.raises(GivenUpFolder):  # the first folder is not named, but where it was
        arrange(disk, [B, C])
    assert arrange(disk, [B]) == [*known[:2], Folder(D, "e" * 32)]
    assert arrange(disk, [A, B, D]) == [*known[:2], Folder(D, "e" * 32)]
    disk.remove_tree(A)
    with pytest.raises(GivenUpFolder):
        arrange(disk, [B, C])


def test_a_folder_that_is_unfinished_is_not_used_and_a_mark_that_was_left_is_removed() -> None:
    disk = RecordingDisk()
    known = arrange(disk, [A, B, C])
    identity = bytes(disk.contents(B / FILE_NAME))
    disk.rename(C, E)
    give_up(disk, 2, D, A, B)
    write(disk, D / UNFINISHED_NAME, b"e" * 32)
    disk.make_directory(D / "logs")
    complete = bytes(disk.contents(D / FILE_NAME))
    disk.remove(D / FILE_NAME)
    with capture_logs() as lines:
        assert arrange(disk, [A, B, D]) == [*known[:2], Folder(D, "e" * 32, is_missing=True)]
    assert lines[0]["event"] == "folder.unreadable" and "run it again" in lines[0]["error"]
    with pytest.raises(GivenUpFolder):
        arrange(disk, [A, B, E])
    write(disk, B / FILE_NAME, identity)
    write(disk, D / FILE_NAME, complete)
    assert arrange(disk, [A, B, D]) == [*known[:2], Folder(D, "e" * 32)]
    assert UNFINISHED_NAME not in disk.names(D)


def test_without_both_folders_of_the_catalogue_the_broker_does_not_start() -> None:
    disk = RecordingDisk()
    arrange(disk, [A, B, C])
    disk.remove_tree(A)
    disk.remove_tree(B)
    with pytest.raises(WrongFolders, match="catalogue"):
        arrange(disk, [A, B, C])


def test_a_damaged_identity_is_not_guessed_and_costs_its_own_folder_only() -> None:
    disk = RecordingDisk()
    known = arrange(disk, [A, B])
    fd = disk.open_write(B / FILE_NAME)
    disk.write(fd, [b"x"], 20)
    disk.close(fd)
    with structlog.testing.capture_logs() as lines:
        assert arrange(disk, [A, B]) == [known[0], Folder(B, known[1].id, is_missing=True)]
    with pytest.raises(DiskFailed, match="damaged"):
        check_identity(disk, B, known[1].id)
    with pytest.raises(WrongFolders, match="damaged"):
        arrange(disk, [B])
    with pytest.raises(WrongFolders, match="damaged"):
        arrange(disk, [B, C])
    [line] = [each["line"] for each in lines if each["event"] == "folder.damaged"]
    write(disk, B / FILE_NAME, f"{line}\n".encode())
    assert arrange(disk, [B, A]) == known


def test_a_lost_identity_costs_its_own_folder_only_if_the_others_know_its_place() -> None:
    disk = RecordingDisk()
    known = arrange(disk, [A, B])
    for folder in (A, B):
        disk.make_directory(folder / "logs")
    disk.remove(B / FILE_NAME)
    with structlog.testing.capture_logs() as lines:
        assert arrange(disk, [A, B]) == [known[0], Folder(B, known[1].id, is_missing=True)]
    [line] = [each["line"] for each in lines if each["event"] == "folder.damaged"]
    disk.rename(B, C)
    with pytest.raises(WrongFolders, match=r"another broker's data is in /c, or .* run 'partibus repair'"):
        arrange(disk, [A, C])
    disk.rename(C, B)
    write(disk, B / FILE_NAME, f"{line}\n".encode())
    assert arrange(disk, [B, A]) == known


class DeadDisk(RecordingDisk):
    """A disk on which one folder cannot be read."""

    def names(self, path: Path) -> list[str]:
        if path == B:
            raise OSError(errno.EIO, "Input/output error", str(path))
        return super().names(path)


def test_a_folder_whose_disk_does_not_answer_in_time_counts_as_missing_and_is_not_asked_again() -> None:
    disk = FaultyDisk(RecordingDisk())
    known = arrange(disk, [A, B, C])
    disk.hang("names", str(B))
    try:
        assert arrange(disk, [C, A, B], 50) == [known[0], Folder(B, known[1].id, is_missing=True), known[2]]
        assert disk.held == 1
        with pytest.raises(DiskHangs):
            arrange(disk, [B], 50)
    finally:
        disk.release()
    assert arrange(disk, [C, A, B]) == known


@pytest.mark.parametrize("operation", ["names", "lock"])
def test_a_folder_that_is_not_named_and_does_not_answer_in_time_counts_as_missing(operation: str) -> None:
    """Symptom: the broker did not start as long as that disk hung."""
    disk = FaultyDisk(RecordingDisk())
    known = arrange(disk, [A, B])
    disk.hang(operation, str(B))
    try:
        with capture_logs() as lines:
            assert arrange(disk, [A], 50) == [known[0], Folder(B, known[1].id, is_missing=True)]
        assert [(line["event"], line["error"]) for line in lines] == [
            ("folder.unreadable", "/b: no answer within 0.05 s")
        ]
        assert disk.held == 1
    finally:
        disk.release()
    assert arrange(disk, [A]) == known


def test_a_folder_whose_disk_cannot_be_read_counts_as_missing() -> None:
    disk = DeadDisk()
    identities = RecordingDisk()
    known = arrange(identities, [A, B])
    disk.make_directory(A)
    fd = identities.open_read(A / FILE_NAME)
    write(disk, A / FILE_NAME, identities.read(fd, identities.size(fd), 0))
    assert arrange(disk, [A, B]) == [known[0], Folder(B, known[1].id, is_missing=True)]
    with pytest.raises(DiskFailed):
        arrange(disk, [B])
    with pytest.raises(DiskFailed):
        arrange(disk, [C, B])


def test_a_folder_that_nobody_may_write_to_counts_as_missing_wherever_it_is() -> None:
    """A file system that met an error may have been mounted read-only."""
    disk = FaultyDisk(RecordingDisk())
    known = arrange(disk, [A, B])
    disk.rename(B, C)
    disk.fail("lock", errno.EROFS, path_part=str(C))
    with capture_logs() as lines:
        assert arrange(disk, [C, A]) == [known[0], Folder(C, known[1].id, is_missing=True)]
    assert [(line["event"], line["path"]) for line in lines] == [("folder.unreadable", str(C))]
    disk.fail("lock", errno.EROFS, times=2)
    with pytest.raises(DiskFailed, match="Read-only"):
        arrange(disk, [A, C])


def test_where_folders_are_is_recorded_wherever_the_broker_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Symptom: a folder named as `data` was looked for elsewhere once it was no longer named."""
    monkeypatch.chdir(tmp_path)
    known = arrange(LocalDisk(), [Path("a"), Path("b")])
    assert paths(known) == [Path("a"), Path("b")]
    identity = read_identity(LocalDisk(), tmp_path / "a")
    assert identity is not None and [path for _, path in identity.folders] == [tmp_path / "a", tmp_path / "b"]
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert [folder.is_missing for folder in arrange(LocalDisk(), [tmp_path / "a"])] == [False, False]


def test_a_symbolic_link_to_a_folder_is_no_other_place(tmp_path: Path) -> None:
    """Symptom: the broker took itself for a copy, and did not start."""
    a, b, link, other = (tmp_path / name for name in ("a", "b", "link", "other"))
    known = arrange(LocalDisk(), [a, b])
    link.symlink_to(a)
    assert paths(arrange(LocalDisk(), [link])) == [link, b]
    flip(a / FILE_NAME, 25)
    assert [folder.is_missing for folder in arrange(LocalDisk(), [b, link])] == [True, False]
    flip(a / FILE_NAME, 25)
    assert paths(arrange(LocalDisk(), [link, b])) == [link, b], "and now the link is recorded"
    assert arrange(LocalDisk(), [a]) == known
    link.unlink()
    a.rename(other)
    with pytest.raises(WrongFolders, match="may belong to the broker of which this is a copy"):
        arrange(LocalDisk(), [other])
