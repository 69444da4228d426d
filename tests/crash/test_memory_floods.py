"""The kernel does not end the broker for lack of memory, however many sessions and links clients begin.

The clients write them all without waiting for an answer, so that they begin faster than the broker looks at
its memory now and then.
"""

from __future__ import annotations

import selectors
import socket
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from protocol.codec import Symbol
from tests.support import raw_amqp as raw
from tests.support.amqp_messages import message
from tests.support.broker_process import BrokerProcess, queue
from tests.support.memory_limit import memory_group
from tests.support.raw_amqp import ConnectionEnded, RawConnection

MEMORY = 256 << 20
"""The least that the documentation recommends for a container."""
WAITING = 60
"""Messages that a well-behaved receiver takes meanwhile."""
WITHIN_S = 30.0


def sessions() -> bytes:
    """About 0.7 MiB."""
    return b"".join(raw.frame(raw.BEGIN, raw.begin_fields(0), channel=number) for number in range(1, 250))


def heavy_links() -> bytes:
    """About 4 MiB, most of it for the values of properties."""
    fields = [[*raw.receiver_attach(handle, "target"), *[None] * 6] for handle in range(30)]
    return b"".join(raw.frame(raw.ATTACH, [*each, {Symbol("many"): [None] * 1_800}]) for each in fields)


class Flood:
    """Connections that write all they have, and never read."""

    def __init__(self, port: int, connections: int, data: bytes) -> None:
        self._selector = selectors.DefaultSelector()
        self._stack = ExitStack()
        self._stack.enter_context(self._selector)
        for _ in range(connections):
            client = self._stack.enter_context(raw.opened(port))
            client.socket.setblocking(False)
            self._selector.register(client.socket, selectors.EVENT_WRITE, data)

    def go_on(self) -> bool:
        """Write what the sockets take; gives whether there is more."""
        for key, _ in self._selector.select(0.1):
            assert isinstance(key.fileobj, socket.socket)
            self._selector.unregister(key.fileobj)
            try:
                rest = key.data[key.fileobj.send(key.data) :]
            except OSError:  # the broker has ended it
                continue
            if rest:
                self._selector.register(key.fileobj, selectors.EVENT_WRITE, rest)
        return bool(self._selector.get_map())

    def __enter__(self) -> Flood:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()


class Drain:
    """A well-behaved client that receives and settles one message after the other."""

    def __init__(self, connection: RawConnection) -> None:
        self._connection, self.received = connection, 0
        connection.attach_sender(0, "drained")
        for number in range(WAITING):
            connection.send_frame(raw.TRANSFER, raw.transfer_fields(0, number), message(body=[b"waits"]))
            connection.read_until(raw.DISPOSITION, within_s=WITHIN_S)
        connection.attach_receiver(1, "drained")

    def take(self) -> None:
        connection = self._connection
        connection.send_frame(raw.FLOW, raw.flow_fields(1, self.received, 1, received=self.received))
        number = connection.read_until(raw.TRANSFER, within_s=WITHIN_S).field(1)
        settled = raw.disposition_fields(raw.RECEIVER, number, number, False, raw.outcome(raw.ACCEPTED))
        connection.send_frame(raw.DISPOSITION, settled)
        connection.read_until(raw.DISPOSITION, within_s=WITHIN_S)
        self.received += 1


@pytest.mark.parametrize(
    ("connections", "data"), [(300, sessions()), (70, heavy_links())], ids=["sessions", "heavy-links"]
)
def test_sessions_and_links_that_begin_at_once_do_not_get_the_broker_killed(
    connections: int, data: bytes, tmp_path: Path
) -> None:
    with (
        memory_group(MEMORY) as group,
        BrokerProcess(tmp_path, [queue("drained"), queue("target")], group=group.members) as broker,
        raw.opened(broker.addresses.amqp_port) as friend,
    ):
        drain, port = Drain(friend), broker.addresses.amqp_port
        with Flood(port, connections, data) as flood:
            more = True
            while more or drain.received < WAITING:
                more = flood.go_on()
                if drain.received < WAITING:
                    drain.take()
        with _admitted(port) as newcomer:
            newcomer.begin()
        broker.check_alive()
        assert group.killed == 0


def _admitted(port: int) -> RawConnection:
    """A new client, once there is room for it again."""
    deadline = time.monotonic() + WITHIN_S
    while True:
        client = RawConnection(port)
        try:
            client.open()
        except (OSError, ConnectionEnded):
            assert time.monotonic() < deadline
            client.socket.close()
            time.sleep(0.05)
        else:
            return client
