"""Receivers that ask for everything and never read, beside idle connections: what they cost, and how long
other clients wait.

Responsible for the attack and for the clients beside it: one peeks at large messages, another sends, receives
and completes. Knows neither figures nor rounds.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from protocol.codec import Described, UInt, ULong, encode
from tests.bench.load import traffic
from tests.bench.load.client import LoadConnection, Sender, drive, encode_message
from tests.bench.load.footprint import QUEUE, fresh_broker, target_of
from tests.bench.load.machine import allow_open_files, resident_mib
from tests.support import raw_amqp as raw
from tests.support.amqp_messages import message
from tests.support.raw_amqp import RawConnection, opened

BODY_BYTES = 64 * 1024
RECEIVE_BUFFER_BYTES = 4 * 1024
QUEUE_BESIDE = "beside"
PEEKED_MESSAGES = 16
SAMPLE_S = 0.02
WITHIN_S = 60.0


@dataclass(slots=True, frozen=True)
class Attack:
    """One round. `memory_mib` is the largest growth over the broker's memory before the attack."""

    memory_mib: float
    peek_ms: float
    """Longest time for a peek at 16 messages of 64 KiB."""
    round_trip_ms: float
    """Longest time to send, receive and complete one message."""


def receivers_that_do_not_read(
    folder: Path,
    receivers: int,
    idle: int,
    messages: int,
    lasting_s: float,
    environment: Mapping[str, str] | None = None,
) -> Attack:
    """On a fresh broker with `messages` of 64 KiB waiting, attack for `lasting_s` seconds after the last
    receiver has connected.
    """
    allow_open_files(receivers + idle)
    with fresh_broker(folder, (QUEUE, QUEUE_BESIDE), environment) as broker, contextlib.ExitStack() as stack:
        target = target_of(broker.addresses)
        _fill(target.connect(), messages)
        for each in traffic.open_idle(target, idle, with_receiver=False):
            stack.callback(each.close)
        port = broker.addresses.amqp_port
        peeker = stack.enter_context(contextlib.closing(Peeker(port, QUEUE)))
        friend = stack.enter_context(contextlib.closing(RoundTrips(port, QUEUE_BESIDE)))
        peeker.peek()  # keeps the cost of the first use out of the attack
        friend.round_trip()
        memory = stack.enter_context(watched_memory(broker.pid))
        peeks, trips = [0.0], [0.0]
        ends = None
        attackers = 0
        while ends is None or time.monotonic() < ends:
            for _ in range(5):
                if attackers < receivers:
                    stack.enter_context(contextlib.closing(attacker(port, QUEUE, credit=10_000).socket))
                    attackers += 1
            if attackers == receivers and ends is None:
                ends = time.monotonic() + lasting_s
            peeks.append(peeker.peek())
            trips.append(friend.round_trip())
        broker.check_alive()
        return Attack(max(memory) - memory[0], max(peeks) * 1e3, max(trips) * 1e3)


def _fill(connection: LoadConnection, messages: int) -> None:
    with connection:
        sender = Sender(connection, encode_message(BODY_BYTES), 100)
        drive([connection], lambda: sender.is_ready, traffic.READY_WITHIN_S)
        sender.send(messages)
        drive([connection], lambda: sender.is_done, traffic.DONE_WITHIN_S)


@contextlib.contextmanager
def watched_memory(pid: int) -> Iterator[list[float]]:
    """Resident MiB of a process: a first value before the block, then repeated samples until its end."""
    found = [resident_mib(pid)]
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(SAMPLE_S):
            found.append(resident_mib(pid))

    thread = threading.Thread(target=watch, name="memory")
    thread.start()
    try:
        yield found
    finally:
        ended.set()
        thread.join()


def attacker(port: int, queue: str, credit: int) -> RawConnection:
    """A receiver that has granted credit and never reads. The caller owns the connection."""
    connection = opened(port, receive_buffer_bytes=RECEIVE_BUFFER_BYTES)
    connection.attach_receiver(0, queue)
    connection.send_frame(raw.FLOW, raw.flow_fields(0, 0, credit))
    return connection


class Peeker:
    """Peeks at the first messages of a queue over `$management` (AMQP contract 7.3.3), and reads the whole
    answer.
    """

    def __init__(self, port: int, queue: str) -> None:
        self._connection = opened(port)
        self._connection.attach_sender(0, f"{queue}/$management")
        self._connection.attach_receiver(1, f"{queue}/$management")
        self._count = 0

    def peek(self) -> float:
        """Seconds until the whole answer has been read. Raises TimeoutError."""
        body = {"from-sequence-number": 0, "message-count": PEEKED_MESSAGES}
        request = b"".join(
            (
                encode(Described(ULong(0x73), [f"peek {self._count}"])),
                encode(Described(ULong(0x74), {"operation": "com.microsoft:peek-message"})),
                encode(Described(ULong(0x77), {key: UInt(value) for key, value in body.items()})),
            )
        )
        connection = self._connection
        connection.send_frame(raw.FLOW, raw.flow_fields(1, self._count, 1))
        began = time.monotonic()
        connection.send_frame(raw.TRANSFER, raw.transfer_fields(0, self._count), request)
        read_bytes, more = 0, True
        while more:
            frame = connection.read_until(raw.TRANSFER, within_s=WITHIN_S)
            read_bytes += len(frame.payload)
            more = bool(frame.field(5))
        took_s = time.monotonic() - began
        if read_bytes < BODY_BYTES:
            raise RuntimeError(f"a peek brought {read_bytes} bytes")
        number = frame.field(1) if frame.field(1) is not None else self._count
        connection.send_frame(
            raw.DISPOSITION,
            raw.disposition_fields(raw.RECEIVER, number, number, True, raw.outcome(raw.ACCEPTED)),
        )
        self._count += 1
        return took_s

    def close(self) -> None:
        self._connection.socket.close()


class RoundTrips:
    """Sends a small message, receives it and completes it."""

    def __init__(self, port: int, queue: str) -> None:
        self._connection = opened(port)
        self._connection.attach_sender(0, queue)
        self._connection.attach_receiver(1, queue)
        self._count = 0

    def round_trip(self) -> float:
        """Seconds for the whole round trip. Raises TimeoutError, RuntimeError."""
        connection, began = self._connection, time.monotonic()
        connection.send_frame(
            raw.TRANSFER, raw.transfer_fields(0, self._count), message(body=[b"round trip"])
        )
        if connection.read_until(raw.DISPOSITION, within_s=WITHIN_S).field(4).descriptor != raw.ACCEPTED:
            raise RuntimeError("the message was refused")
        connection.send_frame(raw.FLOW, raw.flow_fields(1, self._count, 1))
        number = connection.read_until(raw.TRANSFER, within_s=WITHIN_S).field(1)
        connection.send_frame(
            raw.DISPOSITION,
            raw.disposition_fields(raw.RECEIVER, number, number, False, raw.outcome(raw.ACCEPTED)),
        )
        connection.read_until(raw.DISPOSITION, within_s=WITHIN_S)
        self._count += 1
        return time.monotonic() - began

    def close(self) -> None:
        self._connection.socket.close()
