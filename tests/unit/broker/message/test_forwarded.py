"""Messages between two entities: what is kept of them, and their trail."""

from __future__ import annotations

import pytest

from broker.base.errors import Reason, Refused
from broker.message.annotations import built, constants_of, deliverables, joined, peeked_messages
from broker.message.changes import encode_changes
from broker.message.forwarded import Trail, as_sent, trail_of, with_trail, without_hops
from broker.message.identity import key_text
from broker.message.stored import store
from broker.operations.browsing import Peeked
from protocol.codec import UByte, UInt
from tests.support.amqp_messages import ANNOTATIONS, APPLICATION, DATA, HEADER, message, section, sections
from tests.support.forwarding_world import locked_of

WHOLE = message(
    header=[True, UByte(7), UInt(60_000)],
    annotations={"x-opt-partition-key": "k", "own": 5},
    properties=["id"],
    application={"kept": "yes", "replaced": "old"},
)


def again(stored: bytes, changed: bytes | None = None) -> bytes:
    """The stored form of a stored message that is sent once more."""
    return store(as_sent(stored, changed), str).data


@pytest.mark.parametrize(
    "encoded",
    [
        WHOLE,
        message(),
        message(header=[None, UByte(0)]),
        message(header=[None, None, UInt(5)]),
        message(annotations={}),
        section(0x71, {}) + WHOLE[WHOLE.index(b"\x00\x53\x72") :],
    ],
    ids=range(6),
)
def test_a_message_is_stored_again_as_it_was(encoded: bytes) -> None:
    stored = store(encoded, lambda: "made").data
    assert again(stored) == stored


def test_delivery_annotations_of_the_sender_are_kept() -> None:
    stored = store(WHOLE[: WHOLE.index(b"\x00\x53\x72")] + section(0x71, {"x": 1}) + message(), str).data
    assert stored[0] == 2 and again(stored) == stored
    marked = with_trail(stored, Trail(1, 9))
    assert again(marked) == stored and key_text(marked) == key_text(stored)


def test_changed_properties_become_the_message_s_own() -> None:
    changed = encode_changes({"replaced": "new", "added": 1})
    found = sections(as_sent(store(WHOLE, str).data, changed))
    assert found[APPLICATION] == {"kept": "yes", "replaced": "new", "added": 1}


@pytest.mark.parametrize("source", [None, "dir/orders", "o" * 256])
def test_a_trail_is_read_as_it_was_written_and_is_not_sent_on(source: str | None) -> None:
    stored = store(WHOLE, str).data
    assert trail_of(stored, 12) == Trail(0, 12, None)
    trail = Trail(3, 1 << 50, source)
    marked = with_trail(stored, trail)
    assert trail_of(marked, 12) == trail
    assert again(marked) == stored
    assert trail_of(without_hops(marked), 12) == trail._replace(hops=0) and without_hops(stored) is stored


def test_a_trail_that_finds_no_room_is_refused() -> None:
    full = store(message(annotations={"own": "a" * 32_000, "more": "b" * 32_000, "last": "c" * 1_475}), str)
    with pytest.raises(Refused) as refused:
        with_trail(full.data, Trail(1, 1, "source"))
    assert refused.value.reason is Reason.MESSAGE_TOO_LARGE


@pytest.mark.parametrize("source", [None, "orders"])
@pytest.mark.parametrize("changed", [None, encode_changes({"added": 1})])
def test_receivers_see_the_first_number_and_where_the_message_was_dead_lettered(
    source: str | None, changed: bytes | None
) -> None:
    stored = with_trail(store(WHOLE, str).data, Trail(2, 77, source))
    given = locked_of(stored)
    given.changed = [changed]
    (shown,) = joined(deliverables(given))
    assert shown == built(
        given, 0, constants_of(locked_until_ms=given.locked_until_ms, partition_id=0), given.tokens[0]
    )
    found = sections(shown)
    assert found[HEADER][1] == 7 and DATA in found
    annotations = {str(key): value for key, value in found[ANNOTATIONS].items()}
    assert annotations["x-opt-sequence-number"] == given.sequence_numbers[0]
    assert annotations["x-opt-enqueue-sequence-number"] == 77
    assert annotations.get("x-opt-deadletter-source") == source
    assert (annotations["own"], annotations["x-opt-partition-key"]) == (5, "k")


def test_browsers_see_the_same() -> None:
    stored = with_trail(store(WHOLE, str).data, Trail(2, 77, "orders"))
    (shown,) = peeked_messages(Peeked([5], [1], [0], [None], [stored], [None], [0], None))
    annotations = {str(key): value for key, value in sections(shown)[ANNOTATIONS].items()}
    assert annotations["x-opt-enqueue-sequence-number"] == 77
    assert annotations["x-opt-deadletter-source"] == "orders"
