"""What is answered by a partition that is gone for good, and what every operation has."""

from __future__ import annotations

import dataclasses
import typing

import pytest

from broker.base.errors import Reason
from broker.operations.browsing import Peek, Watch
from broker.operations.general import Detach, Failed, Unavailable
from broker.operations.interface import Operation, refusal_of
from broker.operations.receiving import Demand, Recalled, Withdraw, Withdrawn
from broker.operations.selecting import WatchReturned
from broker.operations.sending import Send
from broker.operations.sessions import WatchSessions
from broker.operations.settling import Complete, Release

GONE = (3, Reason.ENTITY_NOT_FOUND, "It was deleted.")


@pytest.mark.parametrize("operation", [Demand("", 1), Watch("", 0), WatchSessions(""), WatchReturned("")])
def test_who_waits_for_messages_is_told_not_to_ask_again(operation: Operation) -> None:
    assert refusal_of(operation, *GONE) == Unavailable(3, for_good=True)


@pytest.mark.parametrize("operation", [Detach(), Release([]), Recalled("", [])])
def test_what_ends_something_is_not_answered(operation: Operation) -> None:
    assert refusal_of(operation, *GONE) is None


def test_a_withdrawal_succeeds_and_everything_else_fails_with_its_cookie() -> None:
    assert refusal_of(Withdraw("$deadletterqueue"), *GONE) == Withdrawn(3, "$deadletterqueue")
    for operation in (Send([b"m"], None, "mine"), Complete([], "mine"), Peek("", 0, 1, "mine")):
        assert refusal_of(operation, *GONE) == Failed(Reason.ENTITY_NOT_FOUND, "It was deleted.", "mine")


def test_every_operation_that_fails_has_a_cookie_to_return() -> None:
    silent = (Demand, Watch, WatchSessions, WatchReturned, Withdraw, Detach, Release, Recalled)
    for kind in typing.get_args(Operation):
        if kind not in silent:
            assert "cookie" in {each.name for each in dataclasses.fields(kind)}, kind
