"""Made-up locked messages, as a partition hands them out."""

from __future__ import annotations

import itertools

from broker.identifiers import PARTITION_SHIFT
from broker.message.stored import store
from broker.operations.receiving import Locked

_numbers = itertools.count(1)


def stored(body: bytes = b"hello", message_id: str = "id") -> bytes:
    """A stored message with one data section."""
    return store(b"\x00\x53\x75\xb0" + len(body).to_bytes(4, "big") + body, lambda: message_id).data


def locked(
    partition: int,
    count: int = 1,
    *,
    size: int | None = None,
    until_ms: int = 60_000,
    subqueue: str = "",
    body: bytes = b"hello",
) -> Locked:
    """`count` messages with new sequence numbers: `size` meaningless bytes each if given, otherwise real
    messages.
    """
    numbers = [partition << PARTITION_SHIFT | next(_numbers) for _ in range(count)]
    return Locked(
        partition,
        subqueue,
        [number.to_bytes(8, "big") + bytes(8) for number in numbers],
        numbers,
        [0] * count,
        [0] * count,
        [None] * count,
        [stored(body) if size is None else bytes(size)] * count,
        [None] * count,
        until_ms,
    )
