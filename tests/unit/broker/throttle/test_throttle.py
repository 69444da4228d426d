"""The point of admission of a throttled namespace."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from structlog.testing import capture_logs

from broker.base.clock import ManualClock
from broker.base.errors import Reason, Refused
from broker.refusal_wording import error_of, http_status_of
from broker.throttle.throttle import HELD_MS_MAX, RESUMED_AT_ONCE, Throttle, throttle_of


class World:
    def __init__(self, credits: int = 10, filter_credits: int = 0) -> None:
        self.clock, self.counted = ManualClock(), 0
        self.throttle = Throttle("shop", credits, self.clock, self.count, filter_credits)

    def count(self, credits: int) -> None:
        self.counted += credits

    def refused(self, cost: int) -> Refused:
        with pytest.raises(Refused) as why:
            self.throttle.admit(cost)
        return why.value


def test_a_namespace_without_credits_is_not_throttled() -> None:
    assert throttle_of("shop", 0, ManualClock(), lambda count: None) is None


def test_a_refusal_has_the_words_of_the_service() -> None:
    world = World()
    world.throttle.admit(10)
    why = world.refused(1)
    assert why.reason is Reason.THROTTLED and http_status_of(why.reason) == (503, 50004)
    error = error_of(why)
    assert (error.condition, error.description) == (
        "com.microsoft:server-busy",
        "The request was terminated because the entity is being throttled. Error code: 50009. Please wait 2 "
        "seconds and try again.",
    )


def test_what_is_refused_is_counted_and_logged_now_and_then() -> None:
    world = World()
    world.throttle.admit(10)
    with capture_logs() as lines:
        for _ in range(100):
            world.refused(10)
        assert world.throttle.admit_some(7, 0) == 0
        world.clock.advance(9_999)
        world.throttle.admit(10)
        world.refused(1)
        world.clock.advance(1)
        world.throttle.admit(10)
        world.refused(1)
    assert world.counted == 1_009
    assert [(line["event"], line["credits_refused"]) for line in lines] == [
        ("throttle.refused", 10),
        ("throttle.refused", 999),
    ]


def test_filters_cost_nothing_unless_they_have_a_price() -> None:
    world = World()
    world.throttle.admit_all(4, 1_000)
    assert world.throttle.admit_some(7, 1_000) == 6


def test_each_message_pays_for_the_filters_that_it_is_compared_with() -> None:
    world = World(filter_credits=2)
    assert world.throttle.admit_some(7, 1) == 3 and world.counted == 4 * 3
    with pytest.raises(Refused):
        world.throttle.admit_all(1, 1)
    assert world.counted == 4 * 3 + 3
    world.throttle.admit_all(1, 0)
    world.clock.advance(1_000)
    world.throttle.admit_all(2, 2)
    world.clock.advance(1_000)
    assert world.throttle.admit_some(2, 50) == 1, "which leaves a debt"
    world.clock.advance(9_000)
    with pytest.raises(Refused):
        world.throttle.admit(1)
    world.clock.advance(1_000)
    world.throttle.admit(9)


async def test_receivers_get_half_while_others_are_refused_and_everything_otherwise() -> None:
    world = World()
    assert world.throttle.left_for_receivers() == 10
    world.throttle.admit(10)
    world.refused(1)
    world.clock.advance(1_000)
    assert world.throttle.left_for_receivers() == 5
    world.throttle.charge(5)
    assert world.throttle.left_for_receivers() <= 0
    world.throttle.admit(5)
    world.clock.advance(1_000)
    assert world.throttle.left_for_receivers() == 10


async def test_gates_are_called_a_few_at_a_time_once_a_period_has_begun() -> None:
    world = World()
    called: list[int] = []
    gates = [
        world.throttle.gate(lambda number=number: called.append(number), lambda why: None)  # type: ignore[misc]
        for number in range(RESUMED_AT_ONCE + 2)
    ]
    world.throttle.charge(10)
    assert [gate.room() for gate in gates] == [0] * len(gates)
    gates[1].end()
    world.clock.advance(1_000)
    world.throttle.look()
    assert called == [0, *range(2, RESUMED_AT_ONCE + 1)]
    gates[-1].end()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert RESUMED_AT_ONCE + 1 not in called, "it has ended while it waited"


class Receiver:
    """Takes as many messages as it may, and waits for more."""

    def __init__(self, world: World, log: list[Receiver]) -> None:
        self.got, self._log = 0, log
        self.refusals: list[Refused] = []
        self._gate = world.throttle.gate(self.take, self.refusals.append)

    def take(self) -> None:
        while room := self._gate.room():
            self.got += room
            self._gate.charge(room)
            self._log.append(self)


async def test_receivers_that_wait_share_the_credits_and_take_turns() -> None:
    """Each has a backlog that would take all credits."""
    world, log = World(100), list[Receiver]()
    receivers = [Receiver(world, log) for _ in range(4 * RESUMED_AT_ONCE)]
    world.throttle.charge(100)
    for receiver in receivers:
        receiver.take()
    for _ in range(5):
        world.clock.advance(1_000)
        world.throttle.look()
        for _ in range(5):
            await asyncio.sleep(0)
    got = [receiver.got for receiver in receivers]
    assert sum(got) == 500 and {1, 2} == set(got), "the second time after all others had their first"
    assert log[: len(receivers)] == receivers
    few = World(100)
    three = [Receiver(few, log) for _ in range(3)]
    few.throttle.charge(100)
    for receiver in three:
        receiver.take()
    few.clock.advance(1_000)
    few.throttle.look()
    few.throttle.look()  # what is left over
    assert [receiver.got for receiver in three] == [34, 33, 33]


async def test_a_round_of_many_receivers_starts_one_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each further one would begin a round of its own, and start more."""
    world = World(1)
    receivers = [Receiver(world, []) for _ in range(4 * RESUMED_AT_ONCE)]
    world.throttle.charge(5)
    started: list[float] = []
    loop = asyncio.get_running_loop()
    call_later = loop.call_later

    def counted(delay_s: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        started.append(delay_s)
        return call_later(delay_s, callback)

    monkeypatch.setattr(loop, "call_later", counted)
    for receiver in receivers:
        receiver.take()
    assert len(started) == 1
    world.clock.advance(1_000)
    world.throttle.look()
    for _ in range(5):
        await asyncio.sleep(0)
    assert len(started) == 2


async def test_a_gate_that_stays_shut_is_called_in_every_period_and_then_refuses() -> None:
    world = World(1)
    ends: list[Refused] = []
    called = 0

    def resume() -> None:
        nonlocal called
        called += 1
        gate.room()

    gate = world.throttle.gate(resume, ends.append)
    world.throttle.charge(1_000)
    assert gate.room() == 0
    for _ in range(HELD_MS_MAX // 1_000):
        assert not ends
        world.clock.advance(1_000)
        world.throttle.look()
        await asyncio.sleep(0)
    assert called == HELD_MS_MAX // 1_000 and [why.reason for why in ends] == [Reason.THROTTLED]


@pytest.mark.parametrize("seconds", [3, 12, 60])
async def test_a_broker_that_stood_still_refuses_no_receiver_and_gives_one_period(seconds: int) -> None:
    """Its clock has gone on, as it does for a process that was stopped."""
    world = World(100)
    receivers = [Receiver(world, []) for _ in range(4 * RESUMED_AT_ONCE)]
    world.throttle.charge(100)
    for receiver in receivers:
        receiver.take()
    world.clock.advance(1_000)

    async def a_round() -> int:
        before = sum(receiver.got for receiver in receivers)
        world.throttle.look()
        for _ in range(5):
            await asyncio.sleep(0)
        return sum(receiver.got for receiver in receivers) - before

    assert await a_round() == 100
    world.clock.advance(seconds * 1_000)
    rounds = []
    for _ in range(3):
        rounds.append(await a_round())
        world.clock.advance(1_000)
    assert rounds == [100, 100, 100]
    assert {receiver.got for receiver in receivers} == {1, 2}
    assert not any(receiver.refusals for receiver in receivers)


async def test_the_timer_calls_when_the_period_begins() -> None:
    world = World(1)
    resumed = asyncio.Event()
    gate = world.throttle.gate(resumed.set, lambda why: None)
    world.throttle.charge(1)
    world.clock.advance(990)
    assert gate.room() == 0
    async with asyncio.timeout(5):
        await resumed.wait()


async def test_a_receiver_that_wanted_nothing_for_a_while_is_not_refused_when_it_waits_again() -> None:
    world = World(1)
    ends: list[Refused] = []
    gate = world.throttle.gate(lambda: None, ends.append)
    world.throttle.charge(1)
    assert gate.room() == 0
    world.clock.advance(1_000)
    world.throttle.look()
    world.clock.advance(HELD_MS_MAX)
    world.throttle.charge(1)
    assert gate.room() == 0
    await asyncio.sleep(0)
    assert ends == []
