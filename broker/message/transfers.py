"""What the sender of a message says about its transfer through another entity (AMQP contract 8.3). Pure."""

from __future__ import annotations

from broker.message.stored import HEAD
from protocol.codec import decode

_KEY = b"x-opt-via-partition-key"


def via_partition_key(stored: bytes) -> str | None:
    """The key that chooses the partition of the via entity, from the annotations of a stored message; None if
    it has none."""
    *_, pairs, size = HEAD.unpack_from(stored)
    annotations = stored[HEAD.size : HEAD.size + size]
    if _KEY not in annotations:
        return None
    offset = 0
    for _ in range(pairs):
        name, offset = decode(annotations, offset)
        value, offset = decode(annotations, offset)
        if name == _KEY.decode():
            return value if isinstance(value, str) else None
    return None
