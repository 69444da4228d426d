"""The states of a partition's messages, and how many messages are in each."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class MessageState(enum.IntEnum):
    """`x-opt-message-state` (AMQP contract 5.5), and what a partition stores as the state of a message.

    A lock is not a state: it comes on top of one, and is not stored.
    """

    ACTIVE = 0
    DEFERRED = 1
    SCHEDULED = 2


@dataclass(slots=True)
class SubqueueCounts:
    """How many messages of each state a subqueue of one partition holds."""

    active: int = 0
    """Ready for delivery, or locked."""
    locked: int = 0
    deferred: int = 0
    scheduled: int = 0
    bytes: int = 0
    message_ids: int = 0
    """Message-ids remembered to detect duplicates, in the main subqueue of an open partition."""
