"""Messages as senders encode them, part by part, and as receivers read them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from azure.servicebus._pyamqp._decode import decode_payload

from protocol.codec import Described, Symbol, ULong, decode, encode

HEADER, DELIVERY_ANNOTATIONS, ANNOTATIONS, PROPERTIES, APPLICATION, DATA, SEQUENCE, VALUE, FOOTER = range(
    0x70, 0x79
)


def section(code: int, value: Any) -> bytes:
    """One section, its descriptor a smallulong."""
    return encode(Described(ULong(code), value))


def message(
    *,
    header: list[Any] | None = None,
    annotations: dict[str, Any] | None = None,
    properties: list[Any] | None = None,
    application: dict[str, Any] | None = None,
    body: Iterable[bytes] = (b"body",),
) -> bytes:
    """An encoded message; sections left out are not there."""
    parts = [
        (HEADER, header),
        (ANNOTATIONS, annotations and symbols(annotations)),
        (PROPERTIES, properties),
        (APPLICATION, application),
    ]
    encoded = [section(code, value) for code, value in parts if value is not None]
    return b"".join(encoded + [section(DATA, data) for data in body])


def symbols(entries: dict[str, Any]) -> dict[Symbol, Any]:
    return {Symbol(key): value for key, value in entries.items()}


def sections(encoded: bytes) -> dict[int, Any]:
    """Section code → value, as this project's codec decodes them; of a section that repeats, the last one."""
    found, offset = {}, 0
    while offset < len(encoded):
        described, offset = decode(encoded, offset)
        found[int(described.descriptor)] = described.value
    return found


def as_the_python_client_reads(encoded: bytes) -> Any:
    """The message in the official Python client's own decoder."""
    return decode_payload(memoryview(encoded))
