"""`kill -9` while a client sends to message sessions and others work on them: no message is lost, none comes
twice or out of its order, and no state of a session goes back.

`PARTIBUS_CRASH_ROUNDS` and `PARTIBUS_CRASH_SEED` are those of `rounds.py`; there is one round here for ten
rounds there.
"""

from __future__ import annotations

import contextlib
import gc
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pytest
from azure.servicebus import (
    NEXT_AVAILABLE_SESSION,
    ServiceBusClient,
    ServiceBusMessage,
    ServiceBusReceiver,
    ServiceBusSession,
)
from azure.servicebus.exceptions import ServiceBusError

from tests.crash.rounds import ROUNDS, SEED, SMALL_LOGS
from tests.support.broker_process import BrokerProcess, queue

SESSIONS = ("a", "b", "c", "d")
QUEUE = "sessions"
STOPS_WITHIN_S = 30.0


@dataclass
class Ledger:
    """What the clients know of one session."""

    sent: int = 0
    """Messages that were acknowledged: 0 to this number, without it."""
    trying: int = 0
    """Messages that were sent, acknowledged or not."""
    completed: int = -1
    """The last message whose completion was confirmed; those before it were confirmed too."""
    completing: int = -1
    """The last message whose completion was asked for."""
    state: int = -1
    """The number in the last state that was confirmed …"""
    setting: int = -1
    """… and in the last one that was set."""


@dataclass
class Load:
    """One sender and two receivers, until the broker is killed."""

    connection_string: str
    ledgers: dict[str, Ledger] = field(default_factory=lambda: {name: Ledger() for name in SESSIONS})
    killed: threading.Event = field(default_factory=threading.Event)
    failures: list[BaseException] = field(default_factory=list)

    def run(self, work: str) -> threading.Thread:
        thread = threading.Thread(target=self._run, args=(getattr(self, work),), name=work, daemon=True)
        thread.start()
        return thread

    def _run(self, work: object) -> None:
        client = ServiceBusClient.from_connection_string(self.connection_string, retry_total=0)
        try:
            assert callable(work)
            work(client)
        except ServiceBusError as error:
            if not self.killed.wait(STOPS_WITHIN_S):
                self.failures.append(error)
        except BaseException as error:
            self.failures.append(error)
        finally:
            with contextlib.suppress(Exception):
                client.close()

    def send(self, client: ServiceBusClient) -> None:
        """Number the messages of each session."""
        with client.get_queue_sender(QUEUE) as sender:
            while True:
                for name, ledger in self.ledgers.items():
                    ledger.trying += 1
                    sender.send_messages(ServiceBusMessage(str(ledger.trying - 1), session_id=name))
                    ledger.sent = ledger.trying

    def work(self, client: ServiceBusClient) -> None:
        """Take sessions in turn; complete messages in order and keep the last number as the state."""
        while True:
            receiver = client.get_queue_receiver(
                QUEUE, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=STOPS_WITHIN_S
            )
            with receiver:
                session, ledger = self.session_of(receiver)
                for message in receiver.receive_messages(5, max_wait_time=0.2):
                    number = int(str(message))
                    assert number == ledger.completing + 1, "in order, without a gap"
                    ledger.completing = number
                    receiver.complete_message(message)
                    ledger.completed = number
                    ledger.setting = number
                    session.set_state(str(number))
                    ledger.state = number

    def session_of(self, receiver: ServiceBusReceiver) -> tuple[ServiceBusSession, Ledger]:
        session = receiver.session
        assert isinstance(session, ServiceBusSession)
        return session, self.ledgers[session.session_id]

    def check(self, client: ServiceBusClient) -> None:
        """Compare what the broker has with the ledgers."""
        with ThreadPoolExecutor(len(SESSIONS)) as threads:  # each close of a receiver takes a second
            list(threads.map(lambda name: self._check(client, name), SESSIONS))

    def _check(self, client: ServiceBusClient, name: str) -> None:
        ledger = self.ledgers[name]
        with client.get_queue_receiver(QUEUE, session_id=name) as receiver:
            session, _ = self.session_of(receiver)
            state = int(session.get_state() or -1)
            left: list[int] = []
            while page := receiver.peek_messages(250):
                left += [int(str(message)) for message in page]
        assert state in (ledger.state, ledger.setting)
        first = left[0] if left else ledger.completing + 1
        assert left == list(range(first, first + len(left))), "in order, without a gap"
        assert first in (ledger.completed + 1, ledger.completing + 1)
        assert ledger.sent <= first + len(left) <= ledger.trying


@pytest.mark.parametrize("number", range(max(ROUNDS // 10, 1)))
def test_sessions_and_their_states_survive_kill_9(tmp_path: Path, number: int) -> None:
    random = Random(f"{SEED}.{number}")
    queues = [queue(QUEUE, PartitionCount=4, EnablePartitioning=True, RequiresSession=True)]
    with BrokerProcess(tmp_path, queues, environment=SMALL_LOGS if number % 2 else {}) as broker:
        load = Load(broker.addresses.connection_string())
        threads = [load.run("send"), load.run("work"), load.run("work")]
        threads[0].join(1.5 + random.random())
        broker.kill()
        load.killed.set()
        for thread in threads:
            thread.join(STOPS_WITHIN_S)
            assert not thread.is_alive()
        assert not load.failures, f"seed {SEED}: {load.failures[0]!r}"
        with warnings.catch_warnings():  # the client leaves sockets open when its broker dies
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()
        broker.start()
        assert any(ledger.completed >= 0 for ledger in load.ledgers.values()), "nothing was received"
        connection_string = broker.addresses.connection_string()
        with ServiceBusClient.from_connection_string(connection_string, retry_total=0) as client:
            load.check(client)
