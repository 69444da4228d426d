"""Receives from message sessions, several at a time on one connection, as the processor of an official
client does.

Each receiver accepts the next free session, receives and completes all of its messages, and closes the link;
until all sessions are drained. Knows neither figures nor rounds.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from cproton_ffi import ffi, lib

from tests.bench.load.client import LoadConnection, describe_outcome, drive, receiver_link
from tests.bench.load.endpoint import LoadError
from tests.bench.load.traffic import DONE_WITHIN_S, READY_WITHIN_S, Target

SESSION_FILTER = b"com.microsoft:session-filter"


@dataclass(slots=True)
class Sessions:
    """What all receivers of a connection have to do together, and what it took."""

    left: int
    """How many sessions nobody has asked for yet."""
    messages: int
    """In each session."""
    body_bytes: int
    open: int = 0
    """How many sessions are asked for or accepted."""
    accepted_s: list[float] = field(default_factory=list)
    """The seconds from each attach to the session's first message."""

    @property
    def is_done(self) -> bool:
        return self.left == 0 and self.open == 0


@dataclass(slots=True, frozen=True)
class Drained:
    """What draining all sessions took."""

    per_s: float
    """Completed messages a second."""
    accepted_s: list[float]


def drain(target: Target, sessions: int, messages: int, body_bytes: int, at_once: int) -> Drained:
    """Receive and complete the messages of so many sessions, which all wait and have so many messages each;
    `at_once` sessions at a time. The broker confirms each message before its session is given back."""
    work = Sessions(sessions, messages, body_bytes)
    with target.connect() as connection:
        drive([connection], lambda: connection.is_open, READY_WITHIN_S)
        began = time.perf_counter()
        for _ in range(min(at_once, sessions)):
            SessionReceiver(connection, work).accept()
        drive([connection], lambda: work.is_done, DONE_WITHIN_S)
        return Drained(sessions * messages / (time.perf_counter() - began), work.accepted_s)


class SessionReceiver:
    """Drains one session after the other, in an AMQP session of its own."""

    def __init__(self, connection: LoadConnection, work: Sessions) -> None:
        self._connection, self._work = connection, work
        self._session = connection.new_session()
        self._link: Any = None
        self._number = 0
        """Of the link, for its name."""
        self._asked_s = 0.0
        self._is_granted = False
        self._received = self._completed = 0

    def accept(self) -> None:
        """Ask for the next free session, if any is left."""
        if self._work.left == 0:
            return
        self._work.left -= 1
        self._work.open += 1
        self._number += 1
        self._is_granted, self._received, self._completed = False, 0, 0
        name = f"bench-session-{id(self)}-{self._number}"
        self._link = receiver_link(self._connection, self._session, name)
        wanted = lib.pn_terminus_filter(lib.pn_link_source(self._link))
        lib.pn_data_put_map(wanted)
        lib.pn_data_enter(wanted)
        lib.pn_data_put_symbol(wanted, (len(SESSION_FILTER), ffi.from_buffer(SESSION_FILTER)))
        lib.pn_data_put_null(wanted)
        lib.pn_data_exit(wanted)
        self._asked_s = time.perf_counter()
        lib.pn_link_open(self._link)
        self._connection.add_link(self._link, self)

    def replenish(self) -> None:
        if not self._is_granted and lib.pn_link_state(self._link) & lib.PN_REMOTE_ACTIVE:
            self._is_granted = True
            lib.pn_link_flow(self._link, self._work.messages)

    def on_delivery(self, delivery: Any) -> None:
        if lib.pn_delivery_settled(delivery):
            state = lib.pn_delivery_remote_state(delivery)
            if state not in (0, lib.PN_ACCEPTED):
                raise LoadError(f"a completion was refused: {describe_outcome(delivery, state)}")
            lib.pn_delivery_settle(delivery)
            self._completed += 1
            if self._completed == self._work.messages:
                self._connection.close_link(self._link, self._on_closed)
        elif lib.pn_delivery_readable(delivery) and not lib.pn_delivery_partial(delivery):
            if self._received == 0:
                self._work.accepted_s.append(time.perf_counter() - self._asked_s)
            if lib.pn_delivery_pending(delivery) < self._work.body_bytes:
                raise LoadError("a message came back shorter than it was sent")
            lib.pn_link_advance(self._link)
            lib.pn_delivery_update(delivery, lib.PN_ACCEPTED)
            self._received += 1

    def _on_closed(self) -> None:
        self._work.open -= 1
        self.accept()
