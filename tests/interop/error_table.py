"""What the official clients make of each refusal: the exception, and whether the client tries again.

A condition of AMQP comes with what the contract says of it for each client (AMQP contract 9.2); a refusal is
a way to meet one. Its name is the name of the scenario with which the programs in all languages provoke it,
in a queue of their own, with one unchanged client each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypedDict

LOCK_S = 1
"""Lock duration of the queues where a lock is lost."""
CLIENTS = ("python", "javascript", "java", "go")


class Seen(NamedTuple):
    """What a client's caller gets."""

    reason: str
    """In Python, the name of the exception. In JavaScript, its `code`. In Java, `getReason()`; if the client
    has wrapped an error that has none, the condition of this error, or its name. In Go, the code; if an error
    has none, its condition."""
    retried: bool | None
    """Whether the client tries again; None where it never does, whatever the error, and does not say."""


@dataclass(slots=True, frozen=True)
class Condition:
    """An error condition of AMQP, and what each client makes of it."""

    name: str
    python: Seen
    javascript: Seen
    java: Seen
    go: Seen


@dataclass(slots=True, frozen=True)
class Refusal:
    """One way to meet a condition."""

    condition: Condition
    says: str
    """A part of the broker's description (a regular expression), which reaches the caller."""
    queue: Mapping[str, object] = field(default_factory=dict)
    is_of_topic: bool = False
    """Whether it takes a topic in place of a queue."""
    but: Mapping[str, Seen | None] = field(default_factory=dict)
    """What some clients show instead; None for a client that cannot meet the refusal this way."""
    unsaid: tuple[str, ...] = ()
    """Clients that do not pass on the description."""

    def seen(self, client: str) -> Seen | None:
        """What this client shows; None if it cannot meet the refusal."""
        expected: Seen = getattr(self.condition, client)
        return self.but.get(client, expected)


NOT_FOUND = Condition(
    "amqp:not-found",
    python=Seen("MessagingEntityNotFoundError", False),
    javascript=Seen("MessagingEntityNotFound", False),
    java=Seen("MESSAGING_ENTITY_NOT_FOUND", False),
    go=Seen("amqp:not-found", False),
)
UNAUTHORIZED = Condition(
    "amqp:unauthorized-access",
    python=Seen("ServiceBusAuthorizationError", False),
    javascript=Seen("UnauthorizedAccess", True),
    java=Seen("UNAUTHORIZED", False),
    go=Seen("unauthorized", False),
)
TOO_LARGE = Condition(
    "amqp:link:message-size-exceeded",
    python=Seen("MessageSizeExceededError", False),
    javascript=Seen("MessageSizeExceeded", False),
    java=Seen("MESSAGE_SIZE_EXCEEDED", False),
    go=Seen("ErrMessageTooLarge", False),
)
DISABLED = Condition(
    "com.microsoft:entity-disabled",
    python=Seen("MessagingEntityDisabledError", True),
    javascript=Seen("MessagingEntityDisabled", False),
    java=Seen("MESSAGING_ENTITY_DISABLED", False),
    go=Seen("com.microsoft:entity-disabled", False),
)
QUOTA = Condition(
    "amqp:resource-limit-exceeded",
    python=Seen("ServiceBusQuotaExceededError", False),
    javascript=Seen("QuotaExceeded", False),
    java=Seen("QUOTA_EXCEEDED", False),
    go=Seen("amqp:resource-limit-exceeded", False),
)
LOCK_LOST = Condition(
    "com.microsoft:message-lock-lost",
    python=Seen("MessageLockLostError", False),
    javascript=Seen("MessageLockLost", False),
    java=Seen("MESSAGE_LOCK_LOST", False),
    go=Seen("locklost", False),
)
SESSION_LOCK_LOST = Condition(
    "com.microsoft:session-lock-lost",
    python=Seen("SessionLockLostError", False),
    javascript=Seen("SessionLockLost", False),
    java=Seen("SESSION_LOCK_LOST", False),
    go=Seen("locklost", True),  # it accepts the session again
)
SESSION_HELD = Condition(
    "com.microsoft:session-cannot-be-locked",
    python=Seen("SessionCannotBeLockedError", True),
    javascript=Seen("SessionCannotBeLocked", False),
    java=Seen("com.microsoft:session-cannot-be-locked", False),
    go=Seen("com.microsoft:session-cannot-be-locked", None),
)
TIMEOUT = Condition(
    "com.microsoft:timeout",
    python=Seen("OperationTimeoutError", True),
    javascript=Seen("ServiceTimeout", True),
    java=Seen("com.microsoft:timeout", True),
    go=Seen("timeout", None),
)
MESSAGE_NOT_FOUND = Condition(
    "com.microsoft:message-not-found",
    python=Seen("MessageNotFoundError", True),
    javascript=Seen("MessageNotFound", False),
    java=Seen("MESSAGE_NOT_FOUND", False),
    go=Seen("notfound", False),
)
NOT_ALLOWED = Condition(
    "amqp:not-allowed",
    python=Seen("ServiceBusError", False),
    javascript=Seen("GeneralError", False),
    java=Seen("UnsupportedOperationException", False),
    go=Seen("amqp:not-allowed", False),
)
NOT_IMPLEMENTED = Condition(
    "amqp:not-implemented",
    python=Seen("ServiceBusError", False),
    javascript=Seen("GeneralError", False),
    java=Seen("UnsupportedOperationException", False),
    go=Seen("amqp:not-implemented", False),
)
ARGUMENT = Condition(
    "com.microsoft:argument-error",
    python=Seen("ServiceBusError", False),
    javascript=Seen("GeneralError", False),
    java=Seen("com.microsoft:argument-error", False),
    go=Seen("connlost", None),
)
BUSY = Condition(
    "com.microsoft:server-busy",
    python=Seen("ServiceBusServerBusyError", True),
    javascript=Seen("ServiceBusy", True),
    java=Seen("com.microsoft:server-busy", True),
    go=Seen("com.microsoft:server-busy", True),
)
EXISTS = Condition(
    "com.microsoft:entity-already-exists",
    python=Seen("", None),
    javascript=Seen("MessagingEntityAlreadyExists", False),
    java=Seen("MESSAGING_ENTITY_ALREADY_EXISTS", False),
    go=Seen("", None),
)
ROLLED_BACK = Condition(
    "amqp:transaction:rollback",
    python=Seen("", None),
    javascript=Seen("", None),
    java=Seen("AmqpException", False),
    go=Seen("", None),
)

SESSIONS = {"RequiresSession": True}
FORWARDED_TO = "forwarded-to"
"""The queue to which others forward."""
SHORT = {"LockDuration": f"PT{LOCK_S}S"}
PLAIN = {"PartitionCount": 1}
RULE_MANAGERS: dict[str, Seen | None] = {"python": None, "go": None}
"""For rules, which the other clients change over HTTP."""
ONLY_JAVA: dict[str, Seen | None] = {"python": None, "javascript": None, "go": None}
"""For transactions, which the other clients do not have (AMQP contract 8.1)."""


class _Exceptions(TypedDict):
    but: Mapping[str, Seen | None]
    unsaid: tuple[str, ...]


REFUSED_TOKEN: _Exceptions = {
    "but": {"python": Seen("ServiceBusAuthenticationError", True)},
    "unsaid": ("python",),
}
"""Python has one exception for every answer of `$cbs` that is not a success (AMQP contract 2.3)."""


def received(condition: Condition) -> dict[str, Seen | None]:
    """What Java's receivers show: an error without a reason."""
    return {"java": Seen(condition.name, condition.java.retried)}


REFUSED_SESSION: _Exceptions = {
    "but": {"javascript": Seen("SessionCannotBeLocked", False), "go": Seen("amqp:not-allowed", None)},
    "unsaid": ("javascript",),
}
"""JavaScript shows every refusal of a session by name as one that is held (AMQP contract 5.4). Go accepts
sessions without trying again."""

REFUSALS: dict[str, Refusal] = {
    "send-to-no-entity": Refusal(NOT_FOUND, "could not be found"),
    "receive-from-no-entity": Refusal(NOT_FOUND, "could not be found", but=received(NOT_FOUND)),
    "wrong-key": Refusal(UNAUTHORIZED, "signature", **REFUSED_TOKEN),
    "expired-token": Refusal(UNAUTHORIZED, "expired", **REFUSED_TOKEN),
    "missing-claim": Refusal(UNAUTHORIZED, "Send"),
    "message-too-large": Refusal(TOO_LARGE, "exceed|too large"),
    "send-to-disabled": Refusal(DISABLED, "disabled for sending", {"Status": "Disabled"}),
    "receive-from-disabled": Refusal(
        DISABLED, "disabled for receiving", {"Status": "Disabled"}, but=received(DISABLED)
    ),
    "send-disabled": Refusal(DISABLED, "SendDisabled", {"Status": "SendDisabled"}),
    "receive-disabled": Refusal(
        DISABLED, "ReceiveDisabled", {"Status": "ReceiveDisabled"}, but=received(DISABLED)
    ),
    "disabled-beside-sender": Refusal(DISABLED, "SendDisabled"),
    # Go gives the error of a link that ends at once, and attaches again with the next call.
    "disabled-beside-receiver": Refusal(
        DISABLED, "ReceiveDisabled", but={**received(DISABLED), "go": Seen(DISABLED.name, None)}
    ),
    # Python overlooks why a link has ended, and learns of it when it attaches again.
    "deleted-beside-sender": Refusal(
        NOT_FOUND, "could not be found", but={"python": Seen("MessagingEntityNotFoundError", True)}
    ),
    "deleted-beside-receiver": Refusal(
        NOT_FOUND, "could not be found", but={**received(NOT_FOUND), "go": Seen(NOT_FOUND.name, None)}
    ),
    "quota-exceeded": Refusal(
        QUOTA, "Max partition size in bytes: 1048576", {**PLAIN, "MaxSizeInMegabytes": 1}
    ),
    # Go knows few statuses of `$management`. It takes this one for a lost connection.
    "session-state-too-large": Refusal(
        QUOTA, "the maximum for a session is 1024", SESSIONS, but={"go": Seen("connlost", True)}
    ),
    "too-many-session-states": Refusal(
        QUOTA, "1 sessions, which is the maximum", {**SESSIONS, **PLAIN}, but={"go": Seen("connlost", True)}
    ),
    # Python opens a connection for each sender, and Java has one link for all senders to an entity.
    "too-many-links": Refusal(QUOTA, "at most 20 links", but={"python": None, "java": None}),
    "message-lock-lost": Refusal(LOCK_LOST, "lock", SHORT),
    "session-lock-lost": Refusal(SESSION_LOCK_LOST, "session", {**SESSIONS, **SHORT}),
    "session-held": Refusal(SESSION_HELD, "session", SESSIONS),
    "no-session-free": Refusal(TIMEOUT, "session", SESSIONS),
    # Java takes 404 for an answer without messages.
    "deferred-message-unknown": Refusal(
        MESSAGE_NOT_FOUND,
        "sequence number",
        but={"java": Seen("NoSuchElementException", False)},
        unsaid=("java",),
    ),
    "scheduled-message-unknown": Refusal(MESSAGE_NOT_FOUND, "sequence number", but={"java": None}),
    "batch-with-two-keys": Refusal(NOT_ALLOWED, "'one' and 'two'"),
    "message-without-session": Refusal(NOT_ALLOWED, "requires sessions", SESSIONS),
    "receiver-without-session": Refusal(NOT_ALLOWED, "requires sessions", SESSIONS),
    "receiver-beside-forwarding": Refusal(
        NOT_ALLOWED, "auto-forwarding enabled", {"ForwardTo": FORWARDED_TO}
    ),
    "session-of-none": Refusal(NOT_ALLOWED, "does not require sessions", **REFUSED_SESSION),
    "session-id-too-long": Refusal(
        ARGUMENT,
        "128 are the maximum",
        SESSIONS,
        but={"javascript": Seen("SessionCannotBeLocked", False)},
        unsaid=("javascript",),
    ),
    "send-to-dead-letters": Refusal(NOT_ALLOWED, "cannot be sent to a dead-letter queue"),
    # Java's client cannot learn of it (AMQP contract 6.2).
    "dead-letter-a-dead-letter": Refusal(NOT_ALLOWED, "dead-letter", but={"java": None}),
    # Of the official clients, only Python's lets its user name an operation.
    "unknown-operation": Refusal(
        NOT_IMPLEMENTED, "not supported", but={"javascript": None, "java": None, "go": None}
    ),
    "receive-from-topic": Refusal(NOT_ALLOWED, "subscriptions", is_of_topic=True),
    "rule-exists": Refusal(EXISTS, "already exists", but=RULE_MANAGERS, is_of_topic=True),
    "rule-missing": Refusal(NOT_FOUND, "could not be found", but=RULE_MANAGERS, is_of_topic=True),
    "rule-invalid": Refusal(ARGUMENT, "at position 5", but=RULE_MANAGERS, is_of_topic=True),
    "partition-unavailable": Refusal(
        BUSY, "damaged. It stays unavailable until an operator repairs it", {"PartitionCount": 2}
    ),
    "transaction-with-two-keys": Refusal(ROLLED_BACK, "'one' and 'two'", but=ONLY_JAVA),
    "transaction-without-key": Refusal(ROLLED_BACK, "without a key", but=ONLY_JAVA),
    "transaction-of-two-entities": Refusal(ROLLED_BACK, "on one entity", but=ONLY_JAVA),
    "transaction-too-late": Refusal(ROLLED_BACK, "within 3 seconds", but=ONLY_JAVA),
}
"""By name; `{}` as queue settings means a partitioned queue with the defaults."""


def cases_of(client: str) -> list[str]:
    """The refusals that a client can meet."""
    return [name for name, refusal in REFUSALS.items() if refusal.seen(client) is not None]


WITHOUT_ENTITY = ("send-to-no-entity", "receive-from-no-entity")
"""Refusals of clients that use a queue which does not exist."""
