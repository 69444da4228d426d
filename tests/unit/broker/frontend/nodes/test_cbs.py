"""How `$cbs` handles its requests. test_connection.py covers how they travel; test_sas.py covers which tokens
are good."""

from __future__ import annotations

from typing import Any

import pytest
from structlog.testing import capture_logs

from broker.base.limited_log import LINES_MAX, SparingLog
from broker.frontend.nodes.cbs import CbsNode
from broker.frontend.nodes.request_node import Request, Response
from protocol.codec import Int, Symbol
from tests.support import raw_amqp as raw
from tests.support.link_stack import Client, LinkStack
from tests.support.sas import sas_token

AUDIENCE = "sb://test/queue"


async def bench() -> tuple[LinkStack, Client, CbsNode]:
    stack = LinkStack()
    client = await stack.connect(raw.sasl_anonymous())
    return stack, client, CbsNode(client.connection)


async def put(node: CbsNode, token: Any, name: Any = AUDIENCE, **given: Any) -> Response:
    properties = {"operation": "put-token", "type": "servicebus.windows.net:sastoken", "name": name, **given}
    return await node.respond(
        Request("id", None, {key: value for key, value in properties.items() if value is not None}, token)
    )


def status(response: Response) -> int:
    """The status of a response, which has dashed keys and is an int on the wire (AMQP contract 0.4.2)."""
    code = response.properties["status-code"]
    assert isinstance(code, Int) and response.properties["status-description"] and response.body is None
    assert code == 202 or isinstance(response.properties["error-condition"], Symbol)
    return int(code)


def token_for(stack: LinkStack, resource: str = AUDIENCE, after_s: int = 60, **given: Any) -> str:
    return sas_token(resource, expires_at_s=stack.clock.now_ms() // 1000 + after_s, **given)


@pytest.mark.parametrize("kind", ["servicebus.windows.net:sastoken", "jwt", "nonsense", 7, None], ids=str)
async def test_a_good_token_counts_whatever_it_is_announced_as(kind: Any) -> None:
    stack, client, node = await bench()
    assert status(await put(node, token_for(stack), type=kind)) == 202
    client.connection.authorize("queue", "Listen")
    (claim,) = client.connection.claims.values()
    assert claim.expires_at_ms == (stack.clock.now_ms() // 1000 + 60) * 1000


@pytest.mark.parametrize(
    ("resource", "audience", "expected"),
    [
        ("sb://test/queue", "sb://test/queue/$management", 202),
        ("sb://test/queue", "amqps://test:5671/QUEUE/", 202),
        ("http://test", "sb://test/queue", 202),
        ("sb://test/queue", "sb://test/queue2", 401),
        ("sb://test/queue", "sb://test", 401),
        ("sb://test/queue/subscriptions/one", "sb://test/queue", 401),
    ],
)
async def test_a_token_counts_for_its_resource_and_what_lies_below(
    resource: str, audience: str, expected: int
) -> None:
    stack, client, node = await bench()
    response = await put(node, token_for(stack, resource), audience)
    assert status(response) == expected and bool(client.connection.claims) is (expected == 202)
    if expected == 401:
        assert response.properties["error-condition"] == "amqp:unauthorized-access"
        assert (
            response.properties["status-description"].startswith("InvalidAudience")
            and audience in response.properties["status-description"]
        )


@pytest.mark.parametrize(
    "given",
    [{"after_s": 0}, {"after_s": -3_600}, {"key": "wrong"}, {"key_name": "unknown"}],
    ids=["just over", "long over", "key", "name"],
)
async def test_a_token_that_is_over_or_wrongly_signed_is_refused(given: dict[str, Any]) -> None:
    stack, client, node = await bench()
    assert status(await put(node, token_for(stack, **given))) == 401 and not client.connection.claims


@pytest.mark.parametrize(
    ("change", "token", "expected"),
    [
        ({"operation": "delete-token"}, "token", 501),
        ({"operation": None}, "token", 501),
        ({"name": None}, "token", 400),
        ({"name": 7}, "token", 400),
        ({}, None, 400),
        ({}, b"binary", 400),
        ({}, {"token": "x"}, 400),
        ({}, "", 401),
        ({}, "eyJhbGciOi.eyJpc3MiOi.c2ln", 401),
    ],
    ids=str,
)
async def test_a_malformed_request_is_refused(change: dict[str, Any], token: Any, expected: int) -> None:
    _, client, node = await bench()
    assert status(await put(node, token, **change)) == expected and not client.connection.claims


async def test_a_token_takes_the_place_of_the_one_before_and_a_refused_one_leaves_it() -> None:
    stack, client, node = await bench()
    for after_s, expected in ((60, 202), (120, 202), (-1, 401)):
        assert status(await put(node, token_for(stack, after_s=after_s))) == expected
    assert [claim.expires_at_ms for claim in client.connection.claims.values()] == [
        (stack.clock.now_ms() // 1000 + 120) * 1000
    ]


async def test_a_connection_keeps_so_many_tokens_and_may_still_renew_them() -> None:
    stack, client, node = await bench()
    token = token_for(stack, "sb://test")
    for number in range(1_000):
        assert status(await put(node, token, f"sb://test/queue-{number}")) == 202
    assert status(await put(node, token, "sb://test/one-more")) == 403
    assert (
        status(await put(node, token, "sb://test/queue-7")) == 202 and len(client.connection.claims) == 1_000
    )


@pytest.mark.parametrize(
    ("token", "name", "key", "audience"),
    [
        (sas_token(AUDIENCE, key_name="Nobody"), AUDIENCE, "Nobody", AUDIENCE),
        ("a bad token", AUDIENCE, None, AUDIENCE),
        (b"bytes", 7, None, None),
    ],
    ids=["unknown key", "no token", "no text"],
)
async def test_the_log_says_which_key_was_refused_and_for_what(
    token: Any, name: Any, key: str | None, audience: str | None
) -> None:
    """The client does not learn whether the key's name or its value is wrong. The operator finds the key in
    the log."""
    _, _, node = await bench()
    with capture_logs() as lines:
        await put(node, token, name)
    [line] = lines
    assert (line["event"], line["key"], line["audience"]) == ("cbs.refused", key, audience)


async def test_many_bad_tokens_write_few_lines_and_the_next_one_counts_the_rest() -> None:
    stack, _, node = await bench()
    now_s = 1.0
    stack.services.sparing = SparingLog(lambda: now_s)
    with capture_logs() as lines:
        for _ in range(300):
            assert status(await put(node, "a bad token")) == 401
        assert len(lines) == LINES_MAX and not any("left_out" in line for line in lines)
        now_s = 2.5
        await put(node, "a bad token")
        await put(node, "a bad token")
    assert {line["event"] for line in lines} == {"cbs.refused"}
    assert [line.get("left_out") for line in lines[LINES_MAX:]] == [300 - LINES_MAX, None]


async def test_many_wrong_passwords_write_few_lines_of_their_own() -> None:
    stack = LinkStack()
    now_s = 1.0
    stack.services.sparing = SparingLog(lambda: now_s)
    with capture_logs() as lines:
        for _ in range(50):
            client = Client(stack)
            client.connection.data_received(raw.sasl_plain("RootManageSharedAccessKey", "wrong"))
            assert client.stream.ended
        node = CbsNode((await stack.connect(raw.sasl_anonymous())).connection)
        await put(node, "a bad token")
    events = [line["event"] for line in lines]
    assert (events.count("connection.refused"), events.count("cbs.refused")) == (LINES_MAX, 1)
