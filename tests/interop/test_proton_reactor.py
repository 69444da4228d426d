"""Qpid Proton's reactor, a plain AMQP 1.0 client, unchanged, against the running broker: everything from callbacks, many at once."""

from __future__ import annotations

from typing import Any

import pytest
from proton import Delivery, Message
from proton.handlers import MessagingHandler
from proton.reactor import Container

from tests.interop.proton_client import PLAIN
from tests.interop.scenarios import CLIENTS, queue_name
from tests.support.broker_process import Addresses, BrokerProcess

WITHIN_S = 15

# An event is `Any` below: Proton types each part of it as possibly missing.


class Exchange(MessagingHandler):
    """Send `count` messages as credit allows, receive them on the same connection, settle each with `settle`, and stop."""

    def __init__(self, addresses: Addresses, queue: str, count: int, *, settle: int = Delivery.ACCEPTED) -> None:
        super().__init__(prefetch=10, auto_accept=False)
        self._addresses, self._queue, self._count, self._settle = addresses, queue, count, settle
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
        last = len(self.received) >= self._count
        event.delivery.update(self._settle if not last else Delivery.ACCEPTED)
        event.delivery.settle()
        self._end_when_done()

    def on_timer_task(self, event: Any) -> None:
        self._end(f"{self.outcomes} outcomes and {len(self.received)} of {self._count} messages within {WITHIN_S} s")

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


class ReleaseFirst(Exchange):
    """Release the only message twice before accepting it."""

    def on_accepted(self, event: Any) -> None:
        """The sender's part is done; only the third delivery ends the exchange."""

    def on_message(self, event: Any) -> None:
        self.received.append(event.message)
        event.delivery.update(Delivery.RELEASED if len(self.received) < 3 else Delivery.ACCEPTED)
        event.delivery.settle()
        if len(self.received) == 3:
            self._end()


class Drain(Exchange):
    """Ask for ten messages at once where there are fewer, and count what comes before the credit is given back."""

    def on_start(self, event: Any) -> None:
        self._connection = event.container.connect(self._addresses.amqp_url, reconnect=False, **PLAIN)
        self._sender = event.container.create_sender(self._connection, self._queue)
        self._receiver: Any = None
        self._timer = event.container.schedule(WITHIN_S, self)

    def on_accepted(self, event: Any) -> None:
        self.outcomes += 1
        if self.outcomes == self._count:
            self._receiver = event.container.create_receiver(self._connection, self._queue, handler=Draining(self))


class Draining(MessagingHandler):
    """The receiving side of `Drain`."""

    def __init__(self, exchange: Drain) -> None:
        super().__init__(prefetch=0)
        self._exchange = exchange

    def on_link_opened(self, event: Any) -> None:
        event.receiver.drain(10)

    def on_message(self, event: Any) -> None:
        self._exchange.received.append(event.message)

    def on_link_flow(self, event: Any) -> None:
        if not event.receiver.draining():
            self._exchange._end()


def run(name: str, addresses: Addresses, queue: str) -> None:
    """One scenario by name."""
    match name:
        case "send-one" | "accepted":
            assert [message.id for message in Exchange(addresses, queue, 1).run().received] == ["id-0"]
        case "send-many":
            exchange = Exchange(addresses, queue, 1000).run()
            assert len({message.id for message in exchange.received}) == 1000
            assert exchange.outcomes == 1000
        case "released":
            assert [message.delivery_count for message in ReleaseFirst(addresses, queue, 1).run().received] == [0, 0, 0]
        case "drain":
            assert sorted(str(message.id) for message in Drain(addresses, queue, 3).run().received) == ["id-0", "id-1", "id-2"]
        case _:
            raise AssertionError(f"{name} is not written")


@pytest.mark.parametrize("name", CLIENTS["proton-reactor"])
def test_proton_reactor(broker: BrokerProcess, name: str) -> None:
    """Each scenario passes with Proton's reactor."""
    run(name, broker.addresses, queue_name("proton-reactor", name))
