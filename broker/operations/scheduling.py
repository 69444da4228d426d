"""Operations on scheduled messages, and their answers (AMQP contract 7.3.6, 8.2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# --- operations ---------------------------------------------------------------------------------------------


@dataclass(slots=True)
class CancelScheduled:
    """Remove scheduled messages of the main subqueue before their time. Answered with `Settled`.

    A message that is not there, or not scheduled any more, is one of its failures (MESSAGE_NOT_FOUND); the
    others are removed all the same.
    """

    sequence_numbers: Sequence[int]
    cookie: object = None


@dataclass(slots=True)
class Reschedule:
    """Give scheduled messages of the main subqueue another time; they keep their sequence numbers until then.
    Answered with `Settled`, whose failures are as those of `CancelScheduled`."""

    sequence_numbers: Sequence[int]
    at_ms: int
    """When they are to be enqueued, in wall time. A time that has passed means now."""
    cookie: object = None


@dataclass(slots=True)
class PromiseNumbers:
    """Promise sequence numbers for messages that a transaction schedules, because its client is told them
    before the commit. Answered with `Promised`.

    A promise is not durable: if the partition goes down, the transaction can no longer be committed. Nothing
    else ever gets the numbers. It lasts until a `Transact` uses it, or `BreakPromise`.
    """

    count: int
    cookie: object = None


@dataclass(slots=True)
class BreakPromise:
    """The transaction will not be committed: no message gets these numbers. Answered with `Settled`."""

    first: int
    """The first number of the promise."""
    cookie: object = None


# --- answers ------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Promised:
    """The sequence numbers from `first` on are promised. Answers `PromiseNumbers`."""

    first: int
    cookie: object
