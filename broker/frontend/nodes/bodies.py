"""Reads the bodies of `$management` requests, and makes responses (AMQP contract 7.2). Pure.

Every function that reads a field raises Refused(ARGUMENT) if the field is missing or has the wrong type.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, TypeVar

from broker.base.errors import Reason, Refused
from broker.frontend.nodes.request_node import Response
from broker.identifiers import LockToken
from broker.refusal_wording import status_of
from protocol.codec import Array, Int, Long, Symbol, Timestamp, TypeCode, UInt

ELEMENTS_MAX = 4_000
"""Elements of one array: sequence numbers, lock tokens."""
S = TypeVar("S")
"""What serves requests."""
Operation = Callable[[S, dict[str, Any]], Awaitable[Response]]
"""A method that carries out a request, given its body."""
Operations = Mapping[str, tuple[str, Operation[S]]]
"""By name: the right that an operation needs, and the operation. Of a class, not of its objects: with a table
of its own methods, an object would refer to itself, and only Python's collector could free it."""
NO_CONTENT = Response({"statusCode": Int(204), "statusDescription": "No content"})


def ok(body: dict[str, Any]) -> Response:
    """The response to a request that was carried out."""
    return Response({"statusCode": Int(200), "statusDescription": "OK"}, body)


def refusal(why: Refused) -> Response:
    """The response to a request that was refused."""
    status, condition = status_of(why.reason)
    return Response(
        {
            "statusCode": Int(status),
            "statusDescription": why.description,
            "errorCondition": Symbol(condition),
        },
    )


def known_fields_only(operations: Operations[S], fields: Mapping[str, frozenset[str]]) -> Operations[S]:
    """The operations, each refused if its request has another field than those that belong to its name."""
    return {
        name: (right, _known_fields_only(name, fields[name], operation))
        for name, (right, operation) in operations.items()
    }


def _known_fields_only(name: str, fields: frozenset[str], operation: Operation[S]) -> Operation[S]:

    async def checked(server: S, body: dict[str, Any]) -> Response:
        check_fields(body, fields, f"'{name}'")
        return await operation(server, body)

    return checked


def check_fields(body: dict[str, Any], fields: frozenset[str], request: str) -> None:
    """Raise Refused if a request has another field than these."""
    unknown = [field for field in body if field not in fields]
    if unknown:
        allowed = f"its fields are {', '.join(sorted(fields))}" if fields else "it has no fields"
        raise Refused(Reason.ARGUMENT, f"{request} has no field {str(unknown)[1:-1]:.200}; {allowed}.")


def longs(numbers: Iterable[int]) -> Array:
    """An array of long."""
    return Array(TypeCode.LONG, [Long(number) for number in numbers])


def uints(numbers: Iterable[int]) -> Array:
    """An array of uint."""
    return Array(TypeCode.UINT, [UInt(number) for number in numbers])


def expirations(until_ms: list[int], wall_ahead_ms: int) -> Response:
    """The response to a renewal of locks: when each of them ends. `until_ms` is in monotonic time."""
    times = [Timestamp(each + wall_ahead_ms) for each in until_ms]
    return ok({"expirations": Array(TypeCode.TIMESTAMP, times)})


def integer(body: dict[str, Any], key: str, default: int | None = None) -> int:
    """An integer of any AMQP type."""
    value = body.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool):
        raise Refused(Reason.ARGUMENT, f"'{key}' must be an integer, not {value!r:.80}.")
    return int(value)


def elements(body: dict[str, Any], key: str) -> list[Any]:
    """The elements of an array or list, at most ELEMENTS_MAX."""
    value = body.get(key)
    found = value.values if isinstance(value, Array) else value
    if not isinstance(found, list | tuple):
        raise Refused(Reason.ARGUMENT, f"'{key}' must be an array.")
    if len(found) > ELEMENTS_MAX:
        raise Refused(Reason.ARGUMENT, f"'{key}' has {len(found)} elements; the limit is {ELEMENTS_MAX}.")
    return list(found)


def integers(body: dict[str, Any], key: str) -> list[int]:
    """The integers of an array or list."""
    values = elements(body, key)
    if not all(isinstance(value, int) and not isinstance(value, bool) for value in values):
        raise Refused(Reason.ARGUMENT, f"'{key}' must hold integers.")
    return [int(value) for value in values]


def encoded_messages(body: dict[str, Any]) -> list[bytes]:
    """The messages of a request to schedule them: at least one. Everything that counts is in their encoded
    form (AMQP contract 7.3.6)."""
    values = elements(body, "messages")
    found = [value.get("message") for value in values if isinstance(value, dict)]
    if not values or len(found) < len(values) or not all(isinstance(each, bytes) and each for each in found):
        raise Refused(
            Reason.ARGUMENT, "'messages' must hold at least one map, each with the encoded 'message'."
        )
    return [bytes(each) for each in found if each]


def lock_tokens(body: dict[str, Any]) -> list[LockToken]:
    """Lock tokens: uuids in RFC order on this node, but in GUID order as delivery tags (AMQP contract
    5.3)."""
    values = elements(body, "lock-tokens")
    if not values or not all(isinstance(value, uuid.UUID) for value in values):
        raise Refused(Reason.ARGUMENT, "'lock-tokens' must hold at least one uuid, and nothing else.")
    return [value.bytes_le for value in values]
