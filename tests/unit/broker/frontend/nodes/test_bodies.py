"""Reading the fields of a request's body, whatever a client puts there."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from broker.base.errors import Reason, Refused
from broker.frontend.nodes.bodies import (
    ELEMENTS_MAX,
    elements,
    integer,
    integers,
    lock_tokens,
    ok,
    refusal,
)
from protocol.codec import Array, Int, Long, TypeCode, ULong


@pytest.mark.parametrize("value", [5, Int(5), Long(5), ULong(5)])
def test_an_integer_of_any_type_is_read(value: Any) -> None:
    assert integer({"count": value}, "count") == 5
    assert integers({"counts": Array(TypeCode.LONG, [value])}, "counts") == [5]
    assert integers({"counts": [value]}, "counts") == [5]


@pytest.mark.parametrize("body", [{}, {"count": None}, {"count": True}, {"count": "5"}, {"count": [5]}])
def test_anything_else_is_an_argument_error(body: dict[str, Any]) -> None:
    with pytest.raises(Refused) as refused:
        integer(body, "count")
    assert refused.value.reason is Reason.ARGUMENT
    with pytest.raises(Refused):
        integers({"counts": [body.get("count")]}, "counts")


def test_a_missing_integer_may_have_a_default() -> None:
    assert integer({}, "count", 7) == 7


def test_an_array_has_a_bounded_number_of_elements() -> None:
    assert len(elements({"all": [1] * ELEMENTS_MAX}, "all")) == ELEMENTS_MAX
    for wrong in ([1] * (ELEMENTS_MAX + 1), 1, None, {"a": 1}):
        with pytest.raises(Refused):
            elements({"all": wrong}, "all")


def test_lock_tokens_are_uuids_in_the_order_of_a_delivery_tag() -> None:
    token = uuid.uuid4()
    assert lock_tokens({"lock-tokens": [token]}) == [token.bytes_le]
    for wrong in ([], [token.bytes], [str(token)]):
        with pytest.raises(Refused):
            lock_tokens({"lock-tokens": wrong})


def test_a_response_has_the_status_and_for_a_refusal_the_condition() -> None:
    assert ok({"a": 1}).properties["statusCode"] == 200 and ok({"a": 1}).body == {"a": 1}
    refused = refusal(Refused(Reason.MESSAGE_NOT_FOUND, "none"))
    assert refused.properties == {
        "statusCode": 404,
        "statusDescription": "none",
        "errorCondition": "com.microsoft:message-not-found",
    }
