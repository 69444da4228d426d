"""Messages of every shape are stored and delivered; arbitrary bytes are refused."""

import uuid
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from broker.base.errors import Reason, Refused
from broker.message._annotations import fronts
from broker.message._stored import store as native_store
from broker.message.annotations import built, constants_of, deliverables, joined
from broker.message.batch_envelope import split
from broker.message.changes import encode_changes, merge_changes, with_changes
from broker.message.forwarded import Trail, with_trail
from broker.message.stored import (
    FORWARDED,
    VERSION,
    StoredMessage,
    bare_message_offset,
    store,
    store_by_rules,
    store_run,
)
from broker.operations.message_states import MessageState
from broker.operations.receiving import Locked
from protocol.codec import DecodeError, Symbol, Timestamp, UByte, UInt, ULong, encode
from protocol.sections import SECTION_NAMES, find_sections
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
from tests.support.plain_sections import compare

texts = st.text(max_size=20)
maybe = st.none()
annotation_maps = st.dictionaries(
    texts.filter(lambda key: not key.startswith("x-opt-") and key.isascii()), values, max_size=4
).map(symbols)
changes_maps = st.dictionaries(texts, scalars | st.none(), max_size=3).map(encode_changes)
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


lengths = st.sampled_from([0, 1, 9, 126, 127, 128, 129, 130, 256])
keys = maybe | lengths.map(lambda length: "k" * length) | texts | st.just(UInt(7))
keys_in_binary = lengths.map(lambda length: b"k" * length) | texts.map(str.encode) | st.just(b"\xff")
delivery_maps = st.dictionaries(
    st.sampled_from(["x-opt-lock-token", Symbol("x-opt-lock-token"), "own", ULong(7), Symbol("x-opt-hop")]),
    values | st.uuids(),
    max_size=4,
)
large_ones = st.sampled_from([[300], [32_000], [33_000], [66_000], [20_000, 20_000], [32_760, 32_000]])
many = lengths.map(lambda length: "é" * length) | lengths.map(bytes)


def spelled(draw: st.DrawFn, part: bytes) -> bytes:
    """A section whose descriptor may be a ulong of eight bytes or a symbol."""
    if draw(st.integers(0, 5)):
        return part
    name = (
        encode(Symbol(SECTION_NAMES[part[2] - HEADER]))
        if draw(st.booleans())
        else b"\x80" + bytes(7) + part[2:3]
    )
    return b"\0" + name + part[3:]


@st.composite
def application_messages(draw: st.DrawFn) -> bytes:
    """Messages as applications send them: ids, keys, times, properties; some over a limit or of a wrong
    type."""
    parts: list[bytes] = []
    if draw(st.booleans()):
        parts.append(section(DELIVERY_ANNOTATIONS, draw(delivery_maps)))
    if draw(st.booleans()):
        header = [
            draw(maybe | st.just(True)),
            draw(maybe | st.just(UByte(7))),
            draw(maybe | st.just(UInt(9))),
        ]
        parts.append(section(HEADER, [*header, None, UInt(3)]))
    if draw(st.booleans()):
        names = (
            "x-opt-partition-key", "x-opt-via-partition-key",
            "x-opt-sequence-number", "x-opt-lock-token", "own",
        )  # fmt: skip
        annotations: dict[str, Any] = {
            name: draw(keys | keys_in_binary) for name in names if draw(st.booleans())
        }
        if draw(st.booleans()):
            annotations["x-opt-scheduled-enqueue-time"] = draw(
                st.integers(-(2**63), 2**63 - 1).map(Timestamp) | maybe | st.just("now")
            )
        shuffled = draw(st.permutations(list(annotations.items())))
        if draw(st.integers(0, 4)):
            parts.append(section(ANNOTATIONS, symbols(dict(shuffled))))
        else:  # no map of a client: keys may be there twice, as symbols and strings
            repeated = shuffled * draw(st.integers(1, 2))
            kinds: list[type[str]] = draw(
                st.lists(st.sampled_from([Symbol, str]), min_size=len(repeated), max_size=len(repeated))
            )
            encoded = b"".join(
                encode(kind(key)) + encode(value) for kind, (key, value) in zip(kinds, repeated, strict=True)
            )
            head = (4 + len(encoded)).to_bytes(4, "big") + (2 * len(repeated)).to_bytes(4, "big")
            parts.append(b"\0\x53" + bytes([ANNOTATIONS]) + b"\xd1" + head + encoded)
    if draw(st.booleans()):
        identity = draw(keys | many | st.uuids() | st.integers(0, 2**64 - 1).map(ULong) | st.just(1))
        others = draw(st.lists(maybe | texts, max_size=9))
        session = [*[None] * (9 - len(others)), draw(keys)] if draw(st.booleans()) else []
        parts.append(section(PROPERTIES, [identity, *others, *session]))
    if draw(st.booleans()):
        application: dict[Any, Any] = draw(st.dictionaries(texts, scalars, max_size=6))
        if draw(st.integers(0, 9)) == 0:
            for number, size in enumerate(draw(large_ones)):
                application[f"large {number}"] = "x" * size
        parts.append(section(APPLICATION, application))
    body = (
        b"".join(draw(bodies))
        if draw(st.booleans())
        else section(DATA, bytes(draw(st.sampled_from([0, 255, 256, 70_000]))))
    )
    parts = [spelled(draw, part) for part in parts]
    if draw(st.booleans()):  # the Python client puts delivery-annotations last
        parts.reverse()
    return b"".join([*parts, body] if draw(st.booleans()) else [body, *parts])


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A message that is cut short or has other bytes somewhere, most often near its start."""
    payload = bytearray(draw(application_messages() | messages()) or b"\x00")
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.integers(0, min(len(payload), 200) - 1) | st.integers(0, len(payload) - 1))
        payload[place] = draw(
            st.integers(0, 255) | st.sampled_from([0x00, 0x40, 0x45, 0xA1, 0xB1, 0xC0, 0xC1, 0xD1])
        )
    return bytes(payload[: draw(st.just(len(payload)) | st.integers(0, len(payload)))])


Outcome = StoredMessage | tuple[Reason, str]


def by_rules(payload: bytes) -> Outcome:
    try:
        return store_by_rules(payload, lambda: "given")
    except Refused as why:
        return why.reason, why.description


@given(st.lists(application_messages() | messages() | damaged() | st.binary(max_size=60), max_size=3))
@settings(max_examples=150, deadline=None)
def test_a_run_is_stored_or_refused_as_the_rules_say_for_each_of_its_messages(payloads: list[bytes]) -> None:
    run = store_run(payloads, lambda: "given")
    outcomes: list[Outcome] = [run.message(index) for index in range(len(payloads))]
    for index, why in run.refused.items():
        outcomes[index] = why.reason, why.description
    assert outcomes == list(map(by_rules, payloads))


@given(st.lists(application_messages() | messages(), min_size=1, max_size=2))
@settings(max_examples=150, deadline=None)
def test_python_is_asked_only_for_what_must_be_refused(payloads: list[bytes]) -> None:
    """The native walk handles everything that applications send; it leaves only what must be refused to
    Python."""
    *_, left = native_store(payloads, lambda: "given")
    assert not [index for index in left if isinstance(by_rules(payloads[index]), StoredMessage)]


times = st.integers(0, 2**33)


@given(
    st.lists(
        st.tuples(
            application_messages() | messages(), times, maybe | times, st.integers(0, 3), maybe | changes_maps
        ),
        max_size=3,
    ),
    st.booleans(),
    st.booleans(),
    maybe | st.just("dead" * 80),
)
@settings(max_examples=60, deadline=None)
def test_a_run_is_handed_out_as_the_rules_say_for_each_of_its_messages(
    rows: list[tuple[bytes, int, int | None, int, bytes | None]],
    peek_lock: bool,
    deferred: bool,
    source: str | None,
) -> None:
    rows = [row for row in rows if isinstance(by_rules(row[0]), StoredMessage)]
    stored = [store_by_rules(row[0], lambda: "given").data for row in rows]
    if source is not None:  # they were forwarded
        stored = [with_trail(each, Trail(2, 2**50, source)) for each in stored]
    count = range(len(rows))
    enqueued, expires = [row[1] for row in rows], [row[2] for row in rows]
    counts, changed = [row[3] for row in rows], [row[4] for row in rows]
    tokens = [bytes(range(number, number + 16)) for number in count]
    numbers = [2**47 + number for number in count]
    locked = Locked(1, "", tokens, numbers, enqueued, counts, expires, stored, changed, 3, deferred)
    constants = constants_of(
        locked_until_ms=3 if peek_lock else None,
        partition_id=1,
        state=MessageState.DEFERRED if deferred else None,
    )
    expected = [
        built(locked, index, constants, locked.tokens[index] if peek_lock else None) for index in count
    ]
    made = deliverables(locked, peek_lock=peek_lock)
    assert joined(made) == expected
    as_they_rest = [
        data if change is None and data[0] & ~FORWARDED == VERSION else b""
        for data, change in zip(stored, changed, strict=True)
    ]
    assert made[1] == as_they_rest
    *_, left = fronts(stored, None, numbers, enqueued, expires, counts, changed, b"", 0)
    assert left == [index for index in count if changed[index] is not None], "all others are made in C"


@given(messages(), st.data())
@settings(max_examples=300, deadline=None)
def test_a_damaged_message_is_refused_or_can_be_delivered(payload: bytes, data: st.DataObject) -> None:
    payload = payload or b"\x00"
    place, byte = data.draw(st.integers(0, len(payload) - 1)), data.draw(st.integers(0, 255))
    for damaged in (payload[:place], payload[:place] + bytes((byte,)) + payload[place + 1 :]):
        compare(damaged)
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
        lambda: compare(garbage),
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
