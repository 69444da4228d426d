"""An envelope holds whole messages, and says of each where it and its body are."""

from __future__ import annotations

from broker.identifiers import PARTITION_SHIFT
from broker.message.changes import encode_changes
from broker.message.range_envelope import range_envelope
from broker.message.stored import store
from broker.operations.streams import RangeRead
from protocol.codec import decode
from tests.support.amqp_messages import ANNOTATIONS, APPLICATION, DATA, HEADER, VALUE, message, sections
from tests.support.locked import stored
from tests.support.range_envelopes import envelope_of

FIRST = 3 << PARTITION_SHIFT | 1


def read_of(*messages: bytes, changed: list[bytes | None] | None = None) -> RangeRead:
    count = len(messages)
    return RangeRead(
        [FIRST + place for place in range(count)],
        [1_000 + place for place in range(count)],
        [0, 7, *[0] * count][:count],
        [None] * count,
        list(messages),
        changed or [None] * count,
        None,
        next=FIRST + count,
        end=FIRST + count + 1,
        start=FIRST,
        head=FIRST + 9,
        locked=1,
        left_out=[2, 3, 4],
        dead_lettered=5,
        missing=6,
    )


def test_an_envelope_says_what_it_holds() -> None:
    found = envelope_of(range_envelope(read_of(stored(b"a"), stored(b"bb")), FIRST, 3, "a generation"))
    assert found.fields == {
        "generation": "a generation",
        "partition": 3,
        "from": FIRST,
        "next": FIRST + 2,
        "to": FIRST + 3,
        "last": False,
        "start": FIRST,
        "head": FIRST + 9,
        "locked": 1,
        "deferred": 2,
        "scheduled": 3,
        "expired": 4,
        "dead-lettered": 5,
        "missing": 6,
        "sequence-numbers": [FIRST, FIRST + 1],
        "enqueued-times": [1_000, 1_001],
        "delivery-counts": [0, 7],
        "ends": found.fields["ends"],
        "body-offsets": found.fields["body-offsets"],
        "body-sizes": [1, 2],
    }
    assert found.bodies == [b"a", b"bb"]


def test_each_message_is_whole_and_as_a_browser_sees_it() -> None:
    own = store(
        message(annotations={"x-opt-partition-key": "k"}, properties=["id"], application={"colour": "red"})
        + message(body=(b"body",)),
        lambda: "id",
    ).data
    (first, second) = envelope_of(range_envelope(read_of(own, own), FIRST, 3, "g")).messages
    parts = sections(first)
    assert parts[ANNOTATIONS]["x-opt-sequence-number"] == FIRST
    assert parts[ANNOTATIONS]["x-opt-partition-key"] == "k"
    assert parts[ANNOTATIONS]["x-opt-partition-id"] == 3 and parts[ANNOTATIONS]["x-opt-message-state"] == 0
    assert parts[APPLICATION] == {"colour": "red"} and parts[DATA] == b"body"
    assert sections(second)[HEADER][4] == 7


def test_an_entity_with_one_partition_shows_no_partition_id() -> None:
    encoded = range_envelope(read_of(stored()), FIRST, 0, "g", partitioned=False)
    assert "x-opt-partition-id" not in sections(envelope_of(encoded).messages[0])[ANNOTATIONS]


def test_changed_properties_are_in_the_message_and_its_body_is_found_all_the_same() -> None:
    changed = [None, encode_changes({"colour": "blue"}), None]
    read = read_of(stored(b"a"), stored(b"b"), stored(b"c"), changed=changed)
    found = envelope_of(range_envelope(read, FIRST, 3, "g"))
    assert found.bodies == [b"a", b"b", b"c"]
    assert sections(found.messages[1])[APPLICATION] == {"colour": "blue"}


def test_a_body_that_is_not_one_data_section_has_no_place() -> None:
    value = store(b"\x00\x53\x77\xa1\x04text", lambda: "id").data
    found = envelope_of(range_envelope(read_of(value, stored(b"b")), FIRST, 3, "g"))
    assert found.bodies == [None, b"b"] and sections(found.messages[0])[VALUE] == "text"


def test_an_envelope_without_messages_is_a_message_all_the_same() -> None:
    found = envelope_of(range_envelope(read_of(), FIRST, 3, "g"))
    assert found.messages == [] and found.fields["ends"] == [] and found.fields["next"] == FIRST


def test_columns_can_be_read_without_a_decoder() -> None:
    encoded = range_envelope(read_of(stored(b"a"), stored(b"bb")), FIRST, 3, "g")
    place = encoded.index(b"\xa3\x10sequence-numbers") + 18
    assert encoded[place] == 0xF0 and encoded[place + 9] == 0x81
    assert encoded[place + 10 : place + 18] == FIRST.to_bytes(8, "big")
    assert decode(encoded, place)[0].values == [FIRST, FIRST + 1]
