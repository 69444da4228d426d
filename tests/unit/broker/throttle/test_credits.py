"""Credits: refills at the start of each period, what is lost, and debts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from broker.throttle.credits import PERIOD_MS, Credits


def test_a_period_begins_with_all_its_credits_and_what_was_left_is_lost() -> None:
    credits = Credits(10, 5_000)
    assert credits.admit(4, 5_500) and credits.balance(5_999) == 6
    assert credits.balance(6_000) == 10 and credits.balance(60_000) == 10


def test_periods_begin_at_their_own_times_whenever_they_are_looked_at() -> None:
    credits = Credits(10, 300)
    credits.charge(10, 2_299)
    assert (credits.balance(2_299), credits.balance(2_300)) == (0, 10)
    assert credits.period_begun_ms(2_999) == 2_300


def test_an_operation_that_is_not_covered_costs_nothing() -> None:
    credits = Credits(10, 0)
    assert credits.admit(7, 0) and not credits.admit(4, 0) and credits.admit(3, 0)
    assert not credits.admit(0, 0), "without credits, even a look is refused"


def test_an_operation_larger_than_a_period_needs_a_full_balance_and_leaves_a_debt() -> None:
    credits = Credits(10, 0)
    assert credits.admit(1, 0) and not credits.admit(25, 0)
    assert credits.admit(25, 1_000) and credits.balance(1_000) == -15
    assert not credits.admit(1, 2_000) and credits.balance(2_000) == -5
    assert credits.balance(3_000) == 5 and credits.admit(5, 3_000)
    assert credits.balance(4_000) == 10


def test_some_of_many_are_admitted_as_far_as_the_credits_go() -> None:
    credits = Credits(10, 0)
    assert [credits.admit_some(count, 1, 0) for count in (4, 9, 1)] == [4, 6, 0]
    credits.charge(5, 0)
    assert credits.admit_some(3, 1, 0) == 0 and credits.balance(1_000) == 5
    assert [credits.admit_some(5, cost, 2_000) for cost in (3, 2, 1)] == [3, 0, 1]


def test_one_of_many_that_cost_more_than_a_period_each_is_admitted_on_a_full_balance() -> None:
    credits = Credits(10, 0)
    assert [credits.admit_some(count, 25, 0) for count in (0, 3, 3)] == [0, 1, 0]
    assert credits.balance(1_000) == -5 and credits.admit_some(3, 25, 2_000) == 0
    assert credits.admit_some(1, 25, 3_000) == 1 and credits.balance(3_000) == -15


operations = st.lists(
    st.tuples(
        st.sampled_from(["admit", "admit_some", "charge"]),
        st.integers(0, 30),
        st.integers(0, 2_500),
    ),
    max_size=60,
)


@given(st.integers(1, 20), operations)
def test_periods_never_cost_more_than_they_give_except_for_one_operation(
    per_period: int, made: list[tuple[str, int, int]]
) -> None:
    credits, now_ms, spent, largest = Credits(per_period, 0), 0, 0, 0
    for kind, cost, later_ms in made:
        now_ms += later_ms
        before = credits.balance(now_ms)
        assert before <= per_period
        match kind:
            case "admit":
                paid = cost if credits.admit(cost, now_ms) else 0
                assert paid == 0 or paid <= before or before == per_period
            case "admit_some":
                paid = credits.admit_some(cost, 1, now_ms)
                assert paid == max(min(cost, before), 0)
            case _:  # a receiver never takes more than there is
                paid = max(min(cost, before), 0)
                credits.charge(paid, now_ms)
        assert credits.balance(now_ms) == before - paid
        spent, largest = spent + paid, max(largest, paid)
        assert spent <= (now_ms // PERIOD_MS + 1) * per_period + largest


@given(st.integers(1, 20), operations)
def test_when_it_is_looked_at_does_not_matter(per_period: int, made: list[tuple[str, int, int]]) -> None:
    seldom, often, now_ms = Credits(per_period, 0), Credits(per_period, 0), 0
    for _, cost, later_ms in made:
        for _ in range(5):
            now_ms += later_ms // 5
            often.balance(now_ms)
        assert seldom.admit(cost, now_ms) == often.admit(cost, now_ms)
