"""What is left in the subqueues of a subscription when it is deleted."""

from __future__ import annotations

import pytest

from broker.operations.general import Failed, Update
from broker.operations.receiving import Demand
from broker.operations.settling import Complete, Settled
from broker.partition.cycle_bounds import Bounds
from broker.partition.durable_state import read_back
from broker.partition.session_states import SessionStates, set_state
from broker.partition.task_limits import TaskLimits
from tests.support.partition_harness import Harness, one
from tests.support.topics import number_of, topic

TOPIC = topic("a", "b")
A = number_of(TOPIC, "a")
WITHOUT_A = TOPIC.without(1)


async def given(harness: Harness, count: int) -> None:
    """Put messages into both subscriptions, and take them from the second."""
    await harness.send(*(b"m" for _ in range(count)))
    tokens = (await harness.receive(9, count, "subscriptions/b")).tokens
    one(await harness.do(9, Complete(tokens)), Settled)


def held(harness: Harness) -> int:
    partition = harness.task._partition
    assert partition is not None
    return partition.messages.count


@pytest.mark.parametrize("is_locked", [False, True], ids=["waiting", "locked"])
async def test_messages_of_a_deleted_subscription_go_in_slices_and_durably(is_locked: bool) -> None:
    harness = Harness(description=TOPIC, limits=TaskLimits(bounds=Bounds(deleted_max=2)))
    await given(harness, 5)
    if is_locked:
        await harness.receive(1, 3, "subscriptions/a")
    await harness.describe(WITHOUT_A)
    assert held(harness) == 0
    assert isinstance((await harness.do(2, Demand("subscriptions/a", 1)))[0], Failed)
    await harness.restart()
    await harness.do(2, Demand("subscriptions/b", 1))
    assert held(harness) == 0


async def test_they_go_also_if_the_broker_stops_before() -> None:
    harness = Harness(description=TOPIC)
    await given(harness, 5)
    harness.description = WITHOUT_A
    await harness.restart()
    await harness.do(2, Demand("subscriptions/b", 1))
    assert held(harness) == 0


async def test_a_new_subscription_of_the_same_name_begins_empty() -> None:
    harness = Harness(description=TOPIC)
    await given(harness, 5)
    partition = harness.task._partition
    assert partition is not None
    states = partition.messages.states
    states.apply(read_back(set_state(A, b"s", b"state", 0)), harness.log.end)
    await harness.describe(WITHOUT_A)
    assert not states.of(SessionStates).entries
    await harness.describe(topic("a", "b").without(1).with_new("a", TOPIC.subscriptions[0].settings, (), 0))
    assert (await harness.peek("subscriptions/a")).messages == []


async def test_states_of_a_deleted_subscription_go_in_slices() -> None:
    harness = Harness(description=TOPIC, limits=TaskLimits(bounds=Bounds(deleted_max=2)))
    await harness.peek("subscriptions/b")
    partition = harness.task._partition
    assert partition is not None
    states = partition.messages.states
    for number in range(7):
        states.apply(read_back(set_state(A + 4 * (number % 2), b"%d" % number, b"x", 0)), harness.log.end)
    harness.post(1002, Update(WITHOUT_A))
    left: list[int] = []
    while await harness.task.step() or len(left) < 4:
        left.append(len(states.of(SessionStates).entries))
    left.append(len(states.of(SessionStates).entries))
    # Symptom: all of them in one step, however many there were.
    assert sorted({*left}, reverse=True) == [7, 6, 5, 4, 3]
