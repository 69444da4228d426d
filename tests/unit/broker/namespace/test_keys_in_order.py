"""The sorted keys of all entities: they stay sorted whatever is added and removed, each kind by itself."""

from __future__ import annotations

import random

from broker.entities.descriptions import EntityDescription, QueueDescription, QueueSettings, key_of
from broker.entities.kinds import describe
from broker.entities.topics import TopicDescription, TopicSettings
from broker.namespace.keys_in_order import KeysInOrder


def described(name: str) -> EntityDescription:
    settings = TopicSettings() if name.startswith("topic") else QueueSettings()
    return describe(name, settings, partitions=1, now_ms=0, file_settings=None, folders=1)


def test_keys_stay_sorted_whatever_is_added_and_removed() -> None:
    chance = random.Random(7)
    entities = [described(f"{kind}-{number}") for kind in ("Queue", "topic") for number in range(60)]
    chance.shuffle(entities)
    live, rest = entities[:40], entities[40:]
    keys = KeysInOrder(live)
    for description in rest:
        keys.add(description)
        live.append(description)
        gone = live.pop(chance.randrange(len(live)))
        keys.remove(gone)
        for kind in (QueueDescription, TopicDescription):
            assert list(keys.of(kind)) == sorted(
                key_of(each.name) for each in live if isinstance(each, kind)
            ), (description.name, gone.name)


def test_a_kind_without_entities_has_no_keys() -> None:
    assert list(KeysInOrder().of(QueueDescription)) == []
