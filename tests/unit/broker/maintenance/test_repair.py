"""Repairs of data folders: what is planned, what is moved, and that nothing is deleted.

`tests/crash/test_repair.py` interrupts repairs and compares what is left with a ledger.
"""

from __future__ import annotations

import asyncio
import errno
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import structlog

from broker.entities.descriptions import QueueDescription
from broker.entities.documents import encode_description
from broker.identifiers import PARTITION_SHIFT
from broker.maintenance.check import check_folders
from broker.maintenance.locking import InUse
from broker.maintenance.repair import DAMAGED_DIRECTORY, REPORT_NAME, Plan, Repair
from broker.namespace.stored_entities import StoredEntities
from broker.partition.doubts import SESSION_STATE, OlderEntry
from broker.partition.records import add_enqueued
from broker.partition.salvage import Range
from broker.partition.session_states import set_state
from storage.catalogue import Catalogue
from storage.disk import LocalDisk
from storage.document_file import file_name_of
from storage.errors import DiskFull
from storage.file_store import FileLogStore
from storage.folders import arrange
from storage.partition_index import INDEX_NAME
from storage.segment import SEGMENT_HEADER_BYTES
from storage.storage_version import STORAGE_VERSION
from storage.survey import Severity
from tests.support.command_line import GENERATION, data_folder, segment_in
from tests.support.faulty_disk import FaultyDisk
from tests.support.logs import acquired, append, flip


@contextmanager
def repairing(*roots: Path) -> Iterator[Repair]:
    repair = Repair(roots)
    repair.open()
    try:
        yield repair
    finally:
        repair.close()


async def two_messages(root: Path, partition: int = 3) -> Path:
    """A queue with two messages in one partition, in two commits; returns the path of the segment."""
    await Catalogue(root / "catalogue", LocalDisk()).put(
        GENERATION, encode_description(QueueDescription("orders", GENERATION, 16))
    )
    async with acquired(root, entity=GENERATION, partition=partition) as log:
        for number in (1, 2):
            commit = log.begin()
            add_enqueued(commit, partition << PARTITION_SHIFT | number, 1_000, [7], None, [b"message"])
            await log.append(commit)
    return segment_in(root)


def repair(root: Path) -> Plan:
    """Plan a repair and carry it out."""
    with repairing(root) as work:
        plan = work.plan()
        work.carry_out(plan)
    return plan


def contents(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


async def test_a_plan_changes_nothing_and_of_a_sound_folder_is_empty(tmp_path: Path) -> None:
    segment = await two_messages(tmp_path)
    with repairing(tmp_path) as work:
        assert work.plan().is_empty
    flip(segment, SEGMENT_HEADER_BYTES + 70)
    before = contents(tmp_path)
    with repairing(tmp_path) as work:
        plan = await asyncio.to_thread(work.plan)
    assert not plan.is_empty and plan.can_help and plan.is_complete and not plan.done
    assert {path: data for path, data in contents(tmp_path).items() if path in before} == before
    (log,) = plan.logs
    assert (log.queue, log.partition, log.kept, log.moved_to) == ("orders", 3, 1, "")
    assert log.gone == [Range(3 << PARTITION_SHIFT | 1, 3 << PARTITION_SHIFT | 1)]


async def test_one_damaged_file_of_a_document_is_moved_and_two_are_put_together(tmp_path: Path) -> None:
    await data_folder(tmp_path)
    one, other = sorted((tmp_path / "catalogue").glob(f"{GENERATION}*"))
    whole = one.read_bytes()
    flip(one, 40)
    damaged = one.read_bytes()
    plan = await asyncio.to_thread(repair, tmp_path)
    assert [each.path for each in plan.moved] == [str(one)] and not plan.merged and not one.exists()
    (moved,) = (tmp_path / DAMAGED_DIRECTORY).iterdir()
    assert moved.read_bytes() == damaged
    one.write_bytes(damaged)
    flip(other, 60)
    plan = await asyncio.to_thread(repair, tmp_path)
    assert [sorted(paths) for paths, _ in plan.merged] == [[one, other]]
    assert one.read_bytes() == other.read_bytes() == whole
    assert not check_folders([tmp_path]).damaged


async def test_folders_in_the_place_of_both_files_of_a_document_stop_no_other_repair(tmp_path: Path) -> None:
    segment = await two_messages(tmp_path)
    flip(segment, SEGMENT_HEADER_BYTES + 70)
    for file in (tmp_path / "catalogue").glob(f"{GENERATION}*"):
        file.unlink()
        file.mkdir()
    plan = await asyncio.to_thread(repair, tmp_path)
    assert [each.why for each in plan.hopeless] == ["it cannot be read: Is a directory"] * 2
    assert [log.kept for log in plan.logs] == [1] and plan.done


async def test_a_rebuilt_log_leaves_the_old_one_and_a_report_behind(tmp_path: Path) -> None:
    segment = await two_messages(tmp_path)
    flip(segment, SEGMENT_HEADER_BYTES + 70)
    old = segment.read_bytes()
    (log,) = (await asyncio.to_thread(repair, tmp_path)).logs
    directory = Path(log.moved_to)
    assert json.loads((directory / REPORT_NAME).read_bytes()) | {"moved_to": None} == log.as_json() | {
        "moved_to": None
    }
    assert [path.read_bytes() for path in (directory / "log").glob("*.segment")] == [old]
    assert not check_folders([tmp_path]).damaged
    with repairing(tmp_path) as work:
        assert work.plan().is_empty


async def test_without_an_extent_nobody_knows_whether_settlements_are_lost(tmp_path: Path) -> None:
    segment = await two_messages(tmp_path)
    flip(segment, SEGMENT_HEADER_BYTES + 70)
    shutil.rmtree(tmp_path / "catalogue" / "logs")
    (log,) = (await asyncio.to_thread(repair, tmp_path)).logs
    assert log.commits_gone is None and log.gone[-1].last is None


async def test_a_folder_in_the_place_of_an_extent_costs_no_message(tmp_path: Path) -> None:
    await two_messages(tmp_path)
    extent = tmp_path / "catalogue" / "logs" / GENERATION / "0003.extent"
    extent.unlink()
    extent.mkdir()
    [finding] = await asyncio.to_thread(lambda: check_folders([tmp_path]).findings)
    assert (finding.severity, finding.path) == (Severity.UNUSABLE, str(extent))
    (log,) = (await asyncio.to_thread(repair, tmp_path)).logs
    assert (log.kept, log.refused) == (2, "") and (Path(log.moved_to) / extent.name).is_dir()
    assert not check_folders([tmp_path]).damaged and extent.is_file()


async def test_a_log_that_cannot_be_read_is_refused_and_the_others_are_repaired(tmp_path: Path) -> None:
    segment = await two_messages(tmp_path)
    flip(segment, SEGMENT_HEADER_BYTES + 70)
    async with acquired(tmp_path, entity=GENERATION, partition=4) as log:
        await append(log, b"one")
    disk = FaultyDisk(LocalDisk())
    disk.fail("open_read", errno.EIO, path_part="0004.extent", times=1_000)
    work = Repair([tmp_path], disk)
    work.open()
    try:
        plan = await asyncio.to_thread(work.plan)
        await asyncio.to_thread(work.carry_out, plan)
    finally:
        work.close()
    logs = {each.partition: each for each in plan.logs}
    assert logs[3].kept == 1 and logs[3].moved_to and not logs[3].refused
    assert "cannot be read" in logs[4].refused and not logs[4].moved_to and not plan.is_complete


async def test_a_folder_in_the_place_of_the_version_stops_no_other_repair(tmp_path: Path) -> None:
    flip(await two_messages(tmp_path), SEGMENT_HEADER_BYTES + 70)
    (tmp_path / "version").unlink(missing_ok=True)
    (tmp_path / "version").mkdir()
    plan = await asyncio.to_thread(repair, tmp_path)
    assert [each.kept for each in plan.logs] == [1] and plan.logs[0].moved_to
    [finding] = plan.hopeless
    assert finding.path == str(tmp_path / "version") and not plan.is_complete


def older(root: Path, version: str = "3\n") -> Path:
    """Have a data folder state an older storage version, or something else; returns the file."""
    (root / "version").write_text(version)
    return root / "version"


def carry_out(root: Path, disk: FaultyDisk) -> Plan:
    """As `repair`, on this disk."""
    work = Repair([root], disk)
    work.open()
    try:
        plan = work.plan()
        work.carry_out(plan)
    finally:
        work.close()
    return plan


async def test_a_folder_states_this_version_before_it_gets_a_rebuilt_log(tmp_path: Path) -> None:
    """An older release would take the blocks of the new checkpoint for damaged."""
    flip(await two_messages(tmp_path), SEGMENT_HEADER_BYTES + 70)
    version, log = older(tmp_path), tmp_path / "logs" / GENERATION / "0003"
    old = contents(log)
    disk = FaultyDisk(LocalDisk())
    disk.fail("create", errno.ENOSPC, path_part=f"{tmp_path / 'version'}.")
    with pytest.raises(DiskFull):
        await asyncio.to_thread(carry_out, tmp_path, disk)
    assert version.read_text() == "3\n" and contents(log) == old
    assert not any((tmp_path / DAMAGED_DIRECTORY).iterdir()), "no later repair goes on with this one"
    disk.fail("rename", path_part=str(log))
    with pytest.raises(OSError, match="Input/output"):
        await asyncio.to_thread(carry_out, tmp_path, disk)
    assert disk.has_failed and version.read_text() == f"{STORAGE_VERSION}\n" and not contents(log)
    older(tmp_path)  # as if a release that did not state its version had begun the exchange
    disk.fail("create", errno.ENOSPC, path_part=f"{tmp_path / 'version'}.")
    with pytest.raises(DiskFull):
        await asyncio.to_thread(carry_out, tmp_path, disk)
    assert version.read_text() == "3\n" and not contents(log)
    assert (await asyncio.to_thread(carry_out, tmp_path, disk)).finished
    assert version.read_text() == f"{STORAGE_VERSION}\n" and contents(log)
    assert not check_folders([tmp_path]).damaged


@pytest.mark.parametrize("damaged", [(), (0,), (1,), (0, 1)])
async def test_of_several_folders_those_with_a_rebuilt_log_state_this_version(
    tmp_path: Path, damaged: tuple[int, ...]
) -> None:
    folders = [tmp_path / "first", tmp_path / "second"]
    arrange(LocalDisk(), folders)
    for number, lacking in enumerate((".copy", ".document")):  # each has one file of the document
        await two_messages(folders[number], partition=3 + number)
        (folders[number] / "catalogue" / file_name_of(GENERATION)).with_suffix(lacking).unlink()
    files = [older(folder) for folder in folders]
    for number in damaged:
        flip(segment_in(folders[number]), SEGMENT_HEADER_BYTES + 70)
    flip(folders[0] / "catalogue" / file_name_of(GENERATION), 40)  # to move it needs no other version
    with repairing(*folders) as work:
        plan = await asyncio.to_thread(work.plan)
        await asyncio.to_thread(work.carry_out, plan)
    assert len(plan.logs) == len(damaged) and len(plan.moved) == 1 and plan.is_complete
    assert [int(file.read_text()) for file in files] == [
        STORAGE_VERSION if number in damaged else 3 for number in range(2)
    ]


async def test_a_damaged_version_moves_away_and_a_rebuilt_log_brings_a_new_one(tmp_path: Path) -> None:
    flip(await two_messages(tmp_path), SEGMENT_HEADER_BYTES + 70)
    version = older(tmp_path, "what")
    disk = FaultyDisk(LocalDisk())
    disk.fail("rename", path_part=str(tmp_path / "logs"))
    with pytest.raises(OSError, match="Input/output"):
        await asyncio.to_thread(carry_out, tmp_path, disk)
    assert version.read_text() == f"{STORAGE_VERSION}\n"
    assert (tmp_path / DAMAGED_DIRECTORY / "version-0").read_text() == "what"
    older(tmp_path, "ever")
    assert (await asyncio.to_thread(carry_out, tmp_path, disk)).finished
    assert version.read_text() == f"{STORAGE_VERSION}\n"
    assert (tmp_path / DAMAGED_DIRECTORY / "version-1").read_text() == "ever"


async def test_a_damaged_index_moves_away_once_beside_a_log_that_is_rebuilt(tmp_path: Path) -> None:
    """Symptom: the repair ended with FileNotFoundError once the log was rebuilt."""
    flip(await two_messages(tmp_path), SEGMENT_HEADER_BYTES + 70)
    index = tmp_path / "catalogue" / INDEX_NAME
    index.write_bytes(b"what")
    plan = await asyncio.to_thread(repair, tmp_path)
    assert plan.done and plan.logs[0].moved_to and [each.path for each in plan.moved] == [str(index)]
    assert (tmp_path / DAMAGED_DIRECTORY / f"{INDEX_NAME}-0").read_bytes() == b"what" and not index.exists()


async def test_a_session_whose_latest_state_is_lost_is_named(tmp_path: Path) -> None:
    async with acquired(tmp_path, entity=GENERATION, partition=3) as log:
        places = []
        for session, state in ((b"cart", b"old"), (b"cart", b"new"), (b"other", b"certain")):
            commit = log.begin()
            record = set_state(0, session, state, 1_000)
            commit.add(record.kind, [record.body], record.version)
            await log.append(commit)
            places.append(commit.start)
    flip(segment_in(tmp_path), SEGMENT_HEADER_BYTES + places[1] + 70)
    (done,) = (await asyncio.to_thread(repair, tmp_path)).logs
    assert done.commits_gone == 1 and done.older is not None
    assert done.older.entries == [OlderEntry(SESSION_STATE, "", "cart")]
    report = json.loads((Path(done.moved_to) / REPORT_NAME).read_bytes())
    assert report["older"]["entries"] == [{"kind": SESSION_STATE, "subqueue": "", "name": "cart"}]


async def test_a_folder_in_use_is_not_repaired(tmp_path: Path) -> None:
    await data_folder(tmp_path)
    with repairing(tmp_path), pytest.raises(InUse), repairing(tmp_path):
        pass


def files_of_the_document(root: Path) -> list[Path]:
    """The two files of the only document."""
    return [next(root.glob(f"catalogue/*.{suffix}")) for suffix in ("document", "copy")]


@pytest.mark.parametrize("name", ["notes.document", "notes.copy", "old", "old twice", "folder.document"])
async def test_a_file_of_the_catalogue_that_belongs_to_no_queue_is_set_aside(
    tmp_path: Path, name: str
) -> None:
    await two_messages(tmp_path)
    catalogue = tmp_path / "catalogue"
    document, copy = files_of_the_document(tmp_path)
    if "old" in name:
        strays = [catalogue / f"old-{each.name}" for each in (document, copy)[: 2 if "twice" in name else 1]]
        for each in strays:
            shutil.copy(document, each)
    elif "folder" in name:
        strays = [catalogue / name]
        strays[0].mkdir()
    else:
        strays = [catalogue / name]
        strays[0].write_bytes(b"garbage")
    report = check_folders([tmp_path])
    assert {each.path for each in report.findings} == report.strays == set(map(str, strays))
    plan = repair(tmp_path)
    assert plan.is_complete and sorted(each.path for each in plan.moved) == sorted(map(str, strays))
    assert not check_folders([tmp_path]).findings
    kept = LocalDisk().names(tmp_path / DAMAGED_DIRECTORY)
    assert len(kept) == len(strays), "nothing is deleted"


def remove_logs(root: Path) -> None:
    for path in [*root.glob("logs/*"), *root.glob("catalogue/logs/*")]:
        shutil.rmtree(path)


@pytest.mark.parametrize("twice", [False, True])
async def test_a_copy_of_a_queue_that_was_deleted_is_set_aside(tmp_path: Path, twice: bool) -> None:
    await two_messages(tmp_path)
    document, copy = files_of_the_document(tmp_path)
    stray = document.rename(document.with_name(f"old-{document.name}"))
    strays = [stray, copy.rename(copy.with_name(f"old-{copy.name}"))] if twice else [stray]
    if not twice:
        copy.unlink()
    assert {each.severity for each in check_folders([tmp_path]).findings} == {Severity.UNUSABLE}
    assert not repair(tmp_path).moved, "its logs are there, so it was not deleted"
    remove_logs(tmp_path)
    report = check_folders([tmp_path])
    assert {each.path for each in report.findings if each.severity is Severity.NOTE} >= set(map(str, strays))
    assert report.strays == set(map(str, strays)) and not report.damaged
    assert all("the queue was deleted" in each.why for each in report.findings if each.path in report.strays)
    plan = repair(tmp_path)
    assert plan.is_complete and {each.path for each in plan.moved} == report.strays
    assert not check_folders([tmp_path]).findings


async def test_a_copy_of_a_deleted_queue_is_one_although_its_logs_are_not_removed_yet(tmp_path: Path) -> None:
    """As a kill leaves them: the next start removes the logs."""
    await two_messages(tmp_path)
    document, copy = files_of_the_document(tmp_path)
    stray = Path(shutil.copy(document, document.with_name("backup of it.document")))
    document.rename(document.with_suffix(".deleted"))
    assert check_folders([tmp_path]).damaged, "the deletion has not happened"
    copy.rename(copy.with_suffix(".copy-deleted"))
    report = check_folders([tmp_path])
    [finding] = [each for each in report.findings if each.path == str(stray)]
    assert finding.severity is Severity.NOTE and "which was deleted" in finding.why
    assert report.strays == {str(stray)} and not report.damaged
    store = FileLogStore(tmp_path, reserve_bytes=0)
    with structlog.testing.capture_logs() as events:
        stored = await StoredEntities.read(Catalogue(tmp_path / "catalogue", LocalDisk()), store)
    await store.close()
    assert not stored.damaged and len(stored.to_clear) == 1
    [event] = [each for each in events if each["event"] == "document.stray"]
    assert (event["path"], event["why"]) == (str(stray), finding.why)
    plan = repair(tmp_path)
    assert plan.is_complete and {each.path for each in plan.moved} == {str(stray)}


async def test_a_file_that_may_be_what_is_left_of_a_queue_stays(tmp_path: Path) -> None:
    await two_messages(tmp_path)
    document, copy = files_of_the_document(tmp_path)
    copy.unlink()
    document.write_bytes(b"garbage")
    other = document.with_name(file_name_of(f"lost_{'a' * 32}"))
    other.write_bytes(b"garbage")
    plan = repair(tmp_path)
    assert not plan.moved and not plan.report.strays
    assert {document, other} < {Path(each.path) for each in plan.hopeless}
    assert document.exists() and other.exists()


@pytest.mark.parametrize("how", ["old", "junk.document"])
async def test_a_copy_under_another_name_stays_if_its_document_is_lost(tmp_path: Path, how: str) -> None:
    await two_messages(tmp_path)
    document, copy = files_of_the_document(tmp_path)
    renamed = document.rename(document.with_name(f"{how}-{document.name}" if how == "old" else how))
    copy.unlink()
    plan = repair(tmp_path)
    [finding] = [each for each in plan.hopeless if each.path == str(renamed)]
    assert not plan.moved and f"rename it to '{document.name}'" in finding.why
