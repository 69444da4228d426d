"""Makes requests to `$management` with a plain AMQP client: Qpid Proton's blocking connection.

docs/operations.md shows the same calls as an example.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from proton import UNDESCRIBED, Array, Data, Message
from proton.utils import BlockingConnection

from tests.interop.proton_client import WAIT_S


class Management:
    """The management node of one address, such as `orders` or `orders/$deadletterqueue`."""

    def __init__(self, connection: BlockingConnection, address: str) -> None:
        node = f"{address}/$management"
        self._sender = connection.create_sender(node)
        self._receiver = connection.create_receiver(node, credit=1)

    def ask(self, operation: str, **body: Any) -> tuple[int, dict[str, Any]]:
        """Make a request; returns the status, and the body of the response or, for a failure, the error.
        Underscores in the names of fields stand for hyphens."""
        fields = {name.replace("_", "-"): value for name, value in body.items()}
        self._sender.send(Message(id="1", properties={"operation": operation}, body=fields))
        response: Any = self._receiver.receive(timeout=WAIT_S)
        self._receiver.accept()
        status: int = response.properties["statusCode"]
        if status >= 300:
            return status, {
                "condition": str(response.properties["errorCondition"]),
                "description": response.properties["statusDescription"],
            }
        return status, {str(key): plain(value) for key, value in (response.body or {}).items()}

    def close(self) -> None:
        self._sender.close()  # type: ignore[no-untyped-call]
        self._receiver.close()  # type: ignore[no-untyped-call]


def plain(value: Any) -> Any:
    """An array as a list; other values as they are."""
    return list(value.elements) if isinstance(value, Array) else value


def longs(numbers: list[int]) -> Array:
    """An AMQP array of long."""
    return Array(UNDESCRIBED, Data.LONG, *numbers)  # type: ignore[arg-type]


def uuids(tokens: list[Any]) -> Array:
    """An AMQP array of uuid."""
    return Array(UNDESCRIBED, Data.UUID, *tokens)  # type: ignore[arg-type]


@contextmanager
def management(connection: BlockingConnection, address: str) -> Iterator[Management]:
    node = Management(connection, address)
    try:
        yield node
    finally:
        node.close()
