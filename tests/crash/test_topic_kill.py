"""`kill -9` with topics in the load: no subscription misses or repeats an acknowledged message, whatever its
receivers, its rules and its forwarding do, and messages that were dead-lettered stay in their own
subscription. The messages of a session come in order. A transaction that takes a message from a subscription
and publishes the next one is never half applied, in no subscription.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.crash import rounds
from tests.crash.clients import Client, Place, Receiver, Sender, drain, session_of
from tests.crash.ledger import QueueLedger, key_of
from tests.crash.relays import KEYS, Relay, messages_in, text_of, wait_for_commits
from tests.support.broker_process import queue, topic

TOPIC, NAMES = "events", ("one", "two", "three", "copied", "forwards", "sessions")
ARCHIVE = "archive"
"""The queue to which the subscription "forwards" forwards."""
IN_SESSIONS = "in_sessions"
"""The sender whose messages have sessions."""
SESSIONS = [session_of(IN_SESSIONS, f"k{number}") for number in range(3)]
OF_SESSIONS = {"FilterType": "Sql", "SqlFilter": {"SqlExpression": "sys.SessionId IS NOT NULL"}}
COPYING = {
    "FilterType": "Sql",
    "SqlFilter": {"SqlExpression": "sys.MessageId LIKE '%/%'"},
    "Action": {"SqlExpression": "SET copied = TRUE"},
}
RELAYED = topic("relayed", ["relay", "log"], MaxDeliveryCount=2_000)
"""The topic of transactions."""
RELAY, LOG = "relayed/Subscriptions/relay", "relayed/Subscriptions/log"


def events() -> dict[str, Any]:
    """The topic in the format of the configuration file."""
    described: dict[str, Any] = topic(TOPIC, NAMES, MaxDeliveryCount=2_000)
    *_, copied, forwards, sessions = described["Subscriptions"]
    copied["Rules"] = [{"Name": "copy", "Properties": COPYING}]
    forwards["Properties"] = {"ForwardTo": ARCHIVE}
    sessions["Properties"] = {"RequiresSession": True, "MaxDeliveryCount": 2_000}
    sessions["Rules"] = [{"Name": "of_sessions", "Properties": OF_SESSIONS}]
    return described


class TopicRelay(Relay):
    """Takes the messages from a subscription and sends them to its topic."""

    def __init__(self, place: Place, seed: str) -> None:
        super().__init__(place, 0, seed)
        self.queue, self.target = RELAY, "relayed"

    def check_left(self, left: dict[str, list[int]]) -> None:
        """As for a queue; another subscription has every message that was committed, in order."""
        super().check_left(left)
        logged: dict[str, list[int]] = {key: [] for key in KEYS}
        for key, number in map(text_of, messages_in(self.place.port, LOG)):
            logged[key].append(number)
        assert logged == {key: list(range(number + 1)) for key, (number,) in left.items()}


class Round:
    """The clients of one round. Each subscription has a ledger; what was sent is the same in all."""

    def __init__(self, place: Place, seed: str) -> None:
        self.place = place
        sent = QueueLedger()
        self.ledgers = {
            name: QueueLedger(attempted=sent.attempted, acknowledged=sent.acknowledged, due_ms=sent.due_ms)
            for name in NAMES
        }
        one, two, three, copied, _, sessions = (path_of(name) for name in NAMES)
        self.relay = TopicRelay(place, seed)
        self.clients: list[Client] = [
            Sender(place, "awaits", TOPIC, sent, seed, keys=4),
            Sender(place, "bursts", TOPIC, sent, seed, burst=20),
            Sender(place, "batches", TOPIC, sent, seed, keys=3, batch=4),
            Sender(place, IN_SESSIONS, TOPIC, sent, seed, keys=len(SESSIONS), in_sessions=True, burst=3),
            Sender(place, "later", TOPIC, sent, seed, pause_s=0.05, later_ms=400),
            Receiver(place, "completes", one, self.ledgers["one"], seed, credit=60),
            Receiver(place, "abandons", two, self.ledgers["two"], seed, credit=20, abandons=0.3),
            Receiver(place, "dead_letters", two, self.ledgers["two"], seed, credit=5, dead_letters=0.2),
            Receiver(place, "slow", three, self.ledgers["three"], seed, credit=1),
            Receiver(place, "copies", copied, self.ledgers["copied"], seed, credit=40),
            Receiver(place, "archives", ARCHIVE, self.ledgers["forwards"], seed, credit=40),
            *(
                Receiver(place, session, sessions, self.ledgers["sessions"], seed, credit=10, session=session)
                for session in SESSIONS
            ),
            self.relay,
        ]


def path_of(subscription: str) -> str:
    return f"{TOPIC}/Subscriptions/{subscription}"


@pytest.mark.parametrize("number", range(max(rounds.ROUNDS // 5, 1)))
def test_a_kill_at_any_moment_costs_no_subscription_a_message(number: int, tmp_path: Path) -> None:
    seed = f"{rounds.SEED}/{number}"
    queues, topics = [queue(ARCHIVE, PartitionCount=3)], [events(), RELAYED]
    with rounds.round_with_broker(
        tmp_path, queues, "tests/crash/test_topic_kill.py", number, topics
    ) as broker:
        place = Place(broker.start().amqp_port)
        this = Round(place, seed)
        this.relay.begin(place.port)
        with rounds.at_work(place, this.clients):
            wait_for_more(this)
            time.sleep(Random(seed).uniform(0.0, 0.7))  # the moment of the kill: any will do
            rounds.kill_and_restart(broker, place)
            wait_for_more(this)
        rounds.kill_and_restart(broker, place)  # kill while locks are held
        rounds.wait_for_gauge(broker, "messages", {path_of("forwards"): 0})
        check(place, this)
        broker.check_alive()


def wait_for_more(this: Round) -> None:
    """Wait until every subscription has delivered messages, and the relay has committed, in this life."""
    before = {name: len(ledger.removed) for name, ledger in this.ledgers.items()}
    rounds.wait_for_traffic(
        this.place, lambda: all(len(this.ledgers[name].removed) > count for name, count in before.items())
    )
    wait_for_commits(this.place, [this.relay])


def check_sessions(place: Place, ledger: QueueLedger) -> None:
    """Drain the subscription that requires sessions. It has only messages of sessions, each session in the
    order of sending."""
    for session in SESSIONS:
        drain(place, path_of("sessions"), ledger, session=session)
    acknowledged = {each for each in ledger.acknowledged if key_of(each)[0] in SESSIONS}
    ledger = replace(ledger, acknowledged=acknowledged)
    assert ledger.problems() + ledger.delivery_order_problems() == []
    assert {key_of(each)[0] for each in ledger.removed} == {*SESSIONS}


def check(place: Place, this: Round) -> None:
    """Drain every subscription and compare it with its ledger."""
    check_sessions(place, this.ledgers.pop("sessions"))
    for name, ledger in this.ledgers.items():
        drain(place, ARCHIVE if name == "forwards" else path_of(name), ledger)
        assert ledger.problems() == [], name
    this.relay.check(place.port)
    two = this.ledgers["two"]
    dead = QueueLedger(attempted=two.dead_lettering)
    drain(place, f"{path_of('two')}/$deadletterqueue", dead)
    assert dead.errors == []
    assert two.dead_lettered <= dead.removed.keys(), "a confirmed dead-lettering is lost"
    assert not (two.removed.keys() - two.dead_lettered) & dead.removed.keys()
