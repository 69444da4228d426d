"""Messages through a running broker: how many a second, and how long one takes.

Responsible for the loads themselves, which are the same for every target. Every load leaves the queue as it
found it, except `send`, whose messages `receive` removes. Knows neither figures nor processes.
"""

from __future__ import annotations

import os
import socket
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from tests.bench.load.client import (
    Drainer,
    LoadConnection,
    PacedSender,
    Receiver,
    Sender,
    drive,
    encode_message,
)
from tests.bench.load.endpoint import Endpoint, LoadError

BODY_BYTES = 1024
WINDOW = 500
PACED_WINDOW = 5_000
PACED_EVERY_S = 0.0005
"""How often a paced sender looks for messages that are due."""
READY_WITHIN_S = 30.0
DONE_WITHIN_S = 900.0
DRAINED_WITHIN_S = 60.0


@dataclass(slots=True, frozen=True)
class Target:
    """A broker to load. `settles_first`: see LoadConnection; `confirms`: see Receiver."""

    name: str
    endpoint: Endpoint
    settles_first: bool
    confirms: bool = True

    def connect(self) -> LoadConnection:
        return LoadConnection(self.endpoint, self.settles_first)


@dataclass(slots=True, frozen=True)
class Load:
    """What to send: encoded messages, in turn."""

    messages: Sequence[bytes] = field(default_factory=lambda: (encode_message(BODY_BYTES),))
    body_bytes: int = BODY_BYTES
    """The size of each message's body."""
    window: int = WINDOW


PLAIN = Load()


def send(target: Target, count: int, window: int | None = None, load: Load = PLAIN) -> float:
    """Send count messages on one connection; gives how many a second were acknowledged. `window` overrides
    that of the load."""
    with target.connect() as connection:
        sender = Sender(connection, load.messages, window or load.window)
        drive([connection], lambda: sender.is_ready, READY_WITHIN_S)
        sender.send(count)
        began = time.perf_counter()
        drive([connection], lambda: sender.is_done, DONE_WITHIN_S)
        return count / (time.perf_counter() - began)


def send_scheduled(target: Target, count: int, load: Load, due_s: float) -> float:
    """Send messages that become due at `due_s`, in seconds since the epoch, as `send` does. Raises LoadError
    if that time came before the last one was sent."""
    rate = send(target, count, load=load)
    refuse_due(due_s)
    return rate


def refuse_due(due_s: float) -> None:
    """Raise LoadError if messages that were just sent are due by now."""
    if time.time() > due_s:
        raise LoadError("the messages were due before the last was sent")


def receive(target: Target, count: int, window: int | None = None, load: Load = PLAIN) -> float:
    """Receive and complete count waiting messages on one connection; gives how many a second the broker
    settled, or delivered if the target does not confirm.
    """
    return receive_from([target], count, window, load)


def receive_from(
    targets: Sequence[Target], count: int, window: int | None = None, load: Load = PLAIN
) -> float:
    """Do what `receive` does with count messages of each target, all targets at once, on a connection each;
    gives the messages of all in a second.
    """
    with ExitStack() as stack:
        connections = [stack.enter_context(target.connect()) for target in targets]
        receivers = [
            Receiver(connection, window or load.window, load.body_bytes, target.confirms)
            for connection, target in zip(connections, targets, strict=True)
        ]
        drive(connections, lambda: all(receiver.is_ready for receiver in receivers), READY_WITHIN_S)
        for receiver in receivers:
            receiver.receive(count)
        began = time.perf_counter()
        drive(connections, lambda: all(receiver.is_done for receiver in receivers), DONE_WITHIN_S)
        return count * len(targets) / (time.perf_counter() - began)


def drain(target: Target, window: int = WINDOW) -> int:
    """Receive and complete whatever waits; gives how many messages that were."""
    with target.connect() as connection:
        drainer = Drainer(connection, window)
        drive([connection], lambda: drainer.is_done, DRAINED_WITHIN_S)
        return drainer.received


def send_and_receive(target: Target, count: int, connection_count: int, window: int = WINDOW) -> float:
    """Send and complete an equal share of count messages on each connection, all at once; gives how many a
    second were sent and completed.
    """
    share = count // connection_count
    connections = [target.connect() for _ in range(connection_count)]
    message = encode_message(BODY_BYTES)
    try:
        receivers = [Receiver(connection, window, BODY_BYTES, target.confirms) for connection in connections]
        senders = [Sender(connection, message, window) for connection in connections]
        drive(
            connections,
            lambda: all(r.is_ready and s.is_ready for r, s in zip(receivers, senders, strict=True)),
            READY_WITHIN_S,
        )
        for receiver, sender in zip(receivers, senders, strict=True):
            receiver.receive(share)
            sender.send(share)
        began = time.perf_counter()
        drive(connections, lambda: all(receiver.is_done for receiver in receivers), DONE_WITHIN_S)
        return share * connection_count / (time.perf_counter() - began)
    finally:
        for connection in connections:
            connection.close()


def send_beside_receiver(target: Target, count: int, load: Load = PLAIN) -> float:
    """Send count messages on one connection while another one receives and completes them; gives how many a
    second went all the way.
    """
    with target.connect() as sending, target.connect() as receiving:
        connections = [sending, receiving]
        sender = Sender(sending, load.messages, load.window)
        receiver = Receiver(receiving, load.window, load.body_bytes, target.confirms)
        drive(connections, lambda: sender.is_ready and receiver.is_ready, READY_WITHIN_S)
        receiver.receive(count)
        sender.send(count)
        began = time.perf_counter()
        drive(connections, lambda: sender.is_done and receiver.is_done, DONE_WITHIN_S)
        return count / (time.perf_counter() - began)


def sync_disks() -> None:
    """Wait until everything that was written is on the disks. Called before latencies are measured and before
    the CPU time of such a measurement begins: no broker should wait because of what another one has written.
    """
    os.sync()


def send_latencies_us(target: Target, count: int) -> list[float]:
    """Send count messages one at a time on one connection; gives µs from handing each to the socket to
    reading its acknowledgement.
    """
    latencies = []
    with target.connect() as connection:
        sender = Sender(connection, encode_message(BODY_BYTES), window=1)
        drive([connection], lambda: sender.is_ready, READY_WITHIN_S)
        for _ in range(count):
            sender.send(1)
            connection.prepare()
            began = time.perf_counter()
            while not sender.is_done:
                connection.exchange()
            latencies.append((time.perf_counter() - began) * 1e6)
    return latencies


def paced_latencies_s(target: Target, load: Load, count: int, per_s: float, *, receive: bool) -> list[float]:
    """Send count messages on one connection, `per_s` a second; gives the seconds from when each was due to
    its acknowledgement. With `receive`, another connection receives and completes them meanwhile.
    """
    connections = [target.connect()]
    try:
        sender = PacedSender(connections[0], load.messages, PACED_WINDOW, per_s)
        receiver = None
        if receive:
            connections.append(target.connect())
            receiver = Receiver(connections[1], load.window, load.body_bytes, target.confirms)
        drive(
            connections,
            lambda: sender.is_ready and (receiver is None or receiver.is_ready),
            READY_WITHIN_S,
        )
        if receiver is not None:
            receiver.receive(count)
        sender.begin(count)
        drive(
            connections,
            lambda: sender.is_done and (receiver is None or receiver.is_done),
            DONE_WITHIN_S,
            write_every_s=PACED_EVERY_S,
        )
        return sender.latencies_s
    finally:
        for connection in connections:
            connection.close()


def disk_latencies_us(folder: Path, count: int) -> list[float]:
    """Append one message's bytes count times to a new file in folder; gives the µs of each write and
    fdatasync.
    """
    data = encode_message(BODY_BYTES)
    latencies = []
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        for _ in range(count):
            began = time.perf_counter()
            file.write(data)
            os.fdatasync(file.fileno())
            latencies.append((time.perf_counter() - began) * 1e6)
    return latencies


def first_delivery(target: Target) -> None:
    """Receive and complete one waiting message."""
    receive(target, 1, window=1)


def open_idle(target: Target, count: int, with_receiver: bool) -> list[socket.socket]:
    """Open count connections and leave them idle; `with_receiver`, each grants credit on the (empty)
    queue.
    """
    sockets = []
    for _ in range(count):
        connection = target.connect()
        if with_receiver:
            receiver = Receiver(connection, 10, BODY_BYTES)
            receiver.receive(10)
            drive([connection], lambda link=receiver: link.is_ready, READY_WITHIN_S)  # type: ignore[misc]
        else:
            drive([connection], lambda opened=connection: opened.is_open, READY_WITHIN_S)  # type: ignore[misc]
        sockets.append(connection.release())
    return sockets
