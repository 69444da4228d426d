"""The quota of a whole entity: what all its partitions may hold together (HTTP contract 6.1).

Each partition enforces its own quota exactly (`broker/partition/quotas.py`). This one is checked before
messages go to the partitions, so it can be exceeded by what is under way: the partitions report what is
durable. A queue is counted anew only if it may have reached the limit. A topic stores more than is sent to
it, as many copies and references as its subscriptions and rules want, so it is counted each time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from broker.base.errors import Reason, Refused
from broker.entities.descriptions import MESSAGE_OVERHEAD_BYTES


class SizeQuota:
    """The quota of one entity. Owned by the event loop."""

    __slots__ = ("_bound", "_kind", "_limit", "_multiplies", "_size")

    def __init__(self, kind: str, limit: int, size: Callable[[], int], *, multiplies: bool = False) -> None:
        """`kind` is what people call it; `limit` is in bytes, 0 for none; `size` counts what the entity
        holds. `multiplies`: it stores more than is sent to it."""
        self._kind, self._multiplies = kind, multiplies
        self._limit, self._size = limit, size
        self._bound = limit
        """The entity holds at most this, unless other things than messages have grown."""

    def admit(self, name: str, messages: Sequence[bytes]) -> None:
        """Count messages that are about to be sent to the entity of this name. Raises
        Refused(QUOTA_EXCEEDED) if there is no room for them."""
        if not self._limit:
            return
        bound = self._bound + sum(map(len, messages)) + MESSAGE_OVERHEAD_BYTES * len(messages)
        if bound <= self._limit and not self._multiplies:
            self._bound = bound
        else:
            added = self.check(name, messages)  # which may set the bound anew
            self._bound += added

    def check(self, name: str, messages: Sequence[bytes]) -> int:
        """Check that there is room for messages that come later; returns their size. Raises
        Refused(QUOTA_EXCEEDED)."""
        if not self._limit:
            return 0
        added = sum(map(len, messages)) + MESSAGE_OVERHEAD_BYTES * len(messages)
        if self._multiplies or self._bound + added > self._limit:
            self._bound = self._size()
            if self._bound + added > self._limit:
                raise Refused(
                    Reason.QUOTA_EXCEEDED,
                    f"The maximum entity size has been reached or exceeded for {self._kind}: '{name}'. "
                    f"Size of entity in bytes: {self._bound}, Max entity size in bytes: {self._limit}",
                )
        return added

    def take_rest(self) -> int:
        """Count the room that is left, in bytes, as taken by messages of which not all may fit. Returns
        it."""
        rest = max(self._limit - self._bound, 0)
        self._bound += rest
        return rest
