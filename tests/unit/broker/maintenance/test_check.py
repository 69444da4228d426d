"""Checks of whole data folders: findings carry the names of queues, and entries and logs must match.

`tests/unit/broker/cli/test_check.py` has what the command prints, `tests/unit/storage/test_check.py` what is
found in logs.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.entities.descriptions import QueueDescription, new_generation
from broker.entities.documents import encode_description
from broker.entities.first_namespace import FIRST_NAMESPACE, encode_first_namespace
from broker.maintenance.check import NoDataFolder, Report, check_folders, data_folders_among
from storage.catalogue import Catalogue
from storage.disk import LocalDisk
from storage.folder_identity import FILE_NAME
from storage.folders import arrange
from storage.index_witness import Witness
from storage.partition_index import INDEX_NAME, PartitionIndex
from storage.segment import SEGMENT_HEADER_BYTES
from storage.survey import Finding, Severity
from tests.support.command_line import GENERATION, data_folder
from tests.support.faulty_disk import FaultyDisk
from tests.support.logs import acquired, append, flip


async def test_a_sound_folder_has_no_findings_and_damage_names_its_queue(tmp_path: Path) -> None:
    segment = await data_folder(tmp_path)
    report = check_folders([tmp_path])
    assert report.findings == [] and not report.damaged
    flip(segment, SEGMENT_HEADER_BYTES + 70)
    report = check_folders([tmp_path])
    (finding,) = report.findings
    assert (report.name_of(finding.entity), finding.partition, report.damaged) == ("orders", 3, True)
    assert report.shorten(finding.path) == str(segment.relative_to(tmp_path))
    assert report.as_json()["findings"][0]["queue"] == "orders"


async def test_a_damaged_entry_still_names_its_queue_if_the_name_can_be_read(tmp_path: Path) -> None:
    await data_folder(tmp_path)
    for file in (tmp_path / "catalogue").glob(f"{GENERATION}*"):
        flip(file, file.read_bytes().index(b"lock_duration_ms"))
    report = check_folders([tmp_path])
    assert [each.severity for each in report.findings] == [Severity.UNUSABLE] * 2
    assert report.name_of(GENERATION) == "orders"


async def test_entities_of_other_namespaces_are_named_with_these_and_the_name_of_the_first_is_no_entity(
    tmp_path: Path,
) -> None:
    await data_folder(tmp_path)
    catalogue, other = Catalogue(tmp_path / "catalogue", LocalDisk()), new_generation("bills")
    await catalogue.put(other, encode_description(QueueDescription("orders", other, 4)))
    await catalogue.put(FIRST_NAMESPACE, encode_first_namespace("shop"))
    report = check_folders([tmp_path])
    assert report.findings == []
    assert (report.name_of(GENERATION), report.name_of(other)) == ("orders", "orders (namespace bills)")
    for name in (other, FIRST_NAMESPACE):
        for file in (tmp_path / "catalogue").glob(f"{name}*"):
            flip(file, file.stat().st_size - 1)
    report = check_folders([tmp_path])
    assert sorted((each.severity, report.name_of(each.entity)) for each in report.findings) == [
        *[(Severity.SPARE, FIRST_NAMESPACE)] * 2,
        *[(Severity.UNUSABLE, "orders (namespace bills)")] * 2,
    ]


async def test_logs_of_an_entity_without_an_entry_are_found_and_an_entry_without_logs_is_none(
    tmp_path: Path,
) -> None:
    await data_folder(tmp_path)
    async with acquired(tmp_path, entity="f" * 32, partition=0) as log:
        await append(log, b"one")
    (finding,) = check_folders([tmp_path]).findings
    assert finding.entity == "f" * 32 and "belong to no queue" in finding.why
    await Catalogue(tmp_path / "catalogue", LocalDisk()).put("f" * 32, b"{}")
    (finding,) = check_folders([tmp_path]).findings
    assert "describes no queue" in finding.why


def test_a_note_is_no_damage_and_a_spare_is() -> None:
    def report(severity: Severity) -> Report:
        finding = Finding(severity, None, None, "/data/x", 0, 0, "why")
        return Report([Path("/data"), Path("/more")], findings=[finding])

    assert not report(Severity.NOTE).damaged
    assert report(Severity.SPARE).damaged and report(Severity.UNUSABLE).damaged
    assert report(Severity.NOTE).shorten("/data/x") == "/data/x", "with several folders, paths stay whole"
    assert report(Severity.NOTE).name_of(None) == "?"


async def test_a_file_that_the_disk_cannot_read_is_a_finding_and_the_rest_is_checked(tmp_path: Path) -> None:
    places = [tmp_path / "a", tmp_path / "b"]
    segment = await data_folder(places[0])
    places[1].mkdir()
    arrange(LocalDisk(), places)
    (places[1] / "logs").mkdir()
    flip(segment, SEGMENT_HEADER_BYTES + 70)
    index, witness = PartitionIndex(places[0] / "catalogue", LocalDisk()), Witness(places[0], LocalDisk())
    await index.rebuild({})
    await index.close()
    await witness.read()
    await witness.confirm(lambda: 7)
    for path in (index_path := places[0] / "catalogue" / INDEX_NAME, witness.path, places[1] / FILE_NAME):
        disk = FaultyDisk(LocalDisk())
        disk.fail("read", times=1_000, path_part=str(path))
        findings = check_folders(places, disk=disk).findings  # symptom: OSError
        found = {each.path: each for each in findings}
        assert str(segment) in found and str(path) in found
        is_spare = found[str(path)].severity is Severity.SPARE
        assert is_spare is (path.name != FILE_NAME)
    assert index_path.exists()


def test_folders_that_are_no_data_folders_are_findings_as_long_as_one_is(tmp_path: Path) -> None:
    good, empty, file = tmp_path / "good", tmp_path / "empty", tmp_path / "file"
    (good / "logs").mkdir(parents=True)
    empty.mkdir()
    file.touch()
    found, absent = data_folders_among(LocalDisk(), [empty, good, file])
    assert found == [good] and [each.path for each in absent] == [str(empty), str(file)]
    with pytest.raises(NoDataFolder) as nothing:
        data_folders_among(LocalDisk(), [empty, file])
    assert str(empty) in str(nothing.value) and str(file) in str(nothing.value)


async def test_a_file_version_that_is_cut_zeroed_or_missing_is_found(tmp_path: Path) -> None:
    await data_folder(tmp_path)
    version = tmp_path / "version"
    whole = version.read_bytes()
    for content in (b"", bytes(len(whole))):
        version.write_bytes(content)
        (finding,) = check_folders([tmp_path]).findings  # symptom: none
        assert (finding.path, finding.severity) == (str(version), Severity.SPARE)
        assert "next start writes the file" in finding.why
    version.unlink()
    (finding,) = check_folders([tmp_path]).findings
    assert (finding.path, finding.severity) == (str(version), Severity.NOTE) and "missing" in finding.why
    version.write_bytes(b"999\n")
    assert [each.severity for each in check_folders([tmp_path]).findings] == [Severity.UNUSABLE]
    version.write_bytes(whole)
    assert check_folders([tmp_path]).findings == []
