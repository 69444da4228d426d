"""The `BrokerProperties` of a message, as JSON (HTTP contract 4.2, 4.3)."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from broker.base.errors import Reason, Refused
from broker.http.broker_properties import read_properties, read_token, token_text, written
from broker.message.plain_message import PlainMessage
from broker.operations.receiving import Locked
from tests.support.locked import locked

MOMENT_MS = 784_111_777_000
DATES_OUT_OF_RANGE = (
    "Fri, 31 Dec 9999 23:59:59 -0500",
    "Sun, 06 Nov 19941994199419941994 08:49:37 GMT",
)


def read(**given: object) -> PlainMessage:
    message = PlainMessage()
    read_properties(json.dumps(given), message)
    return message


def one_message(token: bytes, expires_ms: int | None) -> Locked:
    return replace(
        locked(0, until_ms=60_000),
        tokens=[token],
        sequence_numbers=[2],
        enqueued_at_ms=[MOMENT_MS],
        expires_at_ms=[expires_ms],
    )


def test_every_property_that_can_be_set_is_read() -> None:
    assert read(
        MessageId="m",
        CorrelationId="c",
        SessionId="s",
        ReplyToSessionId="rs",
        ReplyTo="r",
        To="t",
        Label="l",
        PartitionKey="p",
        ViaPartitionKey="v",
        TimeToLive=1.5,
        ScheduledEnqueueTimeUtc="Sun, 06 Nov 1994 08:49:37 GMT",
        ForcePersistence=True,
        SequenceNumber=5,
        Unknown={},
    ) == PlainMessage(
        message_id="m",
        correlation_id="c",
        session_id="s",
        reply_to_session_id="rs",
        reply_to="r",
        to="t",
        subject="l",
        partition_key="p",
        via_partition_key="v",
        time_to_live_ms=1_500,
        scheduled_ms=MOMENT_MS,
    )


@pytest.mark.parametrize(
    ("given", "milliseconds"),
    [
        ({"TimeToLive": 40}, 40_000),
        ({"TimeToLive": "40"}, 40_000),
        ({"TimeToLive": 0.0001}, 1),
        ({"TimeToLive": 922337203685.47754}, None),
        ({"TimeToLiveTimeSpan": "0.00:00:40"}, 40_000),
        ({"TimeToLiveTimeSpan": "00:01:00"}, 60_000),
        ({"TimeToLiveTimeSpan": "1.02:03:04.5"}, 93_784_500),
        ({"TimeToLiveTimeSpan": "10675199.02:48:05.4775807"}, None),
        ({"TimeToLive": None}, None),
    ],
)
def test_times_to_live_are_seconds_or_spans(given: dict[str, object], milliseconds: int | None) -> None:
    assert read(**given).time_to_live_ms == milliseconds


def test_numbers_are_accepted_where_text_is_wanted_and_times_in_the_iso_form() -> None:
    assert read(MessageId=5).message_id == "5"
    assert read(ScheduledEnqueueTimeUtc="1994-11-06T08:49:37Z").scheduled_ms == MOMENT_MS
    assert read(ScheduledEnqueueTimeUtc="1994-11-06T08:49:37").scheduled_ms == MOMENT_MS


@pytest.mark.parametrize(
    "text",
    ["", "[]", "5", "{", "[" * 10_000]
    + [f'{{"TimeToLive":{each}}}' for each in ("0", "-1", '"x"', "true", "[]", '"nan"')]
    + [f'{{"TimeToLiveTimeSpan":{each}}}' for each in ("5", '"5"', '"1:2"', '"00:00:00"')]
    + [f'{{"ScheduledEnqueueTimeUtc":{each}}}' for each in ("5", '"soon"', "[]")]
    + [f'{{"ScheduledEnqueueTimeUtc":"{each}"}}' for each in DATES_OUT_OF_RANGE]
    + [f'{{"MessageId":{each}}}' for each in ("[]", "{}", "true")],
)
def test_what_is_wrong_is_refused(text: str) -> None:
    with pytest.raises(Refused) as refused:
        read_properties(text, PlainMessage())
    assert refused.value.reason is Reason.ARGUMENT


def test_a_property_that_is_given_twice_is_named() -> None:
    with pytest.raises(Refused, match="BrokerProperties cannot be used: the field MessageId stands twice"):
        read_properties('{"MessageId": "a", "MessageId": "b"}', PlainMessage())


def test_a_delivered_message_shows_its_properties_in_alphabetical_order_without_spaces() -> None:
    token = bytes(range(16))
    one = one_message(token, MOMENT_MS + 10_000)
    message = PlainMessage(message_id="m", subject="M1", enqueued_number=0)
    assert written(message, one, wall_ahead_ms=MOMENT_MS, peek_lock=True) == (
        '{"DeliveryCount":1,"EnqueuedSequenceNumber":0,"EnqueuedTimeUtc":"Sun, 06 Nov 1994 08:49:37 GMT",'
        '"Label":"M1","LockToken":"03020100-0504-0706-0809-0a0b0c0d0e0f",'
        '"LockedUntilUtc":"Sun, 06 Nov 1994 08:50:37 GMT","MessageId":"m","SequenceNumber":2,'
        '"State":"Active","TimeToLive":10}'
    )
    assert read_token(token_text(token)) == token
    shown = json.loads(written(message, one, wall_ahead_ms=MOMENT_MS, peek_lock=False))
    assert shown.keys().isdisjoint({"LockToken", "LockedUntilUtc"})


def test_a_message_that_never_expires_shows_the_longest_time_to_live() -> None:
    shown = written(PlainMessage(), one_message(bytes(16), None), wall_ahead_ms=0, peek_lock=False)
    assert '"TimeToLive":922337203685.4775' in shown


@pytest.mark.parametrize(
    ("scheduled_ms", "shown"),
    [
        (-62_135_647_200_000, "Mon, 01 Jan 0001 00:00:00 GMT"),
        (-(2**63), "Mon, 01 Jan 0001 00:00:00 GMT"),
        (253_402_318_799_000, "Fri, 31 Dec 9999 23:59:59 GMT"),
        (2**63 - 1, "Fri, 31 Dec 9999 23:59:59 GMT"),
    ],
)
def test_a_time_that_no_date_can_hold_is_shown_as_the_nearest_one(scheduled_ms: int, shown: str) -> None:
    message = PlainMessage(scheduled_ms=scheduled_ms)
    text = written(message, one_message(bytes(16), None), wall_ahead_ms=0, peek_lock=False)
    assert json.loads(text)["ScheduledEnqueueTimeUtc"] == shown


@pytest.mark.parametrize("text", ["", "head", "123", "zz020100-0504-0706-0809-0a0b0c0d0e0f"])
def test_a_lock_token_is_a_guid(text: str) -> None:
    assert read_token(text) is None
