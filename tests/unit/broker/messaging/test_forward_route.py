"""Where the messages of each subqueue go, and which entities take none."""

from __future__ import annotations

from dataclasses import replace

import pytest

from broker.base.errors import Reason, Refused
from broker.entities.descriptions import (
    DEAD_LETTER,
    QUEUE_SUBQUEUES,
    TRANSFER_DEAD_LETTER,
    EntityStatus,
    QueueSettings,
)
from broker.entities.roles import KEEPS_DEAD_LETTERS, PASSES_ON, SERVES_RECEIVERS, Role
from broker.messaging.forward_route import Route
from tests.support.forwarding_world import World, world
from tests.support.locked import locked

PLAIN = QueueSettings()


def route_of(here: World, role: Role, target: str | None) -> Route:
    number = QUEUE_SUBQUEUES.first_with(role)
    assert number is not None
    return Route(here.forwarding._shared, here.entities["a"], number, target)


@pytest.mark.parametrize(
    ("role", "fails_to"),
    [
        (SERVES_RECEIVERS, DEAD_LETTER),
        (KEEPS_DEAD_LETTERS, TRANSFER_DEAD_LETTER),
        (PASSES_ON, TRANSFER_DEAD_LETTER),
    ],
)
async def test_only_messages_for_receivers_become_dead_letters(role: Role, fails_to: str) -> None:
    async with world(a=(1, PLAIN)) as here:
        route = route_of(here, role, "b")
        assert route.fails_to == fails_to and (route.dead_letters_to is None) == (
            role is not SERVES_RECEIVERS
        )


async def test_messages_go_to_the_target_or_to_the_destinations_that_they_name() -> None:
    given = locked(0, 3)
    given.columns = {"destination": [b"B", b"c", b"b"]}
    async with world(a=(1, PLAIN)) as here:
        assert route_of(here, SERVES_RECEIVERS, "b").split(given) == {"b": [0, 1, 2]}
        assert route_of(here, PASSES_ON, None).split(given) == {"B": [0, 2], "c": [1]}


async def test_an_entity_that_is_missing_gone_or_disabled_takes_nothing() -> None:
    disabled = replace(PLAIN, status=EntityStatus.SEND_DISABLED)
    async with world(a=(1, PLAIN), b=(1, disabled), c=(1, PLAIN)) as here:
        here.entities["c"].gone = Refused(Reason.PARTITION_UNAVAILABLE, "out of service")
        shared = here.forwarding._shared
        assert shared.find("A") is here.entities["a"]
        for name, reason in (
            ("b", Reason.ENTITY_DISABLED),
            ("c", Reason.PARTITION_UNAVAILABLE),
            ("d", Reason.ENTITY_NOT_FOUND),
        ):
            with pytest.raises(Refused) as raised:
                shared.find(name)
            assert raised.value.reason is reason
