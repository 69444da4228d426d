"""Requests about messages over HTTP: rights, headers and status codes (HTTP contract 4)."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import pytest

from broker.base.clock import ManualClock
from storage.disk import LocalDisk
from tests.support.broker_process import queue
from tests.support.broker_thread import BrokerThread
from tests.support.http_entries import UPDATE, queue_body
from tests.support.rest_client import RestClient
from tests.support.sas import sas_token


def test_refusals_have_the_statuses_of_the_contract(rest: RestClient) -> None:
    def status_of(path: str, **given: Any) -> int:
        return rest.ask("POST", f"{path}/messages", b"x", **given).status

    assert status_of("/missing") == 410
    assert status_of("/missing/subscriptions/s") == 410
    assert status_of("/plain", token=None) == 401
    assert status_of("/missing", token=None) == 401, "rights come before existence"
    elsewhere = sas_token("http://127.0.0.1/other")
    assert status_of("/plain", token=elsewhere) == 401
    assert status_of("/plain", headers={"BrokerProperties": "x"}) == 400
    assert status_of("/plain/$management") == 400
    too_large = rest.ask("POST", "/plain/messages", bytes(1024 * 1024 + 1))
    assert (too_large.status, b"SubCode=40300" in too_large.body) == (403, True)
    chunked = rest.ask("POST", "/plain/messages", bytes(1024 * 1024))  # with its properties
    assert chunked.status == 403
    rest.create("/closed", "<Status>SendDisabled</Status>")
    disabled = rest.ask("POST", "/closed/messages", b"x")
    assert (disabled.status, b"SubCode=40301" in disabled.body) == (403, True)
    assert rest.ask("PUT", "/closed", queue_body("<Status>Active</Status>"), UPDATE).status == 200
    rest.send("/closed", b"x")


def test_rights_of_an_entity_s_own_rule_are_respected(broker: BrokerThread, rest: RestClient) -> None:
    rules = "".join(
        '<AuthorizationRule xmlns:i="http://www.w3.org/2001/XMLSchema-instance" '
        'i:type="SharedAccessAuthorizationRule">'
        f"<ClaimType>SharedAccessKey</ClaimType><ClaimValue>None</ClaimValue><Rights><AccessRights>{right}"
        f"</AccessRights></Rights><KeyName>{right}</KeyName><PrimaryKey>{right}-key</PrimaryKey>"
        "</AuthorizationRule>"
        for right in ("Send", "Listen")
    )
    rest.create("/own", f"<AuthorizationRules>{rules}</AuthorizationRules>")

    def status_of(right: str, path: str) -> int:
        resource = f"http://127.0.0.1:{broker.addresses.http_port}/own"
        token = sas_token(resource, key_name=right, key=f"{right}-key")
        return rest.ask("POST", path, b"", token=token).status

    assert status_of("Send", "/own/messages") == 201
    assert status_of("Listen", "/own/messages") == 401
    assert status_of("Send", "/plain/messages") == 401


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("/plain/messages", "POST"),
        ("/plain/messages/head", "POST, DELETE"),
        ("/plain/$deadletterqueue/messages/head", "POST, DELETE"),
        (f"/plain/messages/1/{uuid.UUID(int=1)}", "DELETE, PUT, POST"),
    ],
)
def test_a_wrong_method_does_not_look_like_success(rest: RestClient, path: str, allowed: str) -> None:
    for method in ("GET", "HEAD"):
        answer = rest.ask(method, path)
        assert (answer.status, answer.headers.get("allow")) == (405, allowed)


def test_a_path_like_that_of_messages_may_be_an_entity(broker: BrokerThread, rest: RestClient) -> None:
    assert rest.ask("GET", "/nothing/messages").status == 200, "discovery, which finds nothing"
    elsewhere = sas_token(f"http://127.0.0.1:{broker.addresses.http_port}/other")
    assert rest.ask("GET", "/plain/messages", token=elsewhere).status == 200, "it must not learn names"
    rest.create("/plain/messages/head")
    assert b"<feed" in rest.ask("GET", "/plain/messages").body, "it lists what lies below"
    assert b"QueueDescription" in rest.ask("GET", "/plain/messages/head").body


@pytest.mark.parametrize("method", ["POST", "DELETE"])
def test_a_message_with_a_time_before_the_first_year_is_received(rest: RestClient, method: str) -> None:
    time = {"ScheduledEnqueueTimeUtc": "0001-01-01T00:00:00+14:00"}
    rest.send("/plain", b"early", BrokerProperties=json.dumps(time))
    received = rest.receive("/plain", method=method, timeout=10)
    assert (received.status, received.body) == (201 if method == "POST" else 200, b"early")
    assert received.broker_properties["ScheduledEnqueueTimeUtc"] == "Mon, 01 Jan 0001 00:00:00 GMT"


def test_messages_cost_credits_and_settlements_do_not(tmp_path: Path) -> None:
    clock = ManualClock()
    with (
        BrokerThread(
            tmp_path, [queue("throttled")], LocalDisk(), clock=clock, tier="standard", throttle_credits=5
        ) as broker,
        RestClient(broker.addresses.http_port) as rest,
    ):
        for _ in range(5):
            rest.send("/throttled")
        refused = rest.ask("POST", "/throttled/messages")
        assert (refused.status, refused.headers["retry-after"]) == (503, "2")
        assert b"Error code: 50009" in refused.body
        assert rest.receive("/throttled").status == 503
        clock.advance(10_000)
        locks = [rest.receive("/throttled").lock for _ in range(5)]
        assert rest.receive("/throttled").status == 503
        assert rest.receive("/throttled", method="DELETE").status == 503
        assert rest.ask("POST", locks[0]).status == 200
        assert [rest.ask("DELETE", lock).status for lock in locks] == [200] * 5
        assert broker.messages_of("throttled") == 0
