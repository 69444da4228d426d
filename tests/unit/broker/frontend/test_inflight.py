"""The bound on bytes that are received and not acknowledged, over all connections."""

from __future__ import annotations

from broker.base.errors import Reason, Refused
from broker.frontend.inflight import Inflight

MAX = 1_000


class Sender:
    """A connection that sends."""

    def __init__(self) -> None:
        self.held: list[str] = []
        self.closed: list[Refused] = []

    def hold_reading(self, why: str) -> None:
        self.held.append(why)

    def release_reading(self, why: str) -> None:
        self.held.remove(why)

    def close(self, why: Refused) -> None:
        self.closed.append(why)


def test_a_connection_is_read_again_once_half_of_the_bound_is_free() -> None:
    inflight, heavy, light = Inflight(MAX), Sender(), Sender()
    inflight.add(light, MAX)
    assert light.held == [], "the bound itself may be used up"
    inflight.add(heavy, 1)
    assert (heavy.held, light.held) == (["total"], []), "only who sends beyond it is paused"
    inflight.remove(MAX // 2)
    assert heavy.held == ["total"]
    inflight.remove(1)
    assert heavy.held == [] and inflight.bytes == MAX // 2


def test_parts_beyond_half_of_the_bound_end_the_connection_that_has_waited_longest() -> None:
    inflight, first, second, third = Inflight(MAX), Sender(), Sender(), Sender()
    inflight.set_partial(first, 100)
    inflight.set_partial(second, 300)
    inflight.set_partial(first, 150)  # its next byte has come: the second one now waits longest
    inflight.set_partial(third, 50)
    assert not second.closed, "half of the bound may be used up"
    inflight.set_partial(third, 51)
    (refused,) = second.closed
    assert refused.reason is Reason.QUOTA_EXCEEDED and "300 bytes" in refused.description
    assert not first.closed and not third.closed
    assert inflight.partial_bytes == inflight.bytes == 201


def test_a_single_message_may_take_more_than_half_of_the_bound() -> None:
    inflight, alone = Inflight(MAX), Sender()
    inflight.set_partial(alone, MAX)
    assert not alone.closed and not alone.held


def test_when_only_parts_are_left_everybody_is_read_for_nothing_else_ends_them() -> None:
    inflight, sender, other = Inflight(MAX), Sender(), Sender()
    inflight.set_partial(other, 900)
    inflight.add(sender, 200)
    assert sender.held == ["total"]
    inflight.remove(200)
    assert sender.held == [] and inflight.bytes == 900


def test_a_connection_that_is_gone_takes_its_parts_along_and_leaves_what_waits_for_its_outcome() -> None:
    inflight, sender, other = Inflight(MAX), Sender(), Sender()
    inflight.set_partial(sender, 300)
    inflight.add(sender, 400)
    inflight.add(other, 400)
    assert other.held == ["total"]
    inflight.forget(sender)
    assert (inflight.bytes, inflight.partial_bytes, other.held) == (800, 0, ["total"])
    inflight.remove(400)
    assert other.held == [] and inflight.bytes == 400
