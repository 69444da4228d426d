"""The kernel does not end the broker for lack of memory, however much clients send."""

from __future__ import annotations

import json
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from broker.throttle.memory_mark import RETURN_S
from tests.bench.load.client import Receiver, drive, encode_message
from tests.bench.load.endpoint import Endpoint
from tests.bench.load.memory_mark import Pressing
from tests.bench.load.traffic import Target
from tests.support.broker_process import KEY, KEY_NAME, BrokerProcess, queue
from tests.support.memory_limit import memory_group

MIB = 1 << 20
MEMORY = 256 * MIB
"""The least that the documentation recommends for a container."""
SENDERS, RECEIVERS = 4, 2
BODIES = (1, 1, 1, 60_000)
"""Bytes in each message, by sender: small messages fill the memory, large ones fill what is on its way."""
WINDOW = 500
MANY = 10_000_000
"""More messages than fit into the memory."""
REFUSALS = 20 * WINDOW
"""Each sender goes on until it was refused this often."""
WITHIN_S = 240.0
ROOM_WITHIN_S = 5 * RETURN_S


def health(broker: BrokerProcess) -> dict[str, Any]:
    with urllib.request.urlopen(f"{broker.addresses.http_url}/health", timeout=WITHIN_S) as answer:
        memory: dict[str, Any] = json.load(answer)["memory"]
        return memory


def test_senders_that_ignore_refusals_do_not_get_the_broker_killed_and_receivers_drain_it(
    tmp_path: Path,
) -> None:
    """The broker runs under a limit of the kernel, and finds its mark by itself."""
    with (
        memory_group(MEMORY) as group,
        BrokerProcess(tmp_path, [queue("tiny", MaxSizeInMegabytes=5120)], group=group.members) as broker,
        ExitStack() as stack,
    ):
        endpoint = Endpoint("127.0.0.1", broker.addresses.amqp_port, KEY_NAME, KEY, "tiny")
        assert health(broker)["mark_bytes"] == MEMORY * 60 // 100
        target = Target("partibus", endpoint, settles_first=False)
        connections = [stack.enter_context(target.connect()) for _ in range(SENDERS + RECEIVERS)]
        senders = [
            Pressing(connection, encode_message(size), WINDOW)
            for connection, size in zip(connections[:SENDERS], BODIES, strict=True)
        ]
        receivers = [Receiver(connection, WINDOW, 1) for connection in connections[SENDERS:]]
        drive(
            connections,
            lambda: all(each.is_ready for links in (senders, receivers) for each in links),
            WITHIN_S,
        )
        for sender in senders:
            sender.send(MANY)
        drive(connections, lambda: all(sender.refused >= REFUSALS for sender in senders), WITHIN_S)
        assert health(broker)["state"] == "limited"

        filled = sum(sender.accepted for sender in senders)
        for receiver in receivers:
            receiver.receive(filled // RECEIVERS)
        drive(connections, lambda: all(receiver.is_done for receiver in receivers), WITHIN_S)
        # Receiving has made room; the C library may have to return it first.
        drive(connections, lambda: sum(sender.accepted for sender in senders) > filled, ROOM_WITHIN_S)
        broker.check_alive()
        assert group.killed == 0
