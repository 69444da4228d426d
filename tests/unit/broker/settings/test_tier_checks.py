"""Settings that do not go with the tier."""

from __future__ import annotations

import pytest

from broker.settings.setting_types import variable_of
from broker.settings.settings import WrongSettings, load_settings


def test_a_tier_with_a_fixed_number_of_partitions_accepts_no_other() -> None:
    assert load_settings(tier="standard").namespace_tier.partitions == 16
    assert load_settings(tier="premium", partitions_default=4).namespace_tier.partitions == 4
    with pytest.raises(WrongSettings, match=r"PARTIBUS_PARTITIONS_DEFAULT is 4, but .*`basic` tier have 16"):
        load_settings(tier="basic", partitions_default=4)
    with pytest.raises(WrongSettings, match="PARTIBUS_TIER"):
        load_settings(tier="gold")


def test_filters_cost_credits_only_where_there_are_some() -> None:
    assert load_settings(tier="standard").throttle_filter_credits == 0
    assert load_settings(tier="standard", throttle_filter_credits=1).throttle_filter_credits == 1
    assert load_settings(throttle_credits=50, throttle_filter_credits=1).throttle_filter_credits == 1
    for given in ({}, {"tier": "premium"}, {"tier": "standard", "throttle_credits": 0}):
        with pytest.raises(
            WrongSettings, match="PARTIBUS_THROTTLE_FILTER_CREDITS is 1, but needs a namespace that"
        ):
            load_settings(throttle_filter_credits=1, **given)


@pytest.mark.parametrize("tier", ["basic", "standard", "unlimited"])
@pytest.mark.parametrize(
    "name", ["messaging_units", "throttle_cpu_percent", "throttle_memory_percent", "throttle_pending_max"]
)
def test_settings_of_the_premium_tier_are_refused_in_others(name: str, tier: str) -> None:
    assert getattr(load_settings(tier="premium", **{name: 2}), name) == 2
    with pytest.raises(WrongSettings, match=f"{variable_of(name)} is 2, but needs the `premium` tier"):
        load_settings(tier=tier, **{name: 2})


def test_credits_are_refused_in_the_premium_tier_which_is_throttled_by_resources() -> None:
    assert load_settings(tier="premium").credits_per_second == 0
    for credits in (10, 0):  # 0 would not switch off what it is throttled by
        with pytest.raises(
            WrongSettings, match=r"PARTIBUS_THROTTLE_CREDITS is .*, but has no place in the `premium` tier"
        ):
            load_settings(tier="premium", throttle_credits=credits)


@pytest.mark.parametrize("name", ["partitions_default", "partitioned_entities_max"])
def test_settings_of_partitioned_entities_are_refused_where_there_are_none(name: str) -> None:
    """In the premium tier, all entities are partitioned or none is; in the others, clients choose."""
    for tier in ("premium", "unlimited"):
        assert getattr(load_settings(tier=tier, **{name: 3}), name) == 3
    assert getattr(load_settings(partitioned_by_default=False, **{name: 3}), name) == 3
    with pytest.raises(WrongSettings, match=f"{variable_of(name)} is 3, .* no effect .* partitioned"):
        load_settings(tier="premium", partitioned_by_default=False, **{name: 3})


def test_messages_of_the_premium_tier_are_not_bounded_below_what_it_permits() -> None:
    """Or no entity could be created without a size of its own."""
    assert load_settings(tier="premium", message_kb_max=1_024).message_kb_max == 1_024
    assert load_settings(message_kb_max=1_023).message_kb_max == 1_023
    with pytest.raises(WrongSettings, match=r"PARTIBUS_MESSAGE_KB_MAX is 1023, but .* at least 1024"):
        load_settings(tier="premium", message_kb_max=1_023)
