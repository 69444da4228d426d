"""Messages in plain values, made and read for protocols without AMQP's types."""

from __future__ import annotations

import datetime
import math
import uuid

import pytest

from broker.base.errors import Reason, Refused
from broker.message.plain_message import PlainMessage, encoded, plain
from protocol.codec import (
    Array,
    Byte,
    Char,
    Decimal64,
    Described,
    Float,
    Long,
    Symbol,
    Timestamp,
    TypeCode,
    UInt,
    ULong,
)
from tests.support.amqp_messages import (
    ANNOTATIONS,
    APPLICATION,
    DATA,
    HEADER,
    PROPERTIES,
    SEQUENCE,
    VALUE,
    message,
    section,
    sections,
)
from tests.support.amqp_values import same

MOMENT = datetime.datetime(2024, 1, 2, 3, 4, 5, 678_000, tzinfo=datetime.UTC)
MOMENT_MS = 1_704_164_645_678


def test_what_is_encoded_is_read_again() -> None:
    sent = PlainMessage(
        body=b"\x00\xff",
        message_id="m",
        to="t",
        subject="l",
        reply_to="r",
        correlation_id="c",
        content_type="text/plain",
        session_id="s",
        reply_to_session_id="rs",
        partition_key="s",
        scheduled_ms=MOMENT_MS,
        properties={"text": "ü", "whole": 5, "fraction": 1.5, "truth": True, "time": MOMENT, "none": None},
    )
    assert plain(encoded(sent)) == sent


def test_values_are_encoded_in_the_types_that_clients_expect() -> None:
    properties = {"whole": 5, "truth": True, "time": MOMENT, "fraction": 2.0}
    found = sections(
        encoded(
            PlainMessage(
                content_type="a/b", time_to_live_ms=5_000, via_partition_key="v", properties=properties
            )
        )
    )
    assert same(found[HEADER], [None, None, UInt(5_000)])
    assert same(found[ANNOTATIONS], {Symbol("x-opt-via-partition-key"): "v"})
    assert same(found[PROPERTIES][6], Symbol("a/b"))
    assert same(
        found[APPLICATION],
        {"whole": Long(5), "truth": True, "time": Timestamp(MOMENT_MS), "fraction": 2.0},
    )
    assert found[DATA] == b""


def test_the_longest_time_to_live_is_what_the_header_can_hold() -> None:
    assert sections(encoded(PlainMessage(time_to_live_ms=2**40)))[HEADER][2] == 2**32 - 1


@pytest.mark.parametrize(
    "wrong",
    [
        PlainMessage(content_type="ü"),
        PlainMessage(message_id="\ud800"),
        PlainMessage(properties={"\ud800": 1}),
    ],
)
def test_what_amqp_cannot_carry_is_refused(wrong: PlainMessage) -> None:
    with pytest.raises(Refused) as refused:
        encoded(wrong)
    assert refused.value.reason is Reason.ARGUMENT


def test_every_type_of_amqp_is_shown_as_a_plain_value() -> None:
    identifier = uuid.UUID(int=5)
    shown = plain(
        message(
            application={
                "byte": Byte(-1),
                "ulong": ULong(2**63),
                "float": Float(0.5),
                "nan": Float(math.nan),
                "infinity": math.inf,
                "below": -math.inf,
                "char": Char("c"),
                "symbol": Symbol("s"),
                "uuid": identifier,
                "binary": b"\x00\x01",
                "decimal": Decimal64(bytes(8)),
                "time": Timestamp(MOMENT_MS),
                "far": Timestamp(2**62),
                "long ago": Timestamp(-(2**62)),
            }
        )
    ).properties
    assert shown == {
        "byte": -1,
        "ulong": 2**63,
        "float": 0.5,
        "nan": "NaN",
        "infinity": "Infinity",
        "below": "-Infinity",
        "char": "c",
        "symbol": "s",
        "uuid": str(identifier),
        "binary": "AAE=",
        "decimal": "AAAAAAAAAAA=",
        "time": MOMENT,
        "far": datetime.datetime.max.replace(microsecond=999_000, tzinfo=datetime.UTC),
        "long ago": datetime.datetime.min.replace(tzinfo=datetime.UTC),
    }
    assert all(type(value) in (int, float, str, datetime.datetime) for value in shown.values())


@pytest.mark.parametrize(
    ("body", "value"),
    [
        (section(DATA, b"a") + section(DATA, b"b"), b"ab"),
        (section(VALUE, "text"), "text"),
        (section(VALUE, b"bytes"), b"bytes"),
        (section(VALUE, None), None),
        (section(VALUE, [math.nan]), ["NaN"]),
        (
            section(VALUE, {"a": [Long(1), b"x"], Symbol("b"): Timestamp(MOMENT_MS)}),
            {"a": [1, "eA=="], "b": MOMENT},
        ),
        (section(VALUE, Array(TypeCode.LONG, [Long(1), Long(2)])), [1, 2]),
        (section(VALUE, Described(ULong(1), "x")), "x"),
        (section(SEQUENCE, [1, "a"]) + section(SEQUENCE, [None]), [1, "a", None]),
        (b"", b""),
    ],
)
def test_every_kind_of_body_is_read(body: bytes, value: object) -> None:
    assert plain(message(body=()) + body).body == value


def test_ids_of_any_type_are_shown_as_text() -> None:
    assert plain(section(PROPERTIES, [ULong(5)])).message_id == "5"
    assert plain(section(PROPERTIES, [uuid.UUID(int=1)])).message_id == str(uuid.UUID(int=1))
    assert plain(section(PROPERTIES, [b"ab"])).message_id == "ab"


def test_a_value_that_is_malformed_is_left_out() -> None:
    broken = b"\x00\x53\x74\xc1\x07\x02\xa1\x01a\xa1\x01\xff"
    assert plain(broken).properties == {"a": None}
