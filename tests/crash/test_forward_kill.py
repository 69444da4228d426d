"""`kill -9` while messages are forwarded through a chain of queues: each one that was acknowledged arrives
at the end exactly once, those of a key in order. So do dead letters at the queue that they are forwarded to.
`rounds.py` says how to have more rounds, or repeat one.
"""

from __future__ import annotations

import time
from pathlib import Path
from random import Random

import pytest

from tests.crash.clients import Client, Place, Receiver, Sender, drain
from tests.crash.ledger import QueueLedger
from tests.crash.rounds import (
    ROUNDS,
    SEED,
    at_work,
    kill_and_restart,
    round_with_broker,
    wait_for_gauge,
    wait_for_load,
    wait_for_traffic,
)
from tests.support.broker_process import BrokerProcess, queue

FIRST, MIDDLE, LAST, DEAD = "first", "middle", "last", "dead"
QUEUES = [
    queue(FIRST, PartitionCount=4, ForwardTo=MIDDLE),
    queue(MIDDLE, Partitioned=False, ForwardTo=LAST),
    queue(LAST, PartitionCount=3, ForwardDeadLetteredMessagesTo=DEAD),
    queue(DEAD, PartitionCount=2),
]


@pytest.mark.parametrize("number", range(max(ROUNDS // 10, 1)))
def test_a_kill_at_any_moment_neither_loses_nor_doubles_a_forwarded_message(
    number: int, tmp_path: Path
) -> None:
    seed = f"{SEED}/forward/{number}"
    with round_with_broker(tmp_path, QUEUES, "tests/crash/test_forward_kill.py", number) as broker:
        run(broker, seed, Random(seed))


def run(broker: BrokerProcess, seed: str, random: Random) -> None:
    """One round with several kills."""
    place = Place(broker.start().amqp_port)
    ledger = QueueLedger()
    clients: list[Client] = [
        Sender(place, "keyed", FIRST, ledger, seed, keys=5),
        Sender(place, "bursts", FIRST, ledger, seed, burst=30, pause_s=0.02),
        Receiver(place, "receives", LAST, ledger, seed, credit=20, dead_letters=0.2),
    ]
    with at_work(place, clients):
        for _ in range(2):
            wait_for_more(place, ledger)
            time.sleep(random.uniform(0.0, 0.3))  # the moment of the kill: any will do
            kill_and_restart(broker, place)
        wait_for_more(place, ledger)
        wait_for_load(place, ledger, 50)
        wait_for_traffic(place, lambda: bool(ledger.dead_lettered))
    kill_and_restart(broker, place)
    wait_until_forwarded(broker)
    drain(place, LAST, ledger)
    assert ledger.problems() == []
    dead = QueueLedger(attempted=ledger.dead_lettering)
    drain(place, DEAD, dead)
    assert dead.problems() == []
    completed = ledger.removed.keys() - ledger.dead_lettered
    assert ledger.dead_lettered <= dead.removed.keys(), "a confirmed dead-lettering is lost"
    assert not completed & dead.removed.keys(), "what was completed is a dead letter as well"
    for name in (LAST, DEAD, f"{FIRST}/$deadletterqueue", f"{MIDDLE}/$deadletterqueue"):
        assert drain(place, name, QueueLedger()) == 0, name
    broker.check_alive()


def wait_for_more(place: Place, ledger: QueueLedger) -> None:
    """Wait until messages were accepted and removed in this life."""
    acknowledged, removed = len(ledger.acknowledged) + 20, len(ledger.removed) + 20
    wait_for_traffic(
        place, lambda: len(ledger.acknowledged) >= acknowledged and len(ledger.removed) >= removed
    )


def wait_until_forwarded(broker: BrokerProcess) -> None:
    """Wait until nothing is on its way."""
    wait_for_gauge(broker, "messages", {FIRST: 0, MIDDLE: 0})
    wait_for_gauge(broker, "dead_letter_messages", {LAST: 0})
