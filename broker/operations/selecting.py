"""What clients that choose among messages ask of a partition, and its answers.

Such a client reads the messages from the oldest to the latest with `Peek`, and locks those that it wants with
`LockExactly`. `Watch` tells it of later ones. Of messages behind its back it is told by `CameBack`: those
whose locks ended without an outcome, and those that were moved to the subqueue.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class WatchReturned:
    """Tell the client of all messages that become available at a place that it may have passed. Answered with
    `CameBack`, as often as that happens, until the client detaches or the partition goes down
    (`Unavailable`)."""

    subqueue: str


@dataclass(slots=True)
class CameBack:
    """These messages became available, and may be locked again by now."""

    partition: int
    subqueue: str
    sequence_numbers: list[int]
