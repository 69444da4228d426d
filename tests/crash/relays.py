"""Clients that relay a few messages for ever: a transaction completes message n of a key and sends message
n + 1 of that key. So there is exactly one message of each key at any time. A transaction that was half
applied would leave two of them, or none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

from protocol.codec import Described, ULong
from tests.crash.clients import Client, Place
from tests.crash.ledger import QueueLedger
from tests.crash.rounds import wait_for_traffic
from tests.support import raw_amqp as raw
from tests.support.amqp_messages import DATA, message, sections
from tests.support.raw_amqp import Frame, RawConnection
from tests.support.transactions import DECLARED, coordinator_attach, declare, discharge, state_of

KEYS = ("a", "b", "c")
PARTITIONS = 4
SENDER, RECEIVER, COORDINATOR = range(3)
PAGE = 500


class Relay(Client):
    """Relays the messages of its own queue."""

    def __init__(self, place: Place, number: int, seed: object) -> None:
        super().__init__(place, f"relay-{number}", f"relay-{number}", QueueLedger(), seed)
        self.target = self.queue
        """Where the messages are sent: the queue itself, or the topic of a subscription."""
        self.committed = dict.fromkeys(KEYS, 0)
        """By key: the last message whose transaction was confirmed."""
        self.attempted = dict.fromkeys(KEYS, 0)
        """By key: the last message whose commit was asked for."""
        self.commits = self.roll_backs = 0
        self._number = 0

    def begin(self, port: int) -> None:
        """Send the first message of each key."""
        with RawConnection(port) as connection:
            connection.open()
            connection.begin()
            connection.attach_sender(SENDER, self.target)
            for number, key in enumerate(KEYS):
                payload = message_of(key, 0)
                connection.send_frame(raw.TRANSFER, raw.transfer_fields(SENDER, number), payload)
                assert connection.read_until(raw.DISPOSITION).field(4).descriptor == raw.ACCEPTED

    def serve(self, connection: RawConnection, life: int) -> None:
        connection.attach_sender(SENDER, self.target)
        connection.attach_receiver(RECEIVER, self.queue)
        assert connection.attach(coordinator_attach(COORDINATOR)).code == raw.ATTACH
        connection.read_until(raw.FLOW)
        self.attach_more(connection)
        self._number = 0
        delivery = 0
        while not self.stop_asked.is_set():
            connection.send_frame(raw.FLOW, raw.flow_fields(RECEIVER, delivery, 1))
            found = connection.read_until(raw.TRANSFER)
            delivery += 1
            self.work(connection, found)

    def attach_more(self, connection: RawConnection) -> None:
        """Attach the links that a subclass needs besides."""

    def work(self, connection: RawConnection, found: Frame) -> None:
        """Relay a message that was received."""
        key, number = text_of(found.payload)
        if not self.committed[key] <= number <= self.attempted[key]:
            raise AssertionError(
                f"message {number} of {key} came after {self.committed[key]} was committed "
                f"and {self.attempted[key]} attempted"
            )
        if self.random.random() < 0.2:
            self.roll_back(connection, key)
        self.relay(connection, key, number, found.field(1))

    def relay(self, connection: RawConnection, key: str, number: int, delivery_id: int) -> None:
        """Replace a message by the next one, in a transaction."""
        txn_id = self.declare(connection)
        sends_first = self.random.random() < 0.5
        if sends_first:
            self.send(connection, txn_id, key, number + 1)
        self.complete(connection, txn_id, delivery_id)
        if not sends_first:
            self.send(connection, txn_id, key, number + 1)
        self.attempted[key] = number + 1
        assert self.discharge(connection, txn_id, fail=False).descriptor == raw.ACCEPTED
        self.committed[key] = number + 1
        self.commits += 1

    def roll_back(self, connection: RawConnection, key: str) -> None:
        """Send something that nobody must ever see."""
        txn_id = self.declare(connection)
        self.send(connection, txn_id, key, 1 << 40)
        assert self.discharge(connection, txn_id, fail=True).descriptor == raw.ACCEPTED
        self.roll_backs += 1

    def declare(self, connection: RawConnection) -> bytes:
        answer = self.ask(connection, COORDINATOR, declare())
        assert answer.descriptor == DECLARED
        return bytes(answer.value[0])

    def discharge(self, connection: RawConnection, txn_id: bytes, *, fail: bool) -> Any:
        return self.ask(connection, COORDINATOR, discharge(txn_id, fail))

    def send(self, connection: RawConnection, txn_id: bytes, key: str, number: int) -> None:
        answer = self.ask(connection, SENDER, message_of(key, number), state=state_of(txn_id))
        assert answer.descriptor == raw.TRANSACTIONAL

    def complete(self, connection: RawConnection, txn_id: bytes, delivery_id: int) -> None:
        outcome = state_of(txn_id, Described(ULong(raw.ACCEPTED), []))
        fields = raw.disposition_fields(True, delivery_id, delivery_id, False, outcome)
        connection.send_frame(raw.DISPOSITION, fields)
        assert connection.read_until(raw.DISPOSITION).field(4).descriptor == raw.TRANSACTIONAL

    def ask(self, connection: RawConnection, handle: int, payload: bytes, **given: Any) -> Any:
        """Send a message; gives its outcome."""
        connection.send_frame(raw.TRANSFER, raw.transfer_fields(handle, self._number, **given), payload)
        self._number += 1
        return connection.read_until(raw.DISPOSITION).field(4)

    def check(self, port: int) -> None:
        """There is one message of each key, and it is one that may be there."""
        left: dict[str, list[int]] = {key: [] for key in KEYS}
        for payload in self.left(port):
            key, number = text_of(payload)
            left[key].append(number)
        self.check_left(left)

    def left(self, port: int) -> Iterator[bytes]:
        """The messages in the queue."""
        return messages_in(port, self.queue)

    def check_left(self, left: dict[str, list[int]]) -> None:
        for key, numbers in left.items():
            assert len(numbers) == 1, f"{self.name}: there are {numbers} of {key}"
            assert self.committed[key] <= numbers[0] <= self.attempted[key]


def messages_in(port: int, queue: str) -> Iterator[bytes]:
    """All messages of a queue, without settling them."""
    with RawConnection(port) as connection:
        connection.open()
        connection.begin()
        connection.attach_receiver(RECEIVER, queue)
        for begin in count(0, PAGE):
            connection.send_frame(raw.FLOW, raw.flow_fields(RECEIVER, begin, PAGE, drain=True))
            seen = 0
            while seen < PAGE:
                found = connection.read_until(raw.TRANSFER, raw.FLOW)
                if found.code == raw.FLOW:
                    break
                seen += 1
                yield found.payload
            if not seen:
                return


def message_of(key: str, number: int) -> bytes:
    return message(annotations={"x-opt-partition-key": key}, body=[f"{key}/{number}".encode()])


def text_of(payload: bytes) -> tuple[str, int]:
    key, number = bytes(sections(payload)[DATA]).decode().split("/")
    return key, int(number)


def wait_for_commits(place: Place, relays: Sequence[Relay]) -> None:
    """Wait until every client has committed and rolled back in this life."""
    before = [(relay.commits, relay.roll_backs) for relay in relays]
    wait_for_traffic(
        place,
        lambda: all(
            relay.commits >= commits + 3 and relay.roll_backs > roll_backs
            for relay, (commits, roll_backs) in zip(relays, before, strict=True)
        ),
    )
