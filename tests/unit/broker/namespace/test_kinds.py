"""A kind of entity is a description, its rules and one class; no other code knows which kinds exist."""

from __future__ import annotations

import re
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusSubQueue

from broker.base.errors import Reason, Refused
from broker.entities import documents, validation
from broker.entities import kinds as entity_kinds
from broker.entities.descriptions import (
    DEAD_LETTER,
    MAIN,
    EntityDescription,
    EntitySettings,
    QueueDescription,
    QueueSettings,
)
from broker.entities.roles import KEEPS_DEAD_LETTERS, SERVES_RECEIVERS, SubqueueDescription, SubqueueTable
from broker.http import kinds as http_kinds
from broker.http.atom import SERVICE_BUS, Description, Element, child, top
from broker.http.description_xml import EntityDefaults
from broker.http.kinds import EntityXml
from broker.maintenance.check import check_folders
from broker.namespace import kinds
from broker.namespace.entity import Entity
from broker.namespace.meter import EntityMeter
from broker.namespace.queue import Queue
from broker.namespace.runtime import EntityRuntime
from storage.disk import LocalDisk
from tests.crash.test_broker_disk_faults import wait_until
from tests.support import raw_amqp as raw
from tests.support.broker_process import queue
from tests.support.broker_thread import BrokerThread
from tests.support.http_entries import queue_body
from tests.support.link_stack import LinkStack
from tests.support.receiving import give
from tests.support.sas import sas_token
from tests.support.scrapes import by_entity, health, metrics
from tests.support.waiting import WAIT_S

TOKENS_MS = 45_000
"""How long a message of an archive stays locked."""


@dataclass(slots=True, frozen=True)
class ArchiveSettings(EntitySettings):
    """Settings of a kind that only this test knows."""

    deliveries_max: int = 1
    is_sealed: bool = False
    """It takes no messages."""


@dataclass(slots=True, frozen=True)
class Loans:
    """How the messages of an archive are delivered."""

    max_delivery_count: int
    lock_duration_ms: int = TOKENS_MS
    requires_session: bool = False
    dead_lettering_on_expiration: bool = True


@dataclass(slots=True, frozen=True)
class ArchiveDescription(EntityDescription):
    """A kind of entity with five subqueues, of which the last one is for dead letters."""

    KIND = "Archive"

    settings: ArchiveSettings = field(default_factory=ArchiveSettings)
    file_settings: ArchiveSettings | None = None

    @property
    def subqueues(self) -> SubqueueTable:
        return ARCHIVE_PLACES

    def delivery(self, subqueue: str) -> Loans:
        return Loans(self.settings.deliveries_max)


ARCHIVE_PLACES = SubqueueTable(
    {
        number: SubqueueDescription(name, SERVES_RECEIVERS, dead_letters_to=4)
        for number, name in enumerate((MAIN, "north", "east", "south"))
    }
    | {4: SubqueueDescription(DEAD_LETTER, KEEPS_DEAD_LETTERS)},
    end=5,
)


def check_archive(name: str, settings: ArchiveSettings, idle_ms_min: int) -> ArchiveSettings:
    validation.check_entity_name(name)
    validation.check_common(settings, idle_ms_min)
    if settings.deliveries_max < 1:
        raise validation.WrongProperty("DeliveriesMax", "DeliveriesMax must be positive.")
    return settings


class Archive(Entity):
    """The entity's class for that kind."""

    description: ArchiveDescription

    def check_can_send(self, subqueue: str) -> None:
        if self.description.settings.is_sealed:
            raise Refused(Reason.NOT_ALLOWED, "A sealed archive takes no messages.")

    def check_can_receive(self, subqueue: str) -> None:
        if subqueue not in (MAIN, DEAD_LETTER):
            raise Refused(Reason.ENTITY_NOT_FOUND, "An archive keeps no failed transfers.")


class ArchiveXml(EntityXml):
    """The ATOM documents of that kind."""

    KIND = ArchiveDescription
    TITLE = "Archives"
    SETTINGS = frozenset({"DeliveriesMax"})

    def read(
        self,
        description: Description,
        defaults: EntityDefaults,
        previous: EntitySettings | None,
        now_ms: int,
    ) -> ArchiveSettings:
        return ArchiveSettings(deliveries_max=int(description.values.get("DeliveriesMax", "1")))

    def write(self, entity: EntityDescription, runtime: EntityRuntime, host: str) -> Element:
        assert isinstance(entity, ArchiveDescription)
        root = top("ArchiveDescription", SERVICE_BUS)
        child(root, "DeliveriesMax", str(entity.settings.deliveries_max))
        child(root, "Active", str(runtime.active))
        child(root, "Dead", str(runtime.dead_letter))
        return root


@pytest.fixture
def archives(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make archives known to the broker: everything that a kind of entity consists of."""
    for table, key, value in (
        (entity_kinds.KINDS, "archive", (ArchiveDescription, ArchiveSettings)),
        (validation.CHECKS, ArchiveSettings, check_archive),
        (kinds.KINDS, ArchiveDescription, Archive),
        (http_kinds.KINDS, "ArchiveDescription", ArchiveXml()),
    ):
        monkeypatch.setitem(cast(dict[Any, Any], table), key, value)


def described(settings: EntitySettings) -> EntityDescription:
    return entity_kinds.describe("things", settings, partitions=2, now_ms=7, file_settings=None, folders=1)


def test_settings_say_what_kind_an_entity_is_and_the_catalogue_keeps_it(archives: None) -> None:
    for settings, kind in (
        (ArchiveSettings(deliveries_max=3), ArchiveDescription),
        (QueueSettings(), QueueDescription),
    ):
        description = described(settings)
        assert type(description) is kind and description.settings == settings
        read = documents.decode_description(documents.encode_description(description))
        assert type(read) is kind and type(read.settings) is type(settings) and read == description


def test_a_kind_that_this_version_does_not_know_is_damage(archives: None) -> None:
    document = documents.encode_description(described(ArchiveSettings())).replace(b'"archive"', b'"attic"')
    with pytest.raises(AssertionError):
        documents.decode_description(document)


def test_settings_are_checked_by_their_kind(archives: None) -> None:
    for wrong in (QueueSettings(max_delivery_count=0), ArchiveSettings(deliveries_max=0)):
        with pytest.raises(Refused):
            validation.check_settings("things", wrong)
    with pytest.raises(Refused) as refused:
        validation.check_update("things", ArchiveSettings(), QueueSettings())
    assert refused.value.reason is Reason.ENTITY_EXISTS


async def test_links_ask_the_entity_what_clients_may_do_with_it(archives: None) -> None:
    stack = LinkStack(2)
    entity = kinds.make_entity(
        described(ArchiveSettings(is_sealed=True)),
        EntityMeter(stack.metrics, "things"),
        lambda _, number: cast(Any, stack.parts[number]),
        stack.resting,
    )
    assert isinstance(entity, Archive)
    for number in range(2):
        entity.partition(number)
    stack.namespace.queues["things"] = entity
    client = await stack.connect()
    attach, detach = await client.attach(raw.sender_attach(0, "things"))
    assert attach.code == raw.ATTACH and detach.field(2).value[0] == "amqp:not-allowed"
    await client.receiver(1, credit=1, address="things")
    messages = give(stack, 0, 1)
    (transfer,) = await client.heard(raw.TRANSFER)
    assert transfer.field(2) == messages.tokens[0]


def ask(broker: BrokerThread, method: str, path: str, body: bytes | None = None) -> tuple[int, str]:
    """Ask the administration; gives status and text."""
    url = broker.addresses.http_url
    request = urllib.request.Request(f"{url}/{path}", body, {"Authorization": sas_token(url)}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


@contextmanager
def serving(folder: Path) -> Iterator[tuple[BrokerThread, ServiceBusClient]]:
    """A broker with a queue, `orders`, and a client of it."""
    with (
        BrokerThread(folder, [queue("orders")], LocalDisk()) as broker,
        ServiceBusClient.from_connection_string(broker.addresses.connection_string()) as client,
    ):
        yield broker, client


def held(broker: BrokerThread) -> dict[str, int]:
    """What the archive holds, as `/metrics` says."""
    text = metrics(broker.addresses, WAIT_S)
    return {name: by_entity(text, f"{name}_messages")["things"] for name in ("active", "dead_letter")}


def test_a_kind_of_its_own_is_served_like_a_queue_and_survives_a_restart(
    archives: None, tmp_path: Path
) -> None:
    with serving(tmp_path) as (broker, client):
        body = queue_body("<DeliveriesMax>1</DeliveriesMax>", "ArchiveDescription")
        assert ask(broker, "PUT", "things", body)[0] == 201
        assert ask(broker, "PUT", "orders", body)[0] == 409, "a queue has this name"
        with client.get_queue_sender("things") as sender:
            sender.send_messages([ServiceBusMessage(str(number)) for number in range(4)])
        with client.get_queue_receiver("things", max_wait_time=WAIT_S) as receiver:
            (first,) = receiver.receive_messages(1)
            (second,) = receiver.receive_messages(1)
            assert first.locked_until_utc is not None
            left_s = first.locked_until_utc.timestamp() - time.time()
            assert left_s <= TOKENS_MS / 1_000 < QueueSettings().lock_duration_ms / 1_000
            receiver.complete_message(first)
            receiver.abandon_message(second)  # its only delivery has failed
        wait_until(lambda: held(broker) == {"active": 2, "dead_letter": 1}, "both settled", WAIT_S)
    with serving(tmp_path) as (broker, client):
        assert held(broker) == {"active": 2, "dead_letter": 1}, "as the notes of closed partitions say"
        shown = health(broker.addresses, WAIT_S)["entities"]["things"]
        assert shown["availability"] == "Available"
        lists = {title: ask(broker, "GET", f"$Resources/{title}")[1] for title in ("queues", "archives")}
        assert "<DeliveriesMax>1<" in lists["archives"] and "things" not in lists["queues"]
        assert "orders" in lists["queues"] and "orders" not in lists["archives"]
        assert "<Dead>1<" in ask(broker, "GET", "things")[1]
        with client.get_queue_receiver(
            "things", sub_queue=ServiceBusSubQueue.DEAD_LETTER, max_wait_time=WAIT_S
        ) as dead:
            (message,) = dead.receive_messages(1)
            assert str(message) == str(second) and message.dead_letter_reason == "MaxDeliveryCountExceeded"
            dead.complete_message(message)
    report = check_folders([tmp_path / "data"])
    assert report.findings == [] and "things" in report.queues.values()


def test_all_other_code_works_with_any_entity() -> None:
    """Only the table of kinds knows the class of queues, and few modules know their description."""
    root = Path(kinds.__file__).parents[1]
    texts = {path.relative_to(root).as_posix(): path.read_text("utf-8") for path in root.rglob("*.py")}
    users = [path for path, text in texts.items() if "from broker.namespace.queue import" in text]
    assert users == ["namespace/kinds.py"] and kinds.KINDS[QueueDescription] is Queue
    named = {
        path for path, text in texts.items() if re.search(r"\bQueue(Description|Settings)\b(?!`|\")", text)
    }
    assert named == {
        "entities/descriptions.py",
        "entities/kinds.py",
        "entities/validation.py",
        "http/kinds.py",
        "http/queue_xml.py",
        "namespace/kinds.py",
        "namespace/queue.py",
        "settings/config_file.py",
    }, "the description, the check, the class and the documents of a kind, and its part of the file"
