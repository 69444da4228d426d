"""broker/operations/outlook.py: what clients are told of a partition that is down."""

from __future__ import annotations

import pytest

from broker.operations.outlook import outlook_of, outlook_of_all
from broker.partition.health import FOR_GOOD, Health


@pytest.mark.parametrize("health", Health)
def test_a_client_is_asked_to_try_again_unless_only_an_operator_can_help(health: Health) -> None:
    needs_operator = health in (Health.DAMAGED, Health.FAILED)
    for text in (outlook_of(health), outlook_of_all({3: health})):
        assert ("try again" in text) is not needs_operator and ("operator" in text) is needs_operator
    assert not needs_operator or health in FOR_GOOD


def test_of_several_partitions_those_that_need_an_operator_are_named() -> None:
    text = outlook_of_all({7: "recovering", 3: "damaged", 1: "damaged", 2: "failed"})
    assert text == (
        "An operator must repair 1, 3 (damaged). An operator must restart the broker for 2 (failed). "
        "Please try again."
    )
