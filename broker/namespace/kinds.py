"""The kinds of entities that the broker serves: which class serves which description."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from broker.entities.descriptions import EntityDescription, QueueDescription
from broker.entities.topics import TopicDescription
from broker.namespace.entity import Entity, Partition
from broker.namespace.meter import EntityMeter
from broker.namespace.queue import Queue
from broker.namespace.resting import Resting
from broker.namespace.topic import Topic

KINDS: Mapping[type[EntityDescription], type[Entity]] = {QueueDescription: Queue, TopicDescription: Topic}


def make_entity(
    description: EntityDescription,
    meter: EntityMeter,
    start_partition: Callable[[Entity, int], Partition],
    resting: Resting,
    size_bytes_max: int = 0,
) -> Entity:
    """An entity of the class that matches its description."""
    return KINDS[type(description)](description, meter, start_partition, resting, size_bytes_max)
