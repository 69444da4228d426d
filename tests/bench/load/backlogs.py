"""Kinds of entities on which the broker may have to work at length: what their messages are like, and how
they are emptied.

Each has one partition, so that all the work is in one place. Knows neither the meter nor the steps.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from protocol.codec import Timestamp
from tests.bench.load import sessions, traffic
from tests.bench.load.client import encode_message, numbered
from tests.bench.load.footprint import target_of
from tests.bench.load.traffic import Load, Target
from tests.support.amqp_messages import message
from tests.support.broker_process import Addresses, queue, topic

NAME = "waiting"
BODY_BYTES = 64
WINDOW = 2_000
PROPERTIES = {"PartitionCount": 1, "LockDuration": "PT5M", "MaxSizeInMegabytes": 5120}
SUBSCRIPTIONS = ("first", "second")
IN_SESSION = 20
"""Messages in each session."""
LEAD_S, SENT_PER_S = 5.0, 8_000
"""Scheduled messages are due this long after the first was sent, plus what sending takes at this rate."""
_PLAIN = encode_message(BODY_BYTES)


Messages = Callable[[range, int, float], Sequence[bytes]]
"""Those with these numbers of so many, encoded; the first was sent at a time, in seconds since the epoch. A
sender sends them in turn."""


def _plain(numbers: range, count: int, began_s: float) -> Sequence[bytes]:
    return (_PLAIN,)


def _with_ids(numbers: range, count: int, began_s: float) -> Sequence[bytes]:
    """No id comes again when the entity is filled again."""
    first = int(began_s) % 1000 * 10_000_000
    return [numbered(_PLAIN, first + number) for number in numbers]


def _in_sessions(numbers: range, count: int, began_s: float) -> Sequence[bytes]:
    """All sessions in turn."""
    among = count // IN_SESSION
    return [sessions.session_message(number % among, number // among) for number in numbers]


def _scheduled(numbers: range, count: int, began_s: float) -> Sequence[bytes]:
    """All due at the same time."""
    due_ms = int((began_s + LEAD_S + count / SENT_PER_S) * 1000)
    annotations = {"x-opt-scheduled-enqueue-time": Timestamp(due_ms)}
    return (message(annotations=annotations, body=[bytes(BODY_BYTES)]),)


@dataclass(slots=True, frozen=True)
class Backlog:
    """One kind of entity, and a million messages in it."""

    messages: Messages = _plain
    properties: Mapping[str, object] = field(default_factory=dict)
    """Of the queue, besides PROPERTIES."""
    subscriptions: Sequence[str] = ()
    """If there are any, the entity is a topic."""
    are_scheduled: bool = False
    in_sessions: bool = False
    in_bursts: bool = False
    """It is for the steps of `bursts.py`."""

    @property
    def queues(self) -> list[dict[str, object]]:
        """For the broker's configuration."""
        return [] if self.subscriptions else [queue(NAME, **(PROPERTIES | dict(self.properties)))]

    @property
    def topics(self) -> list[dict[str, object]]:
        """The same."""
        if not self.subscriptions:
            return []
        described = topic(NAME, self.subscriptions, LockDuration="PT5M")
        described["Properties"] = {"PartitionCount": 1, "MaxSizeInMegabytes": 5120}
        return [described]

    @property
    def sources(self) -> list[str]:
        """The addresses to receive from."""
        return [f"{NAME}/Subscriptions/{each}" for each in self.subscriptions] or [NAME]

    def fill(self, target: Target, count: int, at_once: int = 100_000) -> None:
        """Send `count` messages."""
        began_s = time.time()
        for first in range(0, count, at_once):
            numbers = range(first, min(first + at_once, count))
            load = Load(self.messages(numbers, count, began_s), BODY_BYTES, WINDOW)
            traffic.send(target, len(numbers), load=load)

    def empty(self, addresses: Addresses, count: int) -> None:
        """Receive and complete nine messages out of ten from each source."""
        for source in self.sources:
            target = target_of(addresses, source)
            if self.in_sessions:
                sessions.consume(target.endpoint, count * 9 // 10 // IN_SESSION, IN_SESSION)
            else:
                traffic.receive(target, count * 9 // 10, load=Load((), BODY_BYTES, WINDOW))


BACKLOGS: Mapping[str, Backlog] = {
    "plain": Backlog(),
    "sessions": Backlog(_in_sessions, {"RequiresSession": True}, in_sessions=True),
    "duplicates": Backlog(
        _with_ids,
        {"RequiresDuplicateDetection": True, "DuplicateDetectionHistoryTimeWindow": "P1D"},
    ),
    "schedules": Backlog(_scheduled, are_scheduled=True),
    "topic": Backlog(subscriptions=SUBSCRIPTIONS),
    "bursts": Backlog(properties={"LockDuration": "PT10S"}, in_bursts=True),
}
"""By name."""
