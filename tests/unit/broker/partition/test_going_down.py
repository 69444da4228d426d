"""What a partition tells its clients when it goes down."""

from __future__ import annotations

import pytest

from broker.base.errors import Reason
from broker.identifiers import ClientId
from broker.operations.browsing import Watch
from broker.operations.general import Detach, Failed, Unavailable
from broker.operations.interface import Answer, Operation
from broker.operations.receiving import Demand, ReceiveDeferred, Withdraw, Withdrawn
from broker.operations.sending import Send
from broker.operations.sessions import (
    AcceptSession,
    GetSessionState,
    RenewSession,
    SetSessionState,
    WatchSessions,
)
from broker.operations.settling import Abandon, Complete, DeadLetter, Defer, Release, RenewLocks
from broker.operations.transactions import Transact
from broker.operations.transfers import FailTransfer
from broker.partition.going_down import GoingDown
from broker.partition.health import Health
from broker.partition.mailbox import Mailbox

NUMBER = 3
CLIENT = ClientId(1)
RECEIVE_AGAIN = "The locks of its messages have ended: please receive the messages again."
ACCEPT_AGAIN = "The lock of its session has ended: please accept the session again."
WHY = "Partition 3 of 'orders' is not available at the moment."


def going_down(*operations: Operation) -> tuple[GoingDown, Mailbox, list[Answer]]:
    mailbox, told = Mailbox(), list[Answer]()
    mailbox.waiting += [(CLIENT, operation, told.append, 0) for operation in operations]
    return GoingDown(NUMBER, "orders", mailbox), mailbox, told


@pytest.mark.parametrize(
    ("operation", "expected"),
    [
        (Send([b"m"], None, 7), Failed(Reason.PARTITION_UNAVAILABLE, f"{WHY} Please try again.", 7)),
        (Withdraw(""), Withdrawn(NUMBER, "")),
        (Watch("", 0), Unavailable(NUMBER)),
        (Demand("", 1), None),
        (WatchSessions(""), None),
        (Release([]), None),
        (Detach(), None),
    ],
)
def test_each_operation_that_waits_is_answered_in_its_own_way(
    operation: Operation, expected: Answer | None
) -> None:
    down, mailbox, told = going_down(operation)
    down.refuse_waiting()
    assert told == ([] if expected is None else [expected]) and not mailbox


@pytest.mark.parametrize("operation", [Demand("", 1), WatchSessions("")])
def test_a_client_that_asks_while_the_partition_is_down_hears_once_when_its_demand_is_void(
    operation: Operation,
) -> None:
    down, mailbox, told = going_down(operation, operation)
    down.refuse_waiting()
    assert told == []
    down.start_anew()
    assert told == [Unavailable(NUMBER)] and list(mailbox.attached) == [CLIENT]


def test_a_cycle_whose_commit_failed_is_refused_before_what_came_after_it() -> None:
    down, mailbox, told = going_down(Send([b"m"], None, 1), Send([b"m"], None, 2))
    assert len(mailbox.gather(1, 1)) == 1
    down.refuse_waiting(Reason.DISK_FULL, "full")
    again = "full Please try again."
    assert told == [Failed(Reason.DISK_FULL, again, 1), Failed(Reason.DISK_FULL, again, 2)]


@pytest.mark.parametrize(
    ("operation", "reason", "advice"),
    [
        *(
            (
                operation,
                Reason.LOCK_ENDED,
                "The locks of its messages have ended: please receive the messages again.",
            )
            for operation in (
                Complete([], 8),
                Abandon([], cookie=8),
                Defer([], cookie=8),
                DeadLetter([], cookie=8),
                RenewLocks([], 8),
                Transact(Send([b"m"], None), [Complete([])], 8),
                FailTransfer([], cookie=8),
            )
        ),
        *(
            (
                operation,
                Reason.SESSION_LOCK_ENDED,
                "The lock of its session has ended: please accept the session again.",
            )
            for operation in (
                RenewSession("", b"s", CLIENT, 8),
                SetSessionState("", b"s", CLIENT, None, 1, 8),
                GetSessionState("", b"s", CLIENT, 8),
                ReceiveDeferred("", [1], 8, session_id=b"s", holder=CLIENT),
            )
        ),
        *(
            (operation, Reason.PARTITION_UNAVAILABLE, "Please try again.")
            for operation in (
                AcceptSession("", b"s", cookie=8),
                Transact(Send([b"m"], None), [], 8),
                ReceiveDeferred("", [1], 8),
            )
        ),
    ],
)
def test_what_needs_a_lock_is_not_asked_to_try_again_because_the_lock_has_ended(
    operation: Operation, reason: Reason, advice: str
) -> None:
    """Symptom: the client tried again as it was told to, and heard that it had no lock."""
    down, _, told = going_down(operation)
    down.refuse_waiting()
    assert told == [Failed(reason, f"{WHY} {advice}", 8)]
    down, _, told = going_down(operation)
    down.start_anew(Reason.DISK_FULL, down.why_full)
    why = "Partition 3 of 'orders': the disk is full, and nothing was stored or changed."
    assert told == [Failed(Reason.DISK_FULL, f"{why} {advice}", 8)]


def test_who_asked_for_deferred_messages_of_a_session_hears_that_its_lock_ends_if_they_cannot_be_read() -> (
    None
):
    """Symptom: the client was asked to try again."""
    of_session = ReceiveDeferred("", [1], 8, session_id=b"s", holder=CLIENT)
    down, _, _ = going_down()
    other, sink = ClientId(2), list[Answer]().append
    refusal = down.refusing(
        [
            (other, ReceiveDeferred("", [1], 8), sink, 0),
            (CLIENT, of_session, sink, 0),
            (CLIENT, Demand("", 1), sink, 0),
        ]
    )
    again = Failed(Reason.PARTITION_UNAVAILABLE, f"{WHY} Please try again.", 8)
    assert refusal(other, 8) == again and refusal(CLIENT, 9) == Failed(again.reason, again.description, 9)
    ended = f"{WHY} {ACCEPT_AGAIN}"
    assert refusal(CLIENT, 8) == Failed(Reason.SESSION_LOCK_ENDED, ended, 8)


@pytest.mark.parametrize("operation", [Demand("", 1), WatchSessions("")])
def test_a_partition_that_is_down_for_good_says_so_to_whoever_asks(operation: Operation) -> None:
    down, mailbox, told = going_down()
    down.health = Health.DAMAGED
    down.refuse_for_good((CLIENT, operation, told.append, 0))
    assert told == [Unavailable(NUMBER, for_good=True)] and not mailbox.attached


def test_an_operation_of_a_damaged_partition_is_told_who_can_help() -> None:
    down, mailbox, told = going_down(Send([b"m"], None, 7))
    down.health = Health.DAMAGED
    down.refuse_for_good(mailbox.take_all()[0])
    [answer] = told
    assert isinstance(answer, Failed) and answer.reason is Reason.PARTITION_UNAVAILABLE
    assert answer.description == (
        "Partition 3 of 'orders' is damaged. It stays unavailable until an operator repairs it."
    )
