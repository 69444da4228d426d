"""Duplicate detection and scheduled messages: how many messages a second.

Each load has a broker of its own. Knows neither figures nor rounds.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from protocol.codec import Timestamp
from tests.bench.load import traffic
from tests.bench.load.client import MESSAGE_ID, encode_message, numbered
from tests.bench.load.footprint import SETTLE_S, fresh_broker, target_of
from tests.bench.load.machine import resident_mib
from tests.bench.load.traffic import BODY_BYTES, Load
from tests.support.amqp_messages import message

DETECTS = {"RequiresDuplicateDetection": True, "DuplicateDetectionHistoryTimeWindow": "P1D"}
LEAD_S, SENT_PER_S = 5.0, 2_000
"""Messages are due this long after the first is sent, plus what sending takes at this rate."""
AT_ONCE, SMALL_BYTES = 20_000, 16
"""Messages that wait at a time while a broker learns many message-ids, and their bodies' size."""
_SMALL = encode_message(SMALL_BYTES)
_PLAIN = encode_message(BODY_BYTES)


@dataclass(slots=True, frozen=True)
class Detected:
    """Messages a second that were acknowledged in a queue that detects duplicates."""

    new_per_s: float
    duplicates_per_s: float


@dataclass(slots=True, frozen=True)
class Scheduled:
    """Scheduled messages a second."""

    sent_per_s: float
    received_per_s: float
    """From the time at which all were due until the last was completed."""


def detected(folder: Path, count: int) -> Detected:
    """Send messages with different ids, and then the same ones again."""
    load = Load([numbered(_PLAIN, number) for number in range(count)])
    with fresh_broker(folder, properties=DETECTS) as broker:
        target = target_of(broker.addresses)
        return Detected(traffic.send(target, count, load=load), traffic.send(target, count, load=load))


def remembered_mib(folder: Path, count: int) -> float:
    """The memory that a queue needs to remember `count` message-ids whose messages are gone: how much more
    a broker has grown than one whose queue detects no duplicates."""
    grown = []
    for properties in (DETECTS, {}):
        with fresh_broker(folder, properties=properties) as broker:
            target = target_of(broker.addresses)
            for first in range(0, count, AT_ONCE):
                numbers = range(first, min(first + AT_ONCE, count))
                load = Load([numbered(_SMALL, number) for number in numbers], SMALL_BYTES)
                traffic.send(target, len(numbers), load=load)
                traffic.receive(target, len(numbers), load=load)
            time.sleep(SETTLE_S)
            grown.append(resident_mib(broker.pid))
    return grown[0] - grown[1]


def scheduled(folder: Path, count: int) -> Scheduled:
    """Send messages that are due at the same time, and receive them."""
    with fresh_broker(folder) as broker:
        target = target_of(broker.addresses)
        due_s = time.time() + LEAD_S + count / SENT_PER_S
        sent_per_s = traffic.send_scheduled(target, count, Load([_due_at(due_s)]), due_s)
        traffic.receive(target, count)
        return Scheduled(sent_per_s, count / (time.time() - due_s))


def _due_at(due_s: float) -> bytes:
    """A plain message that is due at a time."""
    return message(
        header=[True],
        annotations={"x-opt-scheduled-enqueue-time": Timestamp(int(due_s * 1000))},
        properties=[MESSAGE_ID.decode()],
        body=[_PLAIN[-BODY_BYTES:]],
    )
