"""broker/message/identity.py: message-ids as text, and what tells messages apart."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from broker.message.identity import IDENTITY_BYTES, id_text, identities, key_text
from broker.message.stored import HEAD, MessageIds, message_id, store
from protocol.codec import Symbol, ULong, encode
from tests.support.amqp_messages import message

SOME = UUID("550E8400-e29b-41d4-a716-446655440000")
PROPERTIES_NAME = "amqp:properties:list"
STR32 = b"\x00\x53\x73\xc0\x08\x01\xb1\x00\x00\x00\x02id\x00\x53\x75\xa0\x01x"


def stored(message_id: Any, **more: Any) -> bytes:
    properties = [message_id, *([None] * 9), more.pop("session", None)]
    return store(message(properties=properties, body=[b"x"], **more), MessageIds(b"\0" * 8)).data


@pytest.mark.parametrize(
    ("message_id", "text"),
    [
        ("order-1", b"order-1"),
        ("Zürich", "Zürich".encode()),
        ("", b""),
        (SOME, b"550e8400-e29b-41d4-a716-446655440000"),
        (ULong(0), b"0"),
        (ULong(7), b"7"),
        (ULong(2**64 - 1), b"18446744073709551615"),
        (b"\x00\xff", b"00ff"),
        (b"", b""),
        (None, b"0" * 32),
    ],
)
def test_an_id_of_any_type_is_text(message_id: Any, text: bytes) -> None:
    assert id_text(stored(message_id)) == text
    assert id_text(stored(message_id, annotations={"x-opt-partition-key": "k" * 99})) == text
    assert key_text(stored(message_id)).encode() == text


def test_short_and_long_strings_are_the_same_and_so_are_short_and_long_property_lists() -> None:
    assert id_text(store(STR32, MessageIds()).data) == b"id"
    assert id_text(stored("id", session="s" * 100)) == id_text(stored("id")) == b"id"
    long = message(properties=["id", b"u" * 300], body=[b"x"])
    assert id_text(store(long, MessageIds()).data) == b"id"


@pytest.mark.parametrize("descriptor", [b"\x80" + (0x73).to_bytes(8, "big"), encode(Symbol(PROPERTIES_NAME))])
def test_an_id_is_found_however_the_descriptor_of_the_properties_is_spelled(descriptor: bytes) -> None:
    spelled = b"\0" + descriptor + stored("order-1")[HEAD.size + 3 :]
    data = store(spelled, MessageIds()).data
    assert data[HEAD.size :] == spelled, "the bare message is kept as it came"
    assert id_text(data) == b"order-1" and message_id(data) == encode("order-1")
    assert identities("a", [data], [None]) == [identity("order-1")]


def test_an_id_that_is_no_text_places_its_message_all_the_same() -> None:
    """Earlier builds stored such ids."""
    bad = stored("ii").replace(b"ii", b"i\xff")
    assert key_text(bad) == "i\xff" and len(identities("a", [bad], [None])) == 1


def identity(message_id: Any, key: str | None = None, generation: str = "a") -> bytes:
    (found,) = identities(generation, [stored(message_id)], [key])
    return found


def test_messages_are_the_same_if_their_ids_and_keys_are() -> None:
    assert identity(SOME) == identity(str(SOME)) == identity(str(SOME))
    assert identity(ULong(7), "k") == identity("7", "k")
    different = [
        identity("a"), identity("A"), identity("a", "k"), identity("a", ""), identity("", "a"),
        identity("ka", ""), identity("a", "K"), identity("a", generation="b"), identity(":a"),
    ]  # fmt: skip
    assert len(set(different)) == len(different) and {len(each) for each in different} == {IDENTITY_BYTES}


def test_a_message_that_was_refused_has_none() -> None:
    found = identities("a", [stored("x"), b"", stored("y")], [None, None, "k"])
    assert found == [identity("x"), b"", identity("y", "k")]
