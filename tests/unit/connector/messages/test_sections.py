"""Where the sections of a message are."""

from __future__ import annotations

import proton
import pytest

from protocol.sections import SECTION_NAMES
from pyspark_partibus.errors import BadMessage
from pyspark_partibus.messages.sections import sections


def message() -> bytes:
    made = proton.Message(id="1", body=b"x" * 300, inferred=True, properties={"k": 1})
    made.annotations = {proton.symbol("x-a"): 1}
    return bytes(made.encode())


def test_sections_are_found_in_their_order() -> None:
    encoded = message()
    found = list(sections(encoded, 0, len(encoded)))
    assert [code for code, _, _ in found] == [0x70, 0x72, 0x73, 0x74, 0x75]
    assert found[-1][2] == len(encoded)


@pytest.mark.parametrize("kind", [0xA3, 0xB3])
def test_descriptors_may_be_spelled_out(kind: int) -> None:
    """Symptom: one such message failed the query, although the broker takes it like any other."""

    def spelled(name: str, kind: int = kind) -> bytes:
        size = len(name).to_bytes(1 if kind == 0xA3 else 4, "big")
        return b"\x00" + bytes([kind]) + size + name.encode() + b"\xa0\x01x"

    encoded = b"".join(map(spelled, SECTION_NAMES))
    assert [code for code, _, _ in sections(encoded, 0, len(encoded))] == list(range(0x70, 0x79))
    unknown = encoded + spelled("amqp:further:map")
    with pytest.raises(BadMessage, match="unknown descriptor 'amqp:further:map'"):
        list(sections(unknown, 0, len(unknown)))


def test_a_message_cut_anywhere_but_between_sections_is_noticed() -> None:
    encoded = message()
    ends = {0, *(end for _, _, end in sections(encoded, 0, len(encoded)))}
    for size in set(range(len(encoded))) - ends:
        with pytest.raises(BadMessage):
            list(sections(encoded[:size], 0, size))


@pytest.mark.parametrize(
    "data",
    [
        b"\x01",
        b"\x00\x53\x01\x40",
        b"\x00\xa3\x01a\x40",
        b"\x00\x53\x75\x3f",
        b"\x00\x80" + b"\xff" * 8 + b"\x40",
    ],
)
def test_what_begins_no_section_is_noticed(data: bytes) -> None:
    with pytest.raises(BadMessage):
        list(sections(data, 0, len(data)))


def test_a_section_must_end_with_its_message() -> None:
    encoded = message()
    with pytest.raises(BadMessage, match="cut off"):
        list(sections(encoded + encoded, 0, len(encoded) - 1))
    assert len(list(sections(encoded + encoded, len(encoded), 2 * len(encoded)))) == 5
