"""How much of the peer's bytes proton gets at once, so that the events that they cause stay few."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from protocol.proton_values import lib

PUSH_BYTES_MAX = 64 * 1024
PUSH_BYTES_MIN = 256
PUSH_BYTES_FIRST = 4 * 1024
EVENTS_PER_PUSH = 32
"""After a push that made more events than this, the next push is half as large. An attach costs 0.1 ms, and
more with thousands of links."""
EVENTS_MAX = 400_000
"""How many events may gather in proton before they are read. Each takes some 165 bytes, which proton keeps
until the connection is gone."""
DISPOSITION_BYTES = 20
"""The smallest size of a disposition, which may apply to every unsettled delivery of its session."""
TRANSFER_BYTES = 16
"""No transfer is smaller, with its frame's header."""
COUNTED_BYTES_PER_LINK = 16
"""The unsettled deliveries of all links are counted again after so many bytes for each link: with thousands
of links, counting them takes longer than what most pushes bring."""


class PushSize:
    """For one connection."""

    __slots__ = ("held_most", "most", "sent_in_all", "uncounted_bytes", "unsettled_most")

    def __init__(self) -> None:
        self.most = PUSH_BYTES_FIRST
        """Bytes to push at once if nobody holds many deliveries unsettled."""
        self.unsettled_most = 0
        """How many deliveries were unsettled on all links when they were last counted, and those sent
        since."""
        self.uncounted_bytes = 0
        """Bytes pushed since then. Whoever pushes adds them."""
        self.sent_in_all = 0
        """How many deliveries were sent on this connection, settled or not. Proton numbers those of each
        session from 0."""
        self.held_most = 0
        """How many deliveries that we sent were unsettled at a time, at most. Proton keeps the memory of as
        many until the connection is freed."""

    def sent(self, messages: int, deliveries: int) -> None:
        """So many messages were sent, and so many of them unsettled."""
        self.sent_in_all += messages
        self.unsettled_most += deliveries
        if self.unsettled_most > self.held_most:
            self.held_most = self.unsettled_most

    def may_hold_dispositions(self, size: int) -> bool:
        """Whether dispositions in so many bytes cause at most EVENTS_MAX events."""
        unsettled = self.unsettled_most + self.uncounted_bytes // TRANSFER_BYTES
        return size <= PUSH_BYTES_MIN or size * unsettled <= EVENTS_MAX * DISPOSITION_BYTES

    def now(self, attached: Collection[Any]) -> int:
        """How many bytes to push at once so that they cause at most EVENTS_MAX events. `attached` has
        proton's links."""
        if self.uncounted_bytes >= COUNTED_BYTES_PER_LINK * len(attached):
            self.unsettled_most = sum(map(lib.pn_link_unsettled, attached))
            self.uncounted_bytes = 0
        unsettled = self.unsettled_most + self.uncounted_bytes // TRANSFER_BYTES
        return max(min(self.most, EVENTS_MAX * DISPOSITION_BYTES // max(unsettled, 1)), PUSH_BYTES_MIN)

    def adapt(self, size: int, events: int) -> None:
        """A push of `size` bytes has made so many events."""
        if events > EVENTS_PER_PUSH:
            self.most = max(self.most // 2, PUSH_BYTES_MIN)
        elif size >= self.most // 2 and events <= EVENTS_PER_PUSH // 2:
            self.most = min(2 * self.most, PUSH_BYTES_MAX)
