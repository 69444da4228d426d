"""`kill -9` between any two steps of a transaction: it has happened as a whole, or not at all.

`relays.py` has the clients; `rounds.py` says how to have more rounds, or repeat one.
"""

from __future__ import annotations

import time
from pathlib import Path
from random import Random

import pytest

from tests.crash.clients import Place
from tests.crash.relays import PARTITIONS, Relay, wait_for_commits
from tests.crash.rounds import ROUNDS, SEED, at_work, kill_and_restart, round_with_broker
from tests.support.broker_process import BrokerProcess, queue

CLIENTS = 3


@pytest.mark.parametrize("number", range(max(ROUNDS // 10, 1)))
def test_a_kill_at_any_moment_never_halves_a_transaction(number: int, tmp_path: Path) -> None:
    seed = f"{SEED}/transactions/{number}"
    queues = [queue(f"relay-{each}", PartitionCount=PARTITIONS) for each in range(CLIENTS)]
    with round_with_broker(tmp_path, queues, "tests/crash/test_kill_transactions.py", number) as broker:
        run(broker, seed, Random(seed))


def run(broker: BrokerProcess, seed: str, random: Random) -> None:
    """One round with several kills."""
    place = Place(broker.start().amqp_port)
    relays = [Relay(place, number, seed) for number in range(CLIENTS)]
    for relay in relays:
        relay.begin(place.port)
    with at_work(place, relays):
        for _ in range(2):
            wait_for_commits(place, relays)
            time.sleep(random.uniform(0.0, 0.3))  # the moment of the kill: any will do
            kill_and_restart(broker, place)
        wait_for_commits(place, relays)
        time.sleep(random.uniform(0.0, 0.1))
        place.up.clear()
        broker.kill()
    port = broker.start().amqp_port
    for relay in relays:
        print(f"{relay.name}: {relay.commits} committed, {relay.roll_backs} rolled back")
        relay.check(port)
    broker.check_alive()
