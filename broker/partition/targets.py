"""Which subqueues of a topic get which messages: a part of ENQUEUED and ACTIVATED records. Pure.

Messages with the same targets share a *set* of them. A target says all that a replay must know, so a replay
neither matches again nor needs the rules and settings of that time. Little endian:

    offset  size  field
         0     4  number of sets s
         4    4s  how many targets each set has
         …    4t  all targets, set after set: the numbers of their subqueues
         …    8t  the bound of the time to live in each, in ms; 0 for none
         …    2t  flags of each: 1 = messages are received with their session
         …    4n  the set of each message
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

from broker.partition.tables import UnreadableRecord, read_table, table


class Target(NamedTuple):
    """A subqueue that gets a message."""

    subqueue: int
    bound_ms: int = 0
    """The longest time to live there, because subscriptions have their own; 0 for no bound."""
    has_sessions: int = 0
    """1 if messages are received with their session there."""


Set = tuple[Target, ...]
"""In the order of the subqueues."""

_COUNT = struct.Struct("<I")


class Targets(NamedTuple):
    """The targets of some messages."""

    sets: Sequence[Set]
    of_messages: Sequence[int]
    """The place of each message's set in `sets`."""

    def part(self, here: slice) -> Targets:
        """The targets of some of the messages."""
        return self._replace(of_messages=self.of_messages[here])

    def by_subqueue(self) -> dict[int, list[tuple[int, Target]]]:
        """What each subqueue gets: the place of each message, ascending, and the target."""
        found: dict[int, list[tuple[int, Target]]] = {}
        for place, index in enumerate(self.of_messages):
            for target in self.sets[index]:
                found.setdefault(target.subqueue, []).append((place, target))
        return found

    def encode(self) -> bytes:
        """The targets as a part of a record."""
        every = [target for each in self.sets for target in each]
        return b"".join(
            (
                _COUNT.pack(len(self.sets)),
                table("I", map(len, self.sets)),
                table("I", [each.subqueue for each in every]),
                table("Q", [each.bound_ms for each in every]),
                table("H", [each.has_sessions for each in every]),
                table("I", self.of_messages),
            )
        )


def decode(view: memoryview, offset: int, count: int) -> tuple[Targets, int]:
    """Decode the targets of `count` messages; also returns the offset after them. Raises UnreadableRecord."""
    if offset + _COUNT.size > len(view):
        raise UnreadableRecord(f"the targets begin at byte {offset} of {len(view)}")
    (set_count,) = _COUNT.unpack_from(view, offset)
    lengths, end = read_table("I", view, offset + _COUNT.size, set_count)
    numbers, end = read_table("I", view, end, sum(lengths))
    bounds, end = read_table("Q", view, end, len(numbers))
    flags, end = read_table("H", view, end, len(numbers))
    of_messages, end = read_table("I", view, end, count)
    if max(flags, default=0) > 1 or max(of_messages, default=-1) >= set_count:
        raise UnreadableRecord("the targets of messages do not fit together, or are of a later release")
    stops = list(accumulate(lengths, initial=0))
    every = tuple(map(Target, numbers, bounds, flags))
    return Targets([every[start:stop] for start, stop in pairwise(stops)], of_messages), end
