"""Message sessions: how long draining many sessions in order takes, and how much memory the broker needs.

Each consumer has one connection. It accepts the next free session, receives and completes its messages,
checks their order, and closes the session; until no session is free. `session_receivers.py` knows how many
sessions there are, accepts several at a time and completes each message by itself, so its figures cannot be
compared with these. The frames are made by hand (`tests/support/raw_amqp.py`), which costs the client some
1 ms of CPU for each session. Knows neither figures nor rounds.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.bench.load import traffic
from tests.bench.load.endpoint import Endpoint, LoadError
from tests.bench.load.footprint import FILL_WINDOW, fresh_broker, target_of
from tests.bench.load.machine import peak_mib, resident_mib
from tests.bench.load.traffic import Load
from tests.support import raw_amqp as raw
from tests.support.amqp_messages import DATA, message, sections
from tests.support.amqp_sessions import session_attach
from tests.support.raw_amqp import RawConnection

MESSAGES = 10
"""In each session."""
BODY_BYTES = 100
ACCEPT_WITHIN_MS = 2_000
"""No session has been free for this long: all are drained. A disk that other programs use as well may hold up
an answer for some hundred milliseconds."""


@dataclass(slots=True, frozen=True)
class Drained:
    """What draining all sessions took."""

    took_s: float
    grown_mib: float
    """The broker's largest resident memory, above that of a new broker."""


def drained(folder: Path, count: int, consumers: int) -> Drained:
    """Send MESSAGES messages to each of `count` sessions, all sessions in turn, and drain them."""
    places = range(count * MESSAGES)
    load = Load([session_message(place % count, place // count) for place in places], BODY_BYTES)
    with fresh_broker(folder, properties={"RequiresSession": True}) as broker:
        target = target_of(broker.addresses)
        before_mib = resident_mib(broker.pid)
        traffic.send(target, count * MESSAGES, FILL_WINDOW, load)
        began = time.perf_counter()
        with ThreadPoolExecutor(consumers) as threads:
            found = sum(threads.map(consume, [target.endpoint] * consumers))
        took_s = time.perf_counter() - began - ACCEPT_WITHIN_MS / 1000
        if found != count * MESSAGES:
            raise LoadError(f"{found} of {count * MESSAGES} messages were received")
        return Drained(took_s, peak_mib(broker.pid) - before_mib)


def session_message(session: int, number: int) -> bytes:
    """One message of a session."""
    body = (b"%d " % number).ljust(BODY_BYTES, b".")
    return message(properties=[f"{session}/{number}", *[None] * 9, f"session-{session}"], body=[body])


def consume(endpoint: Endpoint, sessions_max: int = 1 << 62, messages: int = MESSAGES) -> int:
    """Drain sessions with so many messages each, until none is free or enough are drained; gives the number
    of messages."""
    total = 0
    with RawConnection(endpoint.port) as connection:
        connection.open(raw.sasl_plain(endpoint.user, endpoint.password))
        connection.begin()
        while total < sessions_max * messages:
            answer = connection.attach(session_attach(0, endpoint.address, None, within_ms=ACCEPT_WITHIN_MS))
            if answer.code != raw.ATTACH:
                break
            total += _drain(connection, messages)
            connection.send_frame(raw.DETACH, raw.detach_fields(0))
            connection.read_until(raw.DETACH)
    return total


def _drain(connection: RawConnection, messages: int) -> int:
    """Receive and complete the messages of one session."""
    connection.send_frame(raw.FLOW, raw.flow_fields(0, 0, messages))
    deliveries = []
    for expected in range(messages):
        found = connection.read_until(raw.TRANSFER)
        deliveries.append(found.field(1))
        number = int(bytes(sections(found.payload)[DATA]).split()[0])
        if number != expected:
            raise LoadError(f"message {number} of a session came when {expected} was next")
    first, last = deliveries[0], deliveries[-1]
    accepted = raw.disposition_fields(raw.RECEIVER, first, last, False, raw.outcome(raw.ACCEPTED))
    connection.send_frame(raw.DISPOSITION, accepted)
    settled = 0
    while settled < messages:
        found = connection.read_until(raw.DISPOSITION)
        settled += (found.field(2) or found.field(1)) - found.field(1) + 1
    return messages
