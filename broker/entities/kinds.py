"""The kinds of entities that there are, as data."""

from __future__ import annotations

from collections.abc import Mapping

from broker.entities.descriptions import (
    NAMESPACE,
    EntityDescription,
    EntitySettings,
    QueueDescription,
    QueueSettings,
    new_generation,
)
from broker.entities.topics import TopicDescription, TopicSettings

KINDS: Mapping[str, tuple[type[EntityDescription], type[EntitySettings]]] = {
    "queue": (QueueDescription, QueueSettings),
    "topic": (TopicDescription, TopicSettings),
}
"""The kinds, by the names that the catalogue uses."""


def describe(
    name: str,
    settings: EntitySettings,
    *,
    partitions: int,
    now_ms: int,
    file_settings: EntitySettings | None,
    folders: int,
    namespace: str = NAMESPACE,
) -> EntityDescription:
    """Make the description of a new entity, of the kind that the settings belong to. `namespace` is the name
    of its namespace on disk."""
    (make,) = (description for description, of in KINDS.values() if of is type(settings))
    return make(name, new_generation(namespace), partitions, settings, now_ms, now_ms, file_settings, folders)
