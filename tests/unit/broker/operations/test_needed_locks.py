"""What is refused with a lost lock while its partition is down. `test_going_down.py` has the answers."""

from __future__ import annotations

import pytest

from broker.base.errors import Reason
from broker.identifiers import ClientId
from broker.operations.browsing import Peek
from broker.operations.interface import Operation
from broker.operations.needed_locks import refusal_while_down
from broker.operations.outlook import ACCEPT_AGAIN, RECEIVE_AGAIN, TRY_AGAIN
from broker.operations.receiving import ReceiveDeferred
from broker.operations.sending import Send
from broker.operations.sessions import RenewSession
from broker.operations.settling import Complete
from broker.operations.transactions import Transact

UNAVAILABLE = (Reason.PARTITION_UNAVAILABLE, TRY_AGAIN)
ENDED = (Reason.LOCK_ENDED, RECEIVE_AGAIN)
SESSION_ENDED = (Reason.SESSION_LOCK_ENDED, ACCEPT_AGAIN)


@pytest.mark.parametrize(
    ("operation", "refusal"),
    [
        (None, UNAVAILABLE),
        (Peek("", 0, 1), UNAVAILABLE),
        (Complete([]), ENDED),
        (Transact(Send([], None), []), UNAVAILABLE),
        (Transact(Send([], None), [Complete([])]), ENDED),
        (ReceiveDeferred("", [1]), UNAVAILABLE),
        (ReceiveDeferred("", [1], session_id=b"s"), SESSION_ENDED),
        (RenewSession("", b"s", ClientId(1)), SESSION_ENDED),
    ],
)
def test_what_needs_a_lock_is_told_that_the_lock_has_ended_and_all_else_to_try_again(
    operation: Operation | None, refusal: tuple[Reason, str]
) -> None:
    assert refusal_while_down(operation) == refusal
