"""Qpid Proton's blocking client, unchanged: connect, receive, settle and ask a management node, with bounded waits.

Never reads `Delivery.tag`: the binding takes tags for text, and lock tokens are not. A lock token is had from a deferred message.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from proton import UNDESCRIBED, Array, Condition, Delivery, Event, Link, Message, Terminus, int32, ulong
from proton.handlers import MessagingHandler
from proton.reactor import ReceiverOption
from proton.utils import BlockingConnection

from tests.support.broker_process import KEY, KEY_NAME, Addresses

WAIT_S = 10.0
PLAIN: dict[str, Any] = {"allowed_mechs": "PLAIN", "allow_insecure_mechs": True, "user": KEY_NAME, "password": KEY}


@contextmanager
def connected(addresses: Addresses, **options: Any) -> Iterator[BlockingConnection]:
    """A connection with SASL PLAIN, closed at the end."""
    connection = BlockingConnection(addresses.amqp_url, timeout=WAIT_S, **{**PLAIN, **options})
    try:
        yield connection
    finally:
        connection.close()


class Ends(ReceiverOption):
    """A receiver's settle modes and the address of its own end."""

    def __init__(self, *, settled: bool = False, target: str | None = None) -> None:
        self._settled, self._target = settled, target

    def apply(self, link: Link) -> None:
        link.snd_settle_mode = Link.SND_SETTLED if self._settled else Link.SND_UNSETTLED
        link.rcv_settle_mode = Link.RCV_FIRST if self._settled else Link.RCV_SECOND
        if self._target is not None:
            terminus: Terminus = link.target
            terminus.address = self._target


@dataclass(slots=True)
class Received:
    """A message and the delivery to settle it with."""

    message: Any
    """A `proton.Message`; its own types name too little of what a test knows."""
    delivery: Delivery

    @property
    def annotations(self) -> dict[str, Any]:
        return {str(key): value for key, value in (self.message.annotations or {}).items()}


class Arrivals(MessagingHandler):
    """Keeps what arrives on a link; settles nothing."""

    def __init__(self) -> None:
        super().__init__(prefetch=0, auto_accept=False, auto_settle=False)
        self.found: deque[Received] = deque()

    def on_message(self, event: Event) -> None:
        assert event.delivery is not None
        self.found.append(Received(event.message, event.delivery))


class Receiver:
    """A receiving link without prefetch: what comes is what credit was given for."""

    def __init__(self, connection: BlockingConnection, address: str, *, name: str | None = None, **ends: Any) -> None:
        self._connection, self._arrivals = connection, Arrivals()
        self.link = connection.create_receiver(address, credit=0, handler=self._arrivals, name=name, options=Ends(**ends))

    def receive(self, count: int = 1) -> list[Received]:
        """Give credit for `count` messages and wait until they are there."""
        self.link.flow(count)
        self._wait(lambda: len(self._arrivals.found) >= count, f"{count} messages")
        return [self._arrivals.found.popleft() for _ in range(count)]

    def drain(self, credit: int) -> list[Received]:
        """Give credit, have the broker use it up or give it back, and tell what came before it did."""
        self.link.link.drain(credit)
        self._wait(lambda: not self.link.link.draining(), "the drain's answer")
        self.link.link.drain_mode = False
        self.link.link.drained()
        found = list(self._arrivals.found)
        self._arrivals.found.clear()
        return found

    def settle(self, received: Received, outcome: int) -> int:
        """Propose an outcome, wait until the broker has settled, and give the broker's outcome."""
        received.delivery.update(outcome)
        self._wait(lambda: received.delivery.settled, "the broker's settlement")
        answer = received.delivery.remote_state
        assert received.delivery.remote.condition is None, "an error in the answer means that the settlement was refused"
        received.delivery.settle()
        return int(answer)

    def close(self) -> None:
        self.link.close()  # type: ignore[no-untyped-call]

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        self._connection.wait(condition, timeout=WAIT_S, msg=f"waiting for {what}")


@dataclass(slots=True)
class Answer:
    """A management node's answer (AMQP contract 7.2)."""

    status: int
    condition: str | None
    body: dict[str, Any] | None


def ask(connection: BlockingConnection, queue: str, operation: str, body: dict[str, Any]) -> Answer:
    """One operation on the queue's management node."""
    node, reply_to = f"{queue}/$management", f"answers-to-{operation}"
    answers = Receiver(connection, node, settled=True, target=reply_to)
    sender = connection.create_sender(node)
    try:
        sender.send(Message(id=ulong(7), reply_to=reply_to, properties={"operation": operation}, body=body))
        (received,) = answers.receive()
    finally:
        sender.close()  # type: ignore[no-untyped-call]
        answers.close()
    message = received.message
    assert message.correlation_id == ulong(7), "the request's message-id, same type"
    assert type(message.properties["statusCode"]) is int32
    condition = message.properties.get("errorCondition")
    return Answer(int(message.properties["statusCode"]), None if condition is None else str(condition), owned(message.body))


def owned(value: Any) -> Any:
    """A copy of a message's body that outlives the message: the binding shows binary values as views of the message's own memory."""
    if isinstance(value, dict):
        return {key: owned(each) for key, each in value.items()}
    if isinstance(value, list):
        return [owned(each) for each in value]
    return bytes(value) if isinstance(value, memoryview) else value


def array(kind: object, *values: object) -> Array:
    """An AMQP array; `kind` is one of the type codes of `proton.Data`."""
    return Array(UNDESCRIBED, kind, *values)  # type: ignore[arg-type]


def rejecting(received: Received, condition: str, description: str) -> Received:
    """The delivery, with the error that its rejection is to carry."""
    received.delivery.local.condition = Condition(condition, description, {"a": "b"})
    return received
