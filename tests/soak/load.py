"""Clients of the soak: they send, receive, dead-letter, let messages expire, come and go, and die with
messages under lock.

Responsible for one stretch of load and for the ledgers of its clients. Built on the clients of the crash
rounds, which record everything.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
import urllib.request
from collections.abc import Callable
from http.client import HTTPException

from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusReceiveMode, ServiceBusSubQueue
from azure.servicebus.exceptions import ServiceBusError

from tests.crash.clients import Client, Place, ReceiveAndDelete, Receiver, Sender, drain
from tests.crash.ledger import QueueLedger
from tests.soak.stalls import StallMeter
from tests.support import raw_amqp as raw
from tests.support.broker_process import Addresses, queue
from tests.support.raw_amqp import ConnectionEnded, RawConnection

WORK, FADING, FLEETING, OFFICIAL = "work", "fading", "fleeting", "official"
DEAD = "$deadletterqueue"
QUEUES = (
    queue(WORK, MaxDeliveryCount=2_000, LockDuration="PT10S"),
    queue(FADING, DeadLetteringOnMessageExpiration=True),
    queue(FLEETING),
    queue(OFFICIAL, MaxDeliveryCount=2_000, LockDuration="PT10S"),
)
EXPIRES_AFTER_MS = 1_000
STOPS_WITHIN_S = 30.0
DRAINED_WITHIN_S = 60.0
_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER with zero linger time: closing sends a reset, as the system does for a process that died."""


class Dying(Receiver):
    """Locks messages, settles some, and dies."""

    def serve(self, connection: RawConnection, life: int) -> None:
        held: list[str] = []
        connection.attach_receiver(1, self.queue)
        connection.send_frame(raw.FLOW, raw.flow_fields(1, 0, 20))
        ends = time.monotonic() + self.random.uniform(0.1, 1.0)
        while time.monotonic() < ends and not self.stop_asked.is_set():
            with contextlib.suppress(TimeoutError):
                found = connection.read_until(raw.TRANSFER, within_s=0.1)
                held.append(self._receive(found.payload, life))
        for name in held:
            self.ledger.giving_back(name)
        connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        connection.socket.close()


class Visitors(Client):
    """Connections that come and go: some stay silent, some stop in the middle of a handshake, some request
    metrics.
    """

    def __init__(self, place: Place, name: str, addresses: Callable[[], Addresses]) -> None:
        super().__init__(place, name, "", QueueLedger(), 0)
        self._addresses = addresses

    def serve(self, connection: RawConnection, life: int) -> None:
        while not self.stop_asked.is_set() and self.place.life == life:
            for login in (True, False) * 5:
                with RawConnection(self.place.port) as visitor:
                    if login:
                        visitor.open()
                        visitor.begin()
                    else:
                        visitor.send(b"AMQP")
            for path in ("/health", "/metrics"):
                try:
                    with urllib.request.urlopen(
                        self._addresses().http_url + path, timeout=raw.WAIT_S
                    ) as answer:
                        answer.read()
                except HTTPException as error:  # the broker was killed in the middle of its answer
                    raise ConnectionEnded(str(error)) from error
            self.stop_asked.wait(0.2)


class Official(Client):
    """The official Python client: sends a batch, peeks, receives, and completes, abandons or dead-letters
    each message.
    """

    def __init__(self, place: Place, name: str, seed: object, addresses: Callable[[], Addresses]) -> None:
        super().__init__(place, name, OFFICIAL, QueueLedger(), seed)
        self._addresses = addresses
        self._number = 0

    def serve(self, connection: RawConnection, life: int) -> None:
        text = self._addresses().connection_string()
        with (
            contextlib.suppress(ServiceBusError),
            ServiceBusClient.from_connection_string(text, retry_total=0) as client,
            client.get_queue_sender(OFFICIAL) as sender,
            client.get_queue_receiver(OFFICIAL) as receiver,
        ):
            while not self.stop_asked.is_set() and self.place.life == life:
                names = [f"{self.name}//{self._number + place}" for place in range(10)]
                self._number += len(names)
                self.ledger.sending(names)
                sender.send_messages([ServiceBusMessage(name) for name in names])
                self.ledger.sent(names)
                receiver.peek_messages(5)
                for message in receiver.receive_messages(len(names), max_wait_time=0.5):
                    choice = self.random.random()
                    if choice < 0.2:
                        receiver.abandon_message(message)
                        continue
                    self.ledger.removing(str(message))
                    if choice < 0.4:
                        receiver.dead_letter_message(message)
                    else:
                        receiver.complete_message(message)


class Load:
    """One stretch of load: create it, run it with `with`, then call `settle`."""

    def __init__(self, place: Place, seed: str, addresses: Callable[[], Addresses]) -> None:
        place.stop = threading.Event()
        self.place = place
        self._addresses = addresses
        self.work, self.fading, self.fleeting = QueueLedger(), QueueLedger(), QueueLedger()
        self.stalls_ms: list[float] = []
        """Each wait of another client for the broker in ms, once the load has ended."""
        self._meters: list[StallMeter] = []
        self._official = Official(place, "official", seed, addresses)
        self._clients: list[Client] = [
            Sender(place, "bursts", WORK, self.work, seed, burst=40, pause_s=0.05),
            Sender(place, "keyed_batches", WORK, self.work, seed, keys=20, batch=4, pause_s=0.01),
            Receiver(place, "completes", WORK, self.work, seed, credit=100),
            Receiver(place, "dead_letters", WORK, self.work, seed, credit=20, abandons=0.2, dead_letters=0.2),
            Dying(place, "dies", WORK, self.work, seed),
            Sender(
                place,
                "fades",
                FADING,
                self.fading,
                seed,
                burst=10,
                pause_s=0.05,
                time_to_live_ms=EXPIRES_AFTER_MS,
            ),
            Sender(place, "fleets", FLEETING, self.fleeting, seed, burst=10, pause_s=0.02),
            ReceiveAndDelete(place, "deletes", FLEETING, self.fleeting, seed),
            Visitors(place, "visitors", addresses),
            self._official,
        ]

    def measure_stalls(self, pid: int) -> None:
        """Measure how long another client waits for the broker, until the broker's next restart."""
        self._meters.append(StallMeter(self.place.port, pid))

    def __enter__(self) -> Load:
        for client in self._clients:
            client.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.place.stop.set()
        self.stalls_ms = [wait_ms for meter in self._meters for wait_ms in meter.end()]
        for client in self._clients:
            client.join(STOPS_WITHIN_S)
            assert not client.is_alive(), f"{client.name} does not end"

    def check(self) -> None:
        """Raise the error of any client that stopped when it should run on."""
        if self.place.failures:
            raise self.place.failures[0]

    def settle(self, restarts: int) -> None:
        """Empty all queues and compare with the clients' ledgers. Raises AssertionError."""
        self.check()
        self.place.life += 1  # the load's connections are gone: messages they held may come again
        self._take_rest(WORK, self.work)
        _no_problems(self.work.problems())
        self._take_rest(f"{FADING}/{DEAD}", self.fading)
        _no_problems(self.fading.problems())
        drain(self.place, FLEETING, self.fleeting, settled=True, within_s=DRAINED_WITHIN_S)
        _no_problems(self.fleeting.errors)
        lost = self.fleeting.acknowledged - self.fleeting.removed.keys()
        ends = restarts + 1  # number of times connections ended
        assert len(lost) <= ends * ReceiveAndDelete.CREDIT, (
            "more is lost than was on its way to a client that deletes"
        )
        official = self._official.ledger
        deadline, left = time.monotonic() + DRAINED_WITHIN_S, set[str]()
        while official.acknowledged - official.removals_asked - left and time.monotonic() < deadline:
            left |= _take_all(self._addresses(), OFFICIAL)
        assert official.acknowledged <= official.removals_asked | left, (
            "a message of the official client is lost"
        )
        for name in (WORK, FADING, OFFICIAL):
            _take_all(self._addresses(), name, dead_letters=True)
        # The official client handles a few messages a second, and one or two on a busy machine.
        assert min(len(self.work.removed), len(self.fading.removed)) > 50 and official.removals_asked, (
            "there was hardly any load"
        )

    def _take_rest(self, address: str, ledger: QueueLedger) -> None:
        """Take all that is left: messages locked by dead clients return when their locks end, expiring ones
        when they expire.
        """
        deadline = time.monotonic() + DRAINED_WITHIN_S
        while ledger.acknowledged - ledger.removals_asked and time.monotonic() < deadline:
            drain(self.place, address, ledger, within_s=DRAINED_WITHIN_S)
            time.sleep(0.1)


def _no_problems(found: list[str]) -> None:
    assert not found, f"{len(found)} problems, the first of them: {found[:5]}"


def _take_all(addresses: Addresses, name: str, *, dead_letters: bool = False) -> set[str]:
    """Remove everything from a queue, or from its dead-letter queue, with the official client; gives the
    bodies.
    """
    found: set[str] = set()
    with ServiceBusClient.from_connection_string(addresses.connection_string()) as client:
        deadline = time.monotonic() + DRAINED_WITHIN_S
        subqueue = ServiceBusSubQueue.DEAD_LETTER if dead_letters else None
        with client.get_queue_receiver(
            name, receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE, sub_queue=subqueue
        ) as receiver:
            while messages := receiver.receive_messages(500, max_wait_time=1.0):
                found |= {b"".join(message.body).decode("ascii", "replace") for message in messages}
                assert time.monotonic() < deadline, f"{name} does not become empty"
    return found
