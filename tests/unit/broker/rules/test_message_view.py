"""The properties of a stored message, as rules see them."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from broker.message.forwarded import Trail, with_trail
from broker.rules.covers import Property
from broker.rules.message_view import SYSTEM_PROPERTIES, MessageView
from broker.rules.values import Duration, EvaluationFailed, Instant, Value
from protocol.codec import Timestamp, UInt, ULong
from tests.support.rule_messages import ENQUEUED_MS, stored_with, view_of


def test_application_properties_are_found_without_regard_to_case() -> None:
    message = view_of({"Colour": "red", "size": UInt(3), "NULL": None, "x" * 300: 1, "": 2, "ÄÖ": True})
    assert message.application_property("colour") == "red"
    assert message.application_property("size") == 3
    assert message.application_property("x" * 300) == 1
    assert message.application_property("") == 2
    assert message.application_property("äö") is True
    assert message.application_property("null") is None and message.has("null")
    assert message.application_property("other") is None and not message.has("other")


def test_of_properties_that_differ_in_case_alone_the_first_one_counts() -> None:
    assert view_of({"a": 1, "A": 2}).application_property("a") == 1


def test_a_message_may_have_no_application_properties_and_no_body() -> None:
    assert view_of().application_property("a") is None
    bodiless = stored_with()[: -len(b"\x00\x53\x75\xa0\x04body")]
    assert MessageView(bodiless, 0).application_property("a") is None


@pytest.mark.parametrize(
    ("name", "given", "value"),
    [
        ("MessageId", {"message_id": "m"}, "m"),
        ("MessageId", {"message_id": ULong(7)}, "7"),
        ("MessageId", {"message_id": uuid.UUID(int=5)}, "00000000-0000-0000-0000-000000000005"),
        ("MessageId", {"message_id": b"text"}, "text"),
        ("MessageId", {"message_id": b"\xff"}, "ff"),
        ("CorrelationId", {"correlation_id": "c"}, "c"),
        ("ContentType", {"content_type": "text/plain"}, "text/plain"),
        ("Label", {"subject": "s"}, "s"),
        ("Subject", {"subject": "s"}, "s"),
        ("To", {"to": "t"}, "t"),
        ("ReplyTo", {"reply_to": "r"}, "r"),
        ("SessionId", {"group_id": "g"}, "g"),
        ("ReplyToSessionId", {"reply_to_group_id": "g"}, "g"),
        ("PartitionKey", {"annotations": {"x-opt-other": 1, "x-opt-partition-key": "k"}}, "k"),
        ("ViaPartitionKey", {"annotations": {"x-opt-via-partition-key": "k"}}, "k"),
        ("ScheduledEnqueueTimeUtc", {"annotations": {"x-opt-scheduled-enqueue-time": Timestamp(5)}},
         Instant(50_000)),
        ("TimeToLive", {"time_to_live_ms": 1_500}, Duration(15_000_000)),
        ("ExpiresAtUtc", {"time_to_live_ms": 1_500}, Instant((ENQUEUED_MS + 1_500) * 10_000)),
        ("EnqueuedTimeUtc", {}, Instant(ENQUEUED_MS * 10_000)),
        ("DeliveryCount", {}, 0),
        ("State", {}, 0),
        ("ForcePersistence", {}, True),
        ("SequenceNumber", {}, None),
    ],
)  # fmt: skip
def test_system_properties(name: str, given: dict[str, Any], value: Value) -> None:
    """AMQP contract 11.4."""
    found = view_of(**given).value_of(Property(name.casefold(), is_system=True))
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    "name", sorted(set(SYSTEM_PROPERTIES) - {"messageid", "enqueuedtimeutc", "size", "state", "deliverycount",
                                             "forcepersistence"})
)  # fmt: skip
def test_a_system_property_that_the_sender_did_not_set_is_null(name: str) -> None:
    assert view_of().system_property(name) is None


def test_the_size_is_that_of_the_message() -> None:
    small, large = view_of(), view_of(body=b"x" * 104)
    assert large.system_property("size") == small.system_property("size") + 100  # type: ignore[operator]


def test_the_dead_letter_source_of_a_forwarded_message() -> None:
    forwarded = with_trail(stored_with({"a": 1}), Trail(1, 5, "orders"))
    message = MessageView(forwarded, 0)
    assert message.system_property("deadlettersource") == "orders"
    assert message.application_property("a") == 1


def test_a_name_that_no_system_property_has_is_an_error() -> None:
    with pytest.raises(EvaluationFailed, match=r"no system property 'sys\.colour'"):
        view_of().system_property("colour")
