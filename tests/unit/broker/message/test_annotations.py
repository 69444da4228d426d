import uuid
from typing import Any

import proton
import pytest

from broker.identifiers import PARTITION_SHIFT
from broker.message.annotations import deliverables, joined, peeked_messages
from broker.message.changes import encode_changes
from broker.message.stored import store
from broker.operations.browsing import Peeked
from broker.operations.receiving import Locked
from protocol.codec import Long, Short, Symbol, Timestamp, UByte, UInt
from tests.support.amqp_messages import (
    ANNOTATIONS,
    APPLICATION,
    DATA,
    DELIVERY_ANNOTATIONS,
    HEADER,
    PROPERTIES,
    as_the_python_client_reads,
    message,
    section,
    sections,
)
from tests.support.amqp_values import same

SEQUENCE_NUMBER = 3 << PARTITION_SHIFT | 5
ENQUEUED_AT_MS, LOCKED_UNTIL_MS = 1_700_000_000_000, 1_700_000_060_000
TOKEN = bytes(range(16))


def locked(payload: bytes, **changes: Any) -> Locked:
    fields: dict[str, Any] = {
        "partition": 3,
        "subqueue": "",
        "tokens": [TOKEN],
        "sequence_numbers": [SEQUENCE_NUMBER],
        "enqueued_at_ms": [ENQUEUED_AT_MS],
        "delivery_counts": [0],
        "expires_at_ms": [None],
        "messages": [store(payload, lambda: "given").data],
        "changed": [None],
        "locked_until_ms": LOCKED_UNTIL_MS,
    }
    return Locked(**(fields | changes))


def delivered(payload: bytes, **changes: Any) -> dict[int, Any]:
    return sections(joined(deliverables(locked(payload, **changes)))[0])


def test_a_delivery_carries_the_annotations_in_the_types_that_clients_cast_to() -> None:
    annotations = delivered(message())[ANNOTATIONS]
    expected = {
        "x-opt-sequence-number": Long(SEQUENCE_NUMBER),
        "x-opt-enqueued-time": Timestamp(ENQUEUED_AT_MS),
        "x-opt-enqueue-sequence-number": Long(SEQUENCE_NUMBER),
        "x-opt-locked-until": Timestamp(LOCKED_UNTIL_MS),
        "x-opt-partition-id": Short(3),
    }
    assert same(annotations, {Symbol(key): value for key, value in expected.items()})


def test_the_senders_own_annotations_follow_as_they_came() -> None:
    annotations = delivered(message(annotations={"x-opt-partition-key": "k", "own": [1]}))[ANNOTATIONS]
    assert list(annotations)[-2:] == ["x-opt-partition-key", "own"]
    assert annotations["own"] == [1]


def test_a_first_delivery_is_durable_by_a_first_acquirer_and_counts_no_failure() -> None:
    assert same(delivered(message())[HEADER], [True, None, None, True, UInt(0)])


def test_a_later_delivery_counts_the_failures_before_it() -> None:
    assert same(delivered(message(), delivery_counts=[300])[HEADER], [True, None, None, False, UInt(300)])


def test_priority_and_time_to_live_are_as_sent() -> None:
    sent = message(header=[False, UByte(0), UInt(5000)])
    assert same(delivered(sent)[HEADER], [True, UByte(0), UInt(5000), True, UInt(0)])


@pytest.mark.parametrize(("expires_in_ms", "ttl"), [(2000, 2000), (2**40, 2**32 - 1), (0, 1)])
def test_the_time_to_live_in_force_replaces_the_one_sent(expires_in_ms: int, ttl: int) -> None:
    header = delivered(
        message(header=[None, None, UInt(5000)]), expires_at_ms=[ENQUEUED_AT_MS + expires_in_ms]
    )[HEADER]
    assert same(header[2], UInt(ttl))


def test_the_bare_message_follows_byte_for_byte() -> None:
    payload = message(properties=["id", None, "to"], application={"a": UByte(1)}, body=[b"x" * 5000, b"y"])
    assert joined(deliverables(locked(payload)))[0].endswith(payload)


def test_receive_and_delete_shows_no_lock_and_a_plain_entity_no_partition() -> None:
    shown = sections(joined(deliverables(locked(message()), peek_lock=False, partitioned=False))[0])[
        ANNOTATIONS
    ]
    assert set(shown) == {"x-opt-sequence-number", "x-opt-enqueued-time", "x-opt-enqueue-sequence-number"}


def test_a_deferred_message_carries_its_state_and_its_lock_token_in_the_order_of_a_uuid() -> None:
    found = delivered(message(), deferred=True)
    assert found[DELIVERY_ANNOTATIONS] == {Symbol("x-opt-lock-token"): uuid.UUID(bytes_le=TOKEN)}
    assert same(found[ANNOTATIONS]["x-opt-message-state"], 1)
    assert (
        sections(joined(deliverables(locked(message(), deferred=True), peek_lock=False))[0])[
            DELIVERY_ANNOTATIONS
        ]
        == {}
    )


@pytest.mark.parametrize("count", [1, 2, 7, 8, 300])
def test_every_delivery_carries_its_own_lock_token_in_the_order_of_a_uuid(count: int) -> None:
    tokens = [uuid.uuid4().bytes_le for _ in range(count)]
    stored = store(message(), lambda: "given").data
    batch = Locked(
        3,
        "",
        tokens,
        [*range(count)],
        [1] * count,
        [0] * count,
        [None] * count,
        [stored] * count,
        [None] * count,
        99,
    )
    found = [sections(one)[DELIVERY_ANNOTATIONS] for one in joined(deliverables(batch))]
    assert found == [{Symbol("x-opt-lock-token"): uuid.UUID(bytes_le=token)} for token in tokens]


@pytest.mark.parametrize("changed", [None, encode_changes({"size": 3})])
@pytest.mark.parametrize("annotations", [None, {}, {"x-opt-partition-key": "k"}])
def test_receive_and_delete_has_the_delivery_annotations_section_without_a_token(
    annotations: Any, changed: bytes | None
) -> None:
    found = sections(
        joined(deliverables(locked(message(annotations=annotations), changed=[changed]), peek_lock=False))[0]
    )
    assert found[DELIVERY_ANNOTATIONS] == {}


@pytest.mark.parametrize("changed", [None, encode_changes({"size": 3})])
@pytest.mark.parametrize("place", ["first", "last"])
@pytest.mark.parametrize(
    "own", [{"hop": 7}, {"hop": 7, "x-opt-lock-token": uuid.UUID(int=5), "note": "x" * 300}]
)
def test_the_senders_own_delivery_annotations_are_kept_beside_the_token(
    own: dict[str, Any], place: str, changed: bytes | None
) -> None:
    delivery = section(DELIVERY_ANNOTATIONS, {Symbol(key): value for key, value in own.items()})
    rest = message(annotations={"x-opt-partition-key": "k"}, properties=["id"], application={"size": 2})
    payload = delivery + rest if place == "first" else rest + delivery
    kept = {Symbol(key): value for key, value in own.items() if key != "x-opt-lock-token"}
    for deferred in (False, True):
        for peek_lock in (False, True):
            batch = locked(payload, changed=[changed], deferred=deferred)
            found = sections(joined(deliverables(batch, peek_lock=peek_lock))[0])
            token = {Symbol("x-opt-lock-token"): uuid.UUID(bytes_le=TOKEN)} if peek_lock else {}
            assert same(found[DELIVERY_ANNOTATIONS], token | kept)
            assert (
                found[ANNOTATIONS]["x-opt-partition-key"] == "k"
                and found[PROPERTIES] == ["id"]
                and found[DATA] == b"body"
            )
            assert found[APPLICATION] == {"size": 3 if changed else 2}
    peeked = Peeked([1], [5], [0], [None], batch.messages, [changed], [0], None)
    assert same(sections(peeked_messages(peeked)[0])[DELIVERY_ANNOTATIONS], kept)


def test_changed_properties_are_laid_over_the_messages_own() -> None:
    change = encode_changes({"DeadLetterReason": "tired", "gone": None, "kept": 2})
    found = delivered(message(application={"gone": 1, "kept": 1, "own": UByte(7)}), changed=[change])
    assert same(found[APPLICATION], {"kept": 2, "own": UByte(7), "DeadLetterReason": "tired"})
    assert found[DATA] == b"body"
    assert found[PROPERTIES] == ["given"]


def test_each_message_of_a_batch_is_its_own() -> None:
    stored = [
        store(message(properties=[f"id{n}"], body=[bytes([n])]), lambda: "given").data for n in range(3)
    ]
    batch = Locked(
        3,
        "",
        [TOKEN] * 3,
        [1, 2, 3],
        [10, 20, 30],
        [0, 1, 2],
        [None, 70, None],
        stored,
        [None, encode_changes({"a": 1}), None],
        99,
    )
    found = [sections(one) for one in joined(deliverables(batch))]
    assert [one[PROPERTIES] for one in found] == [["id0"], ["id1"], ["id2"]]
    assert [one[ANNOTATIONS]["x-opt-sequence-number"] for one in found] == [1, 2, 3]
    assert [one[ANNOTATIONS]["x-opt-enqueued-time"] for one in found] == [10, 20, 30]
    assert [one[HEADER][4] for one in found] == [0, 1, 2]
    assert [one[HEADER][2] for one in found] == [None, 50, None]
    assert [APPLICATION in one for one in found] == [False, True, False]


def test_a_peeked_message_shows_its_state_and_no_lock() -> None:
    stored = store(message(), lambda: "given").data
    peeked = Peeked(
        [SEQUENCE_NUMBER, 1], [5, 6], [0, 4], [None, None], [stored, stored], [None, None], [2, 0], None
    )
    first, second = (sections(one) for one in peeked_messages(peeked))
    assert same(first[ANNOTATIONS]["x-opt-message-state"], 2)
    assert same(first[ANNOTATIONS]["x-opt-partition-id"], Short(3))
    assert same(second[ANNOTATIONS]["x-opt-message-state"], 0)
    assert same(second[ANNOTATIONS]["x-opt-partition-id"], Short(0))
    assert "x-opt-locked-until" not in first[ANNOTATIONS] and DELIVERY_ANNOTATIONS not in first
    assert second[HEADER][4] == 4
    assert "x-opt-partition-id" not in sections(peeked_messages(peeked, partitioned=False)[0])[ANNOTATIONS]


def test_proton_and_the_python_client_read_a_delivery() -> None:
    payload = message(
        header=[None, UByte(3)],
        annotations={"own": 1},
        properties=["id", None, None, "subject"],
        application={"a": 1},
    )
    encoded = joined(
        deliverables(
            locked(payload, delivery_counts=[2], expires_at_ms=[ENQUEUED_AT_MS + 9000], deferred=True)
        )
    )[0]
    read = proton.Message()
    read.decode(encoded)
    assert (read.id, read.subject, read.priority, read.delivery_count, read.durable) == (
        "id",
        "subject",
        3,
        2,
        True,
    )
    assert read.ttl == 9
    assert dict(read.annotations or {})["x-opt-sequence-number"] == SEQUENCE_NUMBER
    assert read.body == b"body"
    received = as_the_python_client_reads(encoded)
    assert (received.header.delivery_count, received.header.ttl) == (2, 9000)
    assert received.message_annotations[b"x-opt-locked-until"] == LOCKED_UNTIL_MS
    assert received.message_annotations[b"own"] == 1
    assert received.delivery_annotations[b"x-opt-lock-token"] == uuid.UUID(bytes_le=TOKEN)
    assert received.properties.message_id == b"id"
    assert received.application_properties == {b"a": 1}
