"""What an operation is refused with while its partition is down: whether it needs a lock decides. Pure.

No lock outlives its partition's going down. So whatever needs one is refused as if the lock were lost, which
official clients report at once: they would repeat it for 10 to 35 s, in vain, if the partition were
unavailable.
"""

from __future__ import annotations

from broker.base.errors import Reason
from broker.operations.interface import Operation
from broker.operations.outlook import ACCEPT_AGAIN, RECEIVE_AGAIN, TRY_AGAIN
from broker.operations.receiving import ReceiveDeferred
from broker.operations.sessions import GetSessionState, RenewSession, SetSessionState
from broker.operations.settling import Abandon, Complete, DeadLetter, Defer, RenewLocks
from broker.operations.transactions import Transact
from broker.operations.transfers import FailTransfer


def refusal_while_down(operation: Operation | None) -> tuple[Reason, str]:
    """The reason of the refusal, and what the client should do once the partition is back. `operation`: None
    for one that needs no lock."""
    match operation:
        case Complete() | Abandon() | Defer() | DeadLetter() | RenewLocks() | FailTransfer():
            return Reason.LOCK_ENDED, RECEIVE_AGAIN
        case Transact() if operation.settlements:
            return Reason.LOCK_ENDED, RECEIVE_AGAIN
        case RenewSession() | SetSessionState() | GetSessionState():
            return Reason.SESSION_LOCK_ENDED, ACCEPT_AGAIN
        case ReceiveDeferred() if operation.session_id is not None:
            return Reason.SESSION_LOCK_ENDED, ACCEPT_AGAIN
        case _:
            return Reason.PARTITION_UNAVAILABLE, TRY_AGAIN
