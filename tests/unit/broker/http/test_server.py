"""The HTTP port: plain and TLS on one socket, bounds, health, metrics, WebSocket, a clean stop."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import cast

import aiohttp
import pytest
import uvloop

from broker.entities.descriptions import QueueSettings
from broker.http.connection import HttpConnection
from tests.support.http_entries import queue_body
from tests.support.http_raw import WHOLE, client, rest, status_of
from tests.support.http_stack import HttpStack, http_stack
from tests.support.sas import sas_token
from tests.support.waiting import WAIT_S, until


def trusting(stack: HttpStack) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(stack.files.authority))


def connections_of(stack: HttpStack) -> list[HttpConnection]:
    server = stack.server._runner.server
    assert server is not None
    return cast(list[HttpConnection], server.connections)


# --- one port -----------------------------------------------------------------------------------------------


async def _plain_and_tls(folder: Path) -> None:
    async with http_stack(folder) as stack:
        for scheme in ("http", "https", "http", "https"):
            async with stack.session.get(
                f"{scheme}://localhost:{stack.port}/health", ssl=trusting(stack)
            ) as response:
                assert (response.status, (await response.json())["status"]) == (200, "healthy")


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_plain_http_and_tls_are_served_on_one_port_on_either_event_loop(
    tmp_path: Path, run: Callable[[Coroutine[None, None, None]], None]
) -> None:
    run(_plain_and_tls(tmp_path))


async def test_many_connections_of_both_kinds_are_served_at_once(stack: HttpStack) -> None:
    async def ask(number: int) -> int:
        scheme = "https" if number % 2 else "http"
        async with stack.session.get(
            f"{scheme}://localhost:{stack.port}/health", ssl=trusting(stack)
        ) as response:
            await response.read()
            return response.status

    assert await asyncio.gather(*(ask(number) for number in range(60))) == [200] * 60


async def test_a_first_byte_that_comes_late_is_waited_for(stack: HttpStack) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", stack.port)
    await until(lambda: len(stack.server._greeting) == 1)
    writer.write(b"GET /health HTTP/1.0\r\n\r\n")
    assert (await reader.readline()).split()[1] == b"200"
    writer.close()


async def test_a_client_that_says_nothing_is_let_go_and_counted(tmp_path: Path) -> None:
    async with http_stack(tmp_path, http_header_timeout_ms=50) as stack:
        reader, writer = await asyncio.open_connection("127.0.0.1", stack.port)
        async with asyncio.timeout(WAIT_S):
            assert await reader.read() == b""
        writer.close()
        assert stack.ended("slow_header") == 1


async def test_a_crowd_of_another_network_does_not_end_an_idle_connection(tmp_path: Path) -> None:
    async with (
        http_stack(tmp_path, http_connections_max=4) as stack,
        client(stack, WHOLE) as (reader, writer),
    ):
        assert await status_of(reader) == 200
        crowd: list[asyncio.StreamWriter] = []
        for _ in range(20):
            _, one = await asyncio.open_connection("127.0.0.1", stack.port, local_addr=("127.0.0.2", 0))
            crowd.append(one)
        await until(lambda: stack.ended("displaced") == 17)
        writer.write(WHOLE)
        assert await status_of(reader) == 200, "the crowd has displaced its own"
        for one in crowd:
            one.transport.abort()


async def test_a_tls_handshake_that_goes_wrong_ends_that_connection_only(tmp_path: Path) -> None:
    async with http_stack(tmp_path, http_header_timeout_ms=200) as stack:
        for opening in (b"\x16\x03\x01\x00\x05wrong" + bytes(50), b"\x16"):
            reader, writer = await asyncio.open_connection("127.0.0.1", stack.port)
            writer.write(opening)
            async with asyncio.timeout(WAIT_S):
                try:
                    while await reader.read(1000):
                        pass  # an alert may come first
                except ConnectionError:
                    pass  # or a reset
            writer.close()
        await until(lambda: stack.ended("tls") == 2)
        assert (await stack.ask("GET", "/health", token=None))[0] == 200


async def test_a_header_or_a_body_beyond_its_limit_is_refused(tmp_path: Path) -> None:
    async with http_stack(tmp_path, http_header_bytes_max=2048, http_body_bytes_max=2048) as stack:
        assert (await stack.ask("GET", "/q", headers={"X-Long": "x" * 3000}))[0] == 400
        status, text, _ = await stack.ask("PUT", "/q", b"x" * 2049)
        assert (status, "<Code>413</Code>" in text) == (413, True)


async def test_garbage_is_refused_and_the_next_client_is_served(stack: HttpStack) -> None:
    for garbage in (
        b"\x00" * 100,
        b"AMQP\x00\x01\x00\x00",
        b"GET\r\n\r\n",
        b"PUT / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
    ):
        reader, writer = await asyncio.open_connection("127.0.0.1", stack.port)
        writer.write(garbage)
        async with asyncio.timeout(WAIT_S):
            assert b"HTTP/1.0 400" in await reader.read(100)
        writer.close()
    assert (await stack.ask("GET", "/health", token=None))[0] == 200


async def test_stopping_lets_an_open_request_finish_and_refuses_new_connections(stack: HttpStack) -> None:
    began, go_on = asyncio.Event(), asyncio.Event()

    async def slow(name: str) -> None:
        began.set()
        await go_on.wait()

    stack.namespace.delete_entity = slow  # type: ignore[method-assign]
    request = asyncio.create_task(stack.ask("DELETE", "/q"))
    await began.wait()
    stopping = asyncio.create_task(stack.server.stop())
    await until(lambda: all(listener.fileno() < 0 for listener in stack.server._listeners))
    with pytest.raises(OSError):
        await asyncio.open_connection("127.0.0.1", stack.port)
    go_on.set()
    assert (await request)[0] == 200
    await stopping


@pytest.mark.parametrize("arrives", [True, False])
async def test_when_the_port_stops_a_body_has_a_little_time_to_arrive(tmp_path: Path, arrives: bool) -> None:
    body = queue_body()
    async with http_stack(tmp_path, shutdown_timeout_ms=60_000) as stack:
        token = sas_token(f"https://127.0.0.1:{stack.port}")
        head = (
            f"PUT /orders HTTP/1.1\r\nHost: localhost\r\nAuthorization: {token}\r\nContent-Length: "
            f"{len(body)}\r\n\r\n"
        ).encode()
        async with client(stack, head + body[:10]) as (reader, writer):
            await until(lambda: any(each.arriving for each in connections_of(stack)))
            stopping = asyncio.create_task(stack.server.stop())
            await until(lambda: all(listener.fileno() < 0 for listener in stack.server._listeners))
            if arrives:
                writer.write(body[10:])
                assert await status_of(reader) == 201
            else:
                assert await rest(reader) == b"", "the connection ends without an answer"
            async with asyncio.timeout(WAIT_S):
                await stopping
        assert stack.ended("slow_body") == (0 if arrives else 1)


async def test_an_expectation_is_met_or_refused_in_the_contracts_shape(stack: HttpStack) -> None:
    status, text, _ = await stack.ask("PUT", "/orders", queue_body(), headers={"Expect": "miracles"})
    assert status == 417 and text.startswith("<Error><Code>417</Code><Detail>The header Expect")
    sample = stack.metrics.registry.get_sample_value
    assert sample("partibus_http_requests_total", {"method": "PUT", "status": "417"}) == 1
    status, _, _ = await stack.ask("PUT", "/orders", queue_body(), headers={"Expect": "100-Continue"})
    assert status == 201


# --- health and metrics -------------------------------------------------------------------------------------


async def test_damaged_and_closed_partitions_differ_from_healthy_ones_in_health_and_metrics(
    stack: HttpStack,
) -> None:
    await stack.namespace.create_entity("orders", QueueSettings(), 4)
    stack.queue("orders").partition(0)
    stack.partition.health, stack.partition.available = "damaged", False
    _, text, _ = await stack.ask("GET", "/health", token=None)
    assert json.loads(text)["partitions"] == {"closed": 3, "damaged": 1}
    assert json.loads(text)["entities"]["orders"] == {
        "availability": "Limited",
        "partitions": ["damaged", *["closed"] * 3],
        "size_bytes_max": 4 << 30,
        "uncounted_partitions": [0],
    }
    _, text, _ = await stack.ask("GET", "/metrics", token=None)
    series = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert (
        series['partibus_partitions{state="closed"}'] == "3.0"
        and series['partibus_partitions{state="damaged"}'] == "1.0"
    )
    assert (
        series['partibus_partitions{state="healthy"}'] == "0.0"
        and series["partibus_damaged_entities"] == "0.0"
    )
    down = {name: value for name, value in series.items() if name.startswith("partibus_partition_down")}
    assert down == {'partibus_partition_down{entity="orders",partition="0",state="damaged"}': "1.0"}
    assert series['partibus_uncounted_partitions{entity="orders"}'] == "1.0"


async def test_a_queue_may_be_called_metrics_for_a_request_with_a_token_is_administration(
    stack: HttpStack,
) -> None:
    await stack.namespace.create_entity("metrics", QueueSettings())
    assert "<QueueDescription" in (await stack.ask("GET", "/metrics"))[1]
    assert "# HELP" in (await stack.ask("GET", "/metrics", token=None))[1]


# --- WebSocket ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["ws", "wss"])
@pytest.mark.parametrize("protocol", ["AMQPWSB10", "amqp"])
async def test_a_websocket_for_amqp_is_handed_over_with_its_subprotocol(
    stack: HttpStack, scheme: str, protocol: str
) -> None:
    url = f"{scheme}://localhost:{stack.port}/$servicebus/websocket"
    async with stack.session.ws_connect(url, protocols=(protocol,), ssl=trusting(stack)) as websocket:
        assert websocket.protocol == protocol
        await websocket.send_bytes(b"AMQP\x00\x01\x00\x00")
        assert await websocket.receive_bytes() == b"AMQP\x00\x01\x00\x00"
        await websocket.send_bytes(b"login")  # before the login, a client may send only what a login needs
        assert await websocket.receive_bytes() == b"login"
        await websocket.send_bytes(bytes(1_500_000))
        assert len(await websocket.receive_bytes()) == 1_500_000


async def test_a_websocket_for_something_else_is_refused(stack: HttpStack) -> None:
    with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
        await stack.session.ws_connect(f"{stack.url}/$servicebus/websocket", protocols=("chat",))
    assert caught.value.status == 400


async def test_a_plain_request_to_the_websocket_path_is_refused(stack: HttpStack) -> None:
    assert (
        await stack.ask("GET", "/$servicebus/websocket", headers={"Sec-WebSocket-Protocol": "AMQPWSB10"})
    )[0] == 400


# --- failures -----------------------------------------------------------------------------------------------


async def test_what_goes_wrong_inside_is_answered_500_in_the_contracts_shape_without_its_cause(
    stack: HttpStack,
) -> None:
    async def broken(name: str) -> None:
        raise RuntimeError("secret detail")

    stack.namespace.delete_entity = broken  # type: ignore[method-assign]
    status, text, headers = await stack.ask("DELETE", "/q", headers={"x-ms-client-request-id": "abc"})
    assert (status, headers["Content-Type"], headers["x-ms-client-request-id"]) == (
        500,
        "application/xml; charset=utf-8",
        "abc",
    )
    assert "<Code>500</Code><Detail>SubCode=50000. The server failed" in text and "secret" not in text
