"""Qpid Proton's blocking client: calls that connect, send, receive and settle return when done, or fail after
`WAIT_S`.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from proton import ConnectionException, Event, LinkException, Message, symbol
from proton.handlers import MessagingHandler
from proton.reactor import SenderOption
from proton.utils import BlockingConnection, BlockingSender

from tests.interop import proton_client
from tests.interop.proton_client import (
    PLAIN,
    WAIT_S,
    Encoded,
    Ends,
    Outcome,
    Received,
    Refused,
    outcome_of,
    settled,
)
from tests.support.broker_process import Addresses


@contextmanager
def connected(
    addresses: Addresses, *, port: int | None = None, **options: Any
) -> Iterator[BlockingConnection]:
    """A connection with SASL PLAIN, closed at the end."""
    url = f"amqp://127.0.0.1:{port or addresses.amqp_port}"
    connection = BlockingConnection(url, timeout=WAIT_S, **{**PLAIN, **options})
    try:
        yield connection
    finally:
        connection.close()


class Destination(SenderOption):
    """Names the final destination of a sender whose target is the via entity."""

    def __init__(self, name: str) -> None:
        self._name = name

    def apply(self, sender: Any) -> None:
        sender.properties = {symbol("com.microsoft:transfer-destination-address"): self._name}


class Arrivals(MessagingHandler):
    """Collects the messages that arrive on a link; settles nothing."""

    def __init__(self) -> None:
        super().__init__(prefetch=0, auto_accept=False, auto_settle=False)
        self.found: deque[Received] = deque()

    def on_message(self, event: Event) -> None:
        assert event.delivery is not None
        self.found.append(Received(event.message, event.delivery))


class Receiver:
    """A receiving link without prefetch: messages come only for credit granted explicitly."""

    def __init__(
        self, connection: BlockingConnection, address: str, *, name: str | None = None, **ends: Any
    ) -> None:
        self._connection, self._arrivals = connection, Arrivals()
        self.link = connection.create_receiver(
            address, credit=0, handler=self._arrivals, name=name, options=Ends(**ends)
        )

    def receive(self, count: int = 1) -> list[Received]:
        """Grant credit for `count` messages and wait until they have arrived."""
        self.link.flow(count)
        self._wait(lambda: len(self._arrivals.found) >= count, f"{count} messages")
        return [self._arrivals.found.popleft() for _ in range(count)]

    def drain(self, credit: int) -> list[Received]:
        """Grant credit and have the broker use it up or return it; gives the messages that arrived before
        that.
        """
        self.link.link.drain(credit)
        self._wait(lambda: not self.link.link.draining(), "the drain's answer")
        self.link.link.drain_mode = False
        self.link.link.drained()
        found = list(self._arrivals.found)
        self._arrivals.found.clear()
        return found

    def settle(self, received: Received, outcome: int) -> int:
        """Propose an outcome and wait until the broker has settled; gives the broker's outcome."""
        received.delivery.update(outcome)
        self._wait(lambda: received.delivery.settled, "the broker's settlement")
        return settled(received.delivery)

    def close(self) -> None:
        self.link.close()  # type: ignore[no-untyped-call]

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        self._connection.wait(condition, timeout=WAIT_S, msg=f"waiting for {what}")


# --- the interface that the scenarios need: coroutines that wait only for blocking calls --------------------


class ScenarioClient:
    """A blocking connection with the interface of `proton_client.Client`."""

    def __init__(self, connection: BlockingConnection) -> None:
        self._connection = connection

    async def sender(self, address: str) -> proton_client.Sender:
        try:
            return ScenarioSender(self._connection.create_sender(address))
        except LinkException as error:
            raise Refused(str(error)) from error

    async def receiver(self, address: str, *, name: str | None = None, **ends: Any) -> proton_client.Receiver:
        try:
            return ScenarioReceiver(Receiver(self._connection, address, name=name, **ends))
        except LinkException as error:
            raise Refused(str(error)) from error

    async def pause(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 - this client blocks, here as elsewhere


class ScenarioSender:
    def __init__(self, inner: BlockingSender) -> None:
        self._inner = inner

    @property
    def max_message_size(self) -> int:
        return int(self._inner.link.remote_max_message_size)

    async def send(self, message: Message | Encoded) -> Outcome:
        return outcome_of(self._inner.send(message, error_states=[]))  # type: ignore[arg-type]

    async def close(self) -> None:
        self._inner.close()  # type: ignore[no-untyped-call]


class ScenarioReceiver:
    def __init__(self, inner: Receiver) -> None:
        self._inner = inner

    async def receive(self, count: int = 1) -> list[Received]:
        return self._inner.receive(count)

    async def drain(self, credit: int) -> list[Received]:
        return self._inner.drain(credit)

    async def propose(self, received: Received, outcome: int) -> int:
        return self._inner.settle(received, outcome)

    async def close(self) -> None:
        self._inner.close()


def connector(addresses: Addresses) -> proton_client.Connect:
    """The function with which scenarios open connections."""

    @asynccontextmanager
    async def connect(**options: Any) -> AsyncIterator[proton_client.Client]:
        try:
            opening = connected(addresses, **options)
            connection = opening.__enter__()
        except ConnectionException as error:
            raise Refused(str(error)) from error
        try:
            yield ScenarioClient(connection)
        finally:
            opening.__exit__(None, None, None)

    return connect


def run(scenario: Coroutine[Any, Any, None]) -> None:
    """Run a scenario to its end: it awaits only the calls above, which block."""
    try:
        scenario.send(None)
    except StopIteration:
        return
    raise AssertionError("a scenario for the blocking client awaits what nobody will bring")
