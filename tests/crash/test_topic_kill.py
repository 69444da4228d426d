"""`kill -9` with a topic in the load: no subscription misses or repeats an acknowledged message, whatever its
receivers do, and messages that were dead-lettered stay in their own subscription.
"""

from __future__ import annotations

import time
from pathlib import Path
from random import Random

import pytest

from tests.crash.clients import Client, Place, Receiver, Sender, drain
from tests.crash.ledger import QueueLedger
from tests.crash.rounds import ROUNDS, SEED, at_work, kill_and_restart, round_with_broker, wait_for_traffic
from tests.support.broker_process import topic

TOPIC, NAMES = "events", ("one", "two", "three")


class Round:
    """The clients of one round. Each subscription has a ledger; what was sent is the same in all."""

    def __init__(self, place: Place, seed: str) -> None:
        self.place = place
        sent = QueueLedger()
        self.ledgers = {
            name: QueueLedger(attempted=sent.attempted, acknowledged=sent.acknowledged, due_ms=sent.due_ms)
            for name in NAMES
        }
        one, two, three = (path_of(name) for name in NAMES)
        self.clients: list[Client] = [
            Sender(place, "awaits", TOPIC, sent, seed, keys=4),
            Sender(place, "bursts", TOPIC, sent, seed, burst=20),
            Sender(place, "batches", TOPIC, sent, seed, keys=3, batch=4),
            Sender(place, "later", TOPIC, sent, seed, pause_s=0.05, later_ms=400),
            Receiver(place, "completes", one, self.ledgers["one"], seed, credit=60),
            Receiver(place, "abandons", two, self.ledgers["two"], seed, credit=20, abandons=0.3),
            Receiver(place, "dead_letters", two, self.ledgers["two"], seed, credit=5, dead_letters=0.2),
            Receiver(place, "slow", three, self.ledgers["three"], seed, credit=1),
        ]


def path_of(subscription: str) -> str:
    return f"{TOPIC}/Subscriptions/{subscription}"


@pytest.mark.parametrize("number", range(min(ROUNDS, 2)))
def test_a_kill_at_any_moment_costs_no_subscription_a_message(number: int, tmp_path: Path) -> None:
    seed = f"{SEED}/{number}"
    topics = [topic(TOPIC, NAMES, MaxDeliveryCount=2_000)]
    with round_with_broker(tmp_path, [], "tests/crash/test_topic_kill.py", number, topics) as broker:
        place = Place(broker.start().amqp_port)
        this = Round(place, seed)
        with at_work(place, this.clients):
            wait_for_more(this)
            time.sleep(Random(seed).uniform(0.0, 0.7))  # the moment of the kill: any will do
            kill_and_restart(broker, place)
            wait_for_more(this)
        kill_and_restart(broker, place)  # kill while locks are held
        check(place, this)
        broker.check_alive()


def wait_for_more(this: Round) -> None:
    """Wait until every subscription has delivered messages in this life."""
    before = {name: len(ledger.removed) for name, ledger in this.ledgers.items()}
    wait_for_traffic(
        this.place, lambda: all(len(this.ledgers[name].removed) > count for name, count in before.items())
    )


def check(place: Place, this: Round) -> None:
    """Drain every subscription and compare it with its ledger."""
    for name, ledger in this.ledgers.items():
        drain(place, path_of(name), ledger)
        assert ledger.problems() == [], name
    two = this.ledgers["two"]
    dead = QueueLedger(attempted=two.dead_lettering)
    drain(place, f"{path_of('two')}/$deadletterqueue", dead)
    assert dead.errors == []
    assert two.dead_lettered <= dead.removed.keys(), "a confirmed dead-lettering is lost"
    assert not (two.removed.keys() - two.dead_lettered) & dead.removed.keys()
