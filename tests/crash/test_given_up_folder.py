"""A data folder that is lost for good is given up when asked, and a damaged identity is written again."""

from __future__ import annotations

import json
import shutil
from hashlib import blake2b
from pathlib import Path

import pytest

from broker.identifiers import partition_of
from broker.maintenance.check import check_folders
from broker.maintenance.giving_up import CannotGiveUp, GivenUp, GivingUp
from broker.maintenance.locking import InUse
from broker.maintenance.repair import Repair
from broker.server import Broker
from broker.settings.settings import load_settings
from storage.folders import FILE_NAME, WrongFolders
from storage.survey import Severity
from tests.crash.clients import Place, drain
from tests.crash.ledger import QueueLedger, name_of
from tests.crash.test_broker_disk_faults import PARTITIONS, check_nothing_lost, client_of
from tests.crash.test_several_disks import BOTH, broker_on, folder_states, numbers_in, send_to_each
from tests.support.command_line import check
from tests.support.logs import flip


def fingerprint(folder: Path) -> dict[str, bytes]:
    return {str(path): blake2b(path.read_bytes()).digest() for path in folder.rglob("*") if path.is_file()}


def given_up(folder: Path, lost: str, *names: str, carry_out: bool = False) -> GivenUp:
    """Plan to give up a folder, and carry it out if wanted."""
    work = GivingUp([folder / name for name in names], folder / lost)
    work.open()
    try:
        plan = work.plan()
        if carry_out:
            work.carry_out(plan)
    finally:
        work.close()
    return plan


@pytest.mark.parametrize("lost", [0, 1])
def test_a_lost_folder_is_given_up_with_exactly_its_own_messages(lost: int, tmp_path: Path) -> None:
    left = BOTH[1 - lost]
    with broker_on(tmp_path) as broker, client_of(broker.addresses) as client:
        assert send_to_each(client) == [None] * PARTITIONS
        gone = numbers_in(broker, lost)
    shutil.rmtree(tmp_path / BOTH[lost])
    before = fingerprint(tmp_path)
    plan = given_up(tmp_path, BOTH[lost], left, "third")
    assert fingerprint(tmp_path) == before, "it never acts unasked"
    assert plan.number == lost and {(each.queue, each.partition) for each in plan.partitions} == {
        ("orders", number) for number in gone
    }
    known = 1 if lost == 1 else None  # the index is in the first folder
    assert {each.messages for each in plan.partitions} == {known}
    given_up(tmp_path, BOTH[lost], left, "third", carry_out=True)
    report = json.loads((tmp_path / "third" / "damaged" / f"given-up-{lost}.json").read_bytes())
    assert report["done"] and {each["partition"] for each in report["partitions"]} == gone
    findings = check_folders([tmp_path / left, tmp_path / "third"]).findings
    assert {each.severity for each in findings} <= {Severity.SPARE}, "the broker makes them again"

    kept = {name_of("sender", "", number) for number in range(PARTITIONS) if number not in gone}
    with broker_on(tmp_path, names=(left, "third")) as broker, client_of(broker.addresses) as later:
        later._number = 1_000
        assert folder_states(broker) == ["ok", "ok"] and numbers_in(broker, lost) == gone
        assert send_to_each(later) == [None] * PARTITIONS
        ledger = QueueLedger(
            attempted=kept | later.ledger.attempted, acknowledged=kept | later.ledger.attempted
        )
        drain(Place(broker.addresses.amqp_port), "orders", ledger)
        assert ledger.problems() == []
        for receipt in ledger.receipts:
            is_new = partition_of(receipt.sequence_number) in gone
            counter = receipt.sequence_number & ((1 << 48) - 1)
            assert (counter > 1 << 40) == is_new, "a number that the lost log may have used never comes back"
    with broker_on(tmp_path, names=("third", left)) as broker:
        assert folder_states(broker) == ["ok", "ok"]


def test_what_was_in_use_when_the_folder_was_lost_is_shown_as_not_known(tmp_path: Path) -> None:
    with broker_on(tmp_path) as broker, client_of(broker.addresses) as client:
        assert send_to_each(client) == [None] * PARTITIONS
        gone = numbers_in(broker, 1)
    with broker_on(tmp_path) as broker, client_of(broker.addresses) as client:
        assert client.send(min(gone)) is None
        shutil.copytree(tmp_path / "first", tmp_path / "killed" / "first")  # as a kill leaves it
        with pytest.raises(InUse):
            given_up(tmp_path, "third", "first")
    shutil.rmtree(tmp_path / "second")
    plan = given_up(tmp_path / "killed", str(tmp_path / "second"), "first", "third")
    assert plan.uncertain == 1 and plan.messages == len(gone) - 1
    [open_one] = [each for each in plan.partitions if each.messages is None]
    assert (open_one.partition, open_one.last_known) == (min(gone), 1)


def test_an_interrupted_attempt_is_begun_anew_and_no_broker_uses_half_a_folder(tmp_path: Path) -> None:
    with broker_on(tmp_path) as broker, client_of(broker.addresses) as client:
        assert send_to_each(client) == [None] * PARTITIONS
    shutil.rmtree(tmp_path / "second")
    given_up(tmp_path, "second", "first", "third", carry_out=True)
    third = tmp_path / "third"
    (third / FILE_NAME).unlink()  # the last step
    (third / "giving-up").touch()
    (third / "logs" / "left over").mkdir()
    with pytest.raises(WrongFolders, match="another broker"):
        Broker(load_settings(data_dir=tmp_path / "first", more_data_dirs=(third,)))
    given_up(tmp_path, "second", "first", "third", carry_out=True)
    assert not (third / "giving-up").exists() and not (third / "logs" / "left over").exists()
    with broker_on(tmp_path, names=("first", "third")) as broker:
        assert folder_states(broker) == ["ok", "ok"]


def test_nothing_is_given_up_that_is_there_or_unknown_and_nothing_without_an_empty_folder(
    tmp_path: Path,
) -> None:
    with broker_on(tmp_path):
        pass
    before = fingerprint(tmp_path)
    for lost, names, why in (
        ("second", ("first", "third"), "is there"),
        ("second", BOTH, "is there"),
        ("elsewhere", ("first", "third"), f"Missing: {tmp_path / 'second'}"),
    ):
        with pytest.raises(CannotGiveUp, match=why):
            given_up(tmp_path, lost, *names, carry_out=True)
    shutil.rmtree(tmp_path / "second")
    (tmp_path / "other" / "logs").mkdir(parents=True)
    refused: tuple[tuple[tuple[str, ...], str], ...] = (
        (("first",), "None of the named folders is empty"),
        (("first", "other"), "None of the named folders is empty"),
        (("first", "third", "fourth"), "More than one"),
        (("third",), "one data folder"),
    )
    for named, reason in refused:
        with pytest.raises(CannotGiveUp, match=reason):
            given_up(tmp_path, "second", *named, carry_out=True)
    left = {path: content for path, content in before.items() if "/second/" not in path}
    assert fingerprint(tmp_path) == left


def test_the_command_says_what_is_lost_and_gives_up_with_yes_only(tmp_path: Path) -> None:
    with broker_on(tmp_path) as broker, client_of(broker.addresses) as client:
        assert send_to_each(client) == [None] * PARTITIONS
        gone = numbers_in(broker, 1)
    shutil.rmtree(tmp_path / "second")
    named = ("--data-dir", str(tmp_path / "first"), "--data-dir", str(tmp_path / "second"))
    command = ("repair", *named, "--give-up", str(tmp_path / "second"))
    done = check(*command)
    assert done.exit_code == 1 and "Nothing was changed" in done.stdout
    assert (
        f"Known to be lost: {len(gone)} messages" in " ".join(done.stdout.split()) and "orders" in done.stdout
    )
    assert not (tmp_path / "second").exists()
    done = check(*command, "--json", "--yes")
    assert done.exit_code == 0 and json.loads(done.stdout)["messages"] == len(gone)
    done = check(*command, "--yes")
    assert done.exit_code == 2 and "is there" in done.stderr
    with broker_on(tmp_path) as broker:
        assert folder_states(broker) == ["ok", "ok"]


# --- a damaged file `folder` --------------------------------------------------------------------------------


def moved(folder: Path) -> list[Path]:
    """Move both data folders to another place."""
    places = [folder / "elsewhere" / name for name in BOTH]
    for path in places:
        path.parent.mkdir(exist_ok=True)
        (folder / path.name).rename(path)
    return places


@pytest.mark.parametrize("is_there", [True, False])
@pytest.mark.parametrize("damaged", [0, 1])
def test_a_damaged_or_lost_identity_of_a_folder_that_has_moved_is_written_again(
    damaged: int, is_there: bool, tmp_path: Path
) -> None:
    with broker_on(tmp_path) as broker, client_of(broker.addresses) as client:
        assert send_to_each(client) == [None] * PARTITIONS
    places = moved(tmp_path)
    if is_there:
        flip(places[damaged] / FILE_NAME, 25)
    else:
        (places[damaged] / FILE_NAME).unlink()
    # Symptom: the broker did not start, did not say what to do, and there was nothing to be done.
    with pytest.raises(WrongFolders, match="un 'partibus repair'"):
        Broker(load_settings(data_dir=places[0], more_data_dirs=(places[1],)))
    [finding] = [each for each in check_folders(places).findings if Path(each.path).name == FILE_NAME]
    assert finding.severity is Severity.UNUSABLE and ("missing" in finding.why) is not is_there
    work = Repair(places)
    work.open()
    plan = work.plan()
    assert [tuple(each) for each in plan.identities] == [(places[damaged], damaged)] and plan.is_complete
    work.carry_out(plan)
    work.close()
    assert not check_folders(places).damaged
    with broker_on(tmp_path / "elsewhere") as broker:
        assert folder_states(broker) == ["ok", "ok"]
        check_nothing_lost(broker.addresses, client.ledger)
