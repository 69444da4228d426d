"""The disk of the catalogue and the index hangs: administration is answered in time, nothing else waits, and
the process ends.
"""

from __future__ import annotations

import asyncio
import re
import threading
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from email.message import Message
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from broker.entities.descriptions import QueueDescription
from broker.entities.documents import decode_description
from storage.catalogue import Catalogue
from storage.disk import LocalDisk
from storage.document_file import DOCUMENT_SUFFIX
from storage.errors import CommitFailed, DiskHangs
from storage.partition_index import INDEX_NAME, PartitionIndex
from tests.crash.test_broker_disk_faults import PARTITIONS, client_of, health, wait_until
from tests.crash.test_hanging_disk import ANSWERED_WITHIN_S, BACK_WITHIN_S
from tests.support.broker_process import queue
from tests.support.broker_thread import BrokerThread
from tests.support.faulty_disk import FaultyDisk
from tests.support.http_entries import queue_body
from tests.support.sas import sas_token

TIMEOUT_MS = 3_000
CATALOGUE = "/catalogue/"


def broker_on(folder: Path, disk: FaultyDisk, **settings: Any) -> BrokerThread:
    return BrokerThread(
        folder, [queue("orders"), queue("other")], disk, disk_timeout_ms=TIMEOUT_MS, **settings
    )


class Admin:
    """Administers the broker over its HTTP port."""

    def __init__(self, broker: BrokerThread) -> None:
        self._url = broker.addresses.http_url
        self._headers = {"Authorization": sas_token(self._url)}

    def ask(
        self, method: str, path: str, body: str | None = None, **headers: str
    ) -> tuple[int, str, Message]:
        """Status, text and headers."""
        data = None if body is None else queue_body(body)
        request = urllib.request.Request(f"{self._url}/{path}", data, self._headers | headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=ANSWERED_WITHIN_S) as answer:
                return answer.status, answer.read().decode(), answer.headers
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode(), error.headers

    def create(self, name: str) -> tuple[int, str, Message]:
        return self.ask("PUT", name, "")

    def update(self, name: str, deliveries: int) -> tuple[int, str, Message]:
        return self.ask(
            "PUT", name, f"<MaxDeliveryCount>{deliveries}</MaxDeliveryCount>", **{"If-Match": "*"}
        )

    def delete(self, name: str) -> tuple[int, str, Message]:
        return self.ask("DELETE", name)

    def descriptions(self) -> dict[str, str]:
        """Live queues, each with its max delivery count."""
        text = self.ask("GET", "$Resources/queues")[1]
        return dict(re.findall(r"<entry.*?<title[^>]*>(\w+)</title>.*?<MaxDeliveryCount>(\d+)<", text, re.S))


async def on_disk(broker: BrokerThread) -> dict[str, str]:
    """The same, as the next broker will find it on disk."""
    documents = await Catalogue(broker.data_dir / "catalogue", LocalDisk()).load_all()
    found = map(decode_description, documents.values())
    return {
        each.name: str(each.settings.max_delivery_count)
        for each in found
        if isinstance(each, QueueDescription)
    }


def refusal(answer: tuple[int, str, Message]) -> str:
    """The error of a refusal that clients may retry. It came in time, otherwise `ask` would have raised."""
    status, text, headers = answer
    assert status == 503 and headers["Retry-After"], text
    return text


@pytest.mark.parametrize("first", ["create", "update", "delete"])
def test_administration_is_answered_while_the_catalogues_disk_hangs_and_nobody_else_waits(
    first: str, tmp_path: Path
) -> None:
    """The outcome of the change that the disk holds up is unknown; other changes are not begun. All of them
    succeed later.
    """
    disk = FaultyDisk(LocalDisk())
    with broker_on(tmp_path, disk) as broker, client_of(broker.addresses) as client:
        admin = Admin(broker)
        for number in range(PARTITIONS):
            assert client.send(number) is None
        changes = {
            "create": lambda: admin.create("new"),
            "update": lambda: admin.update("other" if first == "delete" else "orders", 3),
            "delete": lambda: admin.delete("other"),
        }
        served = admin.descriptions()
        assert list(served) == ["orders", "other"]
        disk.hang("sync", CATALOGUE)
        disk.hang("sync_directory", "/catalogue")
        try:
            assert "is not known" in refusal(changes[first]())
            for name in changes.keys() - {first, "update"}:
                assert "left as it is" in refusal(changes[name]())
            assert "left as it is" in refusal(admin.create("third"))
            refusal(changes[first]())
            for number in range(PARTITIONS):
                assert client.send(number) is None
            assert set(health(broker.addresses)["partitions"]) == {"healthy"}
            in_doubt = {"other"} if first == "delete" else set()
            assert admin.descriptions().keys() == served.keys() - in_doubt, (
                "a queue that may be gone after a restart is out of service"
            )
        finally:
            disk.release()
        wait_until(
            lambda: not broker.broker.namespace.unconfirmed, "it is known what is on the disk", BACK_WITHIN_S
        )
        assert admin.descriptions() == served, "what was refused has not happened"
        assert asyncio.run(on_disk(broker)) == served, "memory and disk agree"
        assert (
            admin.create("new")[0] == 201 and admin.update("orders", 3)[0] == admin.delete("other")[0] == 200
        )
        assert admin.descriptions() == asyncio.run(on_disk(broker)) == {"orders": "3", "new": "10"}


def test_a_deletion_that_the_logs_disk_holds_up_is_answered_once_the_entry_is_deleted(tmp_path: Path) -> None:
    disk = FaultyDisk(LocalDisk())
    with broker_on(tmp_path, disk) as broker, client_of(broker.addresses) as client:
        admin = Admin(broker)
        assert client.send(0) is None
        disk.hang("remove_tree")
        try:
            assert admin.delete("orders")[0] == 200
            assert admin.create("orders")[0] == 201
        finally:
            disk.release()


@pytest.mark.parametrize("what", ["index", "change", "deletion"])
def test_the_broker_stops_while_its_catalogue_or_index_hangs(what: str, tmp_path: Path) -> None:
    disk = FaultyDisk(LocalDisk())
    try:
        with (
            capture_logs() as lines,
            broker_on(tmp_path, disk) as broker,
            client_of(broker.addresses) as client,
        ):
            assert client.send(0) is None
            disk.hang("sync", INDEX_NAME if what == "index" else DOCUMENT_SUFFIX)
            if what != "index":
                refusal(Admin(broker).create("new"))
            if what == "deletion":
                disk.hang("remove_tree")
                disk.hang("sync_directory", "/logs")
                refusal(Admin(broker).delete("other"))
    finally:
        disk.release()
    events = {line["event"] for line in lines if line["log_level"] == "error"}
    assert events & {"index.not_closed", "catalogue.left"} == {
        "index.not_closed" if what == "index" else "catalogue.left"
    }


async def test_an_index_whose_disk_hangs_is_closed_in_time_and_says_what_it_lost(tmp_path: Path) -> None:
    disk = FaultyDisk(LocalDisk())
    index = PartitionIndex(tmp_path, disk, write_delay_ms=1, close_within_ms=50)
    await index.load()
    await index.rebuild({})
    await index.opened("a", 0)
    disk.hang("sync", INDEX_NAME)
    try:
        index.closed("a", 0, b"note")
        with capture_logs() as lines:
            async with asyncio.timeout(20):
                await index.close()
        assert [(line["event"], line["entries"]) for line in lines] == [("index.not_closed", 1)]
    finally:
        disk.release()


def test_the_index_and_the_catalogue_do_not_wait_for_the_event_loops_own_threads(tmp_path: Path) -> None:
    done = threading.Event()
    with broker_on(tmp_path, FaultyDisk(LocalDisk())) as broker, client_of(broker.addresses) as client:
        pool = ThreadPoolExecutor(1)
        pool.submit(done.wait)
        try:
            broker.loop.call_soon_threadsafe(broker.loop.set_default_executor, pool)
            for number in range(PARTITIONS):
                assert client.send(number) is None
            assert Admin(broker).create("new")[0] == 201
        finally:
            done.set()


async def test_a_change_that_waits_for_a_hanging_one_is_not_begun(tmp_path: Path) -> None:
    disk = FaultyDisk(LocalDisk())
    catalogue = Catalogue(tmp_path, disk, timeout_ms=200)
    await catalogue.load_all()
    disk.hang("sync")
    try:
        found = await asyncio.gather(
            *(catalogue.put(name, b"document") for name in "abc"), return_exceptions=True
        )
        assert [type(each) for each in found] == [CommitFailed, DiskHangs, DiskHangs]
        with pytest.raises(DiskHangs):
            await catalogue.put("d", b"document")
    finally:
        disk.release()
    async with asyncio.timeout(20):
        while True:  # nothing signals that the disk answers again
            try:
                await catalogue.put("e", b"document")
            except DiskHangs:
                await asyncio.sleep(0.001)
            else:
                break
    await catalogue.close()
    assert set(await Catalogue(tmp_path, disk).load_all()) == {"a", "e"}, (
        "what was late has happened after all"
    )
