"""A broker at its memory mark: sends are refused while receivers drain, and how much memory that takes.

Responsible for the load and for reading memory. A queue is filled with tiny messages until the broker refuses
more; then a receiver takes them all, while the sender tries on. Knows neither figures nor verdicts.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from tests.bench.load import footprint, traffic
from tests.bench.load.client import Receiver, Sender, drive, encode_message
from tests.bench.load.endpoint import LoadError
from tests.bench.load.machine import resident_mib

BODY_BYTES = 1
WINDOW = 500
REFUSALS = 2 * WINDOW
"""This many refusals show that the broker has reached its mark."""
REFUSED = "rejected com.microsoft:server-busy"
PAUSE_S = 0.2
"""How often a refused sender tries again: two seconds are what clients are told."""
LOOK_S = 0.05
"""How often memory is read."""


@dataclass(slots=True, frozen=True)
class AtMark:
    """One round."""

    memory_percent: float
    """The most memory that the broker took from the first refusal until the queue was empty, in % of the
    mark."""
    sent: int
    refused_while_draining: int


class Pressing(Sender):
    """Sends whatever the broker accepts, and counts what it refuses for lack of memory."""

    refused = 0
    pauses_until = 0.0

    def on_refused(self, outcome: str) -> None:
        if outcome != REFUSED:
            super().on_refused(outcome)
        self.refused += 1
        self.pauses_until = time.monotonic() + PAUSE_S

    def replenish(self) -> None:
        if self.refused < REFUSALS or time.monotonic() >= self.pauses_until:
            super().replenish()


def at_mark(folder: Path, mark_mib: int, messages_max: int) -> AtMark:
    """Fill a broker with this mark, and empty it again. Raises LoadError if it takes `messages_max` messages
    without refusing any."""
    environment = {"PARTIBUS_MEMORY_BYTES_MAX": str(mark_mib << 20)}
    with footprint.fresh_broker(folder, environment=environment) as broker:
        target = footprint.target_of(broker.addresses)
        most_mib, looked_at = 0.0, 0.0

        def look() -> None:
            nonlocal most_mib, looked_at
            if time.monotonic() - looked_at >= LOOK_S:
                looked_at = time.monotonic()
                most_mib = max(most_mib, resident_mib(broker.pid))

        with target.connect() as sending, target.connect() as receiving:
            sender = Pressing(sending, encode_message(BODY_BYTES), WINDOW)
            receiver = Receiver(receiving, WINDOW, BODY_BYTES)
            connections = [sending, receiving]
            drive(connections, lambda: sender.is_ready and receiver.is_ready, traffic.READY_WITHIN_S)
            sender.send(messages_max)

            def has_reached_the_mark() -> bool:
                look()
                return sender.refused >= REFUSALS or sender.is_done

            drive(connections, has_reached_the_mark, traffic.DONE_WITHIN_S)
            if sender.is_done:
                raise LoadError(f"the broker took {messages_max:,} messages and refused none")
            filled, refused_before = sender.accepted, sender.refused
            receiver.receive(filled)

            def is_empty() -> bool:
                look()
                return receiver.is_done

            drive(connections, is_empty, traffic.DONE_WITHIN_S)
        broker.check_alive()
        return AtMark(100 * most_mib / mark_mib, filled, sender.refused - refused_before)
