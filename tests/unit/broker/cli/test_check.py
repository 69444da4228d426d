"""`partibus check` and `partibus repair`: what they print, and their exit codes."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from broker.cli.main import app
from broker.cli.repair import outcome_texts
from broker.entities.descriptions import QueueDescription
from broker.entities.documents import encode_description
from broker.maintenance.repair import Rebuilding
from broker.partition.salvage import Range
from storage.catalogue import Catalogue
from storage.disk import LocalDisk
from storage.document_file import file_name_of
from storage.folders import arrange
from storage.index_witness import Witness
from storage.segment import SEGMENT_HEADER_BYTES
from tests.support.logging_kept import logging_kept
from tests.support.logs import acquired, append, flip
from tests.unit.broker.cli.test_main import partibus

GENERATION = "0123456789abcdef" * 2


async def data_folder(root: Path) -> Path:
    """A queue with two commits in partition 3; returns the path of the segment."""
    async with acquired(root, entity=GENERATION, partition=3) as log:
        await append(log, b"one" * 20)
        await append(log, b"two" * 20)
    await Catalogue(root / "catalogue", LocalDisk()).put(
        GENERATION, encode_description(QueueDescription("orders", GENERATION, 16))
    )
    return segment_in(root)


def check(*arguments: str, **environment: str) -> Result:
    """Run the command in this process: starting a new one takes a second."""
    with logging_kept():
        return CliRunner().invoke(
            app, arguments, env={"COLUMNS": "200", "NO_COLOR": "1", "PARTIBUS_DATA_DIR": None, **environment}
        )


def segment_in(root: Path) -> Path:
    [segment] = root.rglob("*.segment")
    return segment


def test_the_commands_take_the_folders_of_the_settings_and_pass_over_empty_names(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / name / "logs").mkdir(parents=True)
    a, b, c = (str(tmp_path / name) for name in ("a", "b", "c"))
    variables = {"PARTIBUS_DATA_DIR": f"{a}::{b}:", "PARTIBUS_MORE_DATA_DIRS": json.dumps([c])}
    assert json.loads(check("check", "--json", **variables).stdout)["folders"] == [a, b, c]
    assert json.loads(check("check", "--json", "--data-dir", b, **variables).stdout)["folders"] == [b, c]
    assert json.loads(check("check", "--json", PARTIBUS_DATA_DIR=f"{a}:").stdout)["folders"] == [a]
    done = check("repair", PARTIBUS_DATA_DIR=f"{a}:{b}")
    assert done.exit_code == 0 and f"{a}, {b}: Nothing is damaged" in done.stdout.replace("\n", " ")
    (tmp_path / "file").touch()
    done = check("check", "--data-dir", str(tmp_path / "file"))
    assert done.exit_code == 2 and "not a data folder" in done.stderr
    for command in ("serve", "check", "repair"):
        done = check(command, "--data-dir", f"{a}:{b}")
        assert done.exit_code == 2 and "once for each folder" in done.stderr.replace("\n", " "), done.stderr
    assert not (tmp_path / "a:").exists()
    done = check("check", "--data-dir", a, PARTIBUS_DATADIR=b)
    assert done.exit_code == 0 and "PARTIBUS_DATADIR" in done.stderr
    (tmp_path / "with:colon" / "logs").mkdir(parents=True)
    assert check("check", "--data-dir", str(tmp_path / "with:colon")).exit_code == 0


def test_a_damaged_folder_file_is_named_and_repair_does_not_offer_what_it_cannot_do(tmp_path: Path) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    arrange(LocalDisk(), folders)
    for folder in folders:
        (folder / "logs").mkdir()
    flip(folders[1] / "folder", 25)
    named = [argument for folder in folders for argument in ("--data-dir", str(folder))]
    [finding] = json.loads(check("check", "--json", *named).stdout)["findings"]
    assert finding["path"] == str(folders[1] / "folder") and "folder.damaged" in finding["why"]
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
    assert told["done"] and told["logs"][0]["moved_to"] and not told["set_aside"]
    assert [each["path"] for each in json.loads(check("check", "--json", *named).stdout)["findings"]] == [
        str(second)
    ]


def test_a_folder_without_data_ends_with_2(tmp_path: Path) -> None:
    done = check("check", "--data-dir", str(tmp_path / "nowhere"))
    assert done.exit_code == 2 and "there is no data folder" in done.stderr


def test_help_says_what_findings_and_exit_codes_mean() -> None:
    text = check("check", "--help").stdout
    assert all(
        word in text for word in ("unusable", "spare", "note", "Exit codes", "--json", "PARTIBUS_DATA_DIR")
    )


async def test_repair_says_what_is_gone_and_acts_only_when_asked(tmp_path: Path) -> None:
    segment = await data_folder(tmp_path)
    done = partibus("repair", "--data-dir", str(tmp_path))
    assert done.returncode == 0 and "There is nothing to repair" in done.stdout, done
    segment.unlink()
    done = partibus("repair", "--data-dir", str(tmp_path))
    assert done.returncode == 1 and "Run the command again with --yes" in done.stdout, done
    [row] = [line for line in done.stdout.splitlines() if "orders" in line]
    assert f"from {3 << 48 | 1} on" in row and "0 messages" in row


async def test_json_names_the_earlier_repair_that_was_finished(tmp_path: Path) -> None:
    await data_folder(tmp_path)
    unfinished = tmp_path / "damaged" / f"{GENERATION}-0003-1"
    (unfinished / "rebuilt").mkdir(parents=True)
    (unfinished / "report.json").write_text(json.dumps({"entity": GENERATION, "partition": 3}))
    for option in ([], ["--yes"]):
        done = check("repair", "--json", "--data-dir", str(tmp_path), *option)
        assert json.loads(done.stdout)["finished"] == [str(unfinished)], done.stdout
    assert done.exit_code == 0 and not (unfinished / "rebuilt").exists()


async def test_a_repaired_folder_is_counted_again_even_if_the_index_is_in_another_one(tmp_path: Path) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    arrange(LocalDisk(), folders)
    segment = await data_folder(folders[1])
    witness = Witness(folders[1], LocalDisk())
    await witness.read()
    await witness.confirm(lambda: 7)
    segment.unlink()
    done = await asyncio.to_thread(partibus, "repair", "--yes", "--data-dir", str(folders[1]))
    assert done.returncode == 1 and "was not named" in done.stdout and "rebuilt" in done.stdout, done
    assert not witness.path.exists()


@pytest.mark.parametrize(
    ("gone", "commits_gone", "texts"),
    [
        ([], 0, ("1 message", "none", "all kept")),
        (
            [Range(7, 7)],
            1,
            ("1 message", "7", "those in 1 commit are lost: receivers get these messages again"),
        ),
        (
            [Range(7, 8)],
            2,
            (
                "1 message",
                "7 to 8 (2 messages)",
                "those in 2 commits are lost: receivers get these messages again",
            ),
        ),
        (
            [],
            None,
            (
                "1 message",
                "none",
                "those in an unknown number of commits are lost: receivers get these messages again",
            ),
        ),
    ],
    ids=["nothing", "one", "several", "unknown"],
)
def test_repair_counts_in_words_that_fit(
    gone: list[Range], commits_gone: int | None, texts: tuple[str, str, str]
) -> None:
    log = Rebuilding(
        GENERATION, 0, "orders", [], gone, kept=1, commits_gone=commits_gone, next_sequence_number=9
    )
    assert outcome_texts(log) == texts


def test_help_of_repair_says_that_the_broker_must_be_stopped_and_what_is_moved_where() -> None:
    text = partibus("repair", "--help").stdout
    assert all(
        word in text for word in ("--yes", "Stop the broker", "damaged", "Exit codes", "PARTIBUS_DATA_DIR")
    )
