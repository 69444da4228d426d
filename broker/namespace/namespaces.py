"""The namespaces that a broker serves, told apart by the host name that a client names.

A name means the namespace that lists it among its host names, else the one whose own name is its first label:
`orders` and `orders.servicebus.windows.net` both mean `orders`. A namespace may list addresses, too. Any
other name or address, such as `localhost`, means the first namespace, so a broker with one namespace is
reached under every name.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from broker.access.addresses import host_of
from broker.access.sas import Authorizer
from broker.namespace.namespace import Namespace
from broker.settings.settings import Settings


@dataclass(slots=True, eq=False)
class ServedNamespace:
    """A namespace with everything that is its own: its entities, its keys, its quotas."""

    namespace: Namespace
    authorizer: Authorizer
    settings: Settings
    """Those of the namespace; the others are the broker's."""
    host_names: Sequence[str] = ()
    connections: int = field(default=0, init=False)
    """How many AMQP connections are open. Written by them."""


class Namespaces:
    """All namespaces of a broker, the first one first."""

    def __init__(self, *served: ServedNamespace) -> None:
        self._served = served
        self.first = served[0]
        """The namespace of clients that name none."""
        self._by_host = {name.casefold(): each for each in served for name in each.host_names}
        self._by_name = {each.namespace.name.casefold(): each for each in served}

    def __iter__(self) -> Iterator[ServedNamespace]:
        return iter(self._served)

    @property
    def are_several(self) -> bool:
        """Whether there is more than the first one."""
        return len(self._served) > 1

    def named(self, authority: str) -> ServedNamespace | None:
        """The namespace that a host means, which may have a port; None if it means none in particular."""
        host = host_of(authority)
        return self._by_host.get(host) or self._by_name.get(host.partition(".")[0])

    def elsewhere(self, authority: str, served: ServedNamespace) -> str | None:
        """The name of the namespace that a host means, if it means another one than this."""
        named = self.named(authority)
        return None if named is None or named is served else named.namespace.name

    def of_host(self, authority: str) -> ServedNamespace:
        """The namespace to which a client comes that names this host."""
        return self.named(authority) or self.first
