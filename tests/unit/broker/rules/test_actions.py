"""Actions of rules: what they make of a message (AMQP contract 11.5)."""

from __future__ import annotations

from typing import Any

import pytest

from broker.base.errors import Reason, Refused
from broker.entities.rules import RuleValue, SqlAction, ValueType
from broker.message.forwarded import Trail, as_sent, trail_of, with_trail
from broker.message.stored import StoredMessage
from broker.rules.actions import check_new_action, compile_action
from broker.rules.message_view import MessageView
from broker.rules.values import EvaluationFailed
from protocol.codec import Symbol, Timestamp, UInt
from tests.support.amqp_messages import ANNOTATIONS, APPLICATION, DATA, HEADER, PROPERTIES, sections
from tests.support.rule_messages import ENQUEUED_MS, FIELDS, stored_with


def copy_of(stored: bytes, text: str, *parameters: tuple[str, RuleValue]) -> StoredMessage:
    return compile_action(SqlAction(text, parameters)).change(MessageView(stored, ENQUEUED_MS), "rule")


def changed(text: str, application: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """The application properties of the copy, and the fields of its properties section that are set."""
    found = sections(as_sent(copy_of(stored_with(application, **more), text).data, None))
    fields = dict(zip(FIELDS, found[PROPERTIES], strict=False))
    assert found[APPLICATION].pop("RuleName", "rule") == "rule"
    own: dict[str, Any] = found[APPLICATION]
    return own | {name: value for name, value in fields.items() if value is not None}


def test_statements_see_what_those_before_them_did() -> None:
    text = (
        "SET quantity = quantity / 2; SET twice = quantity * 2, "
        "REMOVE priority; SET sys.CorrelationId = 'low';"
    )
    assert changed(text, {"quantity": 8, "priority": 1, "other": "x"}) == {
        "quantity": 4, "twice": 8, "other": "x", "message_id": "id", "correlation_id": "low",
    }  # fmt: skip


def test_a_property_that_is_there_keeps_its_spelling_and_names_have_no_case() -> None:
    found = changed("SET COLOUR = 'blue', SET New = colour, REMOVE OLD", {"Colour": "red", "Old": 1})
    assert found == {"Colour": "blue", "New": "blue", "message_id": "id"}


def test_what_is_missing_reads_as_null_and_can_be_removed() -> None:
    assert changed("SET a = missing + 1; REMOVE missing") == {"a": None, "message_id": "id"}


def test_the_copy_has_the_name_of_its_rule() -> None:
    stored = copy_of(stored_with({"rulename": "sent"}), "SET a = RuleName").data
    assert sections(as_sent(stored, None))[APPLICATION] == {"rulename": "rule", "a": "rule"}
    stored = copy_of(stored_with(), "REMOVE RuleName").data
    assert sections(as_sent(stored, None)).get(APPLICATION, {}) == {}


def test_system_properties_are_set_and_removed() -> None:
    text = (
        "SET sys.MessageId = 7, SET sys.Label = 'l', SET sys.To = 't', SET sys.ReplyTo = 'r', "
        "SET sys.ContentType = 'text/plain', SET sys.ReplyToSessionId = 's', REMOVE sys.CorrelationId"
    )
    assert changed(text, correlation_id="c", user_id=b"u") == {
        "message_id": "7", "subject": "l", "to": "t", "reply_to": "r", "content_type": "text/plain",
        "reply_to_group_id": "s", "user_id": b"u",
    }  # fmt: skip
    assert changed("SET sys.Subject = NULL", subject="s") == {"message_id": "id"}


def test_a_session_id_replaces_the_partition_key() -> None:
    stored = stored_with(annotations={"x-opt-partition-key": "k", "other": 1}, group_id="k")
    copy = copy_of(stored, "SET sys.SessionId = 'new'")
    assert (copy.session_id, copy.partition_key) == ("new", None)
    assert sections(as_sent(copy.data, None))[ANNOTATIONS] == {"other": 1}


def test_times_are_set() -> None:
    span = ("@span", RuleValue(ValueType.DURATION, 50_000_000))
    text = (
        "SET sys.TimeToLive = @span; SET sys.ScheduledEnqueueTimeUtc = sys.EnqueuedTimeUtc + @span; "
        "SET a = sys.ScheduledEnqueueTimeUtc"
    )
    copy = copy_of(stored_with(time_to_live_ms=9), text, span)
    assert copy.time_to_live_ms == 5_000
    assert copy.scheduled_enqueue_time_ms == ENQUEUED_MS + 5_000
    found = sections(as_sent(copy.data, None))
    assert found[HEADER] == [None, None, 5_000]
    assert found[APPLICATION]["a"] == Timestamp(ENQUEUED_MS + 5_000)
    removed = copy_of(copy.data, "REMOVE sys.TimeToLive, REMOVE sys.ScheduledEnqueueTimeUtc")
    assert (removed.time_to_live_ms, removed.scheduled_enqueue_time_ms) == (None, None)


def test_everything_else_of_the_message_stays_as_it_was() -> None:
    stored = stored_with({"a": 1}, annotations={"x-opt-own": Symbol("s")}, body=b"\x00body")
    before, after = (
        sections(as_sent(stored, None)),
        sections(as_sent(copy_of(stored, "SET a = 2").data, None)),
    )
    assert after[DATA] == before[DATA] and after[ANNOTATIONS] == before[ANNOTATIONS]


def test_a_forwarded_message_keeps_its_trail() -> None:
    trail = Trail(2, 77, "orders")
    copy = copy_of(with_trail(stored_with(), trail), "SET a = 1")
    assert trail_of(copy.data, 0) == trail


@pytest.mark.parametrize(
    ("text", "position", "why"),
    [
        ("SET sys.Colour = 1", 5, "there is no system property 'sys.colour'"),
        ("SET sys.SequenceNumber = 1", 5, "'sys.sequencenumber' cannot be set"),
        ("SET a = 1; SET sys.PartitionKey = 'k'", 16, "'sys.partitionkey' cannot be set"),
        ("REMOVE sys.MessageId", 8, "'sys.messageid' cannot be removed"),
        ("SET a = @b", 9, "there is no parameter '@b'"),
    ],
)
def test_what_no_action_can_do_is_refused(text: str, position: int, why: str) -> None:
    with pytest.raises(Refused, match=f"^The action is not valid at position {position}: .*{why}") as refused:
        compile_action(SqlAction(text))
    assert refused.value.reason is Reason.ARGUMENT


@pytest.mark.parametrize(
    ("text", "position", "why"),
    [
        ("SET sys.TimeToLive = 5", 5, "the system property 'sys.timetolive' cannot be a number"),
        ("SET sys.TimeToLive = @text", 5, "the system property 'sys.timetolive' cannot be a text"),
        ("SET sys.TimeToLive = @none", 5, "a time to live of 0 ms is not possible"),
        ("SET a = 1; SET sys.MessageId = NULL", 16, "the system property 'sys.messageid' cannot be null"),
        ("SET sys.Label = @none", 5, "the system property 'sys.label' is a text, not a time span"),
    ],
)
def test_a_constant_that_a_system_property_cannot_be_is_refused_in_a_new_rule(
    text: str, position: int, why: str
) -> None:
    parameters = (
        ("@text", RuleValue(ValueType.STRING, "x")),
        ("@none", RuleValue(ValueType.DURATION, 0)),
    )
    action = SqlAction(text, parameters)
    compile_action(action)  # as a rule that is kept
    with pytest.raises(Refused) as refused:
        check_new_action(action)
    assert refused.value.description == f"The action is not valid at position {position}: {why}."


def test_a_constant_that_a_system_property_can_be_is_accepted_in_a_new_rule() -> None:
    span = ("@span", RuleValue(ValueType.DURATION, 50_000_000))
    check_new_action(SqlAction("SET sys.TimeToLive = @span; SET sys.To = NULL; SET sys.Label = 5", (span,)))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("SET a = b / 0", "no result"),
        ("SET a = sys.Colour", "no system property"),
        ("SET sys.MessageId = missing", "cannot be null"),
        ("SET sys.Label = sys.EnqueuedTimeUtc", "is a text, not a date"),
        ("SET sys.TimeToLive = 5", "'sys.timetolive' cannot be a number"),
        ("SET sys.TimeToLive = sys.EnqueuedTimeUtc - sys.EnqueuedTimeUtc", "0 ms is not possible"),
        ("SET sys.ContentType = 'ä'", "cannot be sent"),
        ("SET sys.SessionId = long", "limit is 128"),
    ],
)
def test_an_action_without_a_result_fails(text: str, why: str) -> None:
    with pytest.raises(EvaluationFailed, match=why):
        changed(text, {"b": UInt(1), "long": "x" * 129})
