"""Which subqueues of one partition have work, so that no code has to look at the others, and what all of them
hold, so that no code has to look at each: a topic has hundreds of subqueues. Pure.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from broker.partition.changed_counts import ChangedCounts
from broker.partition.changed_properties import ChangedProperties
from broker.partition.timed import Timed

S = TypeVar("S")
"""A subqueue, which this file must not import: each of them knows its `Work`."""


class Work(Generic[S]):
    """Written by the subqueues of one partition."""

    __slots__ = (
        "bytes", "changed", "changed_bytes", "column_bytes", "columned", "indexed", "messages", "occupied",
        "properties", "sessions", "timed",
    )  # fmt: skip

    def __init__(self) -> None:
        self.messages = self.bytes = self.changed_bytes = self.column_bytes = 0
        """Of all subqueues together. Each of these adds what it adds to its own sums."""
        self.occupied: dict[int, S] = {}
        """Subqueues that hold messages, by number."""
        self.indexed: dict[int, S] = {}
        """Subqueues with an index of message sessions, by number."""
        self.columned: dict[int, S] = {}
        """Subqueues in which some message has had columns, by number."""
        self.timed = Timed()
        """The `expiry` of all subqueues."""
        self.changed = ChangedCounts()
        self.properties = ChangedProperties()
        """The changed properties of all messages, each different value once. `changed_bytes` counts them for
        each message."""
        self.sessions = 0
        """How many message sessions the indexes of all subqueues have."""
