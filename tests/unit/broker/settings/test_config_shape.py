"""broker/settings/config_shape.py: fields have the emulator's names, types and defaults."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from broker.settings.config_shape import QueueProperties, SubscriptionProperties, Topic, partitioning


def test_fields_are_spelled_as_the_emulator_spells_them() -> None:
    properties = QueueProperties.model_validate(
        {"LockDuration": "PT30S", "ForwardTo": "", "MaxDeliveryCount": 5, "DefaultMessageTimeToLive": "P1D"}
    )
    assert (properties.lock_duration, properties.forward_to) == (30_000, None)
    assert (properties.max_delivery_count, properties.default_message_time_to_live) == (5, 86_400_000)


@pytest.mark.parametrize(
    "fields",
    [{"MaxDeliveryCount": "3"}, {"RequiresSession": "yes"}, {"LockDuration": 5}, {"lock_duration": "PT1M"}],
)
def test_another_type_or_spelling_is_a_mistake(fields: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        SubscriptionProperties.model_validate(fields)


@pytest.mark.parametrize(
    ("fields", "partitioned"),
    [
        ({}, None),
        ({"Partitioned": True}, True),
        ({"EnablePartitioning": False}, False),
        ({"PartitionCount": 4}, True),
        ({"PartitionCount": 1}, False),
    ],
)
def test_partitioning_has_two_names_and_follows_from_the_count(
    fields: dict[str, object], partitioned: bool | None
) -> None:
    topic = Topic.model_validate({"Name": "t", "Properties": fields})
    assert partitioning(topic.properties) is partitioned


def test_contradictions_are_mistakes() -> None:
    for fields in (
        {"Partitioned": False, "PartitionCount": 2},
        {"Partitioned": True, "EnablePartitioning": False},
    ):
        with pytest.raises(ValidationError):
            QueueProperties.model_validate(fields)
