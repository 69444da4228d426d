"""`partibus repair`: what it prints, what it does, and its exit codes."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from broker.cli.repair import NAMES_SHOWN, older_texts, outcome_texts
from broker.maintenance.repair import Rebuilding
from broker.partition.doubts import SESSION_STATE, Older, OlderEntry
from broker.partition.salvage import Range
from storage.disk import LocalDisk
from storage.folders import arrange
from storage.index_witness import Witness
from tests.support.command_line import GENERATION, check, data_folder, partibus


async def test_repair_says_what_is_gone_and_acts_only_when_asked(tmp_path: Path) -> None:
    segment = await data_folder(tmp_path)
    done = partibus("repair", "--data-dir", str(tmp_path))
    assert done.returncode == 0 and "There is nothing to repair" in done.stdout, done
    segment.unlink()
    done = partibus("repair", "--data-dir", str(tmp_path))
    assert done.returncode == 1 and "Run the command again with --yes" in done.stdout, done
    [row] = [line for line in done.stdout.splitlines() if "orders" in line and "│" in line]
    assert f"from {3 << 48 | 1} on" in row and "0 messages" in row


async def test_repair_says_what_is_wrong_with_the_file_version(tmp_path: Path) -> None:
    await data_folder(tmp_path)
    version = tmp_path / "version"
    version.write_bytes(b"")
    done = check("repair", "--yes", "--data-dir", str(tmp_path))
    assert done.exit_code == 0 and "the file is empty" in done.stdout, done.stdout
    assert "It moved to damaged/" in done.stdout and not version.exists()
    done = check("repair", "--data-dir", str(tmp_path))
    assert done.exit_code == 0 and f"{version}: the file is missing" in done.stdout, done.output
    version.write_bytes(b"999\n")
    done = check("repair", "--yes", "--data-dir", str(tmp_path))
    assert done.exit_code == 2 and version.read_bytes() == b"999\n", done.stdout


async def test_repair_sets_aside_a_file_of_no_queue_and_the_check_is_content(
    tmp_path: Path,
) -> None:
    await data_folder(tmp_path)
    stray = tmp_path / "catalogue" / "notes.document"
    stray.write_bytes(b"garbage")
    done = check("check", "--data-dir", str(tmp_path))
    assert done.exit_code == 0 and "run `partibus repair --yes`" in done.stdout, done.stdout
    done = check("repair", "--data-dir", str(tmp_path))
    assert done.exit_code == 1 and "It would be moved to damaged/" in done.stdout, done.stdout
    done = check("repair", "--yes", "--data-dir", str(tmp_path))
    assert done.exit_code == 0 and "It moved to damaged/" in done.stdout, done.stdout
    assert "it belongs to no queue" in " ".join(done.stdout.split())
    assert check("check", "--data-dir", str(tmp_path)).exit_code == 0


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


def test_nothing_is_given_up_where_no_folder_of_a_broker_is_named(tmp_path: Path) -> None:
    lost, nowhere, empty = (str(tmp_path / name) for name in ("lost", "nowhere", "empty"))
    Path(empty).mkdir()
    done = check("repair", "--give-up", lost, "--data-dir", nowhere)
    assert done.exit_code == 2 and f"{nowhere}: there is no such folder" in done.stderr, done.output
    done = check("repair", "--give-up", lost, "--data-dir", nowhere, "--data-dir", empty)
    assert done.exit_code == 2 and f"{nowhere}: there is no such folder; {empty}: " in done.stderr
    Path(empty, "logs").mkdir()
    done = check("repair", "--give-up", lost, "--data-dir", empty)
    assert done.exit_code == 2 and "The broker has one data folder" in done.stderr, done.output


def test_a_folder_with_an_empty_name_is_not_given_up() -> None:
    done = check("repair", "--give-up", "")
    assert done.exit_code == 2 and "--give-up: is blank (got '')" in done.stderr, done.stderr


@pytest.mark.parametrize(
    ("gone", "commits_gone", "texts"),
    [
        ([], 0, ("1 message", "none", "all kept")),
        (
            [Range(7, 7)],
            1,
            (
                "1 message",
                "7",
                "those in 1 commit are lost, if there were any: receivers get such messages again",
            ),
        ),
        (
            [Range(7, 8)],
            2,
            (
                "1 message",
                "7 to 8 (2 messages)",
                "those in 2 commits are lost, if there were any: receivers get such messages again",
            ),
        ),
        (
            [],
            None,
            (
                "1 message",
                "none",
                "those in an unknown number of commits are lost, if there were any: receivers get such "
                "messages again",
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


def test_what_may_be_older_is_named_in_words_that_fit() -> None:
    many = [OlderEntry(SESSION_STATE, "", f"s{number}") for number in range(NAMES_SHOWN + 1)]
    unknown = (
        "Sessions without messages, cursors and sinks that only lost commits have mentioned are gone, and "
        "their names are not known."
    )
    assert older_texts(Older(None, 0)) == [unknown]
    assert older_texts(Older(9, 1, [OlderEntry(SESSION_STATE, "audit", "one")], ["message-ids"])) == [
        "1 message with sequence numbers below 9 may have been settled, deferred, scheduled or delivered in "
        "lost commits; that is forgotten.",
        "the state of one session may be older than clients were told, or gone: audit/one",
        unknown,
        "The message-ids that detect duplicates may be incomplete or out of date.",
    ]
    messages, states, _ = older_texts(Older(None, 2, many))
    assert messages.startswith("2 messages may have been settled")
    assert states.startswith(f"the states of {NAMES_SHOWN + 1} sessions may be older")
    assert "s19, … (the report lists all)" in states and "s20" not in states


def test_help_of_repair_says_that_the_broker_must_be_stopped_and_what_is_moved_where() -> None:
    text = partibus("repair", "--help").stdout
    assert all(
        word in text for word in ("--yes", "Stop the broker", "damaged", "Exit codes", "PARTIBUS_DATA_DIR")
    )
