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
    """Encode one section; its descriptor is a smallulong."""
    return encode(Described(ULong(code), value))


def message(
    *,
    header: list[Any] | None = None,
    annotations: dict[str, Any] | None = None,
    properties: list[Any] | None = None,
    application: dict[str, Any] | None = None,
    body: Iterable[bytes] = (b"body",),
) -> bytes:
    """Encode a message. Sections not given are omitted."""
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
    """Section code → value, decoded by this project's codec. If a section repeats, the last one wins."""
    found, offset = {}, 0
    while offset < len(encoded):
        described, offset = decode(encoded, offset)
        found[int(described.descriptor)] = described.value
    return found


def as_the_python_client_reads(encoded: bytes) -> Any:
    """Decode the message with the official Python client's own decoder."""
    return decode_payload(memoryview(encoded))
