"""A kind of entity is a description, its rules and one class; no other code knows which kinds exist."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest

from broker.base.errors import Reason, Refused
from broker.entities import descriptions, documents, validation
from broker.entities.descriptions import EntityDescription, QueueDescription, QueueSettings
from broker.namespace import kinds
from broker.namespace.entity import Entity
from broker.namespace.meter import EntityMeter
from broker.namespace.queue import Queue
from tests.support import raw_amqp as raw
from tests.support.link_stack import LinkStack
from tests.support.receiving import give


@dataclass(slots=True, frozen=True)
class ArchiveSettings(QueueSettings):
    """Settings of a kind that only this test knows."""


@dataclass(slots=True, frozen=True)
class ArchiveDescription(QueueDescription):
    """A kind of entity that clients can only receive from."""


class Archive(Entity):
    """The entity's class for that kind."""

    def check_can_send(self, subqueue: str) -> None:
        raise Refused(Reason.NOT_ALLOWED, "An archive takes no messages.")

    def check_can_receive(self, subqueue: str) -> None:
        """Receiving is always allowed."""

    def requires_session(self, subqueue: str) -> bool:
        return False


@pytest.fixture
def archives(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make archives known to the broker."""
    monkeypatch.setitem(
        cast(dict[str, Any], descriptions.KINDS), "archive", (ArchiveDescription, ArchiveSettings)
    )
    monkeypatch.setitem(cast(dict[Any, Any], kinds.KINDS), ArchiveDescription, Archive)


def described(settings: QueueSettings) -> EntityDescription:
    return descriptions.describe("things", settings, partitions=2, now_ms=7, file_settings=None, folders=1)


def test_settings_say_what_kind_an_entity_is_and_the_catalogue_keeps_it(archives: None) -> None:
    for settings, kind in ((ArchiveSettings(), ArchiveDescription), (QueueSettings(), QueueDescription)):
        description = described(settings)
        assert type(description) is kind and description.settings == settings
        read = documents.decode_description(documents.encode_description(description))
        assert type(read) is kind and type(read.settings) is type(settings) and read == description


def test_a_kind_that_this_version_does_not_know_is_damage(archives: None) -> None:
    document = documents.encode_description(described(ArchiveSettings())).replace(b'"archive"', b'"attic"')
    with pytest.raises(AssertionError):
        documents.decode_description(document)


def test_settings_of_a_queue_are_checked_as_such() -> None:
    with pytest.raises(Refused):
        validation.check_settings("things", QueueSettings(max_delivery_count=0))


async def test_links_ask_the_entity_what_clients_may_do_with_it(archives: None) -> None:
    stack = LinkStack(2)
    entity = kinds.make_entity(
        described(ArchiveSettings()),
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


def test_only_the_table_of_kinds_knows_the_class_of_queues() -> None:
    """All other code works with any entity."""
    root = Path(kinds.__file__).parents[1]
    users = [
        path.stem
        for path in root.rglob("*.py")
        if "from broker.namespace.queue import" in path.read_text(encoding="utf-8")
    ]
    assert users == ["kinds"] and kinds.KINDS[QueueDescription] is Queue
