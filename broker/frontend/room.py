"""Who gives way when there is no room for another connection.

Clients that have not shown what they may do yet must not keep out those that can: TLS handshakes,
connections that are not open, and open ones without a credential. Each of these has some time, and stays
longer while nobody needs its place. A client that has put a token, or has logged in, never gives way. Runs in
the event loop.
"""

from __future__ import annotations

import asyncio

import structlog

from broker.base.errors import Reason, Refused
from broker.frontend.services import Services
from broker.namespace.namespaces import ServedNamespace

log = structlog.get_logger("connection")

BEING_REFUSED_MAX = 16
"""How many connections beyond `connections_max` may be open at a time, only to be told why they are refused.
Any more are cut off at once. TLS handshakes count too."""
UNOPENED_S = 2.0
"""A connection that is not open after this time, or was refused as it opened, makes room for another one."""
UNCLAIMED_S = 5.0
"""The same for an open connection without a credential. Official clients put their token as soon as they have
attached to `$cbs`, which takes a few round trips."""


def has_room(services: Services) -> bool:
    """Return whether there is room for one more connection. If there is none, first end the oldest connection
    that has had the time to open or to show a credential, or else the oldest handshake.

    Namespaces have quotas for the connections that are open. So clients of one that are not, or are refused
    because it has too many, must not take the room of others.
    """
    handshakes = services.handshakes
    room = services.settings.connections_max + BEING_REFUSED_MAX - len(services.connections)
    if len(handshakes) < room:
        return True
    for waiting, allowed_s in ((services.unopened, UNOPENED_S), (services.unclaimed, UNCLAIMED_S)):
        oldest = next(iter(waiting), None)
        if oldest is not None and _age_s(waiting[oldest]) >= allowed_s:
            del waiting[oldest]  # it is gone once the loop comes to it; the next client ends another one
            oldest.stream.abort()
            return True
    if handshakes:
        handshakes.pop(next(iter(handshakes)))()
    return len(handshakes) < room


def make_room_to_open(services: Services, served: ServedNamespace) -> None:
    """A connection to a namespace, which counts it already, is about to be open. If the broker or the
    namespace has too many, close the one that has been without a credential for longest."""
    if services.opened >= services.settings.connections_max:
        _close_unclaimed(services, None)
    if served.connections > served.settings.connections_max:
        _close_unclaimed(services, served)


def _close_unclaimed(services: Services, of: ServedNamespace | None) -> None:
    """Close the oldest connection without a credential, if it has had its time. `of`: only one to this
    namespace."""
    for connection, opened_s in services.unclaimed.items():
        if _age_s(opened_s) < UNCLAIMED_S:
            return
        if of is None or connection.served is of:
            services.sparing.info(log, "connection.gave_way", peer=connection.peer)
            connection.turn_away(
                Refused(
                    Reason.QUOTA_EXCEEDED,
                    "ConnectionsQuotaExceeded: others need the place of this connection, which has put no "
                    "valid token to '$cbs'.",
                )
            )
            return


def _age_s(since_s: float) -> float:
    return asyncio.get_running_loop().time() - since_s
