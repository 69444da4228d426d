"""Many clients at once: thousands of idle connections, and clients that come and go."""

from __future__ import annotations

import resource
import selectors
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

from protocol.codec import UInt
from tests.hostile.bystander import Bystander, part_politely, resident_mib
from tests.support import raw_amqp as raw
from tests.support.broker_process import BrokerProcess
from tests.support.raw_amqp import RawConnection, opened

IDLE = 5_000
IDLE_MIB_MAX = 600
"""Limit for the whole broker with 5,000 idle connections: the one that `docs/benchmarks.md` sets for
`idle_connections`.
"""
AT_ONCE = 200
CROWD_WITHIN_S = 25.0


@contextmanager
def descriptors(count: int) -> Iterator[None]:
    """Raise this process's limit on open files to `count`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert hard == resource.RLIM_INFINITY or hard >= count, (
        f"the hard limit of open files is {hard}, this test needs {count}"
    )
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, count), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def open_crowd(port: int, count: int) -> list[socket.socket]:
    """Open `count` connections up to and including the open frame, a few hundred at a time. They log in,
    because the broker closes connections without a claim.
    """
    hello = raw.sasl_plain() + raw.AMQP_HEADER + raw.frame(raw.OPEN, raw.open_fields())
    crowd: list[socket.socket] = []
    deadline = time.monotonic() + CROWD_WITHIN_S
    with selectors.DefaultSelector() as selector:
        under_way = 0
        while len(crowd) < count or under_way:
            while under_way < AT_ONCE and len(crowd) < count:
                sock = socket.socket()
                crowd.append(sock)
                sock.connect(("127.0.0.1", port))
                sock.setblocking(False)
                assert sock.send(hello) == len(hello)
                selector.register(sock, selectors.EVENT_READ, bytearray())
                under_way += 1
            for key, _ in selector.select(1.0):
                assert isinstance(key.fileobj, socket.socket)
                data = key.fileobj.recv(4_096)
                assert data, "the broker hung up on a new connection"
                key.data.extend(data)
                if b"\x00\x53\x10" in key.data:  # the broker's open
                    selector.unregister(key.fileobj)
                    under_way -= 1
            assert time.monotonic() < deadline, f"{len(crowd)} connections in {CROWD_WITHIN_S} s"
    return crowd


def still_open(crowd: list[socket.socket]) -> int:
    """Number of connections that the broker has neither closed nor sent a close."""
    count = 0
    for sock in crowd:
        try:
            said = sock.recv(4_096)
        except BlockingIOError:
            count += 1
        else:
            count += bool(said) and b"\x00\x53\x18" not in said  # a close
    return count


def test_five_thousand_idle_connections_are_served_beside_the_others(broker: BrokerProcess) -> None:
    before = resident_mib(broker.pid)
    crowd: list[socket.socket] = []
    with descriptors(IDLE + 500):
        try:
            crowd = open_crowd(broker.addresses.amqp_port, IDLE)
            with Bystander(broker.addresses.amqp_port) as bystander:
                assert max(bystander.round_trip() for _ in range(20)) < 1.0
            grown = resident_mib(broker.pid) - before
            assert still_open(crowd) == IDLE
            print(f"{IDLE} idle connections: {grown:.0f} MiB")
            assert grown < IDLE_MIB_MAX
        finally:
            for sock in crowd:
                sock.close()


def test_clients_that_come_and_go_leave_nothing_behind(broker: BrokerProcess) -> None:
    def come_and_go(times: int) -> None:
        for number in range(times):
            with RawConnection(broker.addresses.amqp_port) as connection:
                connection.open()
                connection.begin()
                connection.attach_sender(0, "target")
                connection.attach_receiver(1, "bulk/$deadletterqueue")
                connection.send_frame(raw.FLOW, raw.flow_fields(1, 0, 10))
                if number % 2:
                    part_politely(connection)

    come_and_go(100)
    before = resident_mib(broker.pid)
    come_and_go(300)
    assert resident_mib(broker.pid) - before < 5


def test_links_and_sessions_that_come_and_go_leave_nothing_behind(broker: BrokerProcess) -> None:
    def come_and_go(connection: RawConnection, times: int) -> None:
        for number in range(times):
            connection.begin(1)
            for handle, address in enumerate(("target", "target/$management", "$cbs", "no-such-queue")):
                connection.attach(raw.sender_attach(handle, address), 1)
                if number % 2:
                    connection.send_frame(raw.DETACH, [UInt(handle), True], channel=1)
            connection.send_frame(raw.END, [], channel=1)
            connection.read_until(raw.END)

    with opened(broker.addresses.amqp_port) as connection:
        come_and_go(connection, 100)
        before = resident_mib(broker.pid)
        come_and_go(connection, 500)
        assert resident_mib(broker.pid) - before < 5
        assert part_politely(connection) is None
