"""Which partitions a receiving link asks for messages, and for how many."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.messaging.fan_out import RUN_MESSAGES, RUN_MESSAGES_MAX, DemandPlan, SessionPlan

ANY_RUN = 10_000


def flowing(partitions: int, wanted: int, *numbers: int) -> DemandPlan:
    """A plan whose link wanted this many messages; these partitions have answered in full."""
    plan = DemandPlan(partitions)
    plan.ask(wanted, ANY_RUN)
    for number in numbers:
        plan.answered(number, plan.asked[number])
    return plan


# --- no messages flow ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("wanted", "share"), [(1, 1), (4, 1), (5, 2), (16, 4), (400, 100)])
def test_a_link_waits_in_every_partition_for_its_share(wanted: int, share: int) -> None:
    plan = DemandPlan(4)
    assert plan.ask(wanted, ANY_RUN) == [(number, share, False) for number in range(4)]
    assert plan.ask(wanted, ANY_RUN) == [], "it is asked for already"
    assert plan.asked == [share] * 4


def test_nobody_is_asked_for_more_at_once_than_the_link_can_take() -> None:
    assert DemandPlan(2).ask(1_000, 7) == [(0, 7, False), (1, 7, False)]


def test_where_part_of_the_demand_was_met_it_is_asked_anew_so_that_others_give_back_what_they_hold() -> None:
    plan = DemandPlan(2)
    plan.ask(8, ANY_RUN)
    plan.answered(1, 3)
    assert plan.ask(5, ANY_RUN) == [(1, 2, False)] and plan.asked == [4, 3]
    assert plan.ask(5, ANY_RUN) == [], "once for each time that it gave something"
    plan.answered(1, 2)
    assert plan.ask(1, ANY_RUN) == [(1, 1, False)], "at least one, though its share is no more than stands"


# --- messages flow ------------------------------------------------------------------------------------------


def test_a_partition_that_answered_in_full_is_asked_for_a_run_and_is_to_tell_when_it_has_no_more() -> None:
    plan = flowing(4, 1_000, 1, 2)
    assert plan.ask(10, ANY_RUN) == [(1, RUN_MESSAGES, True)]
    assert plan.ask(RUN_MESSAGES, ANY_RUN) == [], "what is on its way is enough"
    assert plan.ask(RUN_MESSAGES + 1, ANY_RUN) == [(2, RUN_MESSAGES, True)]
    assert plan.ask(1_000, ANY_RUN) == [], "and the rest stands elsewhere"


@pytest.mark.parametrize(
    ("credit", "wanted", "run_max", "count"),
    [
        (1, 1, ANY_RUN, 1),
        (10, 1, ANY_RUN, 5),
        (1_000, 1, ANY_RUN, RUN_MESSAGES),
        (1_000, RUN_MESSAGES + 100, ANY_RUN, RUN_MESSAGES + 100),
        (1_000, 1_000, ANY_RUN, RUN_MESSAGES_MAX),
        (1_000, 1_000, 50, 50),
        (1_000, 1_000, 0, 1),
    ],
)
def test_a_run_grows_with_the_credit_and_is_bounded(
    credit: int, wanted: int, run_max: int, count: int
) -> None:
    assert flowing(2, credit, 1).ask(wanted, run_max) == [(1, count, True)]


def test_partitions_that_flow_take_turns_and_only_as_many_are_asked_as_are_needed() -> None:
    plan = flowing(4, 64, 0, 1, 3)
    turns = []
    for _ in range(6):
        ((number, count, _),) = plan.ask(RUN_MESSAGES, ANY_RUN)
        plan.answered(number, count)
        turns.append(number)
    assert turns == [0, 1, 3, 0, 1, 3]
    assert [number for number, _, _ in plan.ask(2 * RUN_MESSAGES_MAX, ANY_RUN)] == [0, 1]


def test_a_partition_that_has_no_more_keeps_its_demand_and_is_not_asked_again() -> None:
    plan = flowing(2, 64, 0)
    ((_, count, _),) = plan.ask(20, ANY_RUN)
    plan.unmet(0)
    assert plan.asked[0] == count and plan.ask(20, ANY_RUN) == []


def test_a_partition_that_gives_less_than_it_was_asked_for_does_not_flow() -> None:
    plan = flowing(2, 64)
    plan.answered(0, plan.asked[0] - 1)
    assert plan.asked[0] == 1 and plan.ask(1, ANY_RUN) == [(0, 1, False)], (
        "what stands is raised, and no run is asked for"
    )


# --- drain, withdrawal --------------------------------------------------------------------------------------


def test_a_drain_asks_everybody_for_no_more_than_a_share_and_then_those_that_gave_it() -> None:
    plan = DemandPlan(4)
    plan.ask(4, ANY_RUN)
    assert plan.ask_once(12, ANY_RUN, everywhere=True) == [(number, 2) for number in range(4)], (
        "one of three stands already"
    )
    assert plan.ask_once(12, ANY_RUN, everywhere=True) == []
    plan.answered(1, 3)
    assert plan.ask_once(9, 5, everywhere=False) == [(1, 5)]


def test_a_drain_of_a_session_ends_once_it_has_given_nothing() -> None:
    plan = SessionPlan(4, 2)
    assert plan.ask_once(8, 5, True) == [(2, 5)] and plan.withdraw() == [2]
    plan.answered(2, 5)
    assert plan.ask_once(3, 5, False) == [(2, 3)] and plan.withdraw() == [2]
    # Symptom: it was asked again and again, and the client gave the session up.
    assert plan.ask_once(3, 5, False) == []
    assert plan.ask(3, 5) == [(2, 3, False)], "the next credit asks again"


def test_a_drain_for_nothing_or_with_nobody_to_ask_asks_nothing() -> None:
    plan = DemandPlan(4)
    assert plan.ask_once(0, ANY_RUN, everywhere=True) == plan.ask_once(5, ANY_RUN, everywhere=False) == []


def test_a_withdrawal_names_those_that_were_asked_and_what_flows_is_asked_for_a_run_again() -> None:
    plan = flowing(3, 6, 1)
    assert plan.withdraw() == [0, 2] and plan.asked == [0, 0, 0] and plan.withdraw() == []
    assert plan.ask(3, ANY_RUN) == [(0, 1, False), (2, 1, False), (1, 3, True)]


def test_a_partition_that_went_down_is_asked_as_if_it_never_had_been() -> None:
    plan = flowing(3, 6, 1)
    plan.forget(1)
    plan.forget(2)
    assert plan.ask(6, ANY_RUN) == [(1, 2, False), (2, 2, False)]


# --- always -------------------------------------------------------------------------------------------------


@given(
    st.integers(1, 8),
    st.lists(
        st.tuples(
            st.sampled_from(["ask", "give", "unmet", "withdraw", "forget"]),
            st.integers(0, 7),
            st.integers(1, 600),
        ),
        max_size=60,
    ),
)
def test_whatever_happens_a_link_that_wants_messages_waits_wherever_one_may_come(
    partitions: int, steps: list[tuple[str, int, int]]
) -> None:
    plan, stands, flows = DemandPlan(partitions), [0] * partitions, [False] * partitions
    for step, at, count in steps:
        number = at % partitions
        match step:
            case "ask":
                for asked, more, _ in plan.ask(count, 100):
                    assert 1 <= more <= 100
                    stands[asked] += more
                assert all(stands[each] or flows[each] for each in range(partitions))
                assert any(stands), "something is on its way"
            case "give" if stands[number]:
                given_now = min(count, stands[number])
                plan.answered(number, given_now)
                stands[number] -= given_now
                flows[number] = not stands[number]
            case "unmet" if stands[number]:
                plan.unmet(number)
                flows[number] = False
            case "withdraw":
                assert plan.withdraw() == [each for each in range(partitions) if stands[each]]
                flows = [flows[each] and not stands[each] for each in range(partitions)]
                stands = [0] * partitions
            case "forget":
                plan.forget(number)
                stands[number], flows[number] = 0, False
        assert plan.asked == stands


def test_a_partition_that_voids_the_rest_of_a_demand_flows_and_is_asked_again() -> None:
    plan = DemandPlan(2)
    plan.ask(100, ANY_RUN)
    plan.answered(0, 3, voids_demand=True)
    assert plan.asked == [0, 50]
    assert [(number, tell_unmet) for number, _, tell_unmet in plan.ask(97, ANY_RUN)] == [(0, True)]
