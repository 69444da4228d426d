"""Qpid Proton's reactor, a plain AMQP 1.0 client, unchanged, against the running broker; everything happens
in callbacks.
"""

from __future__ import annotations

from typing import Any

import pytest
from proton import Message
from proton.handlers import MessagingHandler
from proton.reactor import Container

from tests.interop.proton_client import PLAIN
from tests.interop.proton_reactor import Script
from tests.interop.proton_scenarios import SCENARIOS, play
from tests.interop.scenarios import CLIENTS, REACTOR_ONLY, queue_name
from tests.support.broker_process import Addresses, BrokerProcess

WITHIN_S = 15


class Exchange(MessagingHandler):
    """Send `count` messages as credit allows, receive and accept them on the same connection, and stop."""

    def __init__(self, addresses: Addresses, queue: str, count: int) -> None:
        super().__init__(prefetch=10)
        self._addresses, self._queue, self._count = addresses, queue, count
        self._sent = 0
        self._connection: Any = None
        self.outcomes = 0
        self.received: list[Message] = []
        self.failures: list[str] = []

    def run(self) -> Exchange:
        """Run until done, or give up after `WITHIN_S`."""
        Container(self).run()
        assert self.failures == []
        return self

    def on_start(self, event: Any) -> None:
        self._connection = event.container.connect(self._addresses.amqp_url, reconnect=False, **PLAIN)
        event.container.create_sender(self._connection, self._queue)
        event.container.create_receiver(self._connection, self._queue)
        self._timer = event.container.schedule(WITHIN_S, self)

    def on_sendable(self, event: Any) -> None:
        while event.sender.credit and self._sent < self._count:
            event.sender.send(Message(id=f"id-{self._sent}", body=f"message {self._sent}"))
            self._sent += 1

    def on_accepted(self, event: Any) -> None:
        self.outcomes += 1
        self._end_when_done()

    def on_message(self, event: Any) -> None:
        self.received.append(event.message)
        self._end_when_done()

    def on_timer_task(self, event: Any) -> None:
        self._end(
            f"{self.outcomes} outcomes and {len(self.received)} of {self._count} messages within {WITHIN_S} s"
        )

    def on_transport_error(self, event: Any) -> None:
        self._end(f"transport: {event.transport.condition}")

    def on_link_error(self, event: Any) -> None:
        self._end(f"link: {event.link.remote_condition}")

    def _end_when_done(self) -> None:
        if self.outcomes >= self._count and len(self.received) >= self._count:
            self._end()

    def _end(self, failure: str = "") -> None:
        if failure:
            self.failures.append(failure)
        self._timer.cancel()
        self._connection.close()


class Persistent(MessagingHandler):
    """Attach a sender to a queue that does not exist; when refused, attach a sender of the same name to an
    existing queue and send a message.
    """

    def __init__(self, addresses: Addresses, queue: str) -> None:
        super().__init__()
        self._addresses, self._queue = addresses, queue
        self._connection: Any = None
        self.seen: list[str] = []

    def on_start(self, event: Any) -> None:
        self._connection = event.container.connect(self._addresses.amqp_url, reconnect=False, **PLAIN)
        event.container.create_sender(self._connection, "no-such-queue", name="persistent")
        self._timer = event.container.schedule(WITHIN_S, self)

    def on_link_error(self, event: Any) -> None:
        self.seen.append(event.link.remote_condition.name)
        if len(self.seen) == 1:
            event.container.create_sender(self._connection, self._queue, name="persistent")

    def on_sendable(self, event: Any) -> None:
        if len(self.seen) == 1:
            self.seen.append("sendable")
            event.sender.send(Message(body="at last"))

    def on_accepted(self, event: Any) -> None:
        self.seen.append("accepted")
        self._end()

    def on_transport_error(self, event: Any) -> None:
        self.seen.append(str(event.transport.condition))
        self._end()

    def on_timer_task(self, event: Any) -> None:
        self._end()

    def _end(self) -> None:
        self._timer.cancel()
        self._connection.close()


def test_a_refused_sender_tries_again_under_the_same_name(broker: BrokerProcess) -> None:
    """Proton writes the second attach before its answer to the refusal."""
    client = Persistent(broker.addresses, queue_name("proton-reactor", "same-name-again"))
    Container(client).run()
    assert client.seen == ["amqp:not-found", "sendable", "accepted"]


def test_a_thousand_messages_go_both_ways_at_once(broker: BrokerProcess) -> None:
    """As in the client's own examples: prefetch, and automatic accept and settle."""
    exchange = Exchange(broker.addresses, queue_name("proton-reactor", "both-ways-at-once"), 1000).run()
    assert len({message.id for message in exchange.received}) == 1000
    assert exchange.outcomes == 1000


@pytest.mark.parametrize("name", SCENARIOS)
def test_proton_reactor(broker: BrokerProcess, name: str) -> None:
    """Each scenario passes with Proton's reactor."""
    script = Script(broker.addresses)
    script.run(play(name, queue_name("proton-reactor", name), script.connect, broker.addresses))


def test_every_scenario_is_written_and_every_written_scenario_is_run() -> None:
    """Every listed scenario is implemented, and every implemented one is listed."""
    assert {*SCENARIOS, *REACTOR_ONLY} == set(CLIENTS["proton-reactor"])
