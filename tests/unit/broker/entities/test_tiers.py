"""Tiers: what each permits its entities, and that what is there already stays."""

from __future__ import annotations

from dataclasses import replace

import pytest

from broker.base.errors import Reason, Refused
from broker.entities.descriptions import EntitySettings, QueueSettings
from broker.entities.tiers import BASIC_TIME_TO_LIVE_MS, UNLIMITED, Tier, TierName, tier_of
from broker.entities.topics import TopicSettings
from broker.entities.validation import WrongProperty

PARTITIONED, PLAIN = QueueSettings(), QueueSettings(enable_partitioning=False)
DEFAULT_KB = QueueSettings().max_message_size_kb


def tier(name: TierName, *, partitioned: bool = True, partitions: int = 4) -> Tier:
    return tier_of(name, partitioned=partitioned, partitions=partitions, message_kb=DEFAULT_KB)


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


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [("basic", 5_120, 10_240), ("standard", 1_024, 1_025), ("premium", 81_920, 6_144)],
)
def test_sizes_have_steps(name: TierName, good: int, bad: int) -> None:
    settings = QueueSettings(default_time_to_live_ms=1_000, max_size_mb=good)
    assert tier(name).admit("shop", settings) is settings
    other = replace(settings, max_size_mb=bad)
    element, text = refused(tier(name), other)
    assert element == "MaxSizeInMegabytes" and text.startswith(f"The specified value {bad} is invalid.")
    assert refused(tier(name), other, previous=settings)[0] == element
    assert tier(name).admit("shop", other, previous=other) is other


def test_the_size_of_messages_is_fixed_in_standard_and_has_a_least_value_in_premium() -> None:
    standard = tier_of("standard", partitioned=True, partitions=16, message_kb=300)
    settings = QueueSettings(max_message_size_kb=300)
    assert standard.admit("shop", settings) is settings
    other = QueueSettings(max_message_size_kb=1_024)
    element, text = refused(standard, other)
    assert element == "MaxMessageSizeInKilobytes" and "must be 300 in the 'Standard' Tier" in text
    assert standard.admit("shop", other, previous=other) is other
    premium = tier("premium", partitioned=False)
    assert "at least 1024" in refused(premium, replace(PLAIN, max_message_size_kb=1_023))[1]
    premium.admit("shop", replace(PLAIN, max_message_size_kb=102_400))


@pytest.mark.parametrize(("message_kb", "largest"), [(256, 1_024), (1_024, 1_024), (2_048, 2_048)])
def test_messages_of_a_partitioned_premium_namespace_are_bounded(message_kb: int, largest: int) -> None:
    premium = tier_of("premium", partitioned=True, partitions=4, message_kb=message_kb)
    premium.admit("shop", QueueSettings(max_message_size_kb=largest))
    text = refused(premium, QueueSettings(max_message_size_kb=largest + 1))[1]
    assert f"must be {'1024' if largest == 1_024 else f'from 1024 to {largest}'} in the 'Premium'" in text


def test_the_number_of_partitioned_entities_is_limited_by_tier_and_setting() -> None:
    few = tier_of("unlimited", partitioned=True, partitions=16, partitioned_entities=1)
    few.check_count(PARTITIONED, [PLAIN, PLAIN])
    few.check_count(PLAIN, [PARTITIONED])
    UNLIMITED.check_count(PARTITIONED, [PARTITIONED] * 1_000)
    for limited, count in ((few, 1), (tier("basic"), 100), (tier("standard"), 100)):
        limited.check_count(PARTITIONED, [PARTITIONED] * (count - 1))
        with pytest.raises(Refused, match=f"holds {count} partitioned entities; the limit is {count}") as why:
            limited.check_count(PARTITIONED, [PARTITIONED] * count)
        assert why.value.reason is Reason.QUOTA_EXCEEDED
