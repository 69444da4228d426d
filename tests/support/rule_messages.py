"""Stored messages for tests of rules: by the names of their properties."""

from __future__ import annotations

from typing import Any

import pytest

from broker.message.stored import store
from broker.rules.matching import COPIES_BYTES_MAX, Match, Matcher
from broker.rules.message_view import MessageView
from protocol.codec import Symbol, UInt
from tests.support.amqp_messages import message

ENQUEUED_MS = 1_700_000_000_000
FIELDS = (
    "message_id", "user_id", "to", "subject", "reply_to", "correlation_id", "content_type",
    "content_encoding", "absolute_expiry_time", "creation_time", "group_id", "group_sequence",
    "reply_to_group_id",
)  # fmt: skip
"""Of the properties section (§3.2.4)."""


def stored_with(
    application: dict[str, Any] | None = None,
    *,
    annotations: dict[str, Any] | None = None,
    time_to_live_ms: int | None = None,
    body: bytes = b"body",
    **properties: Any,
) -> bytes:
    """A stored message with these application properties, and fields of its properties section. Its
    message-id is "id" unless another one is given."""
    values = {"message_id": "id", **properties}
    assert values.keys() <= set(FIELDS)
    encoded = message(
        header=None if time_to_live_ms is None else [None, None, UInt(time_to_live_ms)],
        annotations=annotations,
        properties=[symbol_or_same(name, values.get(name)) for name in FIELDS],
        application=application,
        body=(body,),
    )
    return store(encoded, lambda: "generated").data


def symbol_or_same(name: str, value: Any) -> Any:
    return Symbol(value) if name in ("content_type", "content_encoding") and value is not None else value


def view_of(application: dict[str, Any] | None = None, **more: Any) -> MessageView:
    """The view of such a message."""
    return MessageView(stored_with(application, **more), ENQUEUED_MS)


def matched(matcher: Matcher, stored: bytes, copies_bytes_max: int = COPIES_BYTES_MAX) -> Match:
    """Who gets a stored message, found in a single step."""
    steps = matcher.match_steps(stored, ENQUEUED_MS, copies_bytes_max)
    with pytest.raises(StopIteration) as end:
        next(steps)
    assert isinstance(end.value.value, Match)
    return end.value.value
