"""Envelopes as the broker makes them (AMQP contract 7.6.2), for tests of the connector without a broker."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from pyspark_partibus.client.values import LONGS, TIMESTAMPS, Array, Described, Symbol, UInt, ULong, encode
from pyspark_partibus.messages.envelope import NOT_ONE_SECTION
from pyspark_partibus.messages.sections import ANNOTATIONS, DATA

UINTS = 0x70


def section(code: int, value: Any) -> bytes:
    """One section of a message."""
    return encode(Described(ULong(code), value))


def envelope(
    messages: Sequence[bytes],
    *,
    first: int = 1,
    bodies: Sequence[tuple[int, int]] | None = None,
    **changed: Any,
) -> bytes:
    """An envelope whose messages have consecutive sequence numbers; `bodies` are offsets and sizes."""
    numbers = range(first, first + len(messages))
    bodies = bodies or [(0, NOT_ONE_SECTION)] * len(messages)
    values: dict[str, Any] = {
        "generation": "gen",
        "partition": UInt(first >> 48),
        "from": first,
        "next": first + len(messages),
        "to": first + len(messages),
        "last": True,
        "start": first,
        "head": first + len(messages),
        "locked": UInt(0),
        **dict.fromkeys(("deferred", "scheduled", "expired", "dead-lettered", "missing"), UInt(0)),
        "sequence-numbers": Array(LONGS, numbers),
        "enqueued-times": Array(TIMESTAMPS, [1_700_000_000_000 + number for number in range(len(messages))]),
        "delivery-counts": Array(UINTS, [0] * len(messages)),
        "ends": Array(UINTS, accumulate(map(len, messages))),
        "body-offsets": Array(UINTS, [offset for offset, _ in bodies]),
        "body-sizes": Array(UINTS, [size for _, size in bodies]),
    }
    values |= {name.replace("_", "-"): value for name, value in changed.items()}
    annotations = {Symbol(name): value for name, value in values.items() if value is not None}
    return section(ANNOTATIONS, annotations) + section(DATA, b"".join(messages))
