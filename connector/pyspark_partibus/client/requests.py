"""Requests to a node of the broker and their responses: `$management` of an entity, and `$cbs` (AMQP
contract 2 and 7)."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Mapping
from typing import Any

from pyspark_partibus.client.connection import Connection, refusal
from pyspark_partibus.client.links import Receiver, Sender
from pyspark_partibus.client.values import Described, ULong, decode, encode
from pyspark_partibus.errors import BadMessage
from pyspark_partibus.messages.sections import APPLICATION_PROPERTIES, PROPERTIES, VALUE, sections


class Requester:
    """A pair of links to one node. One request at a time."""

    def __init__(self, connection: Connection, node: str) -> None:
        self._node = node
        self._reply_to = f"spark-{uuid.uuid4().hex}"
        self._receiver = Receiver(connection, node, target=self._reply_to)
        self._sender = Sender(connection, node)
        self._numbers = itertools.count(1)
        self._receiver.grant(1)

    def ask(self, operation: str, body: Any, properties: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Make a request and give the body of its response; an empty map if nothing was found (204). Raises
        Refused, Busy or TimedOut."""
        number = next(self._numbers)
        application = {"operation": operation, **(properties or {})}
        self._sender.send(request_of(ULong(number), self._reply_to, application, body))
        self._sender.outcome()
        while True:
            correlation, status, response = response_of(self._receiver.receive())
            self._receiver.grant(1)
            if correlation == number:  # not the late answer to a request that was given up
                break
        code = int(status.get("statusCode", status.get("status-code", 0)))
        if 200 <= code < 300:
            return response if isinstance(response, dict) else {}
        what = f"'{operation}' on '{self._node}'"
        description = str(status.get("statusDescription", status.get("status-description", "")))
        raise refusal(what, str(status.get("errorCondition", f"status {code}")), description)

    def close(self) -> None:
        """Detach both links."""
        self._sender.close()
        self._receiver.close()


def request_of(message_id: Any, reply_to: str, application: Mapping[str, Any], body: Any) -> bytes:
    """An encoded request."""
    properties = [message_id, None, None, None, reply_to]
    return b"".join(
        encode(Described(ULong(code), value))
        for code, value in (
            (PROPERTIES, properties),
            (APPLICATION_PROPERTIES, dict(application)),
            (VALUE, body),
        )
    )


def response_of(message: bytes) -> tuple[Any, dict[str, Any], Any]:
    """The correlation-id, application properties and body of a response. Raises BadMessage."""
    correlation, status, body = None, {}, None
    for code, start, _ in sections(message, 0, len(message)):
        if code == PROPERTIES:
            fields = decode(message, start)[0]
            correlation = fields[5] if len(fields) > 5 else None
        elif code == APPLICATION_PROPERTIES:
            status = decode(message, start)[0]
        elif code == VALUE:
            body = decode(message, start)[0]
    if not isinstance(status, dict):
        raise BadMessage("a response without a status")
    return correlation, status, body


def put_token(connection: Connection, audience: str, token: str) -> None:
    """Present a token for an entity (AMQP contract 2.2)."""
    requester = Requester(connection, "$cbs")
    try:
        requester.ask("put-token", token, {"type": "servicebus.windows.net:sastoken", "name": audience})
    finally:
        requester.close()
