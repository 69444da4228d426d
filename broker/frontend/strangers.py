"""Clients that have shown no credential yet, and which of them gives way to another one.

Such clients, *strangers*, are told apart by their network: the IPv4 address, or the 64 bits of an IPv6
address that a provider gives to one customer. The stranger that gives way is the one that came first from the
network with most strangers. A newcomer from a network that has fewer takes its place at once, and any other
newcomer once it has had PROVING_S. So clients that open connections as fast as they can displace their own,
and not those of other networks. Those in the same network, behind one router or proxy, have at least
PROVING_S.

The HTTP port treats those that it waits for in the same way (`broker/http/crowd.py`).

Pure: the time comes in with each call. Everything takes the same time however many strangers there are.
"""

from __future__ import annotations

import ipaddress
from typing import Generic, Protocol, TypeVar

PROVING_S = 1.0
"""How long a client may take to show a credential while others wait for its place. Official clients put their
token as soon as they have attached to `$cbs`, which takes a few round trips."""


class Stranger(Protocol):
    """A client that has shown no credential yet."""

    @property
    def network(self) -> str:
        """Where it comes from, as `network_of` says."""


S = TypeVar("S", bound=Stranger)


class Strangers(Generic[S]):
    """Those that hold places of one kind. Owned by the event loop."""

    __slots__ = ("_by_count", "_most", "_of_network", "_since_s")

    def __init__(self) -> None:
        self._since_s: dict[S, float] = {}
        """When each came."""
        self._of_network: dict[str, dict[S, None]] = {}
        """The strangers of each network, the earliest first."""
        self._by_count: dict[int, dict[str, None]] = {}
        """Networks by their number of strangers; the one that has had so many for longest comes first."""
        self._most = 0
        """How many strangers the network has that has most of them."""

    def __len__(self) -> int:
        return len(self._since_s)

    def add(self, stranger: S, now_s: float) -> None:
        """A client has come. One that is there already keeps its time."""
        if stranger in self._since_s:
            return
        self._since_s[stranger] = now_s
        network = stranger.network
        own = self._of_network.setdefault(network, {})
        own[stranger] = None
        self._recount(network, len(own) - 1, len(own))

    def discard(self, stranger: S) -> None:
        """A client has shown a credential, or is gone."""
        if self._since_s.pop(stranger, None) is None:
            return
        network = stranger.network
        own = self._of_network[network]
        del own[stranger]
        if not own:
            del self._of_network[network]
        self._recount(network, len(own) + 1, len(own))

    def take_place_of(self, network: str, now_s: float, *, proven: bool = False) -> S | None:
        """Remove and return the stranger that gives way to a newcomer from this network; None if the newcomer
        has to wait. One that has `proven` its credential never has to, if there is any stranger."""
        if not self._since_s:
            return None
        first = self._first
        is_fairer = self._most >= len(self._of_network.get(network, ())) + 2
        if not (proven or is_fairer or now_s - self._since_s[first] >= PROVING_S):
            return None
        self.discard(first)
        return first

    def take_overdue(self, now_s: float) -> S | None:
        """Remove and return the stranger that gives way first; None if it has not had PROVING_S yet."""
        if not self._since_s:
            return None
        first = self._first
        if now_s - self._since_s[first] < PROVING_S:
            return None
        self.discard(first)
        return first

    @property
    def _first(self) -> S:
        """The one that gives way first. There must be one."""
        return next(iter(self._of_network[next(iter(self._by_count[self._most]))]))

    def _recount(self, network: str, before: int, now: int) -> None:
        if before:
            others = self._by_count[before]
            del others[network]
            if not others:
                del self._by_count[before]
        if now:
            self._by_count.setdefault(now, {})[network] = None
        if now > self._most or self._most not in self._by_count:
            self._most = now


def network_of(peername: object) -> str:
    """The network of a client, by the address that its socket gives; "" if it gives none."""
    if not isinstance(peername, tuple):
        return ""
    address = str(peername[0])
    if ":" not in address:
        return address
    whole = ipaddress.IPv6Address(address.partition("%")[0])
    if whole.ipv4_mapped is not None:
        return str(whole.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(whole) >> 64 << 64, 64)))
