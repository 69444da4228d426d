"""Damage to a data folder that a broker has written: it is found and repaired, and exactly what the repair
reports is gone.

A real broker writes the folder once: clients send, complete, dead-letter, defer and abandon, and record what
they know (`Ledger`). Each test damages a copy. A partition of the broker, or a client of a broker on the
repaired folder, reads what remains.
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

import pytest
from azure.servicebus import (
    ServiceBusClient,
    ServiceBusMessage,
    ServiceBusMessageState,
    ServiceBusReceivedMessage,
    ServiceBusSubQueue,
)

from broker.base.clock import SystemClock
from broker.entities.descriptions import DEAD_LETTER, MAIN, QueueDescription
from broker.maintenance.check import check_folders
from broker.maintenance.repair import Plan, Repair
from broker.operations.message_states import MessageState
from broker.operations.sending import Send, Sent
from broker.partition.payloads import PayloadBudget
from broker.partition.salvage import Range
from broker.partition.task import PartitionTask
from storage.check import log_folders
from storage.disk import LocalDisk
from storage.document_file import file_name_of
from storage.file_store import FileLogStore
from storage.folders import arrange
from storage.log import Frame
from storage.partition_index import INDEX_NAME
from storage.segment import SEGMENT_HEADER_BYTES
from storage.storage_version import note_version
from storage.survey import Severity, frames, survey_files
from tests.support.broker_process import REPOSITORY, BrokerProcess, queue
from tests.support.logs import flip
from tests.support.partition_asking import WAIT_S, ask, pages

PARTITIONS = 2
SMALL_LOGS = {"PARTIBUS_SEGMENT_BYTES": "65536", "PARTIBUS_CHECKPOINT_BYTES": "65536"}
BODY = re.compile(rb"<m\d+>")
LOCAL = (1 << 48) - 1


class Known(NamedTuple):
    """A message as peeking shows it."""

    subqueue: str
    body: bytes
    """Distinguishes it from all other messages."""
    is_deferred: bool
    deliveries: int


@dataclass
class Ledger:
    """What the clients know."""

    there: dict[int, Known] = field(default_factory=dict)
    """Remaining messages by sequence number."""
    settled: set[int] = field(default_factory=set)

    def of(self, partition: int) -> set[int]:
        return {number for number in self.there if number >> 48 == partition}


@dataclass
class Written:
    """The folder and the clients' knowledge of it."""

    folder: Path
    ledger: Ledger
    generation: str


def body_of(message: ServiceBusReceivedMessage) -> bytes:
    found = BODY.search(b"".join(message.body))
    assert found is not None
    return found[0]


def work(client: ServiceBusClient, ledger: Ledger) -> None:
    """Three rounds of sending and settling; then peek at everything that is left."""
    number = 0
    with client.get_queue_sender("orders") as sender, client.get_queue_receiver("orders") as receiver:
        for _ in range(3):
            for _ in range(20):
                sender.send_messages(
                    [ServiceBusMessage(b"<m%d>" % (number + each) * 90) for each in range(8)]
                )
                number += 8
            for place, message in enumerate(
                receiver.receive_messages(max_message_count=60, max_wait_time=20)
            ):
                assert message.sequence_number is not None
                match place % 6:
                    case 0:
                        receiver.dead_letter_message(message, reason="asked for")
                    case 1:
                        receiver.defer_message(message)
                    case 2:
                        receiver.abandon_message(message)
                    case _:
                        receiver.complete_message(message)
                        ledger.settled.add(message.sequence_number)
    ledger.there = peeked(client)
    assert len(ledger.there) + len(ledger.settled) == number


def peeked(client: ServiceBusClient) -> dict[int, Known]:
    found: dict[int, Known] = {}
    for name, subqueue in ((MAIN, None), (DEAD_LETTER, ServiceBusSubQueue.DEAD_LETTER)):
        with client.get_queue_receiver("orders", sub_queue=subqueue) as receiver:
            start = 1
            while page := receiver.peek_messages(max_message_count=100, sequence_number=start, timeout=20):
                for message in page:
                    assert message.sequence_number is not None
                    is_deferred = message.state is ServiceBusMessageState.DEFERRED
                    found[message.sequence_number] = Known(
                        name, body_of(message), is_deferred, message.delivery_count or 0
                    )
                start = max(message.sequence_number or 0 for message in page) + 1
    return found


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Written]:
    """A folder written by a broker that was then killed."""
    folder = tmp_path_factory.mktemp("repair")
    broker = BrokerProcess(
        folder, [queue("orders", PartitionCount=PARTITIONS, Partitioned=True)], environment=SMALL_LOGS
    )
    ledger = Ledger()
    broker.start()
    try:
        with ServiceBusClient.from_connection_string(broker.addresses.connection_string()) as client:
            work(client, ledger)
    finally:
        broker.kill()
    [generation] = [path.name for path in (broker.data_dir / "logs").iterdir()]
    assert all(len(ledger.of(partition)) > 50 for partition in range(PARTITIONS))
    assert {(each.subqueue, each.is_deferred) for each in ledger.there.values()} == {
        (MAIN, False),
        (MAIN, True),
        (DEAD_LETTER, False),
    }
    assert {each.deliveries for each in ledger.there.values()} >= {0, 1}
    yield Written(broker.data_dir, ledger, generation)


@pytest.fixture
def damaged(written: Written, tmp_path: Path) -> Written:
    """A copy to damage."""
    shutil.copytree(written.folder, tmp_path / "data")
    return Written(tmp_path / "data", written.ledger, written.generation)


# --- damage -------------------------------------------------------------------------------------------------


def segments(written: Written, partition: int) -> list[Path]:
    return sorted((written.folder / "logs" / written.generation / f"{partition:04x}").glob("*.segment"))


def newest_checkpoint(written: Written, partition: int) -> Path:
    return sorted((written.folder / "logs" / written.generation / f"{partition:04x}").glob("*.checkpoint"))[
        -1
    ]


def frames_of(written: Written, partition: int) -> list[Frame]:
    folder = next(each for each in log_folders(LocalDisk(), written.folder) if each.partition == partition)
    return [
        each for each in frames(LocalDisk(), survey_files(LocalDisk(), folder)) if isinstance(each, Frame)
    ]


def flip_frames(*places: float) -> Callable[[Written], None]:
    """Flip one bit in some frames with messages, given by their place in the log from 0 to 1."""

    def damage(written: Written) -> None:
        with_messages = [frame for frame in frames_of(written, 1) if BODY.search(frame.data)]
        for place in places:
            frame = with_messages[int(place * (len(with_messages) - 1))]
            path = [each for each in segments(written, 1) if int(each.name[:16], 16) <= frame.position][-1]
            flip(path, SEGMENT_HEADER_BYTES + frame.position - int(path.name[:16], 16) + 100)

    return damage


def flip_in_every_segment_header(written: Written) -> None:
    for path in segments(written, 1):
        flip(path, 20)


def cut_first_segment(written: Written) -> None:
    path = segments(written, 1)[0]
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def cut_last_segment(written: Written) -> None:
    path = segments(written, 1)[-1]
    path.write_bytes(path.read_bytes()[:SEGMENT_HEADER_BYTES])


def zeros_in_the_middle(written: Written) -> None:
    path = segments(written, 1)[0]
    data = bytearray(path.read_bytes())
    data[20_000:40_000] = bytes(20_000)
    path.write_bytes(data)


DAMAGES: dict[str, Callable[[Written], None]] = {
    "one frame": flip_frames(0.4),
    "the first frame with messages": flip_frames(0.0),
    "several frames": flip_frames(0.2, 0.21, 0.5, 0.9),
    "every segment header": flip_in_every_segment_header,
    "the first segment is cut off": cut_first_segment,
    "the last segment is cut off": cut_last_segment,
    "zeros in the middle": zeros_in_the_middle,
    "the first segment is missing": lambda written: segments(written, 1)[0].unlink(),
    "the last segment is missing": lambda written: segments(written, 1)[-1].unlink(),
    "the log is missing": lambda written: shutil.rmtree(segments(written, 1)[0].parent),
    "the log of one entity is missing": lambda written: shutil.rmtree(segments(written, 1)[0].parent.parent),
}


# --- reading the result -------------------------------------------------------------------------------------


async def read_back(written: Written, second: Path | None = None) -> dict[int, Known]:
    """Messages that the broker's partitions find; each partition then takes one more message, whose number
    has never been given before.
    """
    found: dict[int, Known] = {}
    description = QueueDescription("orders", written.generation, PARTITIONS)
    for number in range(PARTITIONS):
        store = FileLogStore(
            second if second is not None and number == 1 else written.folder, reserve_bytes=0
        )
        log = store.log(written.generation, number)
        task = PartitionTask(
            number,
            log=log,
            clock=SystemClock(),
            description=description,
            payloads=PayloadBudget(1 << 20, 0),
        )
        run = asyncio.create_task(task.run())
        for subqueue in (MAIN, DEAD_LETTER):
            async for page in pages(task, subqueue):
                columns = (page.sequence_numbers, page.messages, page.states, page.delivery_counts)
                for sequence_number, message, state, deliveries in zip(*columns, strict=True):
                    body = BODY.search(message)
                    assert body is not None
                    found[sequence_number] = Known(
                        subqueue, body[0], state is MessageState.DEFERRED, deliveries
                    )
        sent = await ask(task, Send([b"new"], None))
        ever = {
            *written.ledger.of(number),
            *(each for each in written.ledger.settled if each >> 48 == number),
        }
        assert isinstance(sent, Sent) and sent.first > max(ever)
        await task.stop()
        await asyncio.wait_for(run, WAIT_S)
        await store.close()
    return found


def is_gone(number: int, gone: list[Range]) -> bool:
    return any(
        (each.first is None or each.first <= number) and (each.last is None or number <= each.last)
        for each in gone
    )


def check_ledger(written: Written, found: dict[int, Known], plan: Plan) -> None:
    """Check that exactly what the plan calls gone is gone and everything else is unchanged; messages that
    reappear were settled in lost commits.
    """
    ledger = written.ledger
    by_partition = {log.partition: log for log in plan.logs}
    for partition in range(PARTITIONS):
        mine = ledger.of(partition)
        log = by_partition.get(partition)
        gone = log.gone if log is not None else []
        there = {number for number in found if number >> 48 == partition}
        assert mine - there == {number for number in mine if is_gone(number, gone)}
        forgets = log is not None and log.commits_gone != 0
        assert there - mine <= (ledger.settled if forgets else set())
        for number in mine & there:
            assert found[number].body == ledger.there[number].body
            assert forgets or found[number] == ledger.there[number]
        named = {
            number
            for each in gone
            if each.first is not None and each.last is not None
            for number in range(each.first, each.last + 1)
        }
        assert named <= mine | ledger.settled
        if log is not None:
            assert log.kept == len(there)


def repaired(written: Written, *more: Path) -> Plan:
    """Repair and check again."""
    work = Repair([written.folder, *more])
    work.open()
    try:
        plan = work.plan()
        assert not plan.is_empty and plan.is_complete
        work.carry_out(plan)
        again = work.plan()
    finally:
        work.close()
    assert not again.logs and not again.hopeless and not again.finished
    return plan


async def test_the_folder_is_sound_and_holds_what_the_ledger_says(damaged: Written) -> None:
    assert not check_folders([damaged.folder]).damaged
    assert await read_back(damaged) == damaged.ledger.there


@pytest.mark.parametrize("damage", DAMAGES)
async def test_after_a_repair_exactly_what_it_reports_is_gone(damaged: Written, damage: str) -> None:
    DAMAGES[damage](damaged)
    found = [each for each in check_folders([damaged.folder]).findings if each.severity is Severity.UNUSABLE]
    assert found and (damage.endswith("one entity is missing") or {each.partition for each in found} == {1})
    plan = await asyncio.to_thread(repaired, damaged)
    there = await read_back(damaged)
    check_ledger(damaged, there, plan)
    if "header" in damage:
        assert [log.gone for log in plan.logs] == [[]] and there == damaged.ledger.there
    elif damage == "one frame":
        [log] = plan.logs
        assert log.gone and log.commits_gone == 1 and all(each.last is not None for each in log.gone)
    elif damage.startswith("the log"):
        assert all(log.kept == 0 and log.gone == [Range(log.partition << 48 | 1, None)] for log in plan.logs)
    report = json.loads((Path(plan.logs[0].moved_to) / "report.json").read_text())
    assert report["gone"] == [{"first": each.first, "last": each.last} for each in plan.logs[0].gone]


@pytest.mark.parametrize("steps", [0, 3, 4, 5, 6, 7])
async def test_a_repair_that_is_cut_short_loses_nothing_and_is_finished_by_the_next_one(
    damaged: Written, steps: int
) -> None:
    DAMAGES["one frame"](damaged)

    class Cut(Exception):
        pass

    class DyingDisk(LocalDisk):
        left = steps

        def rename(self, source: Path, target: Path) -> None:
            if (
                "rebuilt" in source.parts[:-1] or target.parent.parent.name == "damaged"
            ):  # the swap, and the writes before it
                if not self.left:
                    raise Cut
                self.left -= 1
            super().rename(source, target)

    first = Repair([damaged.folder], DyingDisk())
    first.open()
    plan = first.plan()
    [planned] = plan.logs
    with pytest.raises(Cut):
        await asyncio.to_thread(first.carry_out, plan)
    first.close()
    work = Repair([damaged.folder])
    work.open()
    again = work.plan()
    await asyncio.to_thread(work.carry_out, again)
    if again.finished:
        again = work.plan()
        assert again.is_empty
    else:
        assert again.logs[0].gone == planned.gone
    work.close()
    assert not check_folders([damaged.folder]).damaged
    check_ledger(damaged, await read_back(damaged), plan)


async def test_what_has_a_copy_is_moved_and_costs_nothing(damaged: Written) -> None:
    document = damaged.folder / "catalogue" / file_name_of(damaged.generation)
    checkpoint = newest_checkpoint(damaged, 1)
    index = damaged.folder / "catalogue" / INDEX_NAME
    extent = damaged.folder / "catalogue" / "logs" / damaged.generation / "0001.extent"
    for path, offset in ((document, 60), (checkpoint, 90), (index, 12), (extent, 20), (extent, 600)):
        flip(path, offset)
    (damaged.folder / "catalogue" / "logs" / damaged.generation / "0000.extent").unlink()
    assert {each.severity for each in check_folders([damaged.folder]).findings} == {Severity.SPARE}
    plan = repaired(damaged)
    moved = {document, checkpoint, index, extent}
    assert {Path(each.path) for each in plan.moved} == moved and not plan.logs
    assert not any(path.exists() for path in moved)
    assert {path.name for path in (damaged.folder / "damaged").iterdir()} == {
        f"{path.name}-0" for path in moved
    }
    assert await read_back(damaged) == damaged.ledger.there


async def test_two_damaged_files_of_a_document_are_put_together(damaged: Written) -> None:
    document = damaged.folder / "catalogue" / file_name_of(damaged.generation)
    copy = document.with_suffix(".copy")
    whole = document.read_bytes()
    flip(document, 60)
    flip(document, 200)
    copy.write_bytes(whole[: len(whole) // 2])
    flip(copy, 100)
    plan = repaired(damaged)
    assert [set(paths) for paths, _ in plan.merged] == [{document, copy}]
    assert document.read_bytes() == copy.read_bytes() == whole
    document.write_bytes(whole[:50])
    copy.write_bytes(whole[:40])
    work = Repair([damaged.folder])
    plan = work.plan()
    assert not plan.is_complete and {Path(each.path) for each in plan.hopeless} == {document, copy}


async def test_with_several_data_folders_each_keeps_what_is_damaged_in_it(damaged: Written) -> None:
    first, second = damaged.folder, damaged.folder.with_name("second")
    document = first / "catalogue" / file_name_of(damaged.generation)
    copy = second / "catalogue" / document.with_suffix(".copy").name
    log = Path("logs", damaged.generation, "0001")
    extent = Path("catalogue", "logs", damaged.generation, "0001.extent")
    second.mkdir()
    arrange(LocalDisk(), [first, second])
    for path in (log, extent):
        (second / path).parent.mkdir(parents=True)
        (first / path).rename(second / path)
    for path in first.glob("catalogue/*.copy"):
        path.rename(second / "catalogue" / path.name)
    both = [first, second]
    assert not check_folders(both).damaged
    whole = document.read_bytes()
    flip(document, 60)
    flip(copy, 61)
    flip(max((second / log).glob("*.segment")), SEGMENT_HEADER_BYTES + 100)
    assert {Path(each.path) for each in check_folders(both).findings} >= {document, copy}
    plan = await asyncio.to_thread(repaired, damaged, second)
    assert document.read_bytes() == copy.read_bytes() == whole
    assert Path(plan.logs[0].moved_to).parent == second / "damaged" and (first / "damaged").exists()
    check_ledger(damaged, await read_back(damaged, second), plan)


async def test_a_data_folder_that_is_not_named_is_a_finding(tmp_path: Path) -> None:
    both = [tmp_path / "first", tmp_path / "second"]
    arrange(LocalDisk(), both)
    for path in both:
        (path / "logs").mkdir()
        note_version(LocalDisk(), path)
    assert not check_folders(both).damaged
    [finding] = check_folders(both[:1]).findings
    assert finding.path == str(both[1]) and "was not named" in finding.why


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "broker", *arguments]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=False)


def fingerprint(folder: Path) -> dict[str, bytes]:
    return {str(path): blake2b(path.read_bytes()).digest() for path in folder.rglob("*") if path.is_file()}


def test_a_client_finds_exactly_what_the_command_says_and_it_never_acts_unasked(damaged: Written) -> None:
    flip_frames(0.3, 0.6)(damaged)
    segments(damaged, 0)[-1].unlink()
    folder = ("--data-dir", str(damaged.folder))
    broker = BrokerProcess(
        damaged.folder.parent, [queue("orders", PartitionCount=PARTITIONS, Partitioned=True)],
        environment=SMALL_LOGS
    )  # fmt: skip
    with broker:
        checked = run("check", "--json", *folder)
        assert checked.returncode == 1, checked
        assert {
            each["partition"]
            for each in json.loads(checked.stdout)["findings"]
            if each["severity"] == "unusable"
        } == {0, 1}
        refused = run("repair", "--yes", *folder)
        assert refused.returncode == 2 and "a broker uses this folder" in refused.stderr
    before = fingerprint(damaged.folder)
    planned = run("repair", *folder)
    assert (
        planned.returncode == 1 and "Nothing was changed" in planned.stdout and "orders" in planned.stdout
    ), planned
    assert fingerprint(damaged.folder) == before
    done = run("repair", "--yes", "--json", *folder)
    assert done.returncode == 0, done
    report = json.loads(done.stdout)
    gone = {
        log["partition"]: [Range(each["first"], each["last"]) for each in log["gone"]]
        for log in report["logs"]
    }
    assert report["done"] and set(gone) == {0, 1}
    for path, content in before.items():
        moved = fingerprint(damaged.folder)
        assert path in moved or content in moved.values(), "nothing is deleted"
    assert not check_folders([damaged.folder]).damaged
    with broker, ServiceBusClient.from_connection_string(broker.addresses.connection_string()) as client:
        found = peeked(client)
    for partition in range(PARTITIONS):
        mine = damaged.ledger.of(partition)
        there = {number for number in found if number >> 48 == partition}
        assert mine - there == {number for number in mine if is_gone(number, gone[partition])}
        assert gone[partition] and there - mine <= damaged.ledger.settled
