"""The ports of AMQP, without TLS (amqp) and with it (amqps): listening, accepting clients, and accepting no
more. Runs in the event loop.
"""

from __future__ import annotations

import asyncio
import socket
import ssl

from broker.base.sockets import addresses_text, listen
from broker.frontend.handshakes import Handshakes
from broker.frontend.listener import StreamProtocol
from broker.frontend.services import Services

BACKLOG = 4096
"""Clients that the system lets wait until the broker accepts them."""


class AmqpPorts:
    """The ports of one broker. The settings may leave out amqps."""

    def __init__(self, services: Services, context: ssl.SSLContext) -> None:
        self._services = services
        self._plain: list[asyncio.Server] = []
        self._secure: list[socket.socket] = []
        """Until clients are accepted: then the handshakes have them."""
        self._handshakes = Handshakes(services, context)

    async def listen(self) -> dict[str, str]:
        """Take the ports, without accepting clients yet, and return their addresses by name: amqp, amqps.
        Raises OSError if one is taken."""
        settings = self._services.settings
        sockets = await listen(settings.host, settings.amqp_port, BACKLOG)
        addresses = {"amqp": addresses_text(sockets)}
        self._plain = [await self._server(each) for each in sockets]
        if settings.amqps_port is not None:
            self._secure = await listen(settings.host, settings.amqps_port, BACKLOG)
            addresses["amqps"] = addresses_text(self._secure)
        return addresses

    async def start(self) -> None:
        """Accept clients."""
        for server in self._plain:
            await server.start_serving()
        secure, self._secure = self._secure, []
        self._handshakes.start(secure)

    def stop(self) -> None:
        """Accept no more clients, and end unfinished handshakes."""
        for server in self._plain:
            server.close()
        for sock in self._secure:
            sock.close()
        self._handshakes.stop()

    async def _server(self, sock: socket.socket) -> asyncio.Server:
        return await asyncio.get_running_loop().create_server(
            lambda: StreamProtocol(self._services), sock=sock, backlog=BACKLOG, start_serving=False
        )
