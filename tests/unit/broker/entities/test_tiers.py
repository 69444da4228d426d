"""Tiers: what each permits its entities, and that what is there already stays."""

from __future__ import annotations

from dataclasses import replace

import pytest

from broker.entities.descriptions import EntitySettings, QueueSettings
from broker.entities.tiers import BASIC_TIME_TO_LIVE_MS, UNLIMITED, Tier, TierName, tier_of
from broker.entities.topics import TopicSettings
from broker.entities.validation import WrongProperty

PARTITIONED, PLAIN = QueueSettings(), QueueSettings(enable_partitioning=False)


def tier(name: TierName, *, partitioned: bool = True, partitions: int = 4) -> Tier:
    return tier_of(name, partitioned=partitioned, partitions=partitions)


def refused(
    of: Tier,
    settings: EntitySettings,
    partitions: int | None = None,
    previous: EntitySettings | None = None,
) -> tuple[str, str]:
    """The element and the text of the refusal."""
    with pytest.raises(WrongProperty) as why:
        of.admit("shop", settings, partitions, previous)
    return why.value.element, why.value.description


def test_the_unlimited_tier_permits_everything() -> None:
    for settings in (PARTITIONED, PLAIN, TopicSettings(), QueueSettings(requires_session=True)):
        assert UNLIMITED.admit("shop", settings, 7) is settings
    assert tier("unlimited") is UNLIMITED


@pytest.mark.parametrize("name", ["basic", "standard"])
def test_partitioned_entities_of_basic_and_standard_have_16_partitions(name: TierName) -> None:
    assert tier(name).partitions == 16
    tier(name).admit("shop", PARTITIONED, 16)
    assert refused(tier(name), PARTITIONED, 4) == (
        "PartitionCount",
        "The specified value 4 is invalid. Partitioned entities have 16 partitions because the namespace "
        f"'shop' is using the '{name.capitalize()}' Tier.",
    )


def test_entities_of_a_partitioned_premium_namespace_are_all_partitioned() -> None:
    partitioned = tier("premium")
    partitioned.admit("shop", PARTITIONED, 4)
    assert refused(partitioned, PLAIN) == (
        "EnablePartitioning",
        "Non-partitioned entities are not allowed in partitioned namespace. The property EnablePartitioning "
        "must be set to true.",
    )
    assert refused(partitioned, PARTITIONED, 16)[0] == "PartitionCount"


def test_entities_of_another_premium_namespace_are_not_partitioned() -> None:
    plain = tier("premium", partitioned=False)
    plain.admit("shop", PLAIN)
    assert refused(plain, PARTITIONED)[0] == "EnablePartitioning"


def test_entities_from_the_standard_tier_keep_working_in_premium() -> None:
    changed = replace(PLAIN, lock_duration_ms=1_000)
    assert tier("premium").admit("shop", changed, previous=PLAIN) is changed


@pytest.mark.parametrize(
    ("element", "settings"),
    [
        ("RequiresSession", QueueSettings(requires_session=True)),
        ("RequiresDuplicateDetection", QueueSettings(requires_duplicate_detection=True)),
        ("AutoDeleteOnIdle", QueueSettings(auto_delete_on_idle_ms=600_000)),
        ("EnableExpress", QueueSettings(enable_express=True)),
        ("ForwardTo", QueueSettings(forward_to="other")),
        ("ForwardDeadLetteredMessagesTo", QueueSettings(forward_dead_lettered_to="other")),
    ],
)
def test_the_basic_tier_refuses_features_of_the_others(element: str, settings: QueueSettings) -> None:
    assert refused(tier("basic"), settings) == (
        element,
        f"The property '{element}' cannot be set when creating a Queue because the namespace 'shop' is using "
        "the 'Basic' Tier.",
    )
    assert tier("basic").admit("shop", settings, previous=settings).default_time_to_live_ms is not None
    if element != "RequiresSession":
        assert refused(tier("basic"), settings, previous=QueueSettings())[0] == element


def test_the_basic_tier_has_queues_only() -> None:
    element, text = refused(tier("basic"), TopicSettings())
    assert element == "Topic" and "queues only" in text
    tier("basic").admit("shop", TopicSettings(), previous=TopicSettings())


def test_messages_of_the_basic_tier_live_for_14_days_at_most() -> None:
    basic = tier("basic")
    assert basic.admit("shop", QueueSettings()).default_time_to_live_ms == BASIC_TIME_TO_LIVE_MS
    shorter = QueueSettings(default_time_to_live_ms=1_000)
    assert basic.admit("shop", shorter) is shorter
    longer = QueueSettings(default_time_to_live_ms=BASIC_TIME_TO_LIVE_MS + 1)
    assert refused(basic, longer)[0] == "DefaultMessageTimeToLive"
    assert basic.admit("shop", longer, previous=longer) is longer
