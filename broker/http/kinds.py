"""The kinds of entities that administration knows: the documents of each, and the list of its entities."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Set
from typing import ClassVar

from broker.entities.descriptions import EntityDescription, EntitySettings, QueueDescription, QueueSettings
from broker.entities.topics import TopicDescription, TopicSettings
from broker.http import queue_xml, topic_xml
from broker.http.atom import Description, Element
from broker.http.description_xml import EntityDefaults
from broker.http.queue_xml import read_queue, write_queue
from broker.http.topic_xml import read_topic, write_topic
from broker.namespace.runtime import EntityRuntime


class EntityXml(ABC):
    """Reads and writes the descriptions of one kind of entity as XML."""

    KIND: ClassVar[type[EntityDescription]]
    TITLE: ClassVar[str]
    """The title of the list of these entities. In lower case, it is also the last segment of its path."""
    SETTINGS: ClassVar[Set[str]]
    """The elements that a description of this kind may have in a request, besides the read-only ones of every
    kind."""

    @abstractmethod
    def read(
        self,
        description: Description,
        defaults: EntityDefaults,
        previous: EntitySettings | None,
        now_ms: int,
    ) -> EntitySettings:
        """Read the settings that a request asks for; `previous` are the entity's settings, which are of this
        kind, when this is an update. Raises WrongProperty for an invalid value."""

    @abstractmethod
    def write(self, entity: EntityDescription, runtime: EntityRuntime, host: str) -> Element:
        """Write an entity's complete description. `host` is the host name in forwarding targets."""


class QueueXml(EntityXml):
    """The descriptions of queues."""

    KIND = QueueDescription
    TITLE = "Queues"
    SETTINGS = queue_xml.SETTINGS

    def read(
        self,
        description: Description,
        defaults: EntityDefaults,
        previous: EntitySettings | None,
        now_ms: int,
    ) -> QueueSettings:
        assert previous is None or isinstance(previous, QueueSettings)
        return read_queue(description, defaults, previous, now_ms)

    def write(self, entity: EntityDescription, runtime: EntityRuntime, host: str) -> Element:
        assert isinstance(entity, QueueDescription)
        return write_queue(entity, runtime, host)


class TopicXml(EntityXml):
    """The descriptions of topics."""

    KIND = TopicDescription
    TITLE = "Topics"
    SETTINGS = topic_xml.SETTINGS

    def read(
        self,
        description: Description,
        defaults: EntityDefaults,
        previous: EntitySettings | None,
        now_ms: int,
    ) -> TopicSettings:
        assert previous is None or isinstance(previous, TopicSettings)
        return read_topic(description, defaults, previous, now_ms)

    def write(self, entity: EntityDescription, runtime: EntityRuntime, host: str) -> Element:
        assert isinstance(entity, TopicDescription)
        return write_topic(entity, runtime)


KINDS: Mapping[str, EntityXml] = {"QueueDescription": QueueXml(), "TopicDescription": TopicXml()}
"""By the name of the description's element."""


def xml_of(entity: EntityDescription) -> EntityXml:
    """The documents of this entity's kind."""
    return next(each for each in KINDS.values() if each.KIND is type(entity))


def listed_at(path: str) -> EntityXml | None:
    """The kind whose entities are listed at this path, if any."""
    for each in KINDS.values():
        if path == f"$resources/{each.TITLE.casefold()}":
            return each
    return None
