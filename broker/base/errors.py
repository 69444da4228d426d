"""Refusals: the client is wrong or late. A refusal is raised or answered before anything changes.

Only `refusal_wording.py` turns a reason into words for the wire (AMQP condition, HTTP status). The partition
task turns failures of the world (`storage.errors`) into states. What no input can cause is an assert.
"""

from __future__ import annotations

import enum


class Reason(enum.Enum):
    """Why an operation was refused."""

    LOCK_LOST = "lock-lost"
    LOCK_ENDED = "lock-ended"
    """As LOCK_LOST for the client, but because the partition went down: it is the broker's fault."""
    MESSAGE_NOT_FOUND = "message-not-found"
    SESSION_LOCKED = "session-locked"
    SESSION_LOCK_LOST = "session-lock-lost"
    SESSION_LOCK_ENDED = "session-lock-ended"
    """As SESSION_LOCK_LOST for the client, but because the partition went down."""
    SESSION_NOT_FOUND = "session-not-found"
    ENTITY_NOT_FOUND = "entity-not-found"
    ENTITY_EXISTS = "entity-exists"
    ENTITY_DISABLED = "entity-disabled"
    UNAUTHORIZED = "unauthorized"
    NOT_ALLOWED = "not-allowed"
    NOT_IMPLEMENTED = "not-implemented"
    ARGUMENT = "argument"
    MESSAGE_TOO_LARGE = "message-too-large"
    QUOTA_EXCEEDED = "quota-exceeded"
    DISK_FULL = "disk-full"
    PARTITION_UNAVAILABLE = "partition-unavailable"
    SERVER_BUSY = "server-busy"
    THROTTLED = "throttled"
    TIMEOUT = "timeout"
    DECODE = "decode"
    TRANSACTION_UNKNOWN = "transaction-unknown"
    TRANSACTION_ROLLED_BACK = "transaction-rolled-back"
    CURSOR_NOT_FOUND = "cursor-not-found"
    CURSOR_OWNED = "cursor-owned"
    INTERNAL = "internal"


DESCRIPTION_CHARACTERS_MAX = 2_000
"""A refusal may quote what a client sent; neither answers nor logs repeat more of it than this."""


class Refused(Exception):
    """An operation that is not carried out: a reason, and a sentence that names the limit and the actual
    value. Too long a sentence loses its middle."""

    def __init__(self, reason: Reason, description: str) -> None:
        if len(description) > DESCRIPTION_CHARACTERS_MAX:
            half = DESCRIPTION_CHARACTERS_MAX // 2
            description = f"{description[: half - 3]} … {description[-half:]}"
        super().__init__(description)
        self.reason = reason
        self.description = description


def not_found_text(name: str) -> str:
    """The text by which JavaScript and Java recognise a missing entity (AMQP contract 9.4)."""
    return f"The messaging entity '{name}' could not be found."
