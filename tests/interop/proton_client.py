"""Qpid Proton's two Python clients, unchanged, behind one interface, so that one list of scenarios serves
both the blocking client and the reactor.

Nothing here adds to or repairs what a client does. The clients themselves are in `proton_blocking.py` and
`proton_reactor.py`.

Version 0.40.0 of the binding cannot do two things, which the scenarios work around:

- `Delivery.tag` decodes tags as text, which lock tokens are not, so it is never read. `lock_token` has the
  bytes from the C engine below.
- No transfer's message-format can be set: neither `Sender`, `Delivery` and `Message` nor the C functions
  below them know the field, and the engine writes 0 into each transfer (`src/core/transport.c`,
  `pni_process_tpwork_sender`). That field marks a Service Bus batch, so these clients alone cannot send one:
  they send a single message (scenario `send-batch-unmarked`). For `send-batch`, `batch_relay.py` sets only
  this field on the way; the client sends the envelope and reads its outcome.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Protocol
from uuid import UUID

from cproton_ffi import ffi, lib
from proton import UNDESCRIBED, Array, Condition, Delivery, Link, Message, Terminus, int32, ulong
from proton import Sender as SendingLink
from proton.reactor import Copy, ReceiverOption, Selector

from tests.support.broker_process import KEY, KEY_NAME

WAIT_S = 10.0
PLAIN: dict[str, Any] = {
    "allowed_mechs": "PLAIN",
    "allow_insecure_mechs": True,
    "user": KEY_NAME,
    "password": KEY,
}


class Refused(Exception):
    """The broker refused a connection or a link; the text is the client's own and contains the error
    condition.
    """


@dataclass(slots=True, frozen=True)
class Outcome:
    """The broker's answer to a message that was sent."""

    state: int
    condition: str | None


@dataclass(slots=True)
class Received:
    """A message and the delivery that settles it."""

    message: Any
    """A `proton.Message`; its own types describe too little of what the tests check."""
    delivery: Delivery

    @property
    def annotations(self) -> dict[str, Any]:
        return {str(key): value for key, value in (self.message.annotations or {}).items()}

    @property
    def lock_token(self) -> UUID:
        """The delivery-tag, 16 bytes in .NET's order (AMQP contract 5.3)."""
        tag = lib.pn_delivery_tag(self.delivery._impl)
        return UUID(bytes_le=bytes(ffi.buffer(tag.start, tag.size)))


@dataclass(slots=True, frozen=True)
class Encoded:
    """Bytes to send as they are: the senders of both clients accept any object with such a `send`."""

    data: bytes

    def send(self, sender: SendingLink, tag: str | None = None) -> Delivery:
        delivery = sender.delivery(tag or sender.delivery_tag())
        sender.stream(self.data)
        sender.advance()
        return delivery


class Sender(Protocol):
    """The methods of a sending link that the scenarios use."""

    @property
    def max_message_size(self) -> int: ...
    async def send(self, message: Message | Encoded) -> Outcome: ...
    async def close(self) -> None: ...


class Receiver(Protocol):
    """The methods of a receiving link that the scenarios use. It has no prefetch: messages come only for
    credit granted explicitly.
    """

    async def receive(self, count: int = 1) -> list[Received]:
        """Grant credit for `count` messages and wait until they have arrived."""

    async def drain(self, credit: int) -> list[Received]:
        """Grant credit and have the broker use it up or return it; gives the messages that arrived before
        that.
        """

    async def propose(self, received: Received, outcome: int) -> int:
        """Propose an outcome and wait until the broker has settled; gives the broker's outcome."""

    async def close(self) -> None: ...


class Client(Protocol):
    """An open connection."""

    async def sender(self, address: str) -> Sender:
        """Attach a sender. Raises Refused."""

    async def receiver(self, address: str, *, name: str | None = None, **ends: Any) -> Receiver:
        """Attach a receiver with these `Ends`, by default peek-lock. Raises Refused."""

    async def pause(self, seconds: float) -> None: ...


Connect = Callable[..., AbstractAsyncContextManager[Client]]
"""Opens one of the client's connections, and closes it at the end. Accepts `port` to replace the broker's
port, and any option of the client. Raises Refused.
"""


class Ends(ReceiverOption):
    """A receiver's settle modes, the address of its own end, and what the client's own options `Copy` and
    `Selector` add.
    """

    def __init__(
        self,
        *,
        settled: bool = False,
        target: str | None = None,
        copy: bool = False,
        selector: str | None = None,
    ) -> None:
        self._settled, self._target = settled, target
        self._options: list[ReceiverOption] = [Copy()] if copy else []
        if selector is not None:
            self._options.append(Selector(selector))

    def apply(self, link: Link) -> None:
        link.snd_settle_mode = Link.SND_SETTLED if self._settled else Link.SND_UNSETTLED
        link.rcv_settle_mode = Link.RCV_FIRST if self._settled else Link.RCV_SECOND
        if self._target is not None:
            terminus: Terminus = link.target
            terminus.address = self._target
        for option in self._options:
            option.apply(link)  # type: ignore[arg-type]


def outcome_of(delivery: Delivery) -> Outcome:
    """The broker's answer to a message that was sent."""
    condition = delivery.remote.condition
    return Outcome(int(delivery.remote_state), None if condition is None else condition.name)


def settled(delivery: Delivery) -> int:
    """Forget a delivery that the broker has settled; gives the broker's outcome."""
    answer = int(delivery.remote_state)
    assert delivery.remote.condition is None, "an error in the answer means that the settlement was refused"
    delivery.settle()
    return answer


@dataclass(slots=True)
class Answer:
    """A management node's answer (AMQP contract 7.2)."""

    status: int
    condition: str | None
    body: Any
    """A map, or None."""


async def ask(client: Client, queue: str, operation: str, body: dict[str, Any]) -> Answer:
    """Perform one operation on the queue's management node, over separate links."""
    node, reply_to = f"{queue}/$management", f"answers-to-{operation}"
    answers = await client.receiver(node, settled=True, target=reply_to)
    sender = await client.sender(node)
    sent = await sender.send(
        Message(
            id=ulong(7), reply_to=reply_to, properties={"operation": f"com.microsoft:{operation}"}, body=body
        )
    )
    assert sent.state == Delivery.ACCEPTED
    (received,) = await answers.receive()
    await sender.close()
    await answers.close()
    message = received.message
    assert message.correlation_id == ulong(7), "the request's message-id, same type"
    assert type(message.properties["statusCode"]) is int32
    condition = message.properties.get("errorCondition")
    return Answer(
        int(message.properties["statusCode"]),
        None if condition is None else str(condition),
        owned(message.body),
    )


def owned(value: Any) -> Any:
    """Copy a message's body so that it outlives the message: the binding returns binary values as views of
    the message's own memory.
    """
    if isinstance(value, dict):
        return {key: owned(each) for key, each in value.items()}
    if isinstance(value, list):
        return [owned(each) for each in value]
    return bytes(value) if isinstance(value, memoryview) else value


def array(kind: object, *values: object) -> Array:
    """An AMQP array; `kind` is one of the type codes of `proton.Data`."""
    return Array(UNDESCRIBED, kind, *values)  # type: ignore[arg-type]


def rejecting(received: Received, condition: str, description: str, info: Any) -> Received:
    """The delivery, with the error for its rejection."""
    received.delivery.local.condition = Condition(condition, description, info)
    return received
