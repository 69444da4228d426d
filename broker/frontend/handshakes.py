"""TLS handshakes on AMQP's own port (amqps): each counts as a connection, is limited in time, and makes room
for others.

A client that begins a handshake and does not finish it takes memory and a descriptor like a connected client,
before it has proved any right to them. When all connections are taken, handshakes make room for others
(`room.py`). Runs in the event loop.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Sequence

import structlog

from broker.base.sockets import accept_each, peer_of
from broker.frontend.listener import StreamProtocol
from broker.frontend.room import has_room
from broker.frontend.services import Services
from broker.frontend.strangers import network_of

log = structlog.get_logger("listener")


class Handshake:
    """One client's handshake, which a task carries out."""

    __slots__ = ("_task", "network")

    def __init__(self, network: str, task: asyncio.Task[None]) -> None:
        self.network, self._task = network, task

    def cut_off(self) -> None:
        """End it at once."""
        self._task.cancel()


class Handshakes:
    """The handshakes of one broker."""

    def __init__(self, services: Services, context: ssl.SSLContext) -> None:
        self._services, self._context = services, context
        self._within_s = services.settings.connection_open_timeout_ms / 1000
        self._acceptors: list[asyncio.Task[None]] = []

    def start(self, listeners: Sequence[socket.socket]) -> None:
        """Start accepting clients."""
        self._acceptors = [
            self._services.spawn(accept_each(each, self._begin, "amqps"), name="amqps.accept")
            for each in listeners
        ]

    def stop(self) -> None:
        """Stop accepting clients, and end unfinished handshakes."""
        for task in self._acceptors:
            task.cancel()
        for handshake in list(self._services.handshakes.values()):
            handshake.cut_off()

    def _begin(self, client: socket.socket) -> None:
        services, network = self._services, network_of(peer_of(client))
        if not has_room(services, network):
            client.close()
            return
        protocol = StreamProtocol(services)
        task = services.spawn(self._shake_hands(client, protocol), name="amqps.handshake")
        services.handshake_begins(protocol, Handshake(network, task))

        def ended(task: asyncio.Task[None]) -> None:
            services.handshake_ended(protocol)
            if task.cancelled():  # perhaps before its first step
                client.close()

        task.add_done_callback(ended)

    async def _shake_hands(self, client: socket.socket, protocol: StreamProtocol) -> None:
        client.setblocking(False)
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: protocol, client, ssl=self._context, ssl_handshake_timeout=self._within_s
            )
        except OSError as error:  # includes ssl.SSLError and TimeoutError
            log.debug("handshake.failed", error=str(error))
