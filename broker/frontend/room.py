"""Who gives way when there is no room for another connection.

Clients that have not shown what they may do yet must not keep out those that can: TLS handshakes,
connections that are not open, and open ones without a credential. They stay while nobody needs their places;
`strangers.py` says which of them gives way first. A client that has put a token, or has logged in, never
gives way. Runs in the event loop.
"""

from __future__ import annotations

import asyncio

import structlog

from broker.base.errors import Reason, Refused
from broker.frontend.services import Client, Services
from broker.frontend.strangers import Strangers

log = structlog.get_logger("connection")

CONNECTIONS_IN_A_CROWD = 64
"""While clients take too much memory (`crowds.py`), there is room for so many connections."""
BEING_REFUSED_MAX = 16
"""How many connections beyond `connections_max` may be open at a time, only to be told why they are refused.
Any more are cut off at once. TLS handshakes count too."""


def has_room(services: Services, network: str) -> bool:
    """Return whether there is room for one more connection, which comes from `network`. If there is none, a
    stranger may be cut off for it.

    Namespaces have quotas for the connections that are open. So clients of one that are not, or are refused
    because it has too many, must not take the room of others.
    """
    room = services.settings.connections_max + BEING_REFUSED_MAX - len(services.connections)
    is_crowded = services.memory.crowded and len(services.connections) >= CONNECTIONS_IN_A_CROWD
    if len(services.handshakes) < room and not is_crowded:
        return True
    stranger = services.strangers.take_place_of(network, asyncio.get_running_loop().time())
    if stranger is None:
        return False
    stranger.cut_off()  # it is gone once the loop comes to it; the next client ends another one
    return True


def make_room_to_open(services: Services, newcomer: Client, *, proven: bool) -> None:
    """A connection, which its namespace counts already, is about to be open. If the broker or the namespace
    has too many, close one without a credential. `proven`: the newcomer has shown one."""
    served = newcomer.served
    if services.opened >= services.settings.connections_max:
        _close_unclaimed(services, max(services.unclaimed.values(), key=len), newcomer, proven)
    if served.connections > served.settings.connections_max:
        _close_unclaimed(services, services.unclaimed[served], newcomer, proven)


def _close_unclaimed(services: Services, among: Strangers[Client], newcomer: Client, proven: bool) -> None:
    now_s = asyncio.get_running_loop().time()
    connection = among.take_place_of(newcomer.network, now_s, proven=proven)
    if connection is not None:
        services.sparing.info(log, "connection.gave_way", peer=connection.peer)
        connection.turn_away(
            Refused(
                Reason.QUOTA_EXCEEDED,
                "ConnectionsQuotaExceeded: others need the place of this connection, which has put no "
                "valid token to '$cbs'.",
            )
        )
