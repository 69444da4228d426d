"""`kill -9` at any moment loses nothing: rounds of load, kill, restart and drain, checked against the
clients' own ledgers. `rounds.py` says how to have more rounds, or repeat one.
"""

from __future__ import annotations

import time
from pathlib import Path
from random import Random

import pytest

from tests.crash.clients import Client, Place, ReceiveAndDelete, Receiver, Sender, drain
from tests.crash.ledger import QueueLedger
from tests.crash.rounds import (
    ROUNDS,
    SEED,
    at_work,
    kill_and_restart,
    round_with_broker,
    wait_for_load,
    wait_for_traffic,
)
from tests.support.broker_process import BrokerProcess, queue

WORK, ORDERED, FLEETING = "work", "ordered", "fleeting"
ENOUGH_MESSAGES = 100
"""A round has more than so many accepted and completed messages."""


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

    def traffic(self) -> list[int]:
        """How many messages each queue has accepted and delivered."""
        ledgers = (self.work, self.ordered, self.fleeting)
        return [count for each in ledgers for count in (len(each.acknowledged), len(each.removed))]

    def wait_for_traffic(self) -> None:
        """Wait until every queue has accepted and delivered messages in this life."""
        before = self.traffic()
        wait_for_traffic(
            self.place, lambda: all(now > then for now, then in zip(self.traffic(), before, strict=True))
        )


@pytest.mark.parametrize("number", range(ROUNDS))
def test_a_kill_at_any_moment_loses_nothing_acknowledged_and_shows_nothing_settled(
    number: int, tmp_path: Path
) -> None:
    seed = f"{SEED}/{number}"
    random = Random(seed)
    queues = [queue(name, MaxDeliveryCount=2_000) for name in (WORK, ORDERED, FLEETING)]
    with round_with_broker(tmp_path, queues, "tests/crash/test_kill.py", number) as broker:
        run(broker, seed, kills=random.choice((1, 1, 2)), random=random)


def run(broker: BrokerProcess, seed: str, *, kills: int, random: Random) -> None:
    """One round."""
    place = Place(broker.start().amqp_port)
    this = Round(place, seed)
    with at_work(place, this.clients):
        for _ in range(kills):
            this.wait_for_traffic()
            time.sleep(random.uniform(0.0, 0.7))  # the moment of the kill: any will do
            kill_and_restart(broker, place)
        this.wait_for_traffic()
        wait_for_load(place, this.work, ENOUGH_MESSAGES)
        wait_for_traffic(place, lambda: len(this.work.removed) > ENOUGH_MESSAGES)
    kill_and_restart(broker, place)  # kill while locks are held
    check(place, this, kills + 1)
    broker.check_alive()


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
