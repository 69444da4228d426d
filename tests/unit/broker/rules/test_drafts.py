"""Drafts: a new value takes the type of the one before it, if that can hold it (AMQP contract 11.5)."""

from __future__ import annotations

import uuid
from decimal import Decimal
from typing import Any

import pytest

from broker.rules.drafts import Draft
from broker.rules.values import Duration, Instant, Value
from protocol.codec import (
    Byte,
    Described,
    Float,
    Long,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
)
from tests.support.amqp_messages import APPLICATION, sections
from tests.support.rule_messages import view_of

GUID = uuid.UUID(int=9)


@pytest.mark.parametrize(
    ("earlier", "value", "result"),
    [
        (5, 7, 7),
        (5, 7.0, 7),
        (5, Decimal(7), 7),
        (5, 2**40, Long(2**40)),
        (5, 7.5, 7.5),
        (5, "7", 7),
        (5, "seven", "seven"),
        (5, True, True),
        (5, float("inf"), float("inf")),
        (5, None, None),
        (Byte(5), 200, Long(200)),
        (UByte(5), 200, UByte(200)),
        (UInt(5), -1, Long(-1)),
        (ULong(5), 2**64 - 1, ULong(2**64 - 1)),
        (Float(1), 2, Float(2)),
        (1.5, "2.5", 2.5),
        (1.5, "x", "x"),
        ("a", 5, "5"),
        ("a", True, "True"),
        ("a", False, "False"),
        ("a", GUID, str(GUID)),
        ("a", Instant(50_000), Timestamp(5)),
        (True, "FALSE", False),
        (True, "x", "x"),
        (True, 1, Long(1)),
        (GUID, str(GUID), GUID),
        (GUID, "x", "x"),
        (GUID, 1, Long(1)),
        (Timestamp(1), Instant(50_009), Timestamp(5)),
        (None, 5, Long(5)),
        (None, 2**63, ULong(2**63)),
        (None, Decimal("1.5"), 1.5),
        (None, Duration(7), Described(Symbol("com.microsoft:timespan"), Long(7))),
        (None, b"\x01", b"\x01"),
    ],
)
def test_the_type_of_a_new_value(earlier: Any, value: Value, result: Any) -> None:
    draft = Draft(view_of({"a": earlier}))
    draft.set_application_property("a", value)
    found = sections(draft.encoded())[APPLICATION]["a"]
    assert found == result
    assert type(found) is type(result)


def test_a_draft_is_read_like_a_message_and_of_what_differs_in_case_the_first_one_stays() -> None:
    draft = Draft(view_of({"a": 1, "A": 2}))
    assert draft.application_property("a") == 1 and draft.has("a") and not draft.has("b")
    draft.remove_application_property("a")
    assert draft.application_property("a") is None and not draft.has("a")
    assert sections(draft.encoded())[APPLICATION] == {}
