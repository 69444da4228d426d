"""A peer that stores nothing: it accepts every message at once and delivers as many copies, without disk or
queue.

Serves two purposes: the test of the load client runs against it, and as a separate process (`python -m
tests.bench.load.bare_peer`) it shows how fast client and engine are without a broker between them. Every
address is the same queue.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import struct
import sys
from typing import Any

from cproton_ffi import ffi, lib

from tests.bench.load.endpoint import LoadError, accept_sasl
from tests.bench.load.engine_socket import EngineSocket

CREDIT = 2_000


class BareQueue:
    """The number of waiting messages, and the encoded message delivered for each: the first one received."""

    def __init__(self) -> None:
        self.waiting = 0
        self.message = b""
        self.completed = 0


class _Incoming:
    def __init__(self, link: Any, queue: BareQueue) -> None:
        self._link, self._queue = link, queue

    def on_delivery(self, delivery: Any) -> None:
        if not lib.pn_delivery_readable(delivery) or lib.pn_delivery_partial(delivery):
            return
        if not self._queue.message:
            buffer = bytearray(lib.pn_delivery_pending(delivery))
            lib.pn_link_recv(self._link, ffi.from_buffer(buffer), len(buffer))
            self._queue.message = bytes(buffer)
        lib.pn_link_advance(self._link)
        lib.pn_delivery_update(delivery, lib.PN_ACCEPTED)
        lib.pn_delivery_settle(delivery)
        self._queue.waiting += 1

    def replenish(self) -> None:
        missing = CREDIT - lib.pn_link_credit(self._link)
        if missing >= CREDIT // 2:
            lib.pn_link_flow(self._link, missing)


class _Outgoing:
    def __init__(self, link: Any, queue: BareQueue) -> None:
        self._link, self._queue = link, queue
        self._tag_number = 0

    def on_delivery(self, delivery: Any) -> None:
        if lib.pn_delivery_remote_state(delivery) == lib.PN_ACCEPTED:
            lib.pn_delivery_update(delivery, lib.PN_ACCEPTED)
            lib.pn_delivery_settle(delivery)
            self._queue.completed += 1

    def replenish(self) -> None:
        count = min(self._queue.waiting, lib.pn_link_credit(self._link))
        message = self._queue.message
        for _ in range(count):
            tag = struct.pack(">Q", self._tag_number)
            lib.pn_delivery(self._link, (len(tag), ffi.from_buffer(tag)))
            lib.pn_link_send(self._link, ffi.from_buffer(message), len(message))
            lib.pn_link_advance(self._link)
            self._tag_number += 1
        self._queue.waiting -= max(count, 0)
        lib.pn_link_drained(self._link)  # tells a client that drains its credit that there is no more


class _Connection(EngineSocket):
    def __init__(self, sock: socket.socket, queue: BareQueue) -> None:
        accept_sasl(sock)
        sock.setblocking(False)
        super().__init__(sock, is_server=True)
        self._queue = queue

    def on_event(self, event: Any, kind: int) -> None:
        if kind == lib.PN_CONNECTION_REMOTE_OPEN:
            lib.pn_connection_set_container(self.connection, b"bare-peer")
            lib.pn_connection_open(self.connection)
        elif kind == lib.PN_SESSION_REMOTE_OPEN:
            lib.pn_session_open(lib.pn_event_session(event))
        elif kind == lib.PN_LINK_REMOTE_OPEN:
            self._attach(lib.pn_event_link(event))
        elif kind == lib.PN_CONNECTION_REMOTE_CLOSE:
            lib.pn_connection_close(self.connection)

    def _attach(self, link: Any) -> None:
        lib.pn_terminus_copy(lib.pn_link_source(link), lib.pn_link_remote_source(link))
        lib.pn_terminus_copy(lib.pn_link_target(link), lib.pn_link_remote_target(link))
        lib.pn_link_set_rcv_settle_mode(link, lib.pn_link_remote_rcv_settle_mode(link))
        lib.pn_link_open(link)
        self.add_link(
            link,
            _Incoming(link, self._queue) if lib.pn_link_is_receiver(link) else _Outgoing(link, self._queue),
        )


class BarePeer:
    """Listens on a free port of 127.0.0.1 and serves until `stop`; run `serve` in a separate thread or
    process.
    """

    def __init__(self) -> None:
        self.queue = BareQueue()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._stopping, self._stop = socket.socketpair()
        self.port: int = self._listener.getsockname()[1]

    def stop(self) -> None:
        """End `serve`, from any thread."""
        self._stop.send(b"\0")

    def serve(self) -> None:
        connections: set[_Connection] = set()
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            selector.register(self._stopping, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select():
                    if key.fileobj is self._stopping:
                        self._close(connections)
                        return
                    if key.fileobj is self._listener:
                        connection = _Connection(self._listener.accept()[0], self.queue)
                        connections.add(connection)
                        selector.register(connection, selectors.EVENT_READ)
                    elif isinstance(key.fileobj, _Connection):
                        self._read(key.fileobj, connections, selector)
                for connection in connections:  # another connection may wait for this one's messages
                    connection.replenish()
                    wanted = (
                        selectors.EVENT_READ
                        if connection.flush()
                        else selectors.EVENT_READ | selectors.EVENT_WRITE
                    )
                    if selector.get_key(connection).events != wanted:
                        selector.modify(connection, wanted)

    def _read(
        self, connection: _Connection, connections: set[_Connection], selector: selectors.BaseSelector
    ) -> None:
        try:
            with contextlib.suppress(BlockingIOError):  # the socket may be ready for writing only
                connection.read()
        except (LoadError, OSError):
            selector.unregister(connection)
            connections.discard(connection)
            connection.release().close()

    def _close(self, connections: set[_Connection]) -> None:
        for connection in connections:
            connection.release().close()
        for sock in (self._listener, self._stopping, self._stop):
            sock.close()


if __name__ == "__main__":
    peer = BarePeer()
    sys.stdout.write(f"amqp://127.0.0.1:{peer.port}/any\n")
    sys.stdout.flush()
    peer.serve()
