"""The interface of a partition: all operations, all answers, and who takes the answers."""

from __future__ import annotations

from collections.abc import Callable

from broker.base.errors import Reason
from broker.operations.browsing import Arrived, Peek, Peeked, Watch
from broker.operations.deleting import Delete, Deleted, DeletedExactly, DeleteExactly
from broker.operations.general import Detach, Failed, Unavailable, Update, Updated
from broker.operations.receiving import (
    Demand,
    Locked,
    LockExactly,
    Recall,
    Recalled,
    ReceiveDeferred,
    Unmet,
    Withdraw,
    Withdrawn,
)
from broker.operations.redriving import FindDeadLetters, Found, Redrive, Redriven
from broker.operations.rule_changes import RuleChangesFound, RuleOperation
from broker.operations.scheduling import BreakPromise, CancelScheduled, Promised, PromiseNumbers, Reschedule
from broker.operations.selecting import CameBack, WatchReturned
from broker.operations.sending import Send, Sent
from broker.operations.sessions import SessionAnswer, SessionOperation, WatchSessions
from broker.operations.settling import (
    Abandon,
    Complete,
    DeadLetter,
    Defer,
    GiveBack,
    Release,
    Renewed,
    RenewLocks,
    Settled,
)
from broker.operations.streams import StreamAnswer, StreamOperation
from broker.operations.transactions import Transact, Transacted
from broker.operations.transfers import (
    FailTransfer,
    FindSources,
    HandedOver,
    HandOver,
    LockNext,
    SourcesFound,
)

Operation = (
    Send | Demand | Withdraw | Complete | Abandon | Defer | DeadLetter | Transact
    | Release | GiveBack | Recalled | RenewLocks | Peek
    | Watch | ReceiveDeferred | CancelScheduled | Delete | Update | Detach | DeleteExactly
    | FindDeadLetters | LockExactly | Redrive | Reschedule | PromiseNumbers | BreakPromise
    | HandOver | LockNext | FailTransfer | FindSources | RuleOperation
    | SessionOperation | StreamOperation | WatchReturned
)  # fmt: skip


Answer = (
    Sent | Failed | Locked | Unmet | Withdrawn | Settled | Transacted | Renewed | Peeked | Arrived | Deleted
    | Recall | Updated | Unavailable | DeletedExactly
    | Found | Redriven | Promised | HandedOver | SourcesFound | RuleChangesFound
    | SessionAnswer | StreamAnswer | CameBack
)  # fmt: skip


def refusal_of(operation: Operation, partition: int, reason: Reason, description: str) -> Answer | None:
    """The answer to an operation that reaches a partition that is gone for good; None if the operation is
    never answered."""
    match operation:
        case Demand() | Watch() | WatchSessions() | WatchReturned():
            return Unavailable(partition, for_good=True)
        case Withdraw():
            return Withdrawn(partition, operation.subqueue)
        case Detach() | Release() | Recalled():
            return None
        case _:
            return Failed(reason, description, operation.cookie)


Sink = Callable[[Answer], None]
"""Takes a client's answers. Called in the event loop; must not raise or block."""
