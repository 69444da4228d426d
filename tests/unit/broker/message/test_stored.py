import struct
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from broker.base.errors import Reason, Refused
from broker.message import stored as module
from broker.message._stored import store as native_store
from broker.message.stored import (
    BROKER_ANNOTATIONS,
    HEAD,
    MessageIds,
    StoredMessage,
    bare_message_offset,
    delivery_annotations,
    store,
    store_by_rules,
    store_run,
    store_together,
)
from protocol.codec import Symbol, Timestamp, UByte, UInt, ULong, encode
from tests.support.amqp_messages import (
    ANNOTATIONS,
    APPLICATION,
    DATA,
    DELIVERY_ANNOTATIONS,
    FOOTER,
    HEADER,
    PROPERTIES,
    message,
    section,
    sections,
    symbols,
)

FALLBACK = "0" * 31 + "7"


def stored(payload: bytes) -> StoredMessage:
    return store(payload, lambda: FALLBACK)


def bare(payload: bytes) -> bytes:
    data = stored(payload).data
    return data[bare_message_offset(data) :]


def with_group_id(session_id: Any, message_id: Any = "id") -> list[Any]:
    return [message_id, *[None] * 9, session_id]


def refusal(payload: bytes) -> Reason:
    with pytest.raises(Refused) as refused:
        stored(payload)
    return refused.value.reason


def test_the_bare_message_rests_byte_for_byte() -> None:
    payload = message(
        header=[True], properties=["id", b"user"], application={"a": 1}, body=[b"x", b"y"]
    ) + section(FOOTER, {})
    assert bare(payload) == payload[len(section(HEADER, [True])) :]


def test_header_and_delivery_annotations_stay_behind_wherever_they_stand() -> None:
    inner = message(properties=["id"])
    transient = section(DELIVERY_ANNOTATIONS, symbols({"d": 1}))
    assert bare(transient + inner) == inner
    assert bare(inner + transient) == inner
    assert bare(message(properties=["id"], body=[]) + section(HEADER, []) + section(DATA, b"body")) == inner


def test_sections_are_put_into_the_order_of_the_specification() -> None:
    properties, application, body = (
        section(PROPERTIES, ["id"]),
        section(APPLICATION, {"a": 1}),
        section(DATA, b"x"),
    )
    assert bare(body + application + properties) == properties + application + body
    without_id = bare(body + application)
    assert without_id.endswith(application + body)
    assert sections(without_id)[PROPERTIES] == [FALLBACK]


@pytest.mark.parametrize(
    "properties",
    [None, [], [None], [None, b"user"], [None, None, "x" * 240], [None, "x" * 300], with_group_id("s", None)],
)
def test_a_message_without_id_gets_one_and_keeps_its_other_properties(properties: list[Any] | None) -> None:
    rests = sections(bare(message(properties=properties)))
    assert rests[PROPERTIES] == [FALLBACK, *(properties or [None])[1:]]
    assert rests[DATA] == b"body"


@pytest.mark.parametrize("empty", ["45", "c00100", "d00000000400000000"])
def test_every_spelling_of_an_empty_properties_list_takes_an_id(empty: str) -> None:
    rests = bare(b"\x00\x53\x73" + bytes.fromhex(empty) + section(DATA, b"x"))
    assert sections(rests) == {PROPERTIES: [FALLBACK], DATA: b"x"}


@pytest.mark.parametrize(
    "message_id", ["id", b"id", ULong(0), ULong(7), ULong(2**60), "", "x" * 128, "é" * 128, b"x" * 128]
)
def test_an_id_of_any_type_that_an_id_may_have_is_kept(message_id: Any) -> None:
    assert stored(message(properties=[message_id])).message_id() == encode(message_id)


def test_a_run_has_a_column_for_what_any_message_has_and_says_what_is_refused() -> None:
    payloads = [
        message(),
        message(header=[None, None, UInt(5)], annotations={"x-opt-partition-key": "k"}),
        b"\x00\x53\x75\xa0\xff",
        message(properties=["id"]) + section(DELIVERY_ANNOTATIONS, symbols({"d": 1})),
    ]
    run = store_run(payloads, lambda: FALLBACK)
    assert run.times_to_live_ms == [None, 5, None, None]
    assert run.partition_keys == [None, "k", None, None]
    assert run.session_ids is None and run.scheduled_enqueue_times_ms is None
    assert {index: why.reason for index, why in run.refused.items()} == {2: Reason.DECODE}
    assert [run.message(index) for index in (0, 1, 3)] == [stored(payloads[index]) for index in (0, 1, 3)]
    assert run.data[2] == b""


def test_of_messages_that_belong_together_the_first_that_must_be_refused_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Symptom: 16 messages of 60 KB, each malformed at its end, held the event loop for 60 to 320 ms."""
    good, cut_off, badly_keyed = message(properties=["id"]), message()[:-1], message(properties=[1])
    assert store_together([good, good], lambda: FALLBACK) == store_run([good, good], lambda: FALLBACK)
    asked: list[bytes] = []

    def noted(payload: bytes, fallback_message_id: Callable[[], str]) -> StoredMessage:
        asked.append(payload)
        return store_by_rules(payload, fallback_message_id)

    monkeypatch.setattr(module, "store_by_rules", noted)
    with pytest.raises(Refused) as refused:
        store_together([good, badly_keyed, cut_off, badly_keyed], lambda: FALLBACK)
    assert refused.value.reason is Reason.ARGUMENT
    assert asked == [badly_keyed]


def test_an_id_that_cannot_be_given_is_an_error_of_the_broker_and_leaves_nothing_behind() -> None:
    for answer, error in ((lambda: "x" * 256, ValueError), (lambda: 1 // 0, ZeroDivisionError)):
        with pytest.raises(error):
            store_run([message(properties=["id"]), message()], answer)  # type: ignore[arg-type]


def test_the_id_given_to_a_message_is_found_like_any_other() -> None:
    assert stored(message()).message_id() == encode(FALLBACK)


def test_ids_given_are_32_hex_digits_and_all_different() -> None:
    ids, others = MessageIds(), MessageIds()
    given = [ids() for _ in range(100)] + [others() for _ in range(100)]
    assert len(set(given)) == 200
    assert all(len(one) == 32 and int(one, 16) >= 0 for one in given)


def test_what_routing_wants_to_know_is_read() -> None:
    found = stored(
        message(annotations={"x-opt-partition-key": "k", "mine": 1}, properties=with_group_id("k"))
    )
    assert (found.session_id, found.partition_key) == ("k", "k")
    assert found.scheduled_enqueue_time_ms is None
    scheduled = stored(message(annotations={"x-opt-scheduled-enqueue-time": Timestamp(1_700_000_000_000)}))
    assert scheduled.scheduled_enqueue_time_ms == 1_700_000_000_000


def test_null_for_a_key_is_none() -> None:
    nulls = {
        "x-opt-partition-key": None,
        "x-opt-via-partition-key": None,
        "x-opt-scheduled-enqueue-time": None,
    }
    found = stored(message(annotations=nulls, properties=with_group_id(None)))
    assert (found.session_id, found.partition_key, found.scheduled_enqueue_time_ms) == (None, None, None)


@pytest.mark.parametrize(
    ("ttl", "time_to_live_ms"), [(None, None), (UInt(0), None), (UInt(5), 5), (UInt(4294967295), 4294967295)]
)
def test_the_time_to_live_is_the_headers(ttl: Any, time_to_live_ms: int | None) -> None:
    assert stored(message(header=[None, None, ttl])).time_to_live_ms == time_to_live_ms


def test_the_head_tells_what_the_sender_put_into_the_header() -> None:
    head = HEAD.unpack_from(
        stored(message(header=[False, UByte(9), UInt(1000)], annotations={"a": 1, "b": 2})).data
    )
    assert head == (1, 3, 9, 1000, 2, len(encode(Symbol("a")) + encode(1)) * 2)
    assert HEAD.unpack_from(stored(message()).data) == (1, 0, 0, 0, 0, 0)


def test_annotations_that_only_the_broker_sets_are_dropped_and_all_others_kept_as_they_came() -> None:
    sent = {
        "x-opt-sequence-number": 1, "first": [1, 2], "x-opt-enqueued-time": 1, "x-opt-locked-until": 1,
        "x-opt-partition-key": "k", "x-opt-enqueue-sequence-number": 1, "x-opt-partition-id": 1,
        "x-opt-unknown": {"deep": [None]},
        "x-opt-message-state": 1, "x-opt-deadletter-source": "s", "x-opt-lock-token": 1,
    }  # fmt: skip
    data = stored(message(annotations=sent)).data
    kept = {key: sent[key] for key in ("first", "x-opt-partition-key", "x-opt-unknown")}
    expected = b"".join(encode(Symbol(key)) + encode(value) for key, value in kept.items())
    assert data[HEAD.size : bare_message_offset(data)] == expected
    assert HEAD.unpack_from(data)[4] == 3


def test_annotation_keys_are_known_in_their_long_form_as_well() -> None:
    sent = {"x-opt-sequence-number": 1, "first": 2, "x-opt-partition-key": "k"}
    pairs = b"".join(
        b"\xb3" + struct.pack(">I", len(key)) + key.encode() + encode(value) for key, value in sent.items()
    )
    annotations = b"\x00\x53\x72\xd1" + struct.pack(">II", 4 + len(pairs), 2 * len(sent)) + pairs
    found = stored(annotations + message(properties=["id"]))
    assert found.partition_key == "k"
    assert found.data[HEAD.size : bare_message_offset(found.data)] == pairs[pairs.index(b"\xb3", 1) :]


@pytest.mark.parametrize("text", ["k", "é" * 128])
def test_a_partition_key_in_binary_is_text(text: str) -> None:
    """As the Python client sends it in a message that it has received."""
    keys = ("a", "x-opt-sequence-number", "x-opt-via-partition-key", "x-opt-partition-key", "z")
    sent = dict.fromkeys(keys, text) | {"x-opt-sequence-number": 1}
    binary = sent | {key: text.encode() for key in keys[2:4]}
    found = stored(message(annotations=binary, properties=with_group_id(text)))
    assert (found.session_id, found.partition_key) == (text, text)
    assert found.data == stored(message(annotations=sent, properties=with_group_id(text))).data
    by_rules = store_by_rules(message(annotations=binary, properties=with_group_id(text)), lambda: "unused")
    assert by_rules == found


def test_a_message_with_delivery_annotations_is_of_version_2_and_all_others_of_version_1() -> None:
    own = {Symbol("hop"): 7}
    rest = message(annotations={"a": 1}, properties=["id"])
    for payload in (section(DELIVERY_ANNOTATIONS, own) + rest, rest + section(DELIVERY_ANNOTATIONS, own)):
        data = stored(payload).data
        pairs = encode(Symbol("hop")) + encode(7)
        assert data[0] == 2 and delivery_annotations(
            data, HEAD.size + len(encode(Symbol("a")) + encode(1))
        ) == (
            1,
            pairs,
            bare_message_offset(data),
        )
        assert data[bare_message_offset(data) :] == message(properties=["id"])
        assert stored(payload).message_id() == encode("id")
    for nothing in ({}, {Symbol("x-opt-lock-token"): UUID(int=1)}):
        assert stored(section(DELIVERY_ANNOTATIONS, nothing) + rest).data == stored(rest).data


def with_pairs(code: int, *pairs: tuple[Any, Any]) -> bytes:
    """A section that is a map; keys may repeat."""
    encoded = b"".join(encode(part) for pair in pairs for part in pair)
    head = struct.pack(">II", 4 + len(encoded), 2 * len(pairs))
    return b"\x00\x53" + bytes((code,)) + b"\xd1" + head + encoded


KEY, TOKEN, NAME = Symbol("x-opt-partition-key"), Symbol("x-opt-lock-token"), "amqp:properties:list"


@pytest.mark.parametrize(
    "payload",
    [
        section(DELIVERY_ANNOTATIONS, symbols({"hop": 7})) + message(),
        message() + section(DELIVERY_ANNOTATIONS, symbols({"x-opt-lock-token": UUID(int=1), "hop": 7})),
        with_pairs(DELIVERY_ANNOTATIONS, (Symbol("a"), 2), (str(TOKEN), 3), (Symbol("a"), 2)) + message(),
        section(DELIVERY_ANNOTATIONS, symbols({"big": "x" * 60_000})) + message(),
        message(annotations={"x-opt-partition-key": b"k"}),
        message(annotations={"x-opt-partition-key": b""}),
        with_pairs(
            ANNOTATIONS,
            (Symbol("x-opt-sequence-number"), 1),
            (KEY, b"a"),
            (Symbol("own"), b"kept"),
            (Symbol("x-opt-via-partition-key"), b"v"),
            (Symbol("x-opt-enqueued-time"), 1),
        ),
        b"\x00\x80" + struct.pack(">Q", PROPERTIES) + encode(["id"]) + section(DATA, b""),
        b"\x00\x80" + struct.pack(">Q", PROPERTIES) + encode([None, b"user"]) + section(DATA, b""),
        section(DATA, b"") + b"\x00" + encode(Symbol(NAME)) + encode(["id"]),
        message(application={"a": "x" * 32_000, "b": "x" * 32_700}),
        message(annotations={"a": "x" * 40_000}, properties=["id", b"u" * 20_000]),
        message(body=[b"x"] * 16_384),
    ],
)
def test_what_applications_send_is_walked_in_c_and_python_says_the_same(payload: bytes) -> None:
    run = native_store([payload], lambda: FALLBACK)
    assert run[-1] == []
    assert stored(payload) == store_by_rules(payload, lambda: FALLBACK)


SENT_BY_APPLICATIONS = [KEY, Symbol("x-opt-via-partition-key"), Symbol("x-opt-scheduled-enqueue-time")]
INTERPRETED = SENT_BY_APPLICATIONS + sorted(Symbol(name.decode()) for name in BROKER_ANNOTATIONS)


def in_long_form(key: Symbol) -> bytes:
    """As sym32."""
    return b"\xb3" + struct.pack(">I", len(key)) + key.encode()


@pytest.mark.parametrize("value", [None, b"k"])
@pytest.mark.parametrize("again", [Symbol, str, in_long_form])
@pytest.mark.parametrize("name", INTERPRETED)
def test_an_annotation_that_the_broker_interprets_occurs_once(name: Symbol, again: Any, value: Any) -> None:
    second = again(name)
    encoded = encode(name) + encode(None) + encode(Symbol("own")) + encode(1)
    encoded += (second if again is in_long_form else encode(second)) + encode(value)
    payload = b"\x00\x53\x72\xd1" + struct.pack(">II", 4 + len(encoded), 6) + encoded + message()
    assert native_store([payload], lambda: FALLBACK)[-1] == [0]
    with pytest.raises(Refused, match=f"the annotation {name} occurs a second time at byte") as refused:
        stored(payload)
    assert refused.value.reason is Reason.DECODE


def test_the_lock_token_among_delivery_annotations_occurs_once() -> None:
    once = with_pairs(DELIVERY_ANNOTATIONS, (TOKEN, 1), (KEY, 1), (KEY, 2))
    assert stored(once + message(annotations={TOKEN: 1})) == stored(
        with_pairs(DELIVERY_ANNOTATIONS, (KEY, 1), (KEY, 2)) + message()
    )
    twice = with_pairs(DELIVERY_ANNOTATIONS, (TOKEN, None), (Symbol("a"), 2), (str(TOKEN), 3)) + message()
    assert native_store([twice], lambda: FALLBACK)[-1] == [0]
    with pytest.raises(Refused, match="the annotation x-opt-lock-token occurs a second time") as refused:
        stored(twice)
    assert refused.value.reason is Reason.DECODE


def test_other_annotations_are_passed_on_as_often_as_they_came() -> None:
    own = [(Symbol("own"), 1), (Symbol("x-opt-other"), b"k"), (ULong(5), 2)] * 1_000
    payload = with_pairs(ANNOTATIONS, *own) + with_pairs(DELIVERY_ANNOTATIONS, *own) + message()
    assert native_store([payload], lambda: FALLBACK)[-1] == []
    assert stored(payload) == store_by_rules(payload, lambda: FALLBACK)


def test_all_that_the_broker_replaces_may_be_there_at_once_and_apart() -> None:
    """The most pieces that the native walk has to keep."""
    own = (Symbol("own"), 1)
    pairs = [pair for name in INTERPRETED if name not in SENT_BY_APPLICATIONS for pair in (own, (name, 1))]
    keys = [(name, b"k") for name in SENT_BY_APPLICATIONS[:2]]
    payload = with_pairs(ANNOTATIONS, *pairs, *keys, own) + message()
    payload += with_pairs(DELIVERY_ANNOTATIONS, own, (TOKEN, 1), own)
    assert native_store([payload], lambda: FALLBACK)[-1] == []
    assert stored(payload) == store_by_rules(payload, lambda: FALLBACK)


@pytest.mark.parametrize(
    "payload",
    [
        message(application={"a": "x" * 32_768}),
        message(properties=["id", b"u" * 32_768]),
        message(application={"a": "x" * 32_000, "b": "x" * 32_000, "c": "x" * 2_000}),
        message(body=[b"x"] * 16_385),
        message(application={"a": "x" * 32_000, "nn": "x" * 2_000}).replace(b"nn", b"\xff\xff"),
        with_pairs(DELIVERY_ANNOTATIONS, (1, 1))[:-1],
        section(DELIVERY_ANNOTATIONS, {1: 2}).replace(b"\x02\x54", b"\x03\x54"),
        message(annotations={"x-opt-partition-key": b"\xff"}),
        message(annotations={"x-opt-partition-key": b"a"}, properties=with_group_id("b")),
        message(properties=with_group_id(b"binary")),
    ],
)
def test_what_breaks_a_rule_is_left_to_the_rules(payload: bytes) -> None:
    assert native_store([payload], lambda: FALLBACK)[-1] == [0]
    with pytest.raises(Refused):
        store_by_rules(payload, lambda: FALLBACK)


@pytest.mark.parametrize("code", [DELIVERY_ANNOTATIONS, ANNOTATIONS])
def test_the_native_walk_takes_as_much_metadata_as_the_rules(code: int) -> None:
    def sized(size: int) -> bytes:
        empty = with_pairs(code, (Symbol("a"), "x" * 300))
        return with_pairs(code, (Symbol("a"), "x" * (300 + size - len(empty))))

    for size, left in ((65_536, []), (65_537, [0])):
        payload = sized(size) + section(DATA, b"body")
        assert native_store([payload], lambda: FALLBACK)[-1] == left
        run = store_run([payload], lambda: FALLBACK)
        assert list(run.refused) == left
        assert left or run.message(0) == store_by_rules(payload, lambda: FALLBACK)


def test_delivery_annotations_count_for_the_limit_on_metadata() -> None:
    with pytest.raises(Refused, match="the limit is 65536") as refused:
        store(section(DELIVERY_ANNOTATIONS, {Symbol("big"): "x" * 65_536}) + message(), lambda: FALLBACK)
    assert refused.value.reason is Reason.MESSAGE_TOO_LARGE


def test_annotation_keys_that_are_no_text_are_kept() -> None:
    payload = section(ANNOTATIONS, {ULong(5): "numbered"}) + message()
    data = stored(payload).data
    assert data[HEAD.size : bare_message_offset(data)] == encode(ULong(5)) + encode("numbered")


def test_differing_session_id_and_partition_key_are_not_allowed() -> None:
    assert (
        refusal(message(annotations={"x-opt-partition-key": "a"}, properties=with_group_id("b")))
        is Reason.NOT_ALLOWED
    )


@pytest.mark.parametrize(
    "payload",
    [
        message(properties=["x" * 129]),
        message(properties=["é" * 129]),
        message(properties=[b"x" * 129]),
        message(properties=[5]),
        message(properties=with_group_id("x" * 129)),
        message(properties=with_group_id(5)),
        message(annotations={"x-opt-partition-key": "x" * 129}),
        message(annotations={"x-opt-partition-key": b"x" * 129}),
        message(annotations={"x-opt-partition-key": Symbol("k")}),
        message(annotations={"x-opt-via-partition-key": 7}),
        message(annotations={"x-opt-scheduled-enqueue-time": 7}),
    ],
)
def test_keys_too_long_or_of_a_wrong_type_are_argument_errors(payload: bytes) -> None:
    assert refusal(payload) is Reason.ARGUMENT


@pytest.mark.parametrize(
    "payload",
    [
        b"garbage",
        message()[:-1],
        message(header=[None] * 6),
        message(header=[None, 4]),
        message(header=[None, None, 4]),
        message(properties=[None] * 14),
        message(properties=with_group_id("kk")).replace(b"kk", b"\xff\xff"),
        message(properties=["ii"]).replace(b"ii", b"i\xff"),
        message(properties=["ii"]).replace(b"ii", b"i\xc3"),
        message(properties=["i" * 100]).replace(b"ii", b"\xed\xa0"),
        message(properties=["i" * 200]).replace(b"ii", b"\xff\xff"),
        message(application={5: 1}),  # type: ignore[dict-item]
        message(annotations={"x-opt-partition-key": "kk"}).replace(b"kk", b"\xff\xff"),
        message(annotations={"x-opt-partition-key": b"\xff\xff"}),
        b"\x00\x53\x74\xc1\x06\x03\xa1\x01a\x54\x01",
        b"\x00\x53\x72\xc1\x06\x04\xa3\x01a\x54\x01",
    ],
)
def test_what_is_malformed_is_refused_as_such(payload: bytes) -> None:
    assert refusal(payload) is Reason.DECODE


@pytest.mark.parametrize("bad", [b"i\xff", b"i\xc3", b"\xc0\x80"])
def test_in_a_run_only_the_message_whose_id_is_no_text_is_refused(bad: bytes) -> None:
    payloads = [message(properties=["ii"], body=[b"x"])] * 5
    payloads[2] = payloads[2].replace(b"ii", bad)
    run = store_run(payloads, lambda: FALLBACK)
    assert [bool(data) for data in run.data] == [True, True, False, True, True]


def test_a_message_of_nothing_at_all_gets_an_id() -> None:
    assert sections(bare(b"")) == {PROPERTIES: [FALLBACK]}
