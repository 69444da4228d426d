"""Long answers go out in portions, short ones in one piece with their length."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web

from broker.base.slices import Slices
from broker.http.answer_portions import (
    PORTION_BYTES,
    SHORT_BYTES,
    answer_in_slices,
    answer_whole,
    send_portions,
)
from tests.support.ticker import Ticker


@asynccontextmanager
async def answering(pieces: Iterable[bytes], whole: bool = False) -> AsyncIterator[aiohttp.ClientSession]:
    """A server that answers each request with these pieces, while they are made or once they all are."""

    async def handle(request: web.Request) -> web.StreamResponse:
        if whole:
            return await answer_whole(request, list(pieces), "text/plain")
        return await answer_in_slices(request, Slices(0.0), pieces, "text/plain")

    application = web.Application()
    application.router.add_get("/", handle)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    try:
        async with aiohttp.ClientSession(f"http://{host}:{port}") as session:
            yield session
    finally:
        await runner.cleanup()


async def test_an_answer_of_the_short_size_has_its_length_and_a_longer_one_is_chunked() -> None:
    for more in (0, 1):
        pieces = [b"x" * 1024] * (SHORT_BYTES // 1024) + [b"y" * more]
        async with answering(pieces) as session, session.get("/") as response:
            assert await response.read() == b"".join(pieces)
            assert response.headers.get("Content-Length") == (None if more else str(SHORT_BYTES))
            assert response.content_type == "text/plain"


async def test_the_head_of_a_long_answer_comes_without_the_pieces_being_made() -> None:
    made = 0

    def pieces() -> Iterable[bytes]:
        nonlocal made
        for _ in range(1_000):
            made += 1
            yield b"x" * 1024

    async with answering(pieces()) as session, session.head("/") as response:
        assert response.status == 200
    assert made < 1_000, "no more than shows that the answer is a long one"


@pytest.mark.parametrize("count", [1, SHORT_BYTES // 1024, 2_000])
async def test_an_answer_that_is_ready_has_its_length_however_long_it_is(count: int) -> None:
    async with answering([b"x" * 1024] * count, whole=True) as session:
        async with session.get("/") as response:
            assert await response.read() == b"x" * 1024 * count
            assert response.headers["Content-Length"] == str(1024 * count)
        async with session.head("/") as response:
            assert (await response.read(), response.headers["Content-Length"]) == (b"", str(1024 * count))


class Written(web.StreamResponse):
    """A response that keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.portions: list[bytes] = []

    async def write(self, data: bytes | bytearray | memoryview) -> None:
        await asyncio.sleep(0)
        self.portions.append(bytes(data))


@pytest.mark.parametrize("size", [1, 1_000, PORTION_BYTES, 3 * PORTION_BYTES])
async def test_small_pieces_are_joined_and_large_ones_are_not_kept_back(size: int) -> None:
    pieces = [b"%d" % (place % 10) * size for place in range(2 * PORTION_BYTES // size + 5)]
    response = Written()
    await send_portions(response, pieces)
    assert b"".join(response.portions) == b"".join(pieces)
    assert all(len(each) >= PORTION_BYTES for each in response.portions[:-1])
    assert all(len(each) < PORTION_BYTES + size for each in response.portions)


class KeepsUp(Written):
    """A client that takes everything at once, so that no write waits."""

    async def write(self, data: bytes | bytearray | memoryview) -> None:
        self.portions.append(bytes(data))


async def test_a_client_that_keeps_up_does_not_have_the_loop_for_the_whole_answer() -> None:
    response = KeepsUp()
    async with Ticker() as ticker:
        await send_portions(response, [b"x" * 1024] * (8 * SHORT_BYTES // 1024))
        assert ticker.turns >= 8
    assert len(b"".join(response.portions)) == 8 * SHORT_BYTES
