"""The ledger of the crash rounds detects every problem it exists to detect."""

from __future__ import annotations

import pytest

from tests.crash.ledger import QueueLedger, name_of

ONE, TWO = name_of("s", "k", 1), name_of("s", "k", 2)


@pytest.fixture
def ledger() -> QueueLedger:
    """A ledger with two acknowledged messages of one key."""
    ledger = QueueLedger()
    ledger.sending([ONE, TWO])
    ledger.sent([ONE, TWO])
    return ledger


def remove(ledger: QueueLedger, name: str, life: int, sequence_number: int) -> None:
    ledger.received(name, life, sequence_number)
    ledger.removing(name)
    ledger.confirmed(name, life)


def test_all_is_well_when_every_message_came_once_and_in_order(ledger: QueueLedger) -> None:
    remove(ledger, ONE, 0, 10)
    remove(ledger, TWO, 0, 11)
    assert ledger.problems() == ledger.delivery_order_problems() == []


def test_an_acknowledged_message_that_never_came_is_lost(ledger: QueueLedger) -> None:
    remove(ledger, ONE, 0, 10)
    assert ledger.problems() == [f"{TWO} was acknowledged and is lost"]


def test_what_was_only_seen_and_not_removed_is_lost_if_it_does_not_come_again(ledger: QueueLedger) -> None:
    remove(ledger, ONE, 0, 10)
    ledger.received(TWO, 0, 11)
    assert len(ledger.problems()) == 1


def test_an_unknown_outcome_may_turn_out_either_way(ledger: QueueLedger) -> None:
    ledger.sending([name_of("s", "k", 3)])
    ledger.received(ONE, 0, 10)
    ledger.removing(ONE)
    remove(ledger, ONE, 1, 10)
    ledger.received(TWO, 0, 11)
    ledger.removing(TWO)
    assert ledger.problems() == []


def test_a_confirmed_removal_that_comes_again_is_seen_unless_an_earlier_life_delivered_it(
    ledger: QueueLedger,
) -> None:
    remove(ledger, ONE, 1, 10)
    ledger.received(ONE, 0, 10)  # read late from the socket of a dead connection
    assert ledger.errors == []
    ledger.received(ONE, 2, 10)
    assert len(ledger.errors) == 1


def test_two_holders_at_a_time_are_seen_and_a_message_given_back_may_have_another(
    ledger: QueueLedger,
) -> None:
    ledger.received(ONE, 0, 10)
    ledger.giving_back(ONE)
    ledger.received(ONE, 0, 10)
    assert ledger.errors == []
    ledger.received(ONE, 0, 10)
    assert len(ledger.errors) == 1


def test_a_message_that_nobody_sent_is_seen(ledger: QueueLedger) -> None:
    ledger.received("s//000009", 0, 1)
    assert ledger.errors == ["s//000009 was never sent"]


@pytest.mark.parametrize(("one", "two"), [(11, 10), (10, 1 << 48 | 10), (10, 10)])
def test_messages_of_a_key_out_of_order_or_apart_or_under_one_number_are_seen(
    ledger: QueueLedger, one: int, two: int
) -> None:
    remove(ledger, ONE, 0, one)
    remove(ledger, TWO, 0, two)
    assert len(ledger.problems()) == 1


def test_a_later_message_of_a_key_delivered_first_is_seen(ledger: QueueLedger) -> None:
    remove(ledger, TWO, 0, 11)
    remove(ledger, ONE, 0, 10)
    assert len(ledger.delivery_order_problems()) == 1
