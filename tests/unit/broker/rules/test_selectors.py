"""Selectors: the language of JMS, over stored messages."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from broker.base.errors import Reason, Refused
from broker.message.changes import encode_changes
from broker.message.stored import store
from broker.rules.selectors import SelectedView, compile_selector
from protocol.codec import Timestamp, UByte, UInt, ULong
from tests.support.amqp_messages import message
from tests.support.rule_messages import stored_with

SENT: dict[str, Any] = {
    "colour": "red", "Colour": "blue", "n": UInt(3), "x": 2.5, "flag": True, "off": False, "null": None,
    "a-b": 1, "$d_1": "d", "lowest": -(2**63),
}  # fmt: skip


def matches(text: str, delivery_count: int = 0, changed: dict[str, Any] | None = None, **more: Any) -> bool:
    stored = stored_with(SENT, **more)
    change = None if changed is None else encode_changes(changed)
    return compile_selector(text).matches(stored, change, delivery_count)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("colour = 'red'", True),
        ("COLOUR = 'red'", False),
        ("Colour = 'blue'", True),
        ("colour <> 'blue'", True),
        ("n = 3 AND n = 3.0 AND n = 3L AND n = 0x3 AND n = 3d AND n < 3.5f", True),
        ("lowest = -9223372036854775808 AND lowest = -0x8000000000000000L", True),
        ("lowest > -9223372036854775808", False),
        ("n BETWEEN 3 AND 4", True),
        ("n BETWEEN 4 AND 5", False),
        ("n NOT BETWEEN 4 AND 5", True),
        ("colour BETWEEN 'a' AND 's'", True),
        ("x * 2 + 1 = 6 AND -n = -3 AND +n - 1 = 2 AND n / 2 = 1", True),
        ("colour IN ('blue', 'red')", True),
        ("colour NOT IN ('blue', 'red')", False),
        ("colour LIKE 'r_d' AND colour NOT LIKE 'b%'", True),
        ("'a_b' LIKE 'a!_b' ESCAPE '!'", True),
        ('missing IS NULL AND "null" IS NULL AND n IS NOT NULL', True),
        ("missing = 1 OR NOT missing = 1", False),
        ("flag", True),
        ("off", False),
        ("NOT off", True),
        ("missing", False),
        ("NOT missing", False),
        ("n", False),
        ("flag AND (off OR n > 2)", True),
        ("(flag) = TRUE AND off = FALSE AND flag <> off", True),
        ("\"a-b\" = 1 AND $d_1 = 'd'", True),
        ("TRUE", True),
        ("false", False),
        # values of different kinds
        ("n = '3'", False),
        ("n <> '3'", False),
        ("NOT n <> '3'", True),
        ("colour > 5", False),
        ("flag <> 5", False),
        # what fails does not match
        ("colour + 1 = 2", False),
        ("NOT n / 0 = 1", False),
    ],
)
def test_conditions(text: str, expected: bool) -> None:
    assert matches(text) is expected


def test_headers() -> None:
    sent: dict[str, Any] = {
        "subject": "order", "correlation_id": "c", "group_id": "g", "group_sequence": UInt(2),
        "user_id": b"me", "creation_time": Timestamp(1_000),
    }  # fmt: skip
    assert matches(
        "JMSType = 'order' AND JMSCorrelationID = 'c' AND JMSXGroupID = 'g' AND JMSXGroupSeq = 2 "
        "AND JMSXUserID = 'me' AND JMSTimestamp = 1000 AND JMSMessageID = 'ID:AMQP_NO_PREFIX:id' "
        "AND JMSPriority = 4 AND JMSDeliveryMode = 'PERSISTENT' AND JMSXDeliveryCount = 3",
        delivery_count=2,
        **sent,
    )
    assert matches("JMSType IS NULL AND JMSTimestamp IS NULL AND JMSCorrelationID IS NULL")


@pytest.mark.parametrize(
    ("sent", "message_id", "correlation_id"),
    [
        ("x", "ID:AMQP_NO_PREFIX:x", "x"),
        ("ID:x", "ID:x", "ID:x"),
        ("ID:AMQP_ULONG:7", "ID:AMQP_STRING:ID:AMQP_ULONG:7", "ID:AMQP_STRING:ID:AMQP_ULONG:7"),
        (UUID(int=1), f"ID:AMQP_UUID:{UUID(int=1)}", f"ID:AMQP_UUID:{UUID(int=1)}"),
        (ULong(7), "ID:AMQP_ULONG:7", "ID:AMQP_ULONG:7"),
        (b"\x0aZ", "ID:AMQP_BINARY:0A5A", "ID:AMQP_BINARY:0A5A"),
    ],
)
def test_ids_are_those_that_qpid_jms_shows(sent: Any, message_id: str, correlation_id: str) -> None:
    assert matches(f"JMSMessageID = '{message_id}'", message_id=sent)
    assert matches(f"JMSCorrelationID = '{correlation_id}'", correlation_id=sent)


def test_names_of_vendors_are_those_of_application_properties() -> None:
    assert matches("JMS_ACME_colour = 'red'", changed={"JMS_ACME_colour": "red"})
    assert matches("JMSXAppID = 'shop'", changed={"JMSXAppID": "shop"})
    assert matches("jmsColour = 'red'", changed={"jmsColour": "red"})


def test_the_priority_is_that_of_the_sender() -> None:
    stored = store(message(header=[None, UByte(9)]), lambda: "id").data
    assert compile_selector("JMSPriority = 9").matches(stored, None, 0)


def test_changes_of_a_settlement_are_seen() -> None:
    assert matches("colour = 'green' AND added = 1", changed={"colour": "green", "added": 1})
    assert matches("colour IS NULL", changed={"colour": None})
    assert matches("Colour = 'blue'", changed={"colour": "green"})


@pytest.mark.parametrize(
    ("text", "position", "reason"),
    [
        ("", 1, "the text ends where a value is expected"),
        ("colour = ", 10, "the text ends where a value is expected"),
        ("colour == 'red'", 9, "'=' stands where a value is expected"),
        ("n BETWEEN 1", 12, "the text ends where an operator is expected"),
        ("between = 1", 1, "'between' stands where a value is expected"),
        ("5", 1, "a value stands where a condition is expected"),
        ("flag AND 'x'", 10, "a value stands where a condition is expected"),
        ("n + 1", 1, "a number stands where a condition is expected"),
        ("flag OR -(n + 1)", 11, "a number stands where a condition is expected"),
        ("NOT 5", 5, "a value stands where a condition is expected"),
        ("flag OR JMSReplyTo = 'x'", 9, "no selector can use the header 'JMSReplyTo'"),
        ("JMSCorelationID = 'x'", 1, "there is no header 'JMSCorelationID'"),
        ("a = 1 AND JMSFoo = 1", 11, "there is no header 'JMSFoo'"),
        ("JMSXRcvTimestamp = 1", 1, "there is no header 'JMSXRcvTimestamp'"),
        ('"JMSFoo" = 1', 1, "there is no header 'JMSFoo'"),
        ("a LIKE 'x' ESCAPE 'yy'", 3, "the escape of a LIKE is one character, not 'yy'"),
        ("a = 0x8000000000000000", 5, "the integer 9223372036854775808 does not fit 64 bits"),
        ("a = b()", 6, "'(' stands where an operator is expected"),
    ],
)
def test_an_invalid_selector_is_refused_with_position_and_reason(
    text: str, position: int, reason: str
) -> None:
    with pytest.raises(Refused) as refused:
        compile_selector(text)
    assert refused.value.reason is Reason.ARGUMENT
    assert refused.value.description == f"The selector is not valid at position {position}: {reason}."


def test_selectors_are_bounded() -> None:
    for text in ("NOT " * 40 + "a", " OR ".join(["a = 1"] * 200)):
        with pytest.raises(Refused):
            compile_selector(text)


def test_what_a_selector_cannot_decode_or_compute_does_not_match(monkeypatch: pytest.MonkeyPatch) -> None:
    stored = stored_with({"colour": "red"}).replace(b"\xa1\x03red", b"\xa1\x03r\xffd")
    assert not compile_selector("colour = 'red'").matches(stored, None, 0)
    assert not compile_selector("JMSTimestamp > 5").matches(stored_with(creation_time="then"), None, 0)
    monkeypatch.setattr(SelectedView, "application_property", lambda *_: 1 / 0)
    assert not compile_selector("colour = 'red'").matches(stored, None, 0)


def test_what_takes_too_long_to_search_does_not_match() -> None:
    """Two texts of the largest size can be searched for patterns with `_`, and any number of others."""
    stored = stored_with({"long": "a" * 32_000, "n": 1})
    for searches, matching in ((2, True), (3, False)):
        terms = ["long LIKE '%x%'"] * 20 + ["long LIKE '%_x%'"] * searches
        assert compile_selector(" OR ".join([*terms, "n = 1"])).matches(stored, None, 0) is matching
