"""Counts what a run of the partition's model has done: each operation, and how often it had an effect.

An operation that is always refused, or never finds a message, proves little. So a run must have carried out
each operation with an effect many times, and met each fault.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence

from broker.operations.browsing import Arrived, Peeked
from broker.operations.deleting import Deleted, DeletedExactly, DeleteExactly
from broker.operations.general import Failed
from broker.operations.interface import Answer, Operation
from broker.operations.receiving import Locked, Recall, Withdrawn
from broker.operations.redriving import Found, Redriven
from broker.operations.scheduling import CancelScheduled, Reschedule
from broker.operations.sending import Send, Sent
from broker.operations.sessions import SessionList, SessionLost, SessionState
from broker.operations.settling import Renewed, Settled
from broker.operations.streams import RangeRead, SettledThrough
from broker.operations.transfers import HandedOver, HandOver

EXAMPLES = int(os.environ.get("MODEL_EXAMPLES", "120"))
OFTEN = EXAMPLES // 24
"""Each outcome that a run needs must come this often."""

ran: Counter[str] = Counter()
"""How often each operation was carried out, with or without an effect, and how often each fault happened."""

EXPECTED = {
    *("Send done", "Locked", "Withdrawn", "Complete done", "Abandon done", "Defer done", "DeadLetter done"),
    *("Release done", "GiveBack done", "Abandon with a delay", "RenewLocks done", "Recall", "Recalled done"),
    *("Detach", "Detach done", "Peek done", "Watch", "Arrived", "Update done"),
    *("ReceiveDeferred done", "CancelScheduled done", "Reschedule done", "Delete done", "DeleteExactly done"),
    *("FindDeadLetters done", "LockExactly done", "Redrive done", "Redrive on a full disk"),
    *("AcceptSession done", "AcceptSession shared", "WatchSessions", "RenewSession done", "SessionLost"),
    *("GetSessionState done", "SetSessionState done", "ListSessions done"),
    *("duplicate", "Transact done", "Transact refused", "Transact on a full disk", "Transact everything"),
    *("Transact sends", "Transact settles", "Transact schedules", "Transact cancels", "Transact transfers"),
    *("PromiseNumbers done", "BreakPromise done", "LockNext done", "FailTransfer done"),
    *("HandOver done", "handed over again", "HandOver on a full disk"),
    *("FindPositions done", "ReadRange done", "SettleThrough done", "SendSinkBatch done"),
    *("CreateCursor done", "GetCursor done", "AdvanceCursor done"),
    *("time passes", "the clock is set", "restart", "restart without a checkpoint", "a commit fails"),
    "the disk is full",
}
"""Without these, a run of the model means little."""


UNASKED = (Locked, Recall, Arrived, SessionLost, Withdrawn)
"""Answers that show what an operation without an answer of its own has led to."""


def rare() -> dict[str, int]:
    """What the run has seen too rarely."""
    return {each: ran[each] for each in sorted(EXPECTED) if ran[each] < OFTEN}


def had_effect(operation: Operation, answer: Answer) -> bool:
    """Whether an answered operation has changed, found or promised something."""
    match answer:
        case Failed():
            return False
        case Settled() | Renewed():
            return len(answer.failures) < _named(operation)
        case Sent():
            return isinstance(operation, Send) and len(answer.duplicates) < len(operation.messages)
        case HandedOver():
            assert isinstance(operation, HandOver)
            return len(answer.known) + len(answer.duplicates) < len(operation.numbers)
        case DeletedExactly():
            return len(answer.locked) + len(answer.missing) < _named(operation)
        case Deleted():
            return answer.count > 0
        case Redriven():
            return any(answer.sequence_numbers)
        case Locked() | Peeked() | Found() | RangeRead():
            return bool(answer.sequence_numbers)
        case SessionState():
            return answer.state is not None
        case SessionList():
            return bool(answer.session_ids)
        case SettledThrough():
            return answer.completed > 0
    return True


def _named(operation: Operation) -> int:
    """How many messages an operation names; 1 if it names none."""
    if isinstance(operation, CancelScheduled | DeleteExactly | Reschedule):
        return len(operation.sequence_numbers)
    tokens: Sequence[bytes] | None = getattr(operation, "tokens", None)
    return 1 if tokens is None else len(tokens)
