"""Shared by the hostile tests: a well-behaved client, and helpers to see how an attack ended."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable
from types import TracebackType

from tests.support import raw_amqp as raw
from tests.support.amqp_messages import DATA, message, sections
from tests.support.memory_use import resident_kib
from tests.support.raw_amqp import ConnectionEnded, Frame, RawConnection

ENDS_WITHIN_S = 5.0
_numbers = itertools.count()


class Bystander:
    """A well-behaved connection with a sender and a receiver."""

    def __init__(
        self, port: int, queue: str = "bystander", connect: Callable[[int], RawConnection] = RawConnection
    ) -> None:
        self._connection = connect(port)
        self._connection.open()
        self._connection.begin()
        self._connection.attach_sender(0, queue)
        self._connection.attach_receiver(1, queue)
        self._sent = 0
        self._received = 0

    def __enter__(self) -> Bystander:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.socket.close()

    def round_trip(self, within_s: float = ENDS_WITHIN_S) -> float:
        """Send, receive and complete a message; gives the seconds it took. Raises TimeoutError,
        AssertionError.
        """
        connection, begin = self._connection, time.monotonic()
        body = b"round trip %d" % next(_numbers)
        connection.send_frame(raw.TRANSFER, raw.transfer_fields(0, self._sent), message(body=[body]))
        self._sent += 1
        accepted = connection.read_until(raw.DISPOSITION, within_s=within_s)
        assert accepted.field(4).descriptor == raw.ACCEPTED, (
            f"the bystander's message was refused: {accepted}"
        )
        connection.send_frame(raw.FLOW, raw.flow_fields(1, self._received, 1))
        delivered = connection.read_until(raw.TRANSFER, within_s=within_s)
        self._received += 1
        assert sections(delivered.payload)[DATA] == body
        number = delivered.field(1)
        connection.send_frame(
            raw.DISPOSITION,
            raw.disposition_fields(raw.RECEIVER, number, number, False, raw.outcome(raw.ACCEPTED)),
        )
        settled = connection.read_until(raw.DISPOSITION, within_s=within_s)
        assert settled.field(3) and settled.field(4).descriptor == raw.ACCEPTED
        return time.monotonic() - begin


def ending(connection: RawConnection, within_s: float = ENDS_WITHIN_S) -> Frame | None:
    """Read until the broker closes the connection; gives its close frame, if any. Raises TimeoutError if the
    broker does not close.
    """
    frames = [found for found in connection.frames_until_end(within_s) if found.code == raw.CLOSE]
    return frames[-1] if frames else None


def part_politely(connection: RawConnection, within_s: float = ENDS_WITHIN_S) -> str | None:
    """Close from our side and read to the end; gives the condition if the broker had closed with one before.

    Raises TimeoutError if the broker neither answers with a close nor closes the socket, and AssertionError
    if the condition is neither the standard's nor the service's own.
    """
    with contextlib.suppress(ConnectionEnded):  # what the broker said before can still be read
        connection.send_frame(raw.CLOSE, [])
    closed = ending(connection, within_s)
    condition = raw.condition_of(closed) if closed is not None else None
    assert condition is None or condition.startswith(("amqp:", "com.microsoft:")), condition
    return condition


def resident_mib(pid: int) -> float:
    """Resident memory of a process in MiB."""
    return resident_kib(pid) / 1024
