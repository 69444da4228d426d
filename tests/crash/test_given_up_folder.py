"""A data folder that is lost for good is given up when asked, and a damaged identity is written again."""

from __future__ import annotations

import errno
import json
import shutil
import time
from contextlib import suppress
from hashlib import blake2b
from itertools import count
from pathlib import Path

import pytest

from broker.identifiers import partition_of
from broker.maintenance.check import check_folders
from broker.maintenance.giving_up import CannotGiveUp, GivenUp, GivingUp
from broker.maintenance.locking import InUse
from broker.maintenance.repair import Repair
from broker.server import Broker
from broker.settings.settings import load_settings
from storage.disk import LocalDisk
from storage.errors import StorageError
from storage.folder_identity import FILE_NAME, UNFINISHED_NAME, GivenUpFolder, WrongFolders
from storage.folders import arrange
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
    before = (tmp_path / "first" / FILE_NAME).read_bytes()
    given_up(tmp_path, "second", "first", "third", carry_out=True)
    third = tmp_path / "third"
    (third / FILE_NAME).unlink()
    (tmp_path / "first" / FILE_NAME).write_bytes(before)  # the last steps
    (third / "giving-up").write_bytes(b"f" * 32 + b"\n")
    (third / "logs" / "left over").mkdir()
    with pytest.raises(WrongFolders, match="was interrupted"):
        Broker(load_settings(data_dir=tmp_path / "first", more_data_dirs=(third,)))
    for command in ("check", "repair"):
        done = check(command, "--data-dir", str(tmp_path / "first"), "--data-dir", str(third))
        assert done.exit_code == 2 and f"{third} was to take the place" in done.stderr, done.output
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
        (("other",), "one data folder"),
        (("third",), "third: there is no such folder"),
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


# --- the lost folder turns up again -------------------------------------------------------------------------


@pytest.mark.parametrize("lost", [0, 1])
def test_a_folder_that_was_given_up_is_never_served_again(lost: int, tmp_path: Path) -> None:
    """Symptom: named in the place of the new folder, it was served: 12 of 48 messages were missing, and 12
    old ones were back."""
    left = BOTH[1 - lost]
    with broker_on(tmp_path) as broker, client_of(broker.addresses) as client:
        assert send_to_each(client) == [None] * PARTITIONS
        gone = numbers_in(broker, lost)
    kept = {name_of("sender", "", number) for number in range(PARTITIONS) if number not in gone}
    (tmp_path / BOTH[lost]).rename(tmp_path / "away")
    given_up(tmp_path, BOTH[lost], left, "third", carry_out=True)
    with broker_on(tmp_path, names=(left, "third")) as broker, client_of(broker.addresses) as later:
        later._number = 1_000
        assert send_to_each(later) == [None] * PARTITIONS
    before = fingerprint(tmp_path)
    for back in ("away", BOTH[lost]):
        if back != "away":
            (tmp_path / "away").rename(tmp_path / back)
            before = fingerprint(tmp_path)
        refused: tuple[tuple[str, ...], ...] = (
            (left, back),
            (back, left),
            (left, "third", back),
            (back, "third"),
        )
        for names in refused:
            first, *more = (tmp_path / name for name in names)
            expected = rf"{back} is data folder {lost} .* given up .*{tmp_path / 'third'}"
            with pytest.raises(GivenUpFolder, match=expected):
                Broker(load_settings(data_dir=first, more_data_dirs=tuple(more)))
            named = [part for name in names for part in ("--data-dir", str(tmp_path / name))]
            for command in ("check", "repair"):
                done = check(command, *named)
                assert done.exit_code == 2 and "given up" in done.stderr, done.output
    with pytest.raises(GivenUpFolder, match="given up"):  # the others are where they were
        Broker(load_settings(data_dir=tmp_path / BOTH[lost]))
    assert fingerprint(tmp_path) == before
    with broker_on(tmp_path, names=(left, "third")) as broker:
        assert folder_states(broker) == ["ok", "ok"]
        client.ledger.acknowledged &= kept
        client.ledger.sending(list(later.ledger.attempted))
        client.ledger.sent(list(later.ledger.acknowledged))
        check_nothing_lost(broker.addresses, client.ledger)


class StopsAfter(LocalDisk):
    """A disk on which nothing changes any more after some changes, as if the process had been killed. What
    happens below `logs` and `catalogue` of a folder counts only as far as names of entities."""

    def __init__(self, changes: int) -> None:
        super().__init__()
        self._left = changes
        self.has_stopped = False

    def _change(self, path: Path) -> None:
        inside = [name for name in ("logs", "catalogue") if name in path.parts[:-2]]
        self._left -= not inside
        if self._left < 0:
            self.has_stopped = True
            raise OSError(errno.EIO, "killed")

    def create(self, path: Path) -> int:
        self._change(path)
        return super().create(path)

    def rename(self, source: Path, target: Path) -> None:
        self._change(target)
        super().rename(source, target)

    def remove(self, path: Path) -> None:
        self._change(path)
        super().remove(path)

    def make_directory(self, path: Path) -> None:
        self._change(path)
        super().make_directory(path)


@pytest.mark.parametrize("place_name", ["third", "second"])
def test_giving_up_can_be_killed_anywhere_and_run_again(
    place_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with broker_on(tmp_path) as broker, client_of(broker.addresses) as client:
        for folder in range(2):
            assert client.send(min(numbers_in(broker, folder))) is None
    first, lost, place, away = (tmp_path / name for name in ("first", "second", place_name, "away"))
    lost.rename(away)
    monkeypatch.setattr(time, "sleep", lambda _: None)  # a check looks again after a while
    before = (first / FILE_NAME).read_bytes()
    recorded, states = [False], set[str]()
    for changes, starts in ((number // 2, bool(number % 2)) for number in count()):
        (first / FILE_NAME).write_bytes(before)
        shutil.rmtree(place, ignore_errors=True)
        disk = StopsAfter(changes)
        work = GivingUp([first, place], lost, disk)
        work.open()
        with suppress(OSError, StorageError):
            work.carry_out(work.plan())
        work.close()
        recorded.append((first / FILE_NAME).read_bytes() != before)
        check_is_refused(away, first, is_given_up=recorded[-1])
        if starts:
            states.add(state_at_start(first, place))
        if not disk.has_stopped:
            break
        if place == lost and (place / FILE_NAME).exists() and not (place / UNFINISHED_NAME).exists():
            with pytest.raises(CannotGiveUp, match="is there"):  # the start has finished it
                given_up(tmp_path, lost.name, "first", place_name)
        else:
            given_up(tmp_path, lost.name, "first", place_name, carry_out=True)
        assert state_at_start(first, place) == "used" and not (place / UNFINISHED_NAME).exists()
        check_is_refused(away, first, is_given_up=True)
        check_is_refused(away, first, place, is_given_up=True)
        assert {each.severity for each in check_folders([first, place]).findings} <= {Severity.SPARE}
        assert len(list(place.glob("logs/*/*/*.segment"))) == 1
    assert changes > 10 and recorded == sorted(recorded) and recorded.count(True) > 6
    assert states == {"missing", "used"} | ({"refused"} if place != lost else set()), "a listed path is known"


def check_is_refused(away: Path, *left: Path, is_given_up: bool) -> None:
    """The old folder is refused from the moment on in which another one records that it was given up."""
    for named in ([away, *left], [*left, away]):
        if is_given_up:
            with pytest.raises(GivenUpFolder):
                arrange(LocalDisk(), named)
        else:
            before = (left[0] / FILE_NAME).read_bytes()
            assert not any(folder.is_missing for folder in arrange(LocalDisk(), named))
            (left[0] / FILE_NAME).write_bytes(before)  # without the place where the old folder is now


def state_at_start(first: Path, place: Path) -> str:
    """What a broker that starts now makes of the new folder."""
    try:
        [_, second] = arrange(LocalDisk(), [first, place])
    except WrongFolders:
        return "refused"
    return "missing" if second.is_missing else "used"


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
