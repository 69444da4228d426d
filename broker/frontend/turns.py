"""Who is served next: connections take turns, the one that has had the least time first.

Bytes that arrive go into the connection's `Inbox` and are served in slices. Between two polls of the sockets
(one turn) slices are served for TURN_S (for TURN_AMONG_HEAVY_S when only heavy clients are there). So however
many clients there are, the event loop is held no longer than that and one slice. The order is start-time fair
queueing: each inbox has a clock of its own that runs while it is served, the inbox whose clock is furthest
behind comes next, and an inbox that was empty starts at the clock of the one being served. A client that
sends little is served as soon as its bytes are read, and clients that send much share the rest of the time.
The size of a slice follows the time that the last one took: a client whose bytes are expensive (6,000
attaches in one read) is served a few at a time.

How to use it: give the bytes to `received`; the inbox's client gets them back, in order, in calls of `serve`.
A client that cannot finish a slice within its time (`Turns.is_late` says when to stop) keeps the rest and
returns True: it is called again with b"" in a later turn, before any more of its bytes. What has to happen
after the bytes (the end of their connection) goes to `then`.

A client whose `may_be_served` is False (too much of what it sent is under way) is set aside until
`look_again`.

Bounds: reading from a client pauses while its inbox holds READ_BYTES. While all inboxes together hold
WAITING_BYTES_MAX, reading pauses for every client with bytes in its inbox, and reads become small
(`read_bytes`).

Used in the event loop. Knows neither AMQP nor sockets.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections import deque
from collections.abc import Callable
from typing import Protocol

TURN_S = 0.000_25
"""How long bytes are served before the sockets are polled again and the partitions have their turn, while
there are light clients …"""
TURN_AMONG_HEAVY_S = 0.005
"""… and while there are none: messages that come together are committed together, and a commit costs as much
as dozens of messages."""
LIGHT_S, HEAVY_S = 0.1, 0.05
"""How long, in time worked, a client that was served at once is remembered, and one that was served a larger
slice counts as heavy."""
SLICE_BESIDE_LIGHT_S, SLICE_S = 0.000_5, 0.002
"""How long one slice may take, beside light clients and among heavy ones. The next slice is smaller after one
that took longer, and larger after one that took much less. A light client's message waits for some five turns
of the event loop until it is answered."""
SLICE_BYTES_MIN, READ_BYTES = 512, 128 * 1024
READ_BYTES_MIN = 4 * 1024
WAITING_BYTES_MAX = 32 * 1024 * 1024
JOINED_BYTES_MAX = 2 * 1024
"""Pieces are joined up to this size: a WebSocket brings them in any size, and each one by itself takes 60
bytes of memory at least."""
QUICK_BYTES, QUICK_S = 4 * 1024, 0.000_5
"""Up to QUICK_BYTES of a light client with nothing waiting are served as they are read, for at most QUICK_S
between two turns."""


class Client(Protocol):
    """The client that sent the bytes: a connection."""

    def serve(self, data: bytes) -> bool:
        """Take the next bytes; True if there is more to be done with them in a later turn. Does not raise."""

    def may_be_served(self) -> bool:
        """False sets the client aside until `look_again`."""

    def hold_reading(self, why: str) -> None:
        """Read no more from the client."""

    def release_reading(self, why: str) -> None:
        """Read from it again."""


class Inbox:
    """Bytes of one client that have not been served yet."""

    __slots__ = (
        "_is_read",
        "bytes",
        "chunks",
        "client",
        "heavy_until_s",
        "is_listed",
        "is_unfinished",
        "served_s",
        "slice_bytes",
    )

    def __init__(self, client: Client) -> None:
        self.client = client
        self.chunks: deque[bytes | Callable[[], None]] = deque()
        self.bytes = 0
        self.is_listed = False
        """It waits for its turn, or was set aside."""
        self.is_unfinished = False
        """Its client has more to do with what it was given."""
        self.served_s = 0.0
        """Its own clock: see the module."""
        self.heavy_until_s = 0.0
        """It was served more than a few bytes not long ago."""
        self.slice_bytes = READ_BYTES
        self._is_read = True

    def read(self, may: bool) -> None:
        """Read from the client, or pause reading."""
        if may is not self._is_read:
            self._is_read = may
            if may:
                self.client.release_reading("turns")
            else:
                self.client.hold_reading("turns")

    def take(self, size: int) -> bytes:
        """The next bytes, up to `size`; none if something else comes first."""
        chunk = self.chunks[0]
        if not isinstance(chunk, bytes):
            return b""
        if len(chunk) <= size:
            self.chunks.popleft()
        else:
            self.chunks[0] = chunk[size:]
            chunk = chunk[:size]
        self.bytes -= len(chunk)
        return chunk


class Turns:
    """The order of service. `worked_s` is a clock that runs while this thread works, in seconds."""

    def __init__(self, worked_s: Callable[[], float]) -> None:
        self.waiting_bytes = 0
        """In all inboxes."""
        self._worked_s = worked_s
        self._order = itertools.count()
        self._ready: list[tuple[float, int, Inbox]] = []
        self._aside: list[Inbox] = []
        self._stands_s = 0.0
        """The clock of the inbox that was served last."""
        self._slice_s, self._slice_ends = SLICE_S, 0.0
        self._quick_s = 0.0
        """Spent on what was served as it was read, since the last turn."""
        self.has_light = False
        """A light client was served not long ago."""
        self._light_until_s = 0.0
        self._is_due = False

    @property
    def has_aside(self) -> bool:
        """Somebody waits for `look_again`."""
        return bool(self._aside)

    @property
    def read_bytes(self) -> int:
        """How many bytes to read from a socket at once."""
        return READ_BYTES if self.waiting_bytes < WAITING_BYTES_MAX else READ_BYTES_MIN

    @property
    def is_late(self) -> bool:
        """The slice being served has used up its time."""
        return self._worked_s() >= self._slice_ends

    def received(self, inbox: Inbox, data: bytes) -> None:
        """Bytes of the inbox's client, behind those it has."""
        if len(data) <= QUICK_BYTES and not inbox.is_listed and self._quick_s < QUICK_S:
            now = self._worked_s()
            if now >= inbox.heavy_until_s and inbox.client.may_be_served():
                self._serve_at_once(inbox, data, now)
                return
        last = inbox.chunks[-1] if inbox.chunks else None
        if isinstance(last, bytes) and len(last) + len(data) <= JOINED_BYTES_MAX:
            inbox.chunks[-1] = last + data
        else:
            inbox.chunks.append(data)
        inbox.bytes += len(data)
        self.waiting_bytes += len(data)
        if inbox.bytes >= READ_BYTES or self.waiting_bytes >= WAITING_BYTES_MAX:
            inbox.read(False)
        self._list(inbox)

    def then(self, inbox: Inbox, action: Callable[[], None]) -> None:
        """Call `action` once the bytes that came before are served; at once if there are none. It must not
        raise."""
        if inbox.is_listed:
            inbox.chunks.append(action)
        else:
            action()

    def clear(self, inbox: Inbox) -> None:
        """Drop the client's bytes; what was to happen after them still happens."""
        inbox.chunks = deque(chunk for chunk in inbox.chunks if not isinstance(chunk, bytes))
        self.waiting_bytes -= inbox.bytes
        inbox.bytes = 0
        inbox.is_unfinished = False

    def look_again(self) -> None:
        """Those that were set aside may be served now."""
        aside, self._aside = self._aside, []
        for inbox in aside:
            inbox.is_listed = False
            self._list(inbox)

    def _serve_at_once(self, inbox: Inbox, data: bytes, began: float) -> None:
        self.has_light, self._light_until_s = True, began + LIGHT_S
        self._slice_ends = began + SLICE_BESIDE_LIGHT_S
        inbox.is_unfinished = inbox.client.serve(data)
        took = self._worked_s() - began
        self._quick_s += took
        inbox.served_s = max(inbox.served_s, self._stands_s) + took
        if inbox.is_unfinished:
            self._list(inbox)

    def _list(self, inbox: Inbox) -> None:
        if not inbox.is_listed:
            inbox.is_listed = True
            inbox.served_s = max(inbox.served_s, self._stands_s)
            heapq.heappush(self._ready, (inbox.served_s, next(self._order), inbox))
            self._turn_soon()

    def _turn_soon(self) -> None:
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        self._is_due = False
        self._quick_s = 0.0
        began = self._worked_s()
        self.has_light = began < self._light_until_s
        self._slice_s = SLICE_BESIDE_LIGHT_S if self.has_light else SLICE_S
        ends = began + (TURN_S if self.has_light else TURN_AMONG_HEAVY_S)
        now, ready = began, self._ready
        while ready and now < ends:
            inbox = heapq.heappop(ready)[2]
            if not inbox.client.may_be_served():
                self._aside.append(inbox)
                continue
            self._stands_s = inbox.served_s
            now = self._serve(inbox, now)
        if ready:
            self._turn_soon()

    def _serve(self, inbox: Inbox, began: float) -> float:
        """One slice; gives the time after it."""
        self._slice_ends = began + self._slice_s
        size = 0
        if inbox.is_unfinished:
            inbox.is_unfinished = inbox.client.serve(b"")
        elif inbox.chunks:
            data = inbox.take(inbox.slice_bytes)
            size = len(data)
            if data:
                self.waiting_bytes -= size
                inbox.is_unfinished = inbox.client.serve(data)
            else:
                action = inbox.chunks.popleft()
                assert not isinstance(action, bytes), "bytes are taken, and never empty"
                action()
        now = self._worked_s()
        took = now - began
        inbox.served_s += took
        if size > QUICK_BYTES:
            inbox.heavy_until_s = now + HEAVY_S
        if took > self._slice_s:
            inbox.slice_bytes = max(size // 2 if size else inbox.slice_bytes // 2, SLICE_BYTES_MIN)
        elif took < self._slice_s / 2 and size >= inbox.slice_bytes:
            inbox.slice_bytes = min(2 * inbox.slice_bytes, READ_BYTES)
        if inbox.chunks or inbox.is_unfinished:
            heapq.heappush(self._ready, (inbox.served_s, next(self._order), inbox))
        else:
            inbox.is_listed = False
        if inbox.bytes < READ_BYTES:
            inbox.read(True)
        return now
