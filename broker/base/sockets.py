"""Listening sockets: opens one on every address of a host, all with the same port, and accepts connections.

The caller decides which protocol is spoken.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable, Sequence
from typing import Any

import structlog

log = structlog.get_logger("sockets")

ATTEMPTS = 16
"""With port 0, a port that is free on one address may be taken on the next one, but hardly this often in a
row."""
ACCEPTED_AT_ONCE = 32
"""Connections accepted in one turn of the event loop, so that many new ones at once do not hold up the
loop."""
ACCEPT_PAUSE_S = 0.5
"""How long to wait when the process is out of file descriptors: accepting again at once would spin."""
_MISSING = frozenset({errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL})

_Address = tuple[int, tuple[Any, ...]]
"""Address family, and the address in the form that `bind` takes."""


class WrongHost(OSError):
    """The host has no address that this machine could listen on."""


async def listen(host: str, port: int, backlog: int) -> list[socket.socket]:
    """Open listening sockets on every address of the host, all on one port. With port 0, the port is one that
    is free on all of them.

    Clients are queued from here on. An address that the host's name has but this machine lacks (`localhost`
    where IPv6 is switched off) is skipped and logged. Raises OSError; WrongHost if no address is left.
    """
    try:
        found = await asyncio.get_running_loop().getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except (socket.gaierror, UnicodeError) as error:  # the latter for what can be no name
        raise WrongHost(f"no address is found for '{host}': {_reason(error)}") from error
    addresses = list(dict.fromkeys((int(family), address) for family, _, _, _, address in found))
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return _listen_on(addresses, port, backlog)
        except OSError as error:
            if port or error.errno != errno.EADDRINUSE or attempt == ATTEMPTS:
                raise
    raise AssertionError("the last attempt returns or raises")


async def accept_each(listener: socket.socket, welcome: Callable[[socket.socket], None], name: str) -> None:
    """Accept clients and hand each to `welcome`, until cancelled; then close the listener. `name` is the
    service's name in log lines."""
    try:
        while True:
            await readable(listener)
            try:
                for _ in range(ACCEPTED_AT_ONCE):
                    welcome(listener.accept()[0])
            except BlockingIOError:
                pass  # no more clients wait
            except OSError as error:  # out of descriptors or memory, or the client has already gone
                log.warning(f"{name}.accept_failed", error=str(error))
                await asyncio.sleep(ACCEPT_PAUSE_S)
    finally:
        listener.close()


async def readable(sock: socket.socket) -> None:
    """Return when there is something to read or to accept."""
    loop, is_readable = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(sock.fileno(), is_readable.set)
    try:
        await is_readable.wait()
    finally:
        loop.remove_reader(sock.fileno())


def peer_of(client: socket.socket) -> object:
    """The address of the client at the other end; None if it is gone already."""
    try:
        return client.getpeername()
    except OSError:
        return None


def _reason(error: OSError | UnicodeError) -> str:
    return error.strerror or "" if isinstance(error, OSError) else str(error)


def _listen_on(addresses: Sequence[_Address], port: int, backlog: int) -> list[socket.socket]:
    listeners: list[socket.socket] = []
    missing: OSError | None = None
    try:
        for family, address in addresses:
            try:
                listener = _listen_on_one(family, (address[0], port, *address[2:]), backlog)
            except OSError as error:
                if error.errno not in _MISSING:
                    raise
                missing = error
                log.warning("address.left_out", address=address[0], error=error.strerror)
                continue
            listeners.append(listener)
            port = listener.getsockname()[1]
    except OSError:
        for listener in listeners:
            listener.close()
        raise
    if missing is not None and not listeners:
        raise WrongHost(_reason(missing)) from missing
    return listeners


def _listen_on_one(family: int, address: tuple[Any, ...], backlog: int) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind(address)
        listener.listen(backlog)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise OSError(error.errno, f"{address_text(address)}: {error.strerror}") from error
    return listener


def address_text(address: tuple[Any, ...]) -> str:
    """`host:port`, with brackets around an IPv6 address."""
    host = f"[{address[0]}]" if ":" in address[0] else address[0]
    return f"{host}:{address[1]}"


def addresses_text(listeners: Sequence[socket.socket]) -> str:
    """The addresses of listening sockets, separated by commas."""
    return ", ".join(address_text(listener.getsockname()) for listener in listeners)
