"""Events of the engine: what they weigh, and which updates say the same."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from protocol.events import DeliveriesUpdated, ErrorCondition, Outcome, TransactionalState, same_update
from protocol.links import UNSETTLED, Link, Session


def link() -> Link:
    return Link(None, Session(None, 0), False, "name", "queue", None, False, UNSETTLED, 0)


LINK = link()
UPDATE = DeliveriesUpdated(LINK, [], Outcome.MODIFIED, False)
ERROR = ErrorCondition("amqp:error", "text", b"info!")


def test_an_event_weighs_what_the_peer_can_make_large() -> None:
    assert ERROR.bytes == len("text") + len("info!")
    state = TransactionalState(b"txn", Outcome.REJECTED, ERROR, annotations=b"12")
    assert state.bytes == 3 + ERROR.bytes + 2
    assert (
        replace(UPDATE, error=ERROR, transaction=state, annotations=b"x").bytes
        == ERROR.bytes + state.bytes + 1
    )
    assert UPDATE.bytes == 0


@pytest.mark.parametrize(
    "other",
    [
        {"link": link()},
        {"outcome": Outcome.RELEASED},
        {"settled": True},
        {"failed": True},
        {"undeliverable_here": True},
        {"annotations": b"x"},
        {"error": ERROR},
        {"transaction": TransactionalState(b"txn")},
    ],
    ids=lambda other: next(iter(other)),
)
def test_updates_that_differ_in_anything_but_their_deliveries_are_not_merged(other: dict[str, Any]) -> None:
    assert not same_update(UPDATE, replace(UPDATE, **other))
    assert same_update(replace(UPDATE, **other), replace(UPDATE, **other))
