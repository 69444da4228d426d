"""Word refusals for the wire: AMQP condition, management status, HTTP status and sub-code. No other module
does.

The official clients map the conditions to exceptions and retry decisions (AMQP contract 9.2). A permanent
failure gets a condition that no client retries; a passing one gets a condition that all clients retry.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from broker.base.errors import Reason, Refused
from protocol.events import ErrorCondition

_NOT_FOUND = re.compile("The messaging entity .* could not be found")


@dataclass(slots=True, frozen=True)
class _Wording:
    condition: str
    """AMQP contract 9.2."""
    status: int
    """`statusCode` of `$management`, `status-code` of `$cbs` (AMQP contract 7.4)."""
    http_status: int
    sub_code: int
    """HTTP contract 2.9; 0 for none."""


_LOCK_LOST = _Wording("com.microsoft:message-lock-lost", 410, 404, 40400)
_SESSION_LOCK_LOST = _Wording("com.microsoft:session-lock-lost", 410, 404, 40400)

_WORDINGS = {
    Reason.LOCK_LOST: _LOCK_LOST,
    # Not retried, although the partition comes back: its locks do not.
    Reason.LOCK_ENDED: _LOCK_LOST,
    Reason.SESSION_LOCKED: _Wording("com.microsoft:session-cannot-be-locked", 409, 409, 40900),
    Reason.SESSION_LOCK_LOST: _SESSION_LOCK_LOST,
    Reason.SESSION_LOCK_ENDED: _SESSION_LOCK_LOST,
    Reason.SESSION_NOT_FOUND: _Wording("com.microsoft:session-not-found", 404, 404, 40400),
    Reason.MESSAGE_NOT_FOUND: _Wording("com.microsoft:message-not-found", 404, 404, 40400),
    Reason.ENTITY_NOT_FOUND: _Wording("amqp:not-found", 404, 404, 40400),
    Reason.ENTITY_EXISTS: _Wording("com.microsoft:entity-already-exists", 409, 409, 40900),
    Reason.ENTITY_DISABLED: _Wording("com.microsoft:entity-disabled", 403, 403, 40301),
    Reason.UNAUTHORIZED: _Wording("amqp:unauthorized-access", 401, 401, 40100),
    Reason.NOT_ALLOWED: _Wording("amqp:not-allowed", 400, 400, 40000),
    Reason.NOT_IMPLEMENTED: _Wording("amqp:not-implemented", 501, 501, 0),
    Reason.ARGUMENT: _Wording("com.microsoft:argument-error", 400, 400, 40000),
    Reason.MESSAGE_TOO_LARGE: _Wording("amqp:link:message-size-exceeded", 403, 403, 40300),
    Reason.QUOTA_EXCEEDED: _Wording("amqp:resource-limit-exceeded", 403, 403, 40300),
    # Not retried: the disk stays full until somebody makes room. Receivers are not affected.
    Reason.DISK_FULL: _Wording("amqp:resource-limit-exceeded", 403, 403, 40300),
    # Retried by every client: the partition comes back by itself.
    Reason.PARTITION_UNAVAILABLE: _Wording("com.microsoft:server-busy", 503, 503, 50004),
    Reason.SERVER_BUSY: _Wording("com.microsoft:server-busy", 503, 503, 50004),
    # Its text, with the code 50009, is that of `throttle.throttled`.
    Reason.THROTTLED: _Wording("com.microsoft:server-busy", 503, 503, 50004),
    Reason.TIMEOUT: _Wording("com.microsoft:timeout", 408, 504, 50400),
    Reason.TRANSACTION_UNKNOWN: _Wording("amqp:transaction:unknown-id", 400, 400, 40000),
    Reason.TRANSACTION_ROLLED_BACK: _Wording("amqp:transaction:rollback", 400, 400, 40000),
    Reason.DECODE: _Wording("amqp:decode-error", 400, 400, 40000),
    Reason.CURSOR_NOT_FOUND: _Wording("partibus:cursor-not-found", 404, 404, 40400),
    Reason.CURSOR_OWNED: _Wording("partibus:cursor-owned", 409, 409, 40900),
    Reason.INTERNAL: _Wording("amqp:internal-error", 500, 500, 50000),
}


def error_of(refused: Refused) -> ErrorCondition:
    """The refusal as an AMQP error (§2.8.14), for a rejected outcome, a detach or a close."""
    return ErrorCondition(_WORDINGS[refused.reason].condition, description_of(refused))


def no_transactions() -> Refused:
    """The refusal of something that cannot be part of a transaction: it is not carried out, and must never
    look as if it were."""
    return Refused(Reason.NOT_IMPLEMENTED, "This cannot be done in a transaction.")


def status_of(reason: Reason) -> tuple[int, str]:
    """Status code and error condition of an answer from `$management` or `$cbs`."""
    wording = _WORDINGS[reason]
    return wording.status, wording.condition


def http_status_of(reason: Reason) -> tuple[int, int]:
    """HTTP status and sub-code, 0 for none."""
    wording = _WORDINGS[reason]
    return wording.http_status, wording.sub_code


def description_of(refused: Refused) -> str:
    """The sentence for the client. JavaScript and Java recognise a missing entity only by these words (AMQP
    contract 9.4)."""
    text = refused.description
    if refused.reason is Reason.ENTITY_NOT_FOUND and not _NOT_FOUND.search(text):
        return f"The messaging entity asked for could not be found. {text}"
    return text
