"""broker/entities/kinds.py: the settings of a new entity say of which kind it is."""

from __future__ import annotations

import pytest

from broker.entities.descriptions import EntityDescription, EntitySettings, QueueDescription, QueueSettings
from broker.entities.kinds import KINDS, describe
from broker.entities.topics import TopicDescription, TopicSettings


@pytest.mark.parametrize(
    ("settings", "kind"), [(QueueSettings(), QueueDescription), (TopicSettings(), TopicDescription)]
)
def test_settings_say_the_kind(settings: EntitySettings, kind: type[EntityDescription]) -> None:
    made = describe("x", settings, partitions=3, now_ms=7, file_settings=settings, folders=2)
    assert type(made) is kind and (kind, type(settings)) in KINDS.values()
    assert (made.name, made.partitions, made.settings, made.file_settings) == ("x", 3, settings, settings)
    assert (made.created_at_ms, made.updated_at_ms, made.folders, made.idle_ms) == (7, 7, 2, 0)
