"""What clients send is parsed in portions, and clients take turns."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest

from broker.http.portions import PORTION_BYTES, Portions
from tests.support.http_stack import HttpStack
from tests.support.raw_websocket import BINARY, PING, handshake, message
from tests.support.ticker import Ticker
from tests.support.waiting import WAIT_S, until


@pytest.mark.parametrize("kind", [BINARY, PING])
async def test_many_small_messages_of_one_read_are_parsed_over_many_turns(
    stack: HttpStack, kind: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.http.portions.TURN_S", 0.0)
    parsed: list[int] = []
    parse = aiohttp.web.RequestHandler.data_received

    def counting(self: aiohttp.web.RequestHandler, data: bytes) -> None:
        parsed.append(len(data))
        parse(self, data)

    reader, writer = await asyncio.open_connection("127.0.0.1", stack.port, limit=1 << 20)
    writer.write(handshake({}))
    await reader.readuntil(b"\r\n\r\n")
    writer.write(message(b"login"))  # a logged-in client may send any amount
    assert await reader.readexactly(7) == b"\x82\x05login"
    monkeypatch.setattr(aiohttp.web.RequestHandler, "data_received", counting)
    flood = message(b"", kind) * 30_000 + message(bytes(70_000)) + message(b"last")
    writer.write(flood)
    async with Ticker() as ticker, asyncio.timeout(WAIT_S):
        await reader.readuntil(b"\x82\x04last")
    writer.transport.abort()
    assert sum(parsed) == len(flood) and max(parsed) <= PORTION_BYTES
    assert ticker.turns > len(flood) // (2 * PORTION_BYTES)


class Typist:
    """A connection with some portions to parse."""

    def __init__(self, name: str, portions: int, parsed: list[str]) -> None:
        self.name, self.left, self.parsed = name, portions, parsed

    def parse_portion(self) -> bool:
        self.left -= 1
        self.parsed.append(self.name)
        return self.left > 0


async def test_connections_take_turns_until_they_have_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.http.portions.TURN_S", 0.0)
    parsed: list[str] = []
    portions = Portions()
    for name, count in (("long", 4), ("short", 1), ("middle", 2)):
        portions.add(Typist(name, count, parsed))
    assert not portions.is_empty and parsed == [], "the sockets are polled first"
    async with Ticker() as ticker:
        await until(lambda: portions.is_empty)
    assert parsed == ["long", "short", "middle", "long", "middle", "long", "long"]
    assert ticker.turns >= len(parsed), "one portion between two polls"
