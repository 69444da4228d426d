"""A round of load, kills and restarts, as all tests of `kill -9` have it.

`PARTIBUS_CRASH_ROUNDS` sets the number of rounds (6), `PARTIBUS_CRASH_SEED` repeats them. Everything a round
decides comes from the seed and the round's number, but not when bytes reach the disk, so a repetition will
probably, not certainly, hit the same moment.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.crash.clients import Client, Place
from tests.crash.ledger import QueueLedger
from tests.support.broker_process import BrokerProcess
from tests.support.scrapes import by_entity, metrics

ROUNDS = int(os.environ.get("PARTIBUS_CRASH_ROUNDS", "6"))
SEED = int(os.environ.get("PARTIBUS_CRASH_SEED") or secrets.randbelow(2**32))
SMALL_LOGS = {"PARTIBUS_SEGMENT_BYTES": "65536", "PARTIBUS_CHECKPOINT_BYTES": "65536"}
"""For every other round: segments roll, checkpoints are made and old segments are removed around the kill."""
CLIENTS_STOP_WITHIN_S = 15.0
TRAFFIC_WITHIN_S = 60.0


@contextmanager
def round_with_broker(
    path: Path, queues: list[dict[str, Any]], file: str, number: int, topics: Sequence[dict[str, Any]] = ()
) -> Iterator[BrokerProcess]:
    """A broker for round `number` of a test file. If the round fails, its log is shown, and how to repeat
    the round."""
    print(f"repeat: PARTIBUS_CRASH_SEED={SEED} pytest {file} -k '[{number}]'")
    environment = SMALL_LOGS if number % 2 else {}
    broker = BrokerProcess(path, queues, topics=topics, environment=environment, keeps_ports=False)
    try:
        yield broker
    except BaseException:
        print(broker.log_tail())
        raise
    finally:
        broker.kill()


@contextmanager
def at_work(place: Place, clients: Sequence[Client]) -> Iterator[None]:
    """Have clients work; in the end they are told to stop, and the error of any that stopped before is
    raised."""
    place.up.set()
    for client in clients:
        client.start()
    try:
        yield
    finally:
        place.stop.set()
        for client in clients:
            client.join(CLIENTS_STOP_WITHIN_S)
            assert not client.is_alive(), f"{client.name} does not end"
    check_clients(place)


def check_clients(place: Place) -> None:
    """Raise the error of any client that stopped when it should run on."""
    if place.failures:
        raise place.failures[0]


def wait_for_traffic(place: Place, is_enough: Callable[[], bool]) -> None:
    """Wait until the clients have done enough in this life of the broker."""
    deadline = time.monotonic() + TRAFFIC_WITHIN_S
    while not is_enough():
        check_clients(place)
        assert time.monotonic() < deadline, "no traffic"
        time.sleep(0.02)


def wait_for_load(place: Place, ledger: QueueLedger, messages: int) -> None:
    """Wait until more than this many messages of a ledger have been accepted, in all lives of the broker, so
    that a loss would show."""
    wait_for_traffic(place, lambda: len(ledger.acknowledged) > messages)


def wait_for_gauge(broker: BrokerProcess, gauge: str, counts: dict[str, int]) -> None:
    """Wait until a gauge of these queues has these values."""
    deadline = time.monotonic() + TRAFFIC_WITHIN_S
    while True:
        shown = by_entity(metrics(broker.addresses, TRAFFIC_WITHIN_S), gauge)
        found = {name: shown.get(name) for name in counts}
        if found == counts:
            return
        assert time.monotonic() < deadline, f"{gauge}: {found}, and not {counts}"
        time.sleep(0.05)


def kill_and_restart(broker: BrokerProcess, place: Place) -> None:
    """End the broker's life and begin the next."""
    broker.check_alive()
    place.up.clear()
    broker.kill()
    place.life += 1
    place.port = broker.start().amqp_port
    place.up.set()
