"""Places for the connections of the HTTP port, and which connection must leave when there is no room.

A connection *waits* while the broker waits for its client: for a whole request, for the client to read an
answer, for the next request, or for the login on a WebSocket. When there is no room, a new connection takes
the place of the one that has waited longest. A client that sends half a header therefore keeps its place only
until another client needs it, and a client that sends its whole request at once is served however many such
clients there are.

When every connection is being served, a new one gets one of a few *spare* places, in which only `/health` is
answered: an orchestrator must be able to tell a busy broker from a dead one. This module does not
know about sockets: each connection brings the function that ends it.
"""

from __future__ import annotations

from collections.abc import Callable


class Guest:
    """One connection's place."""

    __slots__ = ("_pool", "end")

    def __init__(self, pool: _Pool, end: Callable[[], object]) -> None:
        self._pool = pool
        self.end = end
        """Ends the connection at once. Replaced in each phase of the connection's life."""

    @property
    def spare(self) -> bool:
        """Whether the place is a spare one, because there was no room when the connection came."""
        return self._pool.spare

    def waits(self) -> None:
        """The broker waits for the client from now on. A connection that already waits keeps its position in
        the order."""
        if self in self._pool.inside:
            self._pool.waiting.setdefault(self)

    def is_served(self) -> None:
        """The broker no longer waits for the client, so no other connection can take its place."""
        self._pool.waiting.pop(self, None)

    def leave(self) -> None:
        """The connection is gone. Safe to call twice."""
        self._pool.waiting.pop(self, None)
        self._pool.inside.discard(self)


class _Pool:
    def __init__(self, places: int, spare: bool) -> None:
        self.places, self.spare = places, spare
        self.inside: set[Guest] = set()
        self.waiting: dict[Guest, None] = {}
        """Places of waiting connections, in the order in which they began to wait."""

    def make_room(self) -> Guest | None:
        """If there is no room, remove and return the connection that has waited longest; otherwise return
        None."""
        if len(self.inside) < self.places or not self.waiting:
            return None
        oldest = next(iter(self.waiting))
        oldest.leave()
        return oldest


class Crowd:
    """The connections of one port: up to `places`, and up to `spare` more."""

    def __init__(self, places: int, spare: int, displaced: Callable[[], None]) -> None:
        self._pools = (_Pool(places, spare=False), _Pool(spare, spare=True))
        self._displaced = displaced

    def __len__(self) -> int:
        return sum(len(pool.inside) for pool in self._pools)

    def enter(self, end: Callable[[], object]) -> Guest | None:
        """Give a new connection a place, at first as a waiting one; None if there is no place. May end
        another connection to make room."""
        for pool in self._pools:
            leaver = pool.make_room()
            if leaver is not None:
                self._displaced()
                leaver.end()
            if len(pool.inside) < pool.places:
                guest = Guest(pool, end)
                pool.inside.add(guest)
                guest.waits()
                return guest
        return None
