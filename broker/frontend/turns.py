"""Decides which connection is served next: the one that has had the least time.

Bytes that arrive go into the connection's `Inbox` and are served in slices. Between two polls of the sockets
(one turn), slices are served for TURN_S, or for TURN_AMONG_HEAVY_S when there are only heavy clients. So
however many clients there are, the event loop is held no longer than that plus one slice. The order is
start-time fair queueing: each inbox has a clock of its own that runs while it is served, the inbox whose
clock is furthest behind comes next, and an inbox that was empty starts at the clock of the one being served.
A client that sends little is served as soon as its bytes are read, and clients that send much share the rest
of the time. The size of a slice follows the time that the last one took: a client whose bytes are expensive
(6,000 attaches in one read) is served a few at a time.

Usage: pass the bytes to `received`; the inbox's client gets them back, in order, through calls of `serve`. A
client that cannot finish a slice within its time (`Turns.is_late` says when to stop) keeps the rest and
returns True: it is called again with b"" in a later turn, before any more of its bytes. Actions that must
follow the bytes (the end of their connection) go to `then`.

A client whose `may_be_served` is False, because it has too much under way, is set aside until `look_again`.

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
"""While there are light clients: how long to serve bytes before the sockets are polled again and the
partitions run."""
TURN_AMONG_HEAVY_S = 0.005
"""The same while there are no light clients. It is longer because messages that arrive together are committed
together, and a commit costs as much as dozens of messages."""
LIGHT_S, HEAVY_S = 0.1, 0.05
"""How long, in time worked, a client that was served at once is remembered as light, and a client that was
served a larger slice counts as heavy."""
SLICE_BESIDE_LIGHT_S, SLICE_S = 0.000_5, 0.002
"""How long one slice may take, beside light clients and among heavy ones. A slice that took longer makes the
next one smaller, and a slice that took much less makes it larger. A light client's message is answered after
about five turns of the event loop."""
SLICE_BYTES_MIN, READ_BYTES = 512, 128 * 1024
READ_BYTES_MIN = 4 * 1024
WAITING_BYTES_MAX = 32 * 1024 * 1024
JOINED_BYTES_MAX = 2 * 1024
"""Chunks are joined up to this size: a WebSocket brings chunks of any size, and each separate one takes at
least 60 bytes of memory."""
QUICK_BYTES, QUICK_S = 4 * 1024, 0.000_5
"""Up to QUICK_BYTES from a light client with nothing waiting are served as they are read, for at most QUICK_S
between two turns."""


class Client(Protocol):
    """The sender of the bytes: a connection."""

    def serve(self, data: bytes) -> bool:
        """Take the next bytes; returns whether to call it again in a later turn to finish. Does not raise."""

    def may_be_served(self) -> bool:
        """Return False to be set aside until `look_again`."""

    def hold_reading(self, why: str) -> None:
        """Pause reading from the client."""

    def release_reading(self, why: str) -> None:
        """Resume reading."""


class Inbox:
    """One client's bytes that have not been served yet."""

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
        """Whether it waits for its turn or was set aside."""
        self.is_unfinished = False
        """Whether its client has not finished the bytes it was given."""
        self.served_s = 0.0
        """The inbox's own clock: see the module docstring."""
        self.heavy_until_s = 0.0
        """Until when the client counts as heavy, because it was recently served more than QUICK_BYTES."""
        self.slice_bytes = READ_BYTES
        self._is_read = True

    def read(self, may: bool) -> None:
        """Resume or pause reading from the client."""
        if may is not self._is_read:
            self._is_read = may
            if may:
                self.client.release_reading("turns")
            else:
                self.client.hold_reading("turns")

    def take(self, size: int) -> bytes:
        """Take the next bytes, up to `size`; returns b"" if an action comes first."""
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
    """The order of service. `worked_s` is a clock in seconds that runs while this thread works."""

    def __init__(self, worked_s: Callable[[], float]) -> None:
        self.waiting_bytes = 0
        """Bytes waiting in all inboxes."""
        self._worked_s = worked_s
        self._order = itertools.count()
        self._ready: list[tuple[float, int, Inbox]] = []
        self._aside: list[Inbox] = []
        self._stands_s = 0.0
        """The clock of the inbox that was served last."""
        self._slice_s, self._slice_ends = SLICE_S, 0.0
        self._quick_s = 0.0
        """Seconds spent since the last turn on bytes that were served as they were read."""
        self.has_light = False
        """Whether a light client was served recently."""
        self._light_until_s = 0.0
        self._is_due = False

    @property
    def has_aside(self) -> bool:
        """Whether a client waits for `look_again`."""
        return bool(self._aside)

    @property
    def read_bytes(self) -> int:
        """How many bytes to read from a socket at once."""
        return READ_BYTES if self.waiting_bytes < WAITING_BYTES_MAX else READ_BYTES_MIN

    @property
    def is_late(self) -> bool:
        """Whether the slice being served has used up its time."""
        return self._worked_s() >= self._slice_ends

    def received(self, inbox: Inbox, data: bytes) -> None:
        """Take in new bytes from the inbox's client, and serve them at once if the client is light."""
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
        """Call `action` once the bytes before it have been served, or at once if there are none. It must not
        raise."""
        if inbox.is_listed:
            inbox.chunks.append(action)
        else:
            action()

    def clear(self, inbox: Inbox) -> None:
        """Drop the client's waiting bytes; actions queued with `then` still run."""
        inbox.chunks = deque(chunk for chunk in inbox.chunks if not isinstance(chunk, bytes))
        self.waiting_bytes -= inbox.bytes
        inbox.bytes = 0
        inbox.is_unfinished = False

    def look_again(self) -> None:
        """Let clients that were set aside be served again."""
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
        """Serve one slice; returns the time after it."""
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
