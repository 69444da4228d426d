"""Clients without a credential that open connections faster than the broker gets rid of them."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from tests.hostile.bystander import Bystander
from tests.support import raw_amqp as raw
from tests.support.broker_process import BrokerProcess, queue
from tests.support.raw_amqp import RawConnection
from tests.support.sas import sas_token

CONNECTIONS, NEWCOMERS = 40, 12
AUDIENCE = "sb://127.0.0.1/"
HELD = 400
"""How many connections the attackers keep; the broker has hung up on most of them."""


@contextlib.contextmanager
def attackers(port: int) -> Iterator[None]:
    """Clients that say nothing, and clients that open their connection and put no token: as many as there are
    places in much less than a second."""
    opening = raw.sasl_anonymous() + raw.AMQP_HEADER + raw.frame(raw.OPEN, raw.open_fields())
    over, began = threading.Event(), threading.Event()

    def attack() -> None:
        held: deque[socket.socket] = deque()
        while not over.is_set():
            with contextlib.suppress(OSError):
                held.append(socket.create_connection(("127.0.0.1", port), timeout=5))
                if len(held) % 2:
                    held[-1].sendall(opening)
            if len(held) > 2 * CONNECTIONS:
                began.set()
            if len(held) > HELD:
                held.popleft().close()
            over.wait(0.001)  # or nobody else in this process would get to run
        for client in held:
            client.close()

    thread = threading.Thread(target=attack, name="attackers")
    thread.start()
    try:
        assert began.wait(20)
        yield
    finally:
        over.set()
        thread.join(20)


def test_clients_of_other_networks_get_in_while_strangers_fill_the_room(tmp_path: Path) -> None:
    """Each at its first attempt, and those that are in stay."""
    settings = {"PARTIBUS_CONNECTIONS_MAX": str(CONNECTIONS)}
    with (
        BrokerProcess(tmp_path, [queue("bystander")], environment=settings) as broker,
        Bystander(broker.addresses.amqp_port) as old_friend,
        attackers(broker.addresses.amqp_port),
        contextlib.ExitStack() as stack,
    ):
        for number in range(NEWCOMERS):
            client = RawConnection(broker.addresses.amqp_port, address=f"127.0.1.{number % 4 + 1}")
            stack.enter_context(client)
            client.open(raw.sasl_anonymous())
            client.put_token(sas_token(AUDIENCE), AUDIENCE, 1)
            old_friend.round_trip()
