"""`kill -9` at any moment loses nothing: rounds of load, kill, restart and drain, checked against the
clients' own ledgers.

`PARTIBUS_CRASH_ROUNDS` sets the number of rounds (10), `PARTIBUS_CRASH_SEED` repeats them. Everything a round
decides comes from the seed and the round's number, but not when bytes reach the disk, so a repetition will
probably, not certainly, hit the same moment.
"""

from __future__ import annotations

import os
import secrets
import time
from pathlib import Path
from random import Random

import pytest

from tests.crash.clients import Client, Place, ReceiveAndDelete, Receiver, Sender, drain
from tests.crash.ledger import QueueLedger
from tests.support.broker_process import BrokerProcess, queue

ROUNDS = int(os.environ.get("PARTIBUS_CRASH_ROUNDS", "10"))
SEED = int(os.environ.get("PARTIBUS_CRASH_SEED") or secrets.randbelow(2**32))
WORK, ORDERED, FLEETING = "work", "ordered", "fleeting"
SMALL_LOGS = {"PARTIBUS_SEGMENT_BYTES": "65536", "PARTIBUS_CHECKPOINT_BYTES": "65536"}
"""For every other round: segments roll, checkpoints are made and old segments are removed around the kill."""
CLIENTS_STOP_WITHIN_S = 15.0


class Round:
    """The clients of one round and their ledgers."""

    def __init__(self, place: Place, seed: str) -> None:
        self.place = place
        self.work, self.ordered, self.fleeting = QueueLedger(), QueueLedger(), QueueLedger()
        self.clients: list[Client] = [
            Sender(place, "awaits", WORK, self.work, seed, keys=6),
            Sender(place, "bursts", WORK, self.work, seed, burst=40),
            Sender(place, "batches", WORK, self.work, seed, batch=5),
            Sender(place, "keyed_batches", WORK, self.work, seed, keys=3, batch=4),
            Receiver(place, "completes", WORK, self.work, seed, credit=60),
            Receiver(place, "abandons", WORK, self.work, seed, credit=20, abandons=0.3),
            Receiver(place, "dead_letters", WORK, self.work, seed, credit=5, abandons=0.05, dead_letters=0.2),
            Sender(place, "in_order", ORDERED, self.ordered, seed, keys=4),
            Receiver(place, "one_reader", ORDERED, self.ordered, seed, credit=10),
            Sender(place, "fleets", FLEETING, self.fleeting, seed, burst=10),
            ReceiveAndDelete(place, "deletes", FLEETING, self.fleeting, seed),
        ]

    def check_alive(self) -> None:
        """Raise the error of any client that stopped when it should run on."""
        if self.place.failures:
            raise self.place.failures[0]

    def stop(self) -> None:
        self.place.stop.set()
        for client in self.clients:
            client.join(CLIENTS_STOP_WITHIN_S)
            assert not client.is_alive(), f"{client.name} does not end"


@pytest.mark.parametrize("number", range(ROUNDS))
def test_a_kill_at_any_moment_loses_nothing_acknowledged_and_shows_nothing_settled(
    number: int, tmp_path: Path
) -> None:
    seed = f"{SEED}/{number}"
    print(f"repeat: PARTIBUS_CRASH_SEED={SEED} pytest tests/crash/test_kill.py -k '[{number}]'")
    random = Random(seed)
    queues = [queue(name, MaxDeliveryCount=2_000) for name in (WORK, ORDERED, FLEETING)]
    broker = BrokerProcess(tmp_path, queues, environment=SMALL_LOGS if number % 2 else {}, keeps_ports=False)
    try:
        run(broker, seed, kills=random.choice((1, 1, 2)), random=random)
    except BaseException:
        print(broker.log_tail())
        raise
    finally:
        broker.kill()


def run(broker: BrokerProcess, seed: str, *, kills: int, random: Random) -> None:
    """One round."""
    place = Place(broker.start().amqp_port)
    place.up.set()
    this = Round(place, seed)
    for client in this.clients:
        client.start()
    try:
        for _ in range(kills):
            wait_for_traffic(this)
            time.sleep(random.uniform(0.0, 0.7))  # the moment of the kill: any will do
            kill_and_restart(broker, place)
        wait_for_traffic(this)
    finally:
        this.stop()
    this.check_alive()
    kill_and_restart(broker, place)  # kill while locks are held
    check(place, this, kills + 1)
    broker.check_alive()


def kill_and_restart(broker: BrokerProcess, place: Place) -> None:
    """End the broker's life and begin the next."""
    broker.check_alive()
    place.up.clear()
    broker.kill()
    place.life += 1
    place.port = broker.start().amqp_port
    place.up.set()


def wait_for_traffic(this: Round) -> None:
    """Wait until every queue has accepted and delivered messages in this life."""
    acknowledged = [len(ledger.acknowledged) for ledger in (this.work, this.ordered, this.fleeting)]
    removed = [len(ledger.removed) for ledger in (this.work, this.ordered, this.fleeting)]
    deadline = time.monotonic() + 15.0
    while True:
        this.check_alive()
        ledgers = (this.work, this.ordered, this.fleeting)
        if all(
            len(ledger.acknowledged) > before for ledger, before in zip(ledgers, acknowledged, strict=True)
        ) and all(len(ledger.removed) > before for ledger, before in zip(ledgers, removed, strict=True)):
            return
        assert time.monotonic() < deadline, "no traffic"
        time.sleep(0.02)


def check(place: Place, this: Round, kills: int) -> None:
    """Drain everything and compare it with the ledgers."""
    for name, ledger in ((WORK, this.work), (ORDERED, this.ordered)):
        drain(place, name, ledger)
        assert ledger.problems() == []
    assert this.ordered.delivery_order_problems() == []
    dead = QueueLedger(attempted=this.work.dead_lettering)
    drain(place, f"{WORK}/$deadletterqueue", dead)
    assert dead.errors == []
    completed = this.work.removed.keys() - this.work.dead_lettered
    assert this.work.dead_lettered <= dead.removed.keys(), "a confirmed dead-lettering is lost"
    assert not completed & dead.removed.keys(), "what was completed is in the dead-letter queue as well"
    drain(place, FLEETING, this.fleeting, settled=True)
    assert this.fleeting.errors == []
    lost = this.fleeting.acknowledged - this.fleeting.removed.keys()
    assert len(lost) <= kills * ReceiveAndDelete.CREDIT, (
        "more is lost than was on its way to a client that deletes"
    )
    for name in (WORK, ORDERED, FLEETING, f"{WORK}/$deadletterqueue"):
        assert drain(place, name, QueueLedger()) == 0, "what was drained is there again"
    assert len(this.work.acknowledged) > 100 and len(this.work.removed) > 100, "the round had hardly any load"
