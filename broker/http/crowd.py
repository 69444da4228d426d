"""Places for the connections of the HTTP port, and which connection must leave when there is no room.

A connection *waits* while the broker waits for its client: for a whole request, for the client to read an
answer, for the next request, or for the login on a WebSocket. When there is no room, a new connection takes
the place of a waiting one: of the network with most of them, the one that has waited longest. A client that
sends half a header therefore keeps its place only until another client needs it, and a client that sends its
whole request at once is served however many such clients there are. Clients that open connections as fast as
they can displace their own, and not those of other networks (`broker/frontend/strangers.py`).

When every connection is being served, a new one gets one of a few *spare* places, in which only `/health` is
answered: an orchestrator must be able to tell a busy broker from a dead one. This module does not
know about sockets: each connection brings the function that ends it.
"""

from __future__ import annotations

from collections.abc import Callable

from broker.frontend.strangers import Strangers


class Guest:
    """One connection's place."""

    __slots__ = ("_pool", "end", "network")

    def __init__(self, pool: _Pool, network: str, end: Callable[[], object]) -> None:
        self._pool = pool
        self.network = network
        """Where the client comes from, as `network_of` says."""
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
            self._pool.waiting.add(self, 0)  # their order is all that counts

    def is_served(self) -> None:
        """The broker no longer waits for the client, so no other connection can take its place."""
        self._pool.waiting.discard(self)

    def leave(self) -> None:
        """The connection is gone. Safe to call twice."""
        self._pool.waiting.discard(self)
        self._pool.inside.discard(self)


class _Pool:
    def __init__(self, places: int, spare: bool) -> None:
        self.places, self.spare = places, spare
        self.inside: set[Guest] = set()
        self.waiting: Strangers[Guest] = Strangers()
        """Places of waiting connections, in the order in which they began to wait."""

    def make_room(self, network: str) -> Guest | None:
        """If there is no room for a client from this network, remove and return the connection that gives
        way; otherwise return None."""
        if len(self.inside) < self.places:
            return None
        # Every newcomer may bring a whole request. So one gets in at once, as if it had shown a credential.
        leaver = self.waiting.take_place_of(network, 0, proven=True)
        if leaver is not None:
            leaver.leave()
        return leaver


class Crowd:
    """The connections of one port: up to `places`, and up to `spare` more."""

    def __init__(self, places: int, spare: int, displaced: Callable[[], None]) -> None:
        self._pools = (_Pool(places, spare=False), _Pool(spare, spare=True))
        self._displaced = displaced

    def __len__(self) -> int:
        return sum(len(pool.inside) for pool in self._pools)

    def enter(self, network: str, end: Callable[[], object]) -> Guest | None:
        """Give a new connection from this network a place, at first as a waiting one; None if there is no
        place. May end another connection to make room."""
        for pool in self._pools:
            leaver = pool.make_room(network)
            if leaver is not None:
                self._displaced()
                leaver.end()
            if len(pool.inside) < pool.places:
                guest = Guest(pool, network, end)
                pool.inside.add(guest)
                guest.waits()
                return guest
        return None
