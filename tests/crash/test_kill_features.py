"""`kill -9` while clients use message sessions, schedules, transactions and forwarding at the same time: each
acknowledged message arrives once, a scheduled one not before its time, and a transaction over several
entities is never half applied.

Each transaction of a relay (`relays.py`) also schedules an echo, which comes back to the
relay, and sends an entry to another entity, which forwards it to a queue with sessions. So in the end there
is one echo and one entry for each commit, and the entries of a key are in the order of the commits.
`rounds.py` says how to have more rounds, or repeat one.
"""

from __future__ import annotations

import gc
import time
import warnings
from pathlib import Path
from random import Random

import pytest
from azure.servicebus import ServiceBusClient

from protocol.codec import Symbol, Timestamp
from tests.crash import test_session_kill as of_sessions
from tests.crash.clients import SCHEDULED, Client, Place, Receiver, Sender, drain
from tests.crash.ledger import QueueLedger
from tests.crash.relays import KEYS, PARTITIONS, Relay, message_of, text_of, wait_for_commits
from tests.crash.rounds import (
    ROUNDS,
    SEED,
    at_work,
    kill_and_restart,
    round_with_broker,
    wait_for_gauge,
    wait_for_load,
)
from tests.support import raw_amqp as raw
from tests.support.amqp_messages import ANNOTATIONS, message, sections
from tests.support.broker_process import BrokerProcess, queue
from tests.support.raw_amqp import Frame, RawConnection
from tests.support.transactions import state_of

RELAYS = 2
LATER, LAST, ENTRIES, ARCHIVE = "later", "last", "entries", "archive"
QUEUES = [
    queue(LATER, PartitionCount=3, ForwardTo=LAST),
    queue(LAST, PartitionCount=2, MaxDeliveryCount=2_000),
    queue(ENTRIES, PartitionCount=2, ForwardTo=ARCHIVE),
    queue(ARCHIVE, PartitionCount=3, RequiresSession=True),
    queue(of_sessions.QUEUE, PartitionCount=4, RequiresSession=True),
    *(queue(f"relay-{each}", PartitionCount=PARTITIONS, MaxDeliveryCount=2_000) for each in range(RELAYS)),
]
ENTRY_SENDER = 3
ECHO = "echo of "
LATER_MS = 1_500


class Echoing(Relay):
    """A relay whose transactions reach several entities, and the future."""

    def __init__(self, place: Place, number: int, seed: object) -> None:
        super().__init__(place, number, seed)
        self.echoes_asked: set[tuple[str, int]] = set()
        """Echoes that the client has asked to complete …"""
        self.echoes_done: set[tuple[str, int]] = set()
        """… and those whose completion was confirmed."""

    def attach_more(self, connection: RawConnection) -> None:
        connection.attach_sender(ENTRY_SENDER, ENTRIES)

    def send(self, connection: RawConnection, txn_id: bytes, key: str, number: int) -> None:
        """Send a message, its echo and its entry."""
        due_ms = int(time.time() * 1000) + self.random.randrange(LATER_MS)
        annotations = {"x-opt-partition-key": key, SCHEDULED: Timestamp(due_ms)}
        echo = message(annotations=annotations, body=[f"{ECHO}{key}/{number}".encode()])
        for handle, payload in (
            (0, message_of(key, number)),
            (0, echo),
            (ENTRY_SENDER, self.entry_of(key, number)),
        ):
            answer = self.ask(connection, handle, payload, state=state_of(txn_id))
            assert answer.descriptor == raw.TRANSACTIONAL, answer

    def entry_of(self, key: str, number: int) -> bytes:
        properties = [f"{key}/{number}", *[None] * 9, self.session_of(key)]
        annotations = {"x-opt-via-partition-key": key}
        return message(annotations=annotations, properties=properties, body=[str(number).encode()])

    def session_of(self, key: str) -> str:
        return f"{self.name}/{key}"

    def work(self, connection: RawConnection, found: Frame) -> None:
        key, number = text_of(found.payload)
        if not key.startswith(ECHO):
            super().work(connection, found)
            return
        self.check_echo(found.payload)
        self.echoes_asked.add((key, number))
        delivery_id = found.field(1)
        fields = raw.disposition_fields(True, delivery_id, delivery_id, False, raw.outcome(raw.ACCEPTED))
        connection.send_frame(raw.DISPOSITION, fields)
        assert connection.read_until(raw.DISPOSITION).field(4).descriptor == raw.ACCEPTED
        self.echoes_done.add((key, number))

    def check_echo(self, payload: bytes) -> None:
        """An echo comes once, after its time, and only if its transaction may have been committed."""
        key, number = text_of(payload)
        annotations = sections(payload)[ANNOTATIONS]
        assert annotations[Symbol("x-opt-enqueued-time")] >= annotations[Symbol(SCHEDULED)]
        assert annotations[Symbol(SCHEDULED)] <= time.time() * 1000, "before its time"
        assert number <= self.attempted[key.removeprefix(ECHO)], f"{key}/{number} was rolled back"
        assert (key, number) not in self.echoes_done, f"{key}/{number} came again"

    def check(self, port: int) -> None:
        """There is one message of each key, and one echo of each message but the first."""
        left: dict[str, list[int]] = {key: [] for key in KEYS}
        echoes: list[tuple[str, int]] = []
        for payload in self.left(port):
            key, number = text_of(payload)
            if key.startswith(ECHO):
                self.check_echo(payload)
                echoes.append((key, number))
            else:
                left[key].append(number)
        self.check_left(left)
        assert len(set(echoes)) == len(echoes), "an echo is there twice"
        self.committed = {key: numbers[0] for key, numbers in left.items()}
        expected = {(f"{ECHO}{key}", each) for key in KEYS for each in range(1, self.committed[key] + 1)}
        assert self.echoes_asked <= expected, "an echo came, and its transaction was not committed"
        assert self.echoes_asked | set(echoes) == expected, "an echo is lost, or came out of nothing"


@pytest.mark.parametrize("number", range(max(ROUNDS // 10, 1)))
def test_a_kill_at_any_moment_spares_all_features_together(number: int, tmp_path: Path) -> None:
    seed = f"{SEED}/features/{number}"
    with round_with_broker(tmp_path, QUEUES, "tests/crash/test_kill_features.py", number) as broker:
        run(broker, seed, Random(seed))


def run(broker: BrokerProcess, seed: str, random: Random) -> None:
    """One round with several kills. Clients of sessions work until the last of them."""
    place = Place(broker.start().amqp_port)
    ledger = QueueLedger()
    relays = [Echoing(place, number, seed) for number in range(RELAYS)]
    clients: list[Client] = [
        *relays,
        Sender(place, "schedules", LATER, ledger, seed, keys=5, later_ms=LATER_MS, pause_s=0.01),
        Receiver(place, "receives", LAST, ledger, seed, credit=20),
    ]
    for relay in relays:
        relay.begin(place.port)
    with at_work(place, clients):
        for _ in range(2):
            wait_for_commits(place, relays)
            time.sleep(random.uniform(0.0, 0.5))  # the moment of the kill: any will do
            kill_and_restart(broker, place)
        wait_for_load(place, ledger, 50)
        load = of_sessions.Load(broker.addresses.connection_string())
        threads = [load.run("send"), load.run("work"), load.run("work")]
        wait_for_commits(place, relays)
        threads[0].join(1.5 + random.random())
        load.killed.set()
        kill_and_restart(broker, place)
        for thread in threads:
            thread.join(of_sessions.STOPS_WITHIN_S)
            assert not thread.is_alive()
        assert not load.failures, load.failures
    with warnings.catch_warnings():  # the client leaves sockets open when its broker dies
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
    kill_and_restart(broker, place)
    check(broker, place, ledger, relays, load)
    broker.check_alive()


def check(
    broker: BrokerProcess, place: Place, ledger: QueueLedger, relays: list[Echoing], load: of_sessions.Load
) -> None:
    """Wait until everything that was scheduled or is on its way has arrived, and compare it with what the
    clients know."""
    wait_for_gauge(broker, "messages", {LATER: 0})
    drain(place, LAST, ledger)
    assert ledger.errors == []
    lost = ledger.acknowledged - ledger.removals_asked
    assert not lost, f"acknowledged, and never came: {sorted(lost)}"
    assert drain(place, LAST, QueueLedger()) == 0
    wait_for_gauge(broker, "scheduled_messages", {relay.queue: 0 for relay in relays})
    for relay in relays:
        print(f"{relay.name}: {relay.commits} committed, {relay.roll_backs} rolled back")
        relay.check(place.port)
    entries = sum(sum(relay.committed.values()) for relay in relays)
    wait_for_gauge(broker, "messages", {ENTRIES: 0, ARCHIVE: entries})
    connection_string = broker.addresses.connection_string()
    with ServiceBusClient.from_connection_string(connection_string, retry_total=0) as client:
        load.check(client)
        for relay in relays:
            for key in KEYS:
                found = archived(client, relay.session_of(key))
                assert found == list(range(1, relay.committed[key] + 1)), f"entries of {relay.name}, {key}"
    assert any(each.completed >= 0 for each in load.ledgers.values()), "no session had a message"


def archived(client: ServiceBusClient, session: str) -> list[int]:
    """The entries of a session, in their order."""
    found: list[int] = []
    with client.get_queue_receiver(ARCHIVE, session_id=session) as receiver:
        while page := receiver.peek_messages(250):
            found += [int(str(each)) for each in page]
    return found
