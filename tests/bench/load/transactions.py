"""Messages in transactions of ten: how many a second are sent and committed.

Each connection has one transaction at a time: a declare, then ten messages of one key and the discharge in
one write, then their outcomes. The frames are made by hand (`tests/support/raw_amqp.py`), because the load
client has no transactions; that costs the client some 0.4 ms of CPU for each transaction.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

from tests.bench.load.client import encode_message
from tests.bench.load.endpoint import Endpoint, LoadError
from tests.bench.load.traffic import BODY_BYTES
from tests.support import raw_amqp as raw
from tests.support.raw_amqp import RawConnection
from tests.support.transactions import DECLARED, coordinator_attach, declare, discharge, state_of

MESSAGES = 10
"""In each transaction."""
SENDER, COORDINATOR = range(2)


def committed_per_s(endpoint: Endpoint, count: int, connections: int) -> float:
    """Send `count` messages in transactions, an equal share on each connection at once; gives how many a
    second were committed. The messages stay in the queue."""
    each = count // connections // MESSAGES
    with ThreadPoolExecutor(connections) as threads:
        opened = list(threads.map(_open, [endpoint] * connections))
        try:
            began = time.perf_counter()
            list(threads.map(_commit, opened, range(connections), [each] * connections))
            return each * connections * MESSAGES / (time.perf_counter() - began)
        finally:
            for connection in opened:
                connection.socket.close()


def _open(endpoint: Endpoint) -> RawConnection:
    connection = RawConnection(endpoint.port)
    connection.open(raw.sasl_plain(endpoint.user, endpoint.password))
    connection.begin()
    connection.attach_sender(SENDER, endpoint.address)
    connection.attach(coordinator_attach(COORDINATOR))
    connection.read_until(raw.FLOW)
    return connection


def _commit(connection: RawConnection, key: int, transactions: int) -> None:
    payload = encode_message(BODY_BYTES, b"%d" % key)
    number = 0
    for _ in range(transactions):
        connection.send_frame(raw.TRANSFER, raw.transfer_fields(COORDINATOR, number), declare())
        declared = connection.read_until(raw.DISPOSITION).field(4)
        if declared.descriptor != DECLARED:
            raise LoadError(f"the declare was answered with {declared}")
        (txn_id,) = declared.value
        state = state_of(txn_id)
        first, last = number + 1, number + MESSAGES + 1
        frames = [
            raw.frame(raw.TRANSFER, raw.transfer_fields(SENDER, each, state=state), payload)
            for each in range(first, last)
        ]
        end = raw.frame(raw.TRANSFER, raw.transfer_fields(COORDINATOR, last), discharge(txn_id, False))
        connection.send(*frames, end)
        while (answer := connection.read_until(raw.DISPOSITION)).field(1) != last:
            if answer.field(4).descriptor != raw.TRANSACTIONAL:
                raise LoadError(f"a message was answered with {answer.field(4)}")
        if answer.field(4).descriptor != raw.ACCEPTED:
            raise LoadError(f"the commit was answered with {answer.field(4)}")
        number = last + 1
