"""The OpenAPI description says what the broker really answers (HTTP contract 4.7)."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest

from tests.support.broker_thread import BrokerThread
from tests.support.rest_client import RestAnswer, RestClient

TYPES: dict[str, Any] = {
    "object": dict,
    "array": list,
    "string": str,
    "integer": int,
    "number": (int, float),
    "null": type(None),
}
LATER = "2099-01-01T00:00:00Z"
BATCH = {"Content-Type": "application/vnd.microsoft.servicebus.json"}


@pytest.fixture
def description(rest: RestClient) -> Any:
    answer = rest.ask("GET", "/$partibus/openapi.json", token=None)
    assert answer.status == 200
    return answer.json


def check(value: Any, schema: dict[str, Any], whole: dict[str, Any]) -> None:
    """Check JSON against a schema, as far as the description uses schemas."""
    if "$ref" in schema:
        schema = whole["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    if "anyOf" in schema:
        schema = next(each for each in schema["anyOf"] if isinstance(value, TYPES[each["type"]]))
    assert isinstance(value, TYPES[schema["type"]]), (value, schema)
    if isinstance(value, dict) and "properties" in schema:
        assert {*schema.get("required", ())} <= value.keys()
        assert schema["additionalProperties"] is False and value.keys() <= schema["properties"].keys()
        for name, each in value.items():
            check(each, schema["properties"][name], whole)
    if isinstance(value, list):
        for each in value:
            check(each, schema["items"], whole)


def check_answer(whole: dict[str, Any], path: str, method: str, answer: RestAnswer) -> None:
    """Check an answer against the description of its operation."""
    found = whole["paths"][path][method.lower()]["responses"][str(answer.status)]
    for name, header in found.get("headers", {}).items():
        assert name.lower() in answer.headers or not header["required"]
    content = found.get("content")
    if content is None:
        assert answer.body == b""
    elif "application/json" in content:
        check(answer.json, content["application/json"]["schema"], whole)
    elif "*/*" not in content:
        assert answer.headers["content-type"] in content


def test_every_answer_is_as_described(broker: BrokerThread, rest: RestClient, description: Any) -> None:
    lock, own = "/{entity}/messages/{message}/{lockToken}", "/$partibus/{}/{{entity}}"
    seen: set[tuple[str, str, int]] = set()

    def ask(path: str, method: str, actual: str, body: Any = None, **given: Any) -> RestAnswer:
        answer = rest.ask(method, actual, body, **given)
        check_answer(description, path, method, answer)
        seen.add((path, method, answer.status))
        return answer

    rest.create("/described", "<MaxDeliveryCount>1</MaxDeliveryCount>")
    rest.create("/closed", "<Status>Disabled</Status>")
    messages, head = "/{entity}/messages", "/{entity}/messages/head"
    batch = json.dumps([{"Body": "b", "UserProperties": {"a": 1}}])
    for _ in range(3):
        ask(messages, "POST", "/described/messages", b"x")
    ask(messages, "POST", "/described/messages", batch, headers=BATCH)
    ask("/$partibus/openapi.json", "GET", "/$partibus/openapi.json", token=None)
    for given, status in (({"Content-Encoding": "br"}, 415), ({"Host": "evil.example.com"}, 421)):
        assert ask(messages, "POST", "/described/messages", b"x", headers=given).status == status
    locked = ask(head, "POST", "/described/messages/head?timeout=0")
    for method in ("POST", "PUT"):
        assert ask(lock, method, locked.lock).status == 200
    second = ask(head, "POST", "/described/messages/head?timeout=0")
    assert ask(lock, "DELETE", second.lock).status == 200
    assert ask(head, "DELETE", "/described/messages/head?timeout=0").status == 200
    third = ask(head, "POST", "/described/messages/head?timeout=0")
    for method in ("POST", "DELETE"):
        assert ask(head, method, "/described/messages/head?timeout=0").status == 204
    token = third.broker_properties["LockToken"]
    for name, body, path in (
        ("abandon-messages", {"lockTokens": [token, str(uuid.uuid4())]}, "described"),
        ("count-messages", {}, "described"),
        ("redrive-messages", {"sequenceNumbers": [1]}, "described/$DeadLetterQueue"),
        ("redrive-messages", {}, "described/$DeadLetterQueue"),
        ("delete-messages", {"sequenceNumbers": [1, 2]}, "described"),
        ("purge-messages", {"messageCount": 1}, "described"),
        (
            "reschedule-messages",
            {"sequenceNumbers": [1], "scheduledEnqueueTime": "2099-01-01T00:00:00Z"},
            "described",
        ),
        ("deliver-scheduled-messages", {"sequenceNumbers": [1]}, "described"),
    ):
        assert ask(own.format(name), "POST", f"/$partibus/{name}/{path}", json.dumps(body)).status == 200
        refused = f"/$partibus/{name}/missing"
        assert ask(own.format(name), "POST", refused, json.dumps(body)).status == 410
        assert ask(own.format(name), "POST", refused, token=None).status == 401
        assert ask(own.format(name), "POST", refused, b"{").status == 400
        assert ask(own.format(name), "POST", refused, bytes(1 << 19)).status == 413
    missing = f"/described/messages/1/{uuid.uuid4()}"
    for method in ("POST", "PUT", "DELETE"):
        assert ask(lock, method, missing).status == 404
        assert ask(lock, method, missing.replace("described", "missing")).status == 410
        assert ask(lock, method, missing, token=None).status == 401
    for path, actual, method in (
        (messages, "messages", "POST"),
        (head, "messages/head?timeout=0", "POST"),
        (head, "messages/head?timeout=0", "DELETE"),
    ):
        assert ask(path, method, f"/missing/{actual}").status == 410
        assert ask(path, method, f"/closed/{actual}").status == 403
        assert ask(path, method, f"/closed/{actual}", token=None).status == 401
        assert ask(path, method, f"/$cbs/{actual}").status == 400
    successes = {
        (path, method.upper(), int(status))
        for path, item in description["paths"].items()
        for method, operation in item.items()
        if method != "parameters"
        for status in operation["responses"]
        if int(status) < 300
    }
    assert successes <= seen, "every success that is described was seen"


def test_every_reference_leads_to_a_schema(description: Any) -> None:
    text = json.dumps(description)
    names = {part.partition('"')[0] for part in text.split('"#/components/schemas/')[1:]}
    assert names == description["components"]["schemas"].keys()
