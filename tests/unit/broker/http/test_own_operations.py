"""Our own operations over HTTP (HTTP contract 4.7)."""

from __future__ import annotations

import json
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.support.broker_thread import BrokerThread
from tests.support.rest_client import RestAnswer, RestClient
from tests.support.sas import sas_token

PARTITIONED = "<EnablePartitioning>true</EnablePartitioning>"
DEAD = "$DeadLetterQueue"


def ask(rest: RestClient, operation: str, path: str, **body: Any) -> RestAnswer:
    return rest.ask("POST", f"/$partibus/{operation}/{path}", json.dumps(body))


def done(rest: RestClient, operation: str, path: str, **body: Any) -> Any:
    answer = ask(rest, operation, path, **body)
    assert answer.status == 200, answer.body
    assert answer.headers["content-type"] == "application/json; charset=utf-8"
    return answer.json


def send(rest: RestClient, name: str, count: int, **properties: Any) -> None:
    for number in range(count):
        rest.send(f"/{name}", str(number), BrokerProperties=json.dumps(properties))


def kill(rest: RestClient, name: str) -> None:
    """Unlock the first message until it is a dead letter; its queue allows one delivery."""
    assert rest.ask("PUT", rest.receive(f"/{name}").lock).status == 200


def test_exactly_the_messages_that_are_named_are_deleted(rest: RestClient) -> None:
    rest.create("/deleting", PARTITIONED)
    send(rest, "deleting", 3)
    locked = [rest.receive("/deleting") for _ in range(3)]
    numbers = [each.broker_properties["SequenceNumber"] for each in locked]
    assert rest.ask("PUT", locked[0].lock).status == 200
    result = done(rest, "delete-messages", "deleting", sequenceNumbers=[*numbers[:2], 99, 2**62])
    assert result["deleted"] == numbers[:1]
    assert (result["locked"], sorted(result["missing"])) == (numbers[1:2], [99, 2**62])


def test_a_purge_deletes_by_state_and_age_and_says_where_to_continue(rest: RestClient) -> None:
    rest.create("/purging", PARTITIONED)
    send(rest, "purging", 6)
    send(rest, "purging", 2, ScheduledEnqueueTimeUtc="2099-01-01T00:00:00Z")
    long_ago = "1999-01-01T00:00:00Z"
    assert done(rest, "purge-messages", "purging", enqueuedBefore=long_ago) == {"messageCount": 0}
    part = done(rest, "purge-messages", "purging", states=["active"], messageCount=2)
    assert part["messageCount"] == 2
    rest_of = {"states": ["active"], "fromSequenceNumber": part["nextSequenceNumber"]}
    assert done(rest, "purge-messages", "purging", **rest_of) == {"messageCount": 4}
    assert done(rest, "count-messages", "purging")["scheduled"] == 2
    assert done(rest, "purge-messages", "purging") == {"messageCount": 2}
    assert ask(rest, "purge-messages", "purging", sessionId="s").status == 400


def test_dead_letters_are_sent_again_by_number_or_reason(rest: RestClient) -> None:
    rest.create("/redriving", "<MaxDeliveryCount>1</MaxDeliveryCount>" + PARTITIONED)
    send(rest, "redriving", 3)
    for _ in range(3):
        kill(rest, "redriving")
    assert done(rest, "count-messages", f"redriving/{DEAD}")["active"] == 3
    first = rest.receive(f"/redriving/{DEAD}")
    number = first.broker_properties["SequenceNumber"]
    assert rest.ask("PUT", first.lock).status == 200
    named = done(rest, "redrive-messages", f"redriving/{DEAD}", sequenceNumbers=[number, 7])
    assert (named["messageCount"], named["redriven"], named["missing"]) == (1, [number], [7])
    again = rest.receive("/redriving", method="DELETE")
    assert again.broker_properties["SequenceNumber"] == named["sequenceNumbers"][0]
    path = f"redriving/{DEAD}"
    assert done(rest, "redrive-messages", path, deadLetterReason="other") == {"messageCount": 0}
    reason = "MaxDeliveryCountExceeded"
    assert done(rest, "redrive-messages", path, deadLetterReason=reason) == {"messageCount": 2}
    assert done(rest, "count-messages", "redriving")["active"] == 2
    assert ask(rest, "redrive-messages", "redriving").status == 400, "it is no dead-letter queue"
    both = ask(rest, "redrive-messages", path, sequenceNumbers=[1], deadLetterReason=reason)
    assert both.status == 400


def test_an_abandoned_message_comes_again_after_its_delay(rest: RestClient) -> None:
    rest.create("/abandoning")
    send(rest, "abandoning", 1)
    token, lost = rest.receive("/abandoning").broker_properties["LockToken"], str(uuid.uuid4())
    result = done(
        rest,
        "abandon-messages",
        "abandoning",
        lockTokens=[token, lost],
        delayMilliseconds=300,
        properties={"why": "later", "tries": 1},
    )
    assert result == {"abandoned": [token], "lost": [lost]}
    assert rest.receive("/abandoning").status == 204
    answer = rest.receive("/abandoning", timeout=30)
    assert (answer.headers["why"], answer.headers["tries"]) == ('"later"', "1")
    assert answer.broker_properties["DeliveryCount"] == 2


def test_scheduled_messages_get_another_time_or_are_delivered_now(rest: RestClient) -> None:
    rest.create("/timing", "<EnablePartitioning>false</EnablePartitioning>")
    at = datetime.now(UTC) + timedelta(hours=1)
    send(rest, "timing", 2, ScheduledEnqueueTimeUtc=at.isoformat())
    later = (at + timedelta(hours=1)).isoformat()
    result = done(rest, "reschedule-messages", "timing", sequenceNumbers=[1, 9], scheduledEnqueueTime=later)
    assert result == {"rescheduled": [1], "missing": [9]}
    assert rest.receive("/timing").status == 204
    assert done(rest, "deliver-scheduled-messages", "timing", sequenceNumbers=[2]) == {
        "delivered": [2],
        "missing": [],
    }
    assert rest.receive("/timing", timeout=30).body == b"1"
    counts = done(rest, "count-messages", "timing")
    assert {name: counts[name] for name in ("active", "locked", "deferred", "scheduled")} == {
        "active": 1,
        "locked": 1,
        "deferred": 0,
        "scheduled": 1,
    }


@pytest.mark.parametrize(
    ("operation", "body"),
    [
        ("delete-messages", {}),
        ("delete-messages", {"sequenceNumbers": []}),
        ("delete-messages", {"sequenceNumbers": [-1]}),
        ("delete-messages", {"sequenceNumbers": [1] * 4_001}),
        ("delete-messages", {"sequenceNumbers": [1], "misspelt": 1}),
        ("delete-messages", {"sequence_numbers": [1]}),
        ("delete-messages", {"sequenceNumbers": [True]}),
        ("delete-messages", {"sequenceNumbers": [1.0]}),
        ("delete-messages", {"sequenceNumbers": ["1_0"]}),
        ("purge-messages", {"enqueued_before": "1999-01-01T00:00:00Z"}),
        ("purge-messages", {"messageCount": True}),
        ("purge-messages", {"messageCount": "5"}),
        ("purge-messages", {"fromSequenceNumber": False}),
        ("purge-messages", {"states": ["locked"]}),
        ("purge-messages", {"states": []}),
        ("purge-messages", {"messageCount": 0}),
        ("purge-messages", {"enqueuedBefore": "1999-01-01T00:00:00"}),
        ("abandon-messages", {"lockTokens": ["x"]}),
        ("abandon-messages", {"lockTokens": [str(uuid.uuid4())], "delayMilliseconds": 1 << 40}),
        ("abandon-messages", {"lockTokens": [str(uuid.uuid4())], "properties": {"a": []}}),
        ("abandon-messages", {"lockTokens": [str(uuid.uuid4())], "properties": {"partibus:x": 1}}),
        ("reschedule-messages", {"sequenceNumbers": [1]}),
        ("count-messages", {"misspelt": 1}),
    ],
)
def test_what_is_wrong_is_refused(rest: RestClient, operation: str, body: dict[str, Any]) -> None:
    answer = ask(rest, operation, "plain", **body)
    assert (answer.status, b"SubCode=40000" in answer.body) == (400, True), answer.body


def test_a_field_that_stands_twice_is_refused(rest: RestClient) -> None:
    """One of the two would have no effect."""
    inside = f'{{"lockTokens": ["{uuid.uuid4()}"], "properties": {{"a": 1, "a": 2}}}}'
    for operation, body, name in (
        ("delete-messages", '{"sequenceNumbers": [1], "sequenceNumbers": [2]}', b"sequenceNumbers"),
        ("abandon-messages", inside, b"a"),
    ):
        answer = rest.ask("POST", f"/$partibus/{operation}/plain", body)
        assert (answer.status, b"the field %b stands twice" % name in answer.body) == (400, True), answer.body


def test_a_node_that_keeps_no_messages_is_not_taken_for_its_entity(rest: RestClient) -> None:
    answer = ask(rest, "purge-messages", "plain/$management")
    assert answer.status == 400 and b"Messages are not kept at 'plain/$management'" in answer.body


def test_refusals_name_the_fields_as_clients_write_them(rest: RestClient) -> None:
    both = ask(rest, "redrive-messages", "plain/$deadletterqueue", sequenceNumbers=[1], messageCount=1)
    assert b"messageCount does not go with sequenceNumbers" in both.body
    session = ask(rest, "purge-messages", "plain", sessionId="s")
    assert b"has no sessions: leave out the session id" in session.body
    time = ask(rest, "purge-messages", "plain", enqueuedBefore=5)
    assert b"enqueuedBefore: Value error, it must be a time in ISO 8601 with a zone" in time.body


def test_refusals_have_the_statuses_of_the_contract(broker: BrokerThread, rest: RestClient) -> None:
    assert rest.ask("POST", "/$partibus/count-messages/plain", b"[" * 1_000).status == 400
    assert rest.ask("POST", "/$partibus/count-messages/plain", bytes(256 * 1024 + 1)).status == 413
    assert rest.ask("GET", "/$partibus/count-messages/plain").status == 405
    assert rest.ask("POST", "/$partibus/unknown/plain").status == 404
    assert rest.ask("POST", "/$partibus/count-messages").status == 400
    assert rest.ask("POST", "/$partibus/count-messages/missing").status == 410
    assert rest.ask("POST", "/$partibus/count-messages/missing", token=None).status == 401
    elsewhere = sas_token(f"http://127.0.0.1:{broker.addresses.http_port}/other")
    assert rest.ask("POST", "/$partibus/count-messages/plain", token=elsewhere).status == 401
    assert rest.ask("POST", "/%24Partibus/Count-Messages/plain").status == 200
