"""`partibus check` and `partibus repair`: what they print, and their exit codes."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

import pytest

from broker.entities.descriptions import QueueDescription
from broker.entities.documents import encode_description
from storage.catalogue import Catalogue
from storage.disk import LocalDisk
from storage.document_file import file_name_of
from storage.folders import arrange
from storage.segment import SEGMENT_HEADER_BYTES
from tests.support.command_line import GENERATION, check, data_folder, partibus
from tests.support.logs import flip

QUEUE = QueueDescription("orders", GENERATION, 16)


def damage(report: str) -> list[dict[str, str]]:
    """The findings of a report that are more than notes."""
    return [each for each in json.loads(report)["findings"] if each["severity"] != "note"]


def test_the_commands_take_the_folders_of_the_settings(tmp_path: Path) -> None:
    a, b, c, alone = (str(tmp_path / name) for name in ("a", "b", "c", "alone"))
    arrange(LocalDisk(), [Path(a), Path(b), Path(c)])
    for folder in (a, b, c, alone):
        Path(folder, "logs").mkdir(parents=True)
    variables = {"PARTIBUS_DATA_DIR": f"{a}:{b}", "PARTIBUS_MORE_DATA_DIRS": json.dumps([c])}
    assert json.loads(check("check", "--json", **variables).stdout)["folders"] == [a, b, c]
    assert json.loads(check("check", "--json", "--data-dir", b, **variables).stdout)["folders"] == [b, c]
    assert json.loads(check("check", "--json", PARTIBUS_DATA_DIR=a).stdout)["folders"] == [a]
    done = check("repair", PARTIBUS_DATA_DIR=f"{a}:{b}:{c}")
    assert done.exit_code == 0 and f"{a}, {b}, {c}: Nothing is damaged" in done.stdout.replace("\n", " ")
    (tmp_path / "file").touch()
    done = check("check", "--data-dir", str(tmp_path / "file"))
    assert done.exit_code == 2 and "not a data folder" in done.stderr
    for command in ("serve", "check", "repair"):
        done = check(command, "--data-dir", f"{a}:{b}")
        assert done.exit_code == 2 and "once for each folder" in done.stderr.replace("\n", " "), done.stderr
    assert not (tmp_path / "a:").exists()
    done = check("check", "--data-dir", alone, PARTIBUS_DATADIR=b)
    assert done.exit_code == 0 and "PARTIBUS_DATADIR" in done.stderr
    (tmp_path / "with:colon" / "logs").mkdir(parents=True)
    assert check("check", "--data-dir", str(tmp_path / "with:colon")).exit_code == 0


@pytest.mark.parametrize("empty", ["", " "])
@pytest.mark.parametrize("command", ["serve", "check", "repair"])
def test_an_empty_name_is_refused_and_does_not_mean_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, empty: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "logs").mkdir()
    for folders in ([empty], ["elsewhere", empty]):
        done = check(command, *(part for each in folders for part in ("--data-dir", each)))
        assert done.exit_code == 2 and f"--data-dir: is blank (got {empty!r})" in done.stderr
    done = check(command, PARTIBUS_DATA_DIR="one::two")
    assert done.exit_code == 2 and "PARTIBUS_DATA_DIR is blank" in done.stderr, done.stderr
    assert [each.name for each in tmp_path.iterdir()] == ["logs"]


def test_folders_of_two_brokers_are_not_taken_for_those_of_one(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("a", "b", "other")]
    arrange(LocalDisk(), folders[:2])
    for folder in folders:
        (folder / "logs").mkdir(parents=True)
    named = [argument for folder in folders for argument in ("--data-dir", str(folder))]
    for done in (check("check", *named), check("repair", "--yes", *named)):
        assert done.exit_code == 2, done.stdout
        assert f"another broker's data is in {folders[2]}, or the file 'folder' is missing" in done.stderr
    assert check("check", *named[:4]).exit_code == 0


def test_a_copy_in_a_folder_that_is_not_named_does_not_count_as_missing(tmp_path: Path) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    arrange(LocalDisk(), folders)
    first, second = (folder / "catalogue" for folder in folders)
    asyncio.run(Catalogue(first, LocalDisk(), second).put(GENERATION, encode_description(QUEUE)))
    [finding] = damage(check("check", "--json", "--data-dir", str(folders[0])).stdout)
    assert finding["path"] == str(folders[1]) and "was not named" in finding["why"]
    assert finding["severity"] == "unread", "nobody knows whether it is damaged"
    gone = tmp_path / "gone"
    assert f"{gone}: there is no such folder" in check("check", "--data-dir", str(gone)).stderr


def test_a_damaged_folder_file_is_named_and_repair_does_not_offer_what_it_cannot_do(tmp_path: Path) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    arrange(LocalDisk(), folders)
    for folder in folders:
        (folder / "logs").mkdir()
    flip(folders[1] / "folder", 25)
    named = [argument for folder in folders for argument in ("--data-dir", str(folder))]
    [finding] = damage(check("check", "--json", *named).stdout)
    assert finding["path"] == str(folders[1] / "folder") and "partibus repair" in finding["why"]
    flip(folders[0] / "folder", 25)  # now no folder says which ones there are
    for done in (check("repair", *named), check("repair", "--yes", *named)):
        assert (
            done.exit_code == 1
            and "nothing here that this command can repair" in done.stdout
            and "again with --yes" not in done.stdout
        )


async def test_a_sound_folder_ends_with_0_and_a_damaged_one_with_1(tmp_path: Path) -> None:
    segment = await data_folder(tmp_path)
    done = check("check", "--data-dir", str(tmp_path))
    assert (
        done.exit_code == 0 and "Nothing is damaged" in done.stdout and ": read 1 partition (" in done.stdout
    ), done
    flip(segment, SEGMENT_HEADER_BYTES + 70)
    done = check("check", PARTIBUS_DATA_DIR=str(tmp_path))
    assert done.exit_code == 1, done
    [row] = [line for line in done.stdout.splitlines() if "unusable" in line]
    for text in (
        "orders",
        " 3 ",
        str(segment.relative_to(tmp_path)),
        " 256 ",
        "the frame's checksum does not match",
    ):
        assert text in row
    done = check("check", "--json", "--data-dir", str(tmp_path))
    report = json.loads(done.stdout)
    assert (done.exit_code, done.stderr, report["damaged"], report["partitions"]) == (1, "", True, 1)
    assert report["findings"] == [
        {
            "queue": "orders",
            "severity": "unusable",
            "entity": GENERATION,
            "partition": 3,
            "path": str(segment),
            "offset": SEGMENT_HEADER_BYTES,
            "size": 132,
            "why": "the frame's checksum does not match",
        }
    ]


async def test_entries_that_describe_no_queue_and_logs_without_an_entry_are_found(tmp_path: Path) -> None:
    await data_folder(tmp_path)
    document = tmp_path / "catalogue" / file_name_of(GENERATION)
    await Catalogue(tmp_path / "catalogue", LocalDisk()).put(GENERATION, b"{}")
    assert "its content describes no queue" in check("check", "--data-dir", str(tmp_path)).stdout
    document.unlink()
    document.with_suffix(".copy").unlink()
    done = check("check", "--data-dir", str(tmp_path))
    assert done.exit_code == 1 and "belong to no queue of the catalogue" in done.stdout


@pytest.mark.parametrize("absent", ["mount point", "file"])
async def test_a_folder_that_is_gone_is_a_finding_and_the_others_are_checked_and_repaired(
    tmp_path: Path, absent: str
) -> None:
    first, second = folders = [tmp_path / "a", tmp_path / "b"]
    arrange(LocalDisk(), folders)
    segment = await data_folder(first)
    for copy in (first / "catalogue").glob("*.copy"):
        copy.unlink()
    segment.unlink()
    shutil.rmtree(second)
    if absent == "mount point":
        second.mkdir()
    elif absent == "file":
        second.touch()
    named = [argument for folder in folders for argument in ("--data-dir", str(folder))]
    done = check("check", "--json", *named)
    found = json.loads(done.stdout)["findings"]
    assert done.exit_code == 1 and [each["path"] for each in found] == [str(second), str(segment.parent)], (
        found
    )
    assert "not a data folder" in found[0]["why"] or "no data folder" in found[0]["why"]
    repaired = await asyncio.to_thread(partibus, "repair", "--json", "--yes", *named)
    told = json.loads(repaired.stdout)
    assert repaired.returncode == 1 and [each["path"] for each in told["not_repaired"]] == [str(second)]
    assert told["done"] and told["logs"][0]["moved_to"] and not told["moved"]
    assert [each["path"] for each in json.loads(check("check", "--json", *named).stdout)["findings"]] == [
        str(second)
    ]


def test_a_folder_without_data_ends_with_2(tmp_path: Path) -> None:
    done = check("check", "--data-dir", str(tmp_path / "nowhere"))
    assert done.exit_code == 2 and "there is no such folder" in done.stderr


def test_help_says_what_findings_and_exit_codes_mean() -> None:
    text = check("check", "--help").stdout
    assert all(
        word in text
        for word in ("unusable", "unread", "spare", "note", "Exit codes", "--json", "PARTIBUS_DATA_DIR")
    )


async def test_the_check_ends_with_the_advice_that_fits_its_findings(tmp_path: Path) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    arrange(LocalDisk(), folders)
    for folder in folders:
        (folder / "logs").mkdir()
    gone = tmp_path / "gone"
    repair, name, mount = "partibus repair", "Name all data folders", "disks are mounted"

    def advised(*named: Path) -> list[str]:
        done = check("check", *(part for each in named for part in ("--data-dir", str(each))))
        text = " ".join(done.stdout.rpartition("\u2518")[2].split())
        return [each for each in (name, mount, repair) if each in text]

    assert advised(*folders) == []
    assert advised(folders[0]) == [name]
    assert advised(*folders, gone) == [mount]
    stray = tmp_path / "a" / "catalogue" / "junk.document"
    stray.parent.mkdir()
    stray.write_bytes(b"garbage")
    assert advised(*folders) == [repair]
    assert advised(folders[0], gone) == [name, mount, repair]
    stray.unlink()
    (folders[1] / "folder").unlink()
    assert advised(*folders, gone) == [mount, repair]
    stray.write_bytes(b"garbage")
    for version in (b"99\n", None):
        (folders[0] / "version").unlink(missing_ok=True)
        if version is None:
            (folders[0] / "version").mkdir()
        else:
            (folders[0] / "version").write_bytes(version)
        assert advised(*folders, gone) == [mount], "repair refuses the folder"
        done = check("repair", *(part for each in folders for part in ("--data-dir", str(each))))
        assert done.exit_code == 2, done.stdout
