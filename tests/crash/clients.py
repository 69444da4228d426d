"""Clients of a crash round: senders and receivers that record everything, and carry on after the broker was
killed.

Each client is a thread with its own connection over `raw_amqp`. It enters each request in the ledger before
the bytes leave, and each answer when it reads it; when a connection breaks, the rest is unknown. A broker
that refuses what it should accept fails the round; clients wait for a broker that is down.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from random import Random
from zlib import crc32

from protocol.codec import Described, Symbol, Timestamp, UByte, UInt, ULong
from tests.crash.ledger import QueueLedger, name_of
from tests.support import raw_amqp as raw
from tests.support.amqp_messages import ANNOTATIONS, DATA, message, sections
from tests.support.amqp_sessions import session_attach
from tests.support.raw_amqp import ConnectionEnded, Frame, RawConnection

BODY_BYTES_MAX = 900
RETRY_S = 0.05
DRAIN_CREDIT = 500
SCHEDULED = "x-opt-scheduled-enqueue-time"
READ_SLICE_S = 0.2
"""How long a client reads before it checks whether to stop."""


def body_of(name: str) -> bytes:
    """Body of the message with this name: the name, and bytes that only its sender would have written."""
    check = crc32(name.encode())
    return name.encode() + b"|" + check.to_bytes(4, "big") * (check % (BODY_BYTES_MAX // 4))


class Place:
    """Where the broker is and which life it is in. Shared by all clients of a round."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.life = 0
        self.up = threading.Event()
        """Set while the broker runs and listens on `port`."""
        self.stop = threading.Event()
        self.failures: list[BaseException] = []


Who = tuple[Place, str, str, QueueLedger, object]
"""Arguments of every client: its place, its name, its queue, its ledger, and the seed of its choices."""


class Client(threading.Thread, ABC):
    """A thread with one connection at a time."""

    def __init__(self, place: Place, name: str, queue: str, ledger: QueueLedger, seed: object) -> None:
        super().__init__(name=name, daemon=True)
        self.place, self.queue, self.ledger, self.random = place, queue, ledger, Random(f"{seed}/{name}")
        self.stop_asked = place.stop

    def run(self) -> None:
        try:
            while not self.stop_asked.is_set():
                if not self.place.up.wait(RETRY_S):
                    continue
                life = self.place.life
                try:
                    with RawConnection(self.place.port) as connection:
                        connection.open()
                        connection.begin()
                        self.serve(connection, life)
                except (ConnectionEnded, OSError):
                    self.stop_asked.wait(RETRY_S)
        except BaseException as error:
            self.place.failures.append(error)

    @abstractmethod
    def serve(self, connection: RawConnection, life: int) -> None:
        """Work until told to stop. Raises ConnectionEnded or OSError when the broker is gone."""


class Sender(Client):
    """Sends bursts and waits for their outcomes: `burst` transfers at a time, each of `batch` messages, each
    with one of `keys` or without a key. `in_sessions`: a key is a message session.

    A pause of `pause_s` follows each burst; messages live for `time_to_live_ms`, for ever if that is None.
    Messages become active up to `later_ms` later.
    """

    def __init__(
        self,
        *who: *Who,
        keys: int = 0,
        in_sessions: bool = False,
        burst: int = 1,
        batch: int = 1,
        pause_s: float = 0.0,
        time_to_live_ms: int | None = None,
        later_ms: int = 0,
    ) -> None:
        super().__init__(*who)
        self._later_ms, self._in_sessions = later_ms, in_sessions
        self._keys, self._burst, self._batch, self._pause_s = keys, burst, batch, pause_s
        self._header = None if time_to_live_ms is None else [True, UByte(4), UInt(time_to_live_ms)]
        self._numbers: dict[str, int] = {}

    def serve(self, connection: RawConnection, life: int) -> None:
        connection.attach_sender(0, self.queue)
        delivery = 0
        while not self.stop_asked.is_set():
            waiting: dict[int, list[str]] = {}
            frames = []
            for _ in range(self._burst):
                names, payload = self._next()
                waiting[delivery] = names
                frames.append(
                    raw.frame(raw.TRANSFER, raw.transfer_fields(0, delivery, batch=self._batch > 1), payload)
                )
                delivery += 1
            self.ledger.sending([name for names in waiting.values() for name in names])
            connection.send(*frames)
            while waiting:
                found = connection.read_until(raw.DISPOSITION)
                state = found.field(4)
                for number in range(found.field(1), (found.field(2) or found.field(1)) + 1):
                    names = waiting.pop(number)
                    assert state.descriptor == raw.ACCEPTED, f"{names} refused: {state}"
                    self.ledger.sent(names)
            if self._pause_s:
                self.stop_asked.wait(self._pause_s)

    def _next(self) -> tuple[list[str], bytes]:
        key = f"k{self.random.randrange(self._keys)}" if self._keys else ""
        begin = self._numbers.get(key, 0)
        self._numbers[key] = begin + self._batch
        names = [name_of(self.name, key, number) for number in range(begin, begin + self._batch)]
        session = [*[None] * 9, session_of(self.name, key)] if self._in_sessions else []
        annotations: dict[str, object] = {}
        if key and not session:
            annotations["x-opt-partition-key"] = f"{self.name}/{key}"
        if self._later_ms:
            due_ms = int(time.time() * 1000) + self.random.randrange(self._later_ms)
            self.ledger.scheduling(names, due_ms)
            annotations[SCHEDULED] = Timestamp(due_ms)
        messages = [
            message(
                header=self._header,
                properties=[name, *session],
                annotations=annotations,
                body=[body_of(name)],
            )
            for name in names
        ]
        if self._batch == 1:
            return names, messages[0]
        return names, message(properties=[names[0]], annotations=annotations, body=messages)


class Receiver(Client):
    """Locks messages, removes most of them and waits for the broker's confirmation; abandons some,
    dead-letters some. With a `session`, it receives only the messages of that one.
    """

    def __init__(
        self,
        *who: *Who,
        credit: int = 50,
        abandons: float = 0.0,
        dead_letters: float = 0.0,
        session: str | None = None,
    ) -> None:
        super().__init__(*who)
        self._session = session
        self._credit, self._abandons, self._dead_letters = credit, abandons, dead_letters
        self._asked: dict[int, tuple[str, int]] = {}

    def attach(self, connection: RawConnection) -> None:
        """Attach without credit."""
        if self._session is None:
            connection.attach_receiver(1, self.queue)
        else:
            answer = connection.attach(session_attach(1, self.queue, self._session))
            assert answer.code == raw.ATTACH, f"the session was refused: {answer}"

    def serve(self, connection: RawConnection, life: int) -> None:
        self.attach(connection)
        taken = 0
        connection.send_frame(raw.FLOW, raw.flow_fields(1, 0, self._credit))
        granted = self._credit
        self._asked.clear()
        while not self.stop_asked.is_set():
            try:
                frames = [connection.read_frame(READ_SLICE_S)]
            except TimeoutError:
                continue
            while connection.buffered():
                frames.append(connection.read_frame())
            answers = self.handle(frames, life)
            taken += sum(found.code == raw.TRANSFER for found in frames)
            if granted - taken < self._credit // 2:
                granted = taken + self._credit
                answers.append(raw.frame(raw.FLOW, raw.flow_fields(1, taken, self._credit)))
            if answers:
                connection.send(*answers)

    def handle(self, frames: list[Frame], life: int) -> list[bytes]:
        """Record the frames; gives the answers to send."""
        answers: list[bytes] = []
        for found in frames:
            if found.code == raw.TRANSFER:
                assert not found.field(5), "messages of this size come in one frame"
                number = found.field(1)
                name = self._receive(found.payload, life)
                state = self._settle(name)
                self._asked[number] = (name, state.descriptor)
                answers.append(
                    raw.frame(
                        raw.DISPOSITION, raw.disposition_fields(raw.RECEIVER, number, number, False, state)
                    )
                )
            elif found.code == raw.DISPOSITION:
                self._confirm(found, life)
            elif found.code == raw.CLOSE and raw.condition_of(found) == "amqp:connection:forced":
                raise ConnectionEnded  # the broker shuts down cleanly
            else:
                assert found.code in (None, raw.FLOW), f"{self.name} met {found}"
        return answers

    @property
    def unconfirmed(self) -> int:
        """Number of settlements the broker has not answered."""
        return len(self._asked)

    def _receive(self, payload: bytes, life: int) -> str:
        found = sections(payload)
        name = str(found[DATA].split(b"|")[0], "ascii", "replace")
        if found[DATA] != body_of(name):
            self.ledger.errors.append(f"{name} does not carry what it was sent with")
        self.ledger.received(name, life, found[ANNOTATIONS][Symbol("x-opt-sequence-number")])
        return name

    def _settle(self, name: str) -> Described:
        choice = self.random.random()
        if choice < self._abandons:
            self.ledger.giving_back(name)
            return raw.outcome(raw.MODIFIED, [True])
        dead_letter = choice < self._abandons + self._dead_letters
        self.ledger.removing(name, dead_letter=dead_letter)
        if dead_letter:
            return raw.outcome(
                raw.REJECTED,
                [Described(ULong(raw.ERROR), [Symbol("com.microsoft:dead-letter"), "asked for"])],
            )
        return raw.outcome(raw.ACCEPTED)

    def _confirm(self, found: Frame, life: int) -> None:
        state, settled = found.field(4), found.field(3)
        assert settled, f"an answer that does not settle: {found}"
        for number in range(found.field(1), (found.field(2) or found.field(1)) + 1):
            name, asked = self._asked.pop(number)
            error = state.value[0] if state.value else None
            assert state.descriptor == asked and (asked != raw.REJECTED or error is None), (
                f"the settlement of {name} was refused: {state}"
            )
            if asked != raw.MODIFIED:
                self.ledger.confirmed(name, life, dead_letter=asked == raw.REJECTED)


class ReceiveAndDelete(Client):
    """Receives messages that are removed on delivery (§2.8.2, settled)."""

    CREDIT = 20

    def serve(self, connection: RawConnection, life: int) -> None:
        connection.attach_receiver(1, self.queue, settled=True)
        taken = 0
        connection.send_frame(raw.FLOW, raw.flow_fields(1, 0, self.CREDIT))
        granted = self.CREDIT
        while not self.stop_asked.is_set():
            try:
                found = connection.read_until(raw.TRANSFER, within_s=READ_SLICE_S)
            except TimeoutError:
                continue
            note_deleted(found, self.ledger, life)
            taken += 1
            if granted - taken < self.CREDIT // 2:
                granted = taken + self.CREDIT
                connection.send_frame(raw.FLOW, raw.flow_fields(1, taken, self.CREDIT))


def note_deleted(found: Frame, ledger: QueueLedger, life: int) -> None:
    """Record a message removed on delivery: its arrival confirms the removal."""
    parts = sections(found.payload)
    name = str(parts[DATA].split(b"|")[0], "ascii", "replace")
    ledger.received(name, life, parts[ANNOTATIONS][Symbol("x-opt-sequence-number")])
    ledger.removing(name)
    ledger.confirmed(name, life)


def session_of(sender: str, key: str) -> str:
    """The session in which a sender sends the messages of a key."""
    return f"{sender}/{key}"


def drain(
    place: Place,
    queue: str,
    ledger: QueueLedger,
    *,
    settled: bool = False,
    session: str | None = None,
    within_s: float = 20.0,
) -> int:
    """Receive and remove everything a queue or one of its sessions holds, until the broker returns the credit
    unused (§2.6.7); gives the number of messages.

    Uses receive-and-delete if `settled`.
    """
    deadline, total, link_delivery_count = time.monotonic() + within_s, 0, 0
    receiver = Receiver(place, "drain", queue, ledger, 0, session=session)
    with RawConnection(place.port) as connection:
        connection.open()
        connection.begin()
        if settled:
            connection.attach_receiver(1, queue, settled=True)
        else:
            receiver.attach(connection)
        while True:
            connection.send_frame(raw.FLOW, raw.flow_fields(1, link_delivery_count, DRAIN_CREDIT, drain=True))
            link_delivery_count += DRAIN_CREDIT  # a drain uses up all credit, with or without messages
            taken = 0
            used_up = False
            while not used_up or receiver.unconfirmed:
                found = connection.read_frame(max(deadline - time.monotonic(), 0.001))
                if found.code == raw.TRANSFER:
                    taken += 1
                    if settled:
                        note_deleted(found, ledger, place.life)
                if not (settled and found.code == raw.TRANSFER):
                    connection.send(*receiver.handle([found], place.life))
                given_back = found.code == raw.FLOW and found.field(5) == link_delivery_count
                used_up = used_up or given_back or taken == DRAIN_CREDIT
            if not taken:
                return total
            total += taken
