"""`kill -9` while a client writes numbered batches, reads ranges, and moves a cursor that completes what was
read: each batch is there once, as a whole, and the cursor stands where its messages begin.

`PARTIBUS_CRASH_ROUNDS` and `PARTIBUS_CRASH_SEED` are those of `rounds.py`; there is one round here for ten
rounds there.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest
from proton import ConnectionException, Message, ProtonException, symbol
from proton.utils import BlockingConnection

from tests.crash.rounds import ROUNDS, SEED, round_with_broker
from tests.interop.own_management import Management, longs
from tests.interop.proton_blocking import connected
from tests.interop.range_reading import read
from tests.support.broker_process import BrokerProcess, queue

QUEUE = "streams"
KEYS = ("a", "b", "c")
SIZE = 3
KILLS = 3
STOPS_WITHIN_S = 30.0
OWNED = {"cursor": "reader", "owner": "me"}


@dataclass
class Part:
    """What the client knows of one partition."""

    position: int
    """Where the cursor stands, as confirmed …"""
    moving_to: int
    """… and where it was asked to go last."""
    taken: list[str] = field(default_factory=list)
    """Messages before `position`, in order."""
    taking: list[str] = field(default_factory=list)
    """Messages between `position` and `moving_to`."""


class Load:
    """One client, until the broker is killed, and again in the broker's next life."""

    def __init__(self) -> None:
        self.parts: dict[int, Part] = {}
        self.number = 0
        """The batch to write next. It may have been written before the kill."""
        self.confirmed: list[str] = []
        """The messages of all batches that were acknowledged."""
        self.failures: list[BaseException] = []

    def run(self, broker: BrokerProcess, killed: threading.Event) -> threading.Thread:
        thread = threading.Thread(target=self._run, args=(broker, killed), daemon=True)
        thread.start()
        return thread

    def _run(self, broker: BrokerProcess, killed: threading.Event) -> None:
        try:
            with connected(broker.addresses) as connection:
                self.work(connection)
        except (ConnectionException, ProtonException, OSError) as error:
            if not killed.wait(STOPS_WITHIN_S):
                self.failures.append(error)
        except BaseException as error:
            self.failures.append(error)

    def work(self, connection: BlockingConnection) -> None:
        node = Management(connection, QUEUE)
        self.look(connection, node)
        while True:
            self.write(node)
            if self.number % 4 == 0:
                for number in self.parts:
                    self.take(connection, node, number)

    def write(self, node: Management) -> None:
        """Write the next batch."""
        number, key = self.number, KEYS[self.number % len(KEYS)]
        texts = [f"{number}/{place}" for place in range(SIZE)]
        messages = [
            Message(
                id=text, body=text.encode(), inferred=True, annotations={symbol("x-opt-partition-key"): key}
            ).encode()
            for text in texts
        ]
        answer = asked(node, "send-messages", messages=messages, sink=f"sink of {key}", batch=number)
        assert answer["batch"] == number and answer["accepted"] == (SIZE if answer["committed"] else 0)
        self.confirmed += texts
        self.number += 1

    def take(self, connection: BlockingConnection, node: Management, number: int) -> None:
        """Read what is new in a partition, and complete it."""
        part = self.parts[number]
        envelopes = read(connection, QUEUE, from_=part.position, messages=10)
        part.taking = [body.decode() for each in envelopes for body in each.bodies]
        part.moving_to = envelopes[-1].fields["next"]
        moved = asked(node, "advance-cursor", **OWNED, positions=longs([part.moving_to]), complete=True)
        assert (moved["positions"], moved["locked"]) == ([part.moving_to], [0])
        self.moved(part)

    def moved(self, part: Part) -> None:
        part.taken += part.taking
        part.taking, part.position = [], part.moving_to

    def look(self, connection: BlockingConnection, node: Management) -> None:
        """See what is left after a kill: the cursor stands where it was confirmed or where it was asked to
        go, and the messages begin exactly there."""
        made = asked(node, "create-cursor", **OWNED, start="earliest")
        found = asked(node, "get-positions", cursor="reader")
        for number, position in zip(made["partitions"], made["positions"], strict=True):
            part = self.parts.setdefault(number, Part(position, position))
            assert position in (part.position, part.moving_to)
            if position == part.moving_to:
                self.moved(part)
            part.taking, part.moving_to = [], part.position
            assert found["starts"][number] in (position, found["heads"][number]), "nothing before is left"
            (*_, last) = read(connection, QUEUE, from_=position)
            assert last.fields["missing"] == 0, "and nothing behind is gone"

    def everything(self, connection: BlockingConnection) -> list[str]:
        """All messages that were taken, or are left."""
        texts: list[str] = []
        for part in self.parts.values():
            texts += part.taken
            for envelope in read(connection, QUEUE, from_=part.position):
                texts += [body.decode() for body in envelope.bodies]
        return texts

    def check(self, connection: BlockingConnection) -> None:
        """Compare with what was acknowledged: each message once, those of each key in order."""
        self.look(connection, Management(connection, QUEUE))
        texts = self.everything(connection)
        unconfirmed = [f"{self.number}/{place}" for place in range(SIZE)]
        assert sorted(texts) in (sorted(self.confirmed), sorted(self.confirmed + unconfirmed))
        for remainder in range(len(KEYS)):
            numbers = [int(text.split("/")[0]) for text in texts]
            of_key = [number for number in numbers if number % len(KEYS) == remainder]
            assert of_key == sorted(of_key)


def asked(node: Management, operation: str, **body: Any) -> dict[str, Any]:
    status, answer = node.ask(f"partibus:{operation}", **body)
    assert status == 200, (operation, answer)
    return answer


@pytest.mark.parametrize("number", range(1, max(ROUNDS // 10, 1) + 1))
def test_batches_cursors_and_what_was_completed_survive_kill_9(tmp_path: Path, number: int) -> None:
    random = Random(f"{SEED}/streams/{number}")
    queues = [queue(QUEUE, PartitionCount=2, EnablePartitioning=True)]
    load = Load()
    with round_with_broker(tmp_path, queues, "tests/crash/test_stream_kill.py", number) as broker:
        broker.start()
        for _ in range(KILLS):
            killed = threading.Event()
            thread = load.run(broker, killed)
            thread.join(0.7 + random.random())  # the moment of the kill: any will do
            broker.kill()
            killed.set()
            thread.join(STOPS_WITHIN_S)
            assert not thread.is_alive()
            assert not load.failures, f"seed {SEED}: {load.failures[0]!r}"
            broker.start()
            with connected(broker.addresses) as connection:
                load.check(connection)
    assert load.number > KILLS and any(part.taken for part in load.parts.values()), "too little was done"
