"""What makes a message a duplicate of another one: its message-id, and the key that places it (AMQP contract
10.5). Pure.

Message-ids are compared as text, whatever their type and encoding: a string as it is, a UUID as 36 lower-case
characters, a number in decimal digits, binary as lower-case hexadecimal digits. So an application may send a
UUID and repeat it as a string. The text also places messages that have no other key.

An *identity* is a hash of the id and the key, 120 bits long. The hash is keyed with the entity's generation,
so identities of another entity differ, and a client cannot look for ids with equal identities.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from uuid import UUID

from broker.message.stored import bare_message_offset
from protocol.sections import section_at

IDENTITY_BYTES = 15
_LIST8 = 0xC0


def id_text(stored: bytes) -> bytes:
    """The message-id of a stored message as text in UTF-8. Every stored message has one."""
    _, constructor = section_at(stored, bare_message_offset(stored))  # the properties
    at = constructor + (3 if stored[constructor] == _LIST8 else 9)  # the list's size and count come first
    match stored[at]:
        case 0xA1:
            return stored[at + 2 : at + 2 + stored[at + 1]]
        case 0xB1:
            return stored[at + 5 : at + 5 + int.from_bytes(stored[at + 1 : at + 5], "big")]
        case 0x98:
            return str(UUID(bytes=stored[at + 1 : at + 17])).encode()
        case 0x80:
            return b"%d" % int.from_bytes(stored[at + 1 : at + 9], "big")
        case 0x53:
            return b"%d" % stored[at + 1]
        case 0x44:
            return b"0"
        case 0xA0:
            return stored[at + 2 : at + 2 + stored[at + 1]].hex().encode()
        case 0xB0:
            return stored[at + 5 : at + 5 + int.from_bytes(stored[at + 1 : at + 5], "big")].hex().encode()
    raise AssertionError(f"{stored[at]:#x} begins no message-id")


def key_text(stored: bytes) -> str:
    """`id_text` as a key that places the message."""
    text = id_text(stored)
    try:
        return text.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:  # earlier builds stored such ids: they must not stop what forwards them
        return text.decode("latin-1")


def identities(generation: str, messages: Sequence[bytes], keys: Sequence[str | None]) -> list[bytes]:
    """The identities of stored messages. `keys` are their session-ids or partition-keys, None for messages
    without; an empty message was refused and has none."""
    whole = blake2b(digest_size=IDENTITY_BYTES, key=generation.encode()[-64:])
    parts: list[bytes] = []
    for stored, key in zip(messages, keys, strict=True):
        if stored:
            each = whole.copy()
            encoded = b"" if key is None else key.encode("utf-8", "surrogatepass")
            each.update(b"%d:" % len(encoded) if key is not None else b":")
            each.update(encoded)
            each.update(id_text(stored))
            parts.append(each.digest())
        else:
            parts.append(b"")
    return parts
