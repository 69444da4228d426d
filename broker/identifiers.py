"""How partitions, their clients and their messages are named: plain numbers and bytes."""

from __future__ import annotations

from typing import Final, NewType

ClientId = NewType("ClientId", int)
LockToken = bytes
NO_CLIENT: Final = ClientId(0)

PARTITION_SHIFT = 48
"""The partition is in the bits of a sequence number from this one up (AMQP contract 10.2)."""


def partition_of(sequence_number: int) -> int:
    """The partition whose counter gave this sequence number."""
    return sequence_number >> PARTITION_SHIFT


def partition_of_token(token: LockToken) -> int:
    """The partition that issued this lock token."""
    return token[0] << 8 | token[1]


def sequence_of_token(token: LockToken) -> int:
    """The sequence number of the message that a lock token locks."""
    return int.from_bytes(token[:8], "big")


def encode_session_id(session_id: str) -> bytes:
    """A session-id as partitions know it."""
    return session_id.encode("utf-8", "surrogatepass")


def decode_session_id(session_id: bytes) -> str:
    """A session-id as clients know it."""
    return session_id.decode("utf-8", "surrogatepass")
