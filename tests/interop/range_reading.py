"""Reads ranges (AMQP contract 7.6.2) with a plain AMQP client: Qpid Proton's blocking connection."""

from __future__ import annotations

from typing import Any

from proton import Described, Message, Terminus, symbol
from proton.reactor import ReceiverOption
from proton.utils import BlockingConnection

from tests.interop.own_management import plain
from tests.interop.proton_client import WAIT_S


class InRange(ReceiverOption):
    """The source of a receiver that reads a range."""

    def __init__(self, **fields: int) -> None:
        given: Any = {symbol(key.strip("_")): value for key, value in fields.items()}
        self._filter = Described(symbol("partibus:range:map"), given)

    def apply(self, receiver: Any) -> None:
        receiver.source.distribution_mode = Terminus.DIST_MODE_COPY
        receiver.source.filter.put_dict({symbol("partibus:range"): self._filter})


class Envelope:
    """An envelope as proton decodes it."""

    def __init__(self, message: Any) -> None:
        self.fields = {str(key): plain(value) for key, value in (message.annotations or {}).items()}
        data = bytes(message.body)
        ends = self.fields["ends"]
        self.messages = [Message() for _ in ends]
        for each, begin, end in zip(self.messages, [0, *ends], ends, strict=False):
            each.decode(data[begin:end])
        places = zip(self.fields["body-offsets"], self.fields["body-sizes"], strict=True)
        self.bodies = [data[offset : offset + size] for offset, size in places]


def read(connection: BlockingConnection, name: str, **fields: int) -> list[Envelope]:
    """All envelopes of a range."""
    receiver = connection.create_receiver(name, credit=2, name="range", options=InRange(**fields))
    found: list[Envelope] = []
    while not found or not found[-1].fields["last"]:
        found.append(Envelope(receiver.receive(timeout=WAIT_S)))
        receiver.accept()
    receiver.close()  # type: ignore[no-untyped-call]
    return found
