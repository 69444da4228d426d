"""Messages of every shape through store and delivery; bytes of no shape at all, refused."""

import struct
import uuid
from collections.abc import Callable
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from broker.base.errors import Refused
from broker.message import stored as stored_message
from broker.message.annotations import deliverables, joined
from broker.message.batch_envelope import split
from broker.message.changes import encode_changes, merge_changes, with_changes
from broker.message.stored import StoredMessage, bare_message_offset, store
from broker.operations import Locked
from protocol.codec import DecodeError, Symbol, UByte, UInt, encode
from protocol.sections import find_sections
from tests.support.amqp_messages import (
    ANNOTATIONS,
    APPLICATION,
    DATA,
    DELIVERY_ANNOTATIONS,
    FOOTER,
    HEADER,
    PROPERTIES,
    SEQUENCE,
    VALUE,
    section,
    sections,
    symbols,
)
from tests.support.amqp_values import same, scalars, values

texts = st.text(max_size=20)
maybe = st.none()
annotation_maps = st.dictionaries(
    texts.filter(lambda key: not key.startswith("x-opt-") and key.isascii()), values, max_size=4
).map(symbols)
bodies = st.one_of(
    st.lists(st.binary(max_size=400), max_size=3).map(lambda parts: [section(DATA, part) for part in parts]),
    st.lists(st.lists(scalars, max_size=3), max_size=3).map(
        lambda parts: [section(SEQUENCE, part) for part in parts]
    ),
    values.map(lambda value: [section(VALUE, value)]),
)
properties_lists = st.tuples(
    maybe | st.text(max_size=40), maybe | st.binary(max_size=9), maybe | texts, maybe | texts, maybe | texts
).flatmap(lambda full: st.integers(0, len(full)).map(lambda length: list(full[:length])))


@st.composite
def messages(draw: st.DrawFn) -> bytes:
    parts: list[bytes] = []
    if draw(st.booleans()):
        fields = [
            draw(maybe | st.booleans()),
            draw(maybe | st.integers(0, 255).map(UByte)),
            draw(maybe | st.integers(0, 2**32 - 1).map(UInt)),
        ]
        parts.append(section(HEADER, fields[: draw(st.integers(0, 3))]))
    for code, content in (
        (DELIVERY_ANNOTATIONS, annotation_maps),
        (ANNOTATIONS, annotation_maps),
        (PROPERTIES, properties_lists),
        (APPLICATION, st.dictionaries(texts, scalars, max_size=4)),
        (FOOTER, annotation_maps),
    ):
        if draw(st.booleans()):
            parts.append(section(code, draw(content)))
    body = b"".join(draw(bodies))
    place = draw(st.integers(0, len(parts)))
    shuffled = draw(st.permutations(parts)) if draw(st.booleans()) else parts
    return b"".join([*shuffled[:place], body, *shuffled[place:]])


def delivered(stored: bytes, changed: bytes | None = None) -> bytes:
    return joined(deliverables(Locked(1, "", [b"t" * 16], [1], [2], [0], [None], [stored], [changed], 3)))[0]


@given(messages())
@settings(max_examples=300, deadline=None)
def test_a_message_is_delivered_with_everything_its_sender_put_into_it(payload: bytes) -> None:
    sent, seen = sections(payload), sections(delivered(store(payload, lambda: "given").data))
    properties = sent.get(PROPERTIES) or [None]
    expected_id = "given" if properties[0] is None else properties[0]
    assert same(seen[PROPERTIES], [expected_id, *properties[1:]])
    for code in (APPLICATION, DATA, SEQUENCE, VALUE, FOOTER):
        assert same(seen.get(code), sent.get(code))
    own = {key: value for key, value in seen[ANNOTATIONS].items() if not key.startswith("x-opt-")}
    assert same(own, sent.get(ANNOTATIONS, {}))
    token = {Symbol("x-opt-lock-token"): uuid.UUID(bytes_le=b"t" * 16)}
    assert same(seen[DELIVERY_ANNOTATIONS], token | sent.get(DELIVERY_ANNOTATIONS, {}))
    header = [*(sent.get(HEADER) or []), None, None, None]
    assert same(seen[HEADER][1], header[1])
    assert same(seen[HEADER][2], header[2] or None)


@given(messages())
@settings(max_examples=150, deadline=None)
def test_what_was_delivered_can_be_sent_on_and_keeps_its_bare_message(payload: bytes) -> None:
    first = store(payload, lambda: "given").data
    second = store(delivered(first), lambda: "other").data
    assert second[bare_message_offset(second) :] == first[bare_message_offset(first) :]


@st.composite
def plain_messages(draw: st.DrawFn) -> bytes:
    """The kind that `stored_message` takes the short way with, whole or with one byte of it changed."""
    header = [
        draw(maybe | st.booleans()),
        draw(maybe | st.integers(0, 255).map(UByte)),
        draw(maybe | st.integers(0, 2**32 - 1).map(UInt)),
    ]
    parts = [section(HEADER, header[: draw(st.integers(1, 3))])] if draw(st.booleans()) else []
    if draw(st.booleans()):
        parts.append(section(ANNOTATIONS, {}))
    identity = draw(st.text(min_size=1, max_size=130) | st.binary(min_size=1, max_size=130))
    parts.append(section(PROPERTIES, [identity, *draw(st.lists(maybe | texts, max_size=9))]))
    payload = b"".join([*parts, section(DATA, draw(st.binary(max_size=300)))])
    if draw(st.booleans()):
        place = draw(st.integers(0, len(payload) - 1))
        payload = payload[:place] + bytes((draw(st.integers(0, 255)),)) + payload[place + 1 :]
    return payload


@given(plain_messages())
@settings(max_examples=500, deadline=None)
def test_the_short_way_stores_what_the_long_way_stores(payload: bytes) -> None:
    def outcome(way: Callable[[bytes], StoredMessage | None]) -> StoredMessage | None:
        try:
            return way(payload)
        except (DecodeError, Refused, IndexError, struct.error, UnicodeDecodeError):
            return None

    short = outcome(stored_message._store_plain)
    if short is not None:
        assert short == outcome(lambda each: stored_message._store(each, lambda: "given"))


@given(messages(), st.data())
@settings(max_examples=300, deadline=None)
def test_a_damaged_message_is_refused_or_can_be_delivered(payload: bytes, data: st.DataObject) -> None:
    payload = payload or b"\x00"
    place, byte = data.draw(st.integers(0, len(payload) - 1)), data.draw(st.integers(0, 255))
    for damaged in (payload[:place], payload[:place] + bytes((byte,)) + payload[place + 1 :]):
        try:
            stored = store(damaged, lambda: "given").data
        except Refused:
            continue
        find_sections(delivered(stored, encode_changes({"DeadLetterReason": "why"})))


@given(st.binary(max_size=120))
@settings(max_examples=300, deadline=None)
def test_any_bytes_are_taken_or_refused(garbage: bytes) -> None:
    for act in (
        lambda: store(garbage, lambda: "given"),
        lambda: split(garbage),
        lambda: find_sections(garbage),
    ):
        try:
            act()
        except (Refused, DecodeError):
            continue


changes = st.dictionaries(texts, scalars | st.none(), max_size=5)


def laid_over(original: dict[str, Any], *changed: dict[str, Any]) -> dict[str, Any]:
    result = dict(original)
    for change in changed:
        result = {
            key: value for key, value in (result | change).items() if not (key in change and value is None)
        }
    return result


@given(st.dictionaries(texts, scalars, max_size=5), changes, changes)
@settings(max_examples=200, deadline=None)
def test_changes_laid_over_one_after_the_other_or_merged_are_the_same(
    original: dict[str, Any], first: dict[str, Any], second: dict[str, Any]
) -> None:
    merged = merge_changes(encode_changes(first), encode_changes(second))
    bare = section(APPLICATION, original)
    seen = sections(with_changes(bare, merged or encode({}))).get(APPLICATION, {})
    expected = laid_over(original, first, second)
    assert seen.keys() == expected.keys()
    assert all(same(seen[key], expected[key]) for key in expected)
