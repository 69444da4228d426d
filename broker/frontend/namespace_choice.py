"""Which namespace a connection is to: its client may name it in the TLS handshake, with the host of a
WebSocket, in SASL's init (§5.3.3.2) and in the open (§2.7.1).

Names that mean no namespace in particular do not count. The others must agree. A client that names none comes
to the first namespace.
"""

from __future__ import annotations

from broker.base.errors import Reason, Refused
from broker.namespace.namespaces import Namespaces, ServedNamespace


class NamespaceChoice:
    """The choice of one connection. Owned by it."""

    __slots__ = ("_is_counted", "_namespaces", "is_made", "served")

    def __init__(self, namespaces: Namespaces) -> None:
        self._namespaces = namespaces
        self.served = namespaces.first
        self.is_made = False
        """Whether the client has named the namespace."""
        self._is_counted = False

    def name(self, host: str) -> bool:
        """Take a name that the client gives. False if it means another namespace than one before."""
        named = self._namespaces.named(host)
        if named is None or named is self.served:
            self.is_made = self.is_made or named is not None
            return True
        if self.is_made:
            return False
        self.served, self.is_made = named, True
        return True

    def candidates(self) -> list[ServedNamespace]:
        """The namespaces that the client may mean, as far as it has named one."""
        return [self.served] if self.is_made else list(self._namespaces)

    def open(self, hostname: str) -> None:
        """The client opens the connection, to this host. Raises Refused."""
        if not self.name(hostname):
            raise Refused(
                Reason.NOT_ALLOWED,
                f"The open names the host '{hostname:.300}', but this connection is to the namespace "
                f"'{self.served.namespace.name}', by the name in its TLS handshake, WebSocket or login.",
            )
        self.served.connections += 1
        self._is_counted = True

    def check_quota(self) -> None:
        """Raises Refused(QUOTA_EXCEEDED) if the namespace has too many connections with this one."""
        check_connections(self.served.connections, self.served.settings.connections_max)

    def close(self) -> None:
        """The connection is gone."""
        if self._is_counted:
            self.served.connections -= 1
            self._is_counted = False


def check_connections(count: int, count_max: int) -> None:
    """Raises Refused(QUOTA_EXCEEDED) if there are too many connections."""
    if count > count_max:
        raise Refused(
            Reason.QUOTA_EXCEEDED,
            f"ConnectionsQuotaExceeded: there are {count - 1} connections, the maximum is {count_max}.",
        )
