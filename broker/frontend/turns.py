"""Decides which connection is served next: the one that has had the least time.

Bytes that arrive go into the connection's `Inbox` and are served in slices. Between two polls of the sockets
(one turn), slices are served for TURN_AMONG_HEAVY_S, or for a much shorter time while light clients wait for
outcomes. So however many clients there are, the event loop is held no longer than that plus one slice. The
order is start-time fair queueing: each inbox has a clock of its own that runs while it is served, the inbox
whose clock is furthest behind comes next, and an inbox that was empty starts at the clock of the one being
served. Inboxes with more than a little waiting come as if their next slice had been served already, as long
as the last one: hundreds of connections may arrive together with much, and a client with little does not wait
for a slice of each. A client that sends little is served as soon as its bytes are read, and clients that send
much share the rest of the time. The size of a slice follows the time that the last one took: a client whose
bytes are expensive (6,000 attaches in one read) is served a few at a time.

Usage: pass the bytes to `received`; the inbox's client gets them back, in order, through calls of `serve`. A
client that cannot finish a slice within its time (`Turns.is_late` says when to stop) keeps the rest and
returns True: it is called again with b"" in a later turn, before any more of its bytes. Actions that must
follow the bytes (the end of their connection) go to `then`.

A client whose `may_be_served` is False, because it has too much under way, is held back until `look_again`.

Bounds: reading from a client pauses while its inbox holds as much as is read from it at once: READ_BYTES, or
up to READ_BYTES_MAX if its bytes are cheap, as those of large messages are (`Inbox.read_bytes`). While all
inboxes together hold `waiting_bytes_max`, reading pauses for every client with bytes in its inbox, and reads
become small (`read_bytes`).

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
"""While light clients wait: how long to serve bytes before the sockets are polled again and the partitions
run."""
TURN_SHARE = 0.125
"""While light clients wait, a turn may also last as long as this share of what the event loop has done since
the last one. Otherwise, when commits take most of the time (a thousand keys, 16 partitions), heavy clients
would get no more than a few messages into each commit. With a half, light clients wait twice as long."""
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
SHRINKS_AT_ONCE = 16
"""A slice that took too long makes the next one smaller by this factor at most."""
READ_BYTES_MIN = 4 * 1024
READ_BYTES_MAX = 1024 * 1024
"""The most to read from a client at once. What is read at once goes to the partitions at once, and a `Send`
costs as much as dozens of messages, so eight messages of 16 KiB are too few."""
WAITING_BYTES_MAX = 32 * 1024 * 1024
"""The bound on what waits in all inboxes, or an eighth of the memory mark if that is less."""
JOINED_BYTES_MAX = 2 * 1024
"""Chunks are joined up to this size: a WebSocket brings chunks of any size, and each separate one takes at
least 60 bytes of memory."""
QUICK_BYTES, QUICK_S = 4 * 1024, 0.000_5
"""Up to QUICK_BYTES from a light client with nothing waiting are served as they are read, for at most QUICK_S
between two polls of the sockets."""


class Client(Protocol):
    """The sender of the bytes: a connection."""

    def serve(self, data: bytes) -> bool:
        """Take the next bytes; returns whether to call it again in a later turn to finish. Does not raise."""

    def may_be_served(self) -> bool:
        """Return False to be held back until `look_again`."""

    def waits(self) -> bool:
        """Whether it waits for the outcome of the little that it has sent. A receiver, for example, may
        settle thousands of messages a second in a few bytes, and wait for nothing."""

    def hold_reading(self, why: str) -> None:
        """Pause reading from the client."""

    def release_reading(self, why: str) -> None:
        """Resume reading."""


class Inbox:
    """One client's bytes that have not been served yet."""

    __slots__ = (
        "_begin",
        "_is_read",
        "bytes",
        "chunks",
        "client",
        "heavy_until_s",
        "is_listed",
        "is_unfinished",
        "read_bytes",
        "served_s",
        "slice_bytes",
        "took_s",
    )

    def __init__(self, client: Client) -> None:
        self.client = client
        self.chunks: deque[bytes | Callable[[], None]] = deque()
        self.bytes = 0
        self.is_listed = False
        """Whether it waits for its turn or was held back."""
        self.is_unfinished = False
        """Whether its client has not finished the bytes it was given."""
        self.served_s = 0.0
        """The inbox's own clock: see the module docstring."""
        self.heavy_until_s = 0.0
        """Until when the client counts as heavy, because it was recently served more than QUICK_BYTES."""
        self.slice_bytes = READ_BYTES
        self.took_s = SLICE_S
        """How long its last slice took, or might take if there was none; SLICE_S at most."""
        self.read_bytes = READ_BYTES
        """How many bytes to read from the client at once when there is room. It doubles while such reads are
        served in a fraction of a slice's time."""
        self._begin = 0
        """How much of the first chunk was served."""
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
        begin, end = self._begin, self._begin + size
        if end < len(chunk):  # copy the rest only sometimes: it may be large, and the slices small
            taken = chunk[begin:end]
            if 2 * end > len(chunk):
                self.chunks[0], end = chunk[end:], 0
            self._begin = end
        else:
            self.chunks.popleft()
            self._begin, taken = 0, chunk[begin:] if begin else chunk
        self.bytes -= len(taken)
        return taken

    def join(self, data: bytes) -> None:
        """Add bytes behind the others."""
        last = self.chunks[-1] if self.chunks else None
        if isinstance(last, bytes) and len(last) + len(data) <= JOINED_BYTES_MAX:
            self.chunks[-1] = last + data
        else:
            self.chunks.append(data)
        self.bytes += len(data)

    def drop(self) -> None:
        """Drop the bytes; actions stay."""
        self.chunks = deque(chunk for chunk in self.chunks if not isinstance(chunk, bytes))
        self.bytes = self._begin = 0

    def served(self, size: int, took_s: float, slice_s: float) -> None:
        """Adapt the sizes after a slice of `size` bytes that took `took_s` of the `slice_s` it may take."""
        self.took_s = min(took_s, SLICE_S)
        if took_s > slice_s:
            # As many bytes as might have taken half of the time, but one slow slice may be an accident.
            share = max(slice_s / (2 * took_s), 1 / SHRINKS_AT_ONCE)
            self.slice_bytes = max(int((size or self.slice_bytes) * share), SLICE_BYTES_MIN)
            self.read_bytes = READ_BYTES
        elif size >= self.slice_bytes:
            if size >= self.read_bytes and took_s < slice_s / 4:
                self.read_bytes = min(2 * self.read_bytes, READ_BYTES_MAX)
            if took_s < slice_s / 2:
                self.slice_bytes = min(2 * self.slice_bytes, self.read_bytes)


class Turns:
    """The order of service. `worked_s` is a clock in seconds that runs while this thread works."""

    def __init__(self, worked_s: Callable[[], float], waiting_bytes_max: int = WAITING_BYTES_MAX) -> None:
        self.waiting_bytes = 0
        """Bytes waiting in all inboxes."""
        self.waiting_bytes_max = waiting_bytes_max
        """How many may wait before reading pauses."""
        self._worked_s = worked_s
        self._order = itertools.count()
        self._ready: list[tuple[float, int, Inbox]] = []
        self._held_back: list[Inbox] = []
        self._stands_s = 0.0
        """The clock of the inbox that was served last, or of one served before if that was further."""
        self._slice_s, self._slice_ends = SLICE_S, 0.0
        self._quick_s = 0.0
        """Seconds spent since the last poll of the sockets on bytes that were served as they were read."""
        self._renewal_is_due = False
        self.has_light = False
        """Whether a light client that waits for an outcome was served recently."""
        self._light_until_s = 0.0
        self._ended_s = 0.0
        """When the last turn ended."""
        self._is_due = False

    @property
    def holds_some_back(self) -> bool:
        """Whether a client waits for `look_again`."""
        return bool(self._held_back)

    @property
    def read_bytes(self) -> int:
        """How many bytes to read at once from the socket of a client that is not known yet."""
        return READ_BYTES if self.waiting_bytes < self.waiting_bytes_max else READ_BYTES_MIN

    def read_bytes_of(self, inbox: Inbox) -> int:
        """How many bytes to read from a client's socket at once. More than READ_BYTES only while there are no
        light clients, and never more than an eighth of the room that is left."""
        read_bytes = self.read_bytes
        if inbox.read_bytes == READ_BYTES or self.has_light:
            return read_bytes
        return max(min(inbox.read_bytes, (self.waiting_bytes_max - self.waiting_bytes) // 8), read_bytes)

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
        inbox.join(data)
        self.waiting_bytes += len(data)
        if inbox.bytes >= self.read_bytes_of(inbox) or self.waiting_bytes >= self.waiting_bytes_max:
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
        self.waiting_bytes -= inbox.bytes
        inbox.drop()
        inbox.is_unfinished = False

    def look_again(self) -> None:
        """Let clients that were held back be served again."""
        held_back, self._held_back = self._held_back, []
        for inbox in held_back:
            inbox.is_listed = False
            self._list(inbox)

    def _serve_at_once(self, inbox: Inbox, data: bytes, began: float) -> None:
        if not self._renewal_is_due:
            self._renewal_is_due = True
            asyncio.get_running_loop().call_soon(self._renew)
        self._slice_ends = began + SLICE_BESIDE_LIGHT_S
        inbox.is_unfinished = inbox.client.serve(data)
        if inbox.client.waits():
            self.has_light, self._light_until_s = True, began + LIGHT_S
        took = self._worked_s() - began
        self._quick_s += took
        # What it was served at once before does not count, or all newcomers would come before it one day.
        inbox.served_s = self._stands_s + took
        if inbox.is_unfinished:
            self._list(inbox)

    def _renew(self) -> None:
        self._renewal_is_due = False
        self._quick_s = 0.0

    def _list(self, inbox: Inbox) -> None:
        if not inbox.is_listed:
            inbox.is_listed = True
            inbox.served_s = max(inbox.served_s, self._stands_s)
            self._line_up(inbox)
            self._turn_soon()

    def _line_up(self, inbox: Inbox) -> None:
        """Enter the inbox into the order of service."""
        has_much = inbox.is_unfinished or inbox.bytes > QUICK_BYTES
        comes_at_s = inbox.served_s + (inbox.took_s if has_much else 0.0)
        heapq.heappush(self._ready, (comes_at_s, next(self._order), inbox))

    def _turn_soon(self) -> None:
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        self._is_due = False
        began = self._worked_s()
        self.has_light = began < self._light_until_s
        self._slice_s = SLICE_BESIDE_LIGHT_S if self.has_light else SLICE_S
        turn_s = TURN_AMONG_HEAVY_S
        if self.has_light:
            turn_s = min(max(TURN_S, (began - self._ended_s) * TURN_SHARE), turn_s)
        ends = began + turn_s
        now, ready = began, self._ready
        while ready and now < ends:
            inbox = heapq.heappop(ready)[2]
            if not inbox.client.may_be_served():
                self._held_back.append(inbox)
                continue
            self._stands_s = max(self._stands_s, inbox.served_s)
            now = self._serve(inbox, now)
        self._ended_s = now
        if ready:
            self._turn_soon()

    def _serve(self, inbox: Inbox, began: float) -> float:
        """Serve one slice; returns the time after it."""
        self._slice_ends = began + self._slice_s
        size = 0
        if inbox.is_unfinished:
            inbox.is_unfinished = inbox.client.serve(b"")
        elif inbox.chunks:
            data = inbox.take(min(inbox.slice_bytes, READ_BYTES) if self.has_light else inbox.slice_bytes)
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
        inbox.served(size, took, self._slice_s)
        if inbox.chunks or inbox.is_unfinished:
            self._line_up(inbox)
        else:
            inbox.is_listed = False
        if inbox.bytes < READ_BYTES and (self.waiting_bytes < self.waiting_bytes_max or not inbox.bytes):
            inbox.read(True)
        return now
