"""Operations on locked messages, by their lock tokens: settlements and renewals (AMQP contract 6.1, 7.3.1).

A link has the tokens of its own deliveries. A client that names tokens itself (`$management`, HTTP) may have
guessed them, so its operation says in which subqueue it may settle, and finds no lock in any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from broker.base.errors import Reason
from broker.identifiers import LockToken

# --- operations ---------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Complete:
    """Settle locked messages as accepted: they are removed (AMQP 1.0 §3.4.2). Answered with `Settled`."""

    tokens: Sequence[LockToken]
    cookie: object = None
    subqueue: str | None = None
    """Where the client may settle: the lock of a message in any other subqueue is lost for it. None if the
    tokens are those of its own deliveries."""


@dataclass(slots=True)
class Abandon:
    """Give locked messages back and count a delivery (§3.4.5, delivery-failed), except in a dead-letter
    subqueue.

    Answered with `Settled`.
    """

    tokens: Sequence[LockToken]
    changed: bytes | None = None
    """Application properties to change: an encoded AMQP map, laid over earlier changes; a null removes a
    property."""
    cookie: object = None
    delay_ms: int = 0
    """Offer the messages again after this time, also after a restart. Until then they count as locked."""
    subqueue: str | None = None
    """As in `Complete`."""


@dataclass(slots=True)
class Defer:
    """Defer locked messages: only `ReceiveDeferred` finds them (AMQP contract 10.6). Answered with `Settled`.

    Counts a delivery, except in a dead-letter subqueue (AMQP contract 5.6).
    """

    tokens: Sequence[LockToken]
    changed: bytes | None = None
    cookie: object = None
    subqueue: str | None = None
    """As in `Complete`."""


@dataclass(slots=True)
class DeadLetter:
    """Move locked messages to the dead-letter subqueue (AMQP contract 6.1). Answered with `Settled`.

    A message that is already in a dead-letter subqueue stays there, locked and unchanged, with the failure
    NOT_ALLOWED (AMQP contract 10.4).
    """

    tokens: Sequence[LockToken]
    changed: bytes | None = None
    """Application properties to set, an encoded AMQP map: reason, description and the caller's own."""
    cookie: object = None
    subqueue: str | None = None
    """As in `Complete`."""


@dataclass(slots=True)
class Release:
    """Give back messages that no client has seen, or that are given back unread (§3.4.4), without counting a
    delivery.

    Never answered. Tokens whose lock is gone are ignored.
    """

    tokens: Sequence[LockToken]


@dataclass(slots=True)
class GiveBack:
    """As `Release`, for a request that fails: its client is told only once no message is locked for it any
    more.

    Answered with `Settled`, without failures.
    """

    tokens: Sequence[LockToken]
    cookie: object = None


@dataclass(slots=True)
class RenewLocks:
    """Extend locks by the entity's lock duration from now. Answered with `Renewed`."""

    tokens: Sequence[LockToken]
    cookie: object = None
    duration_ms: int | None = None
    """How long the locks last from now, if not for the entity's lock duration."""
    subqueue: str | None = None
    """As in `Complete`."""


# --- answers ------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Settled:
    """A settlement is durable. `failures` gives the tokens or sequence numbers that it did not reach (by
    position in the operation), and why."""

    cookie: object
    failures: dict[int, Reason] = field(default_factory=dict)


@dataclass(slots=True)
class Renewed:
    """Locks last until `locked_until_ms`, in monotonic time, except those in `failures` (by position in the
    operation)."""

    locked_until_ms: int
    cookie: object
    failures: dict[int, Reason] = field(default_factory=dict)
