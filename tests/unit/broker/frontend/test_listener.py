"""A WebSocket made to look like a socket (`listener.WebSocketStream`): when it pauses and resumes its
connection."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest
from aiohttp import web

from broker.frontend.connection import Connection
from broker.frontend.listener import WebSocketStream

LIMIT = 1_000


class SlowWebSocket:
    """A WebSocket whose client reads one message for each `read`."""

    def __init__(self) -> None:
        self.sent: list[int] = []
        self._reads = asyncio.Semaphore(0)

    async def send_bytes(self, data: bytes) -> None:
        await self._reads.acquire()
        self.sent.append(len(data))

    async def close(self) -> None:
        pass

    async def read(self) -> None:
        """Let the client read a message. Returns when the effects have happened."""
        self._reads.release()
        await asyncio.sleep(0.01)


class Writer:
    """The part of a connection that the byte stream uses."""

    writable = True

    def pause_writing(self) -> None:
        assert self.writable, "it is told once"
        self.writable = False

    def resume_writing(self) -> None:
        assert not self.writable, "it is told once"
        self.writable = True


@pytest.mark.parametrize("limit_later", [LIMIT, 2 * LIMIT, 4 * LIMIT])
async def test_a_wire_that_held_its_connection_back_lets_it_go_on_whatever_its_limit_has_become(
    limit_later: int,
) -> None:
    websocket, connection = SlowWebSocket(), Writer()
    stream = WebSocketStream(cast(web.WebSocketResponse, websocket), None, LIMIT)
    stream.connection = cast(Connection, connection)
    writing = asyncio.create_task(stream.write_all())
    stream.write(bytes(LIMIT + 500))
    assert not connection.writable
    await asyncio.sleep(0.01)  # the message is being sent
    stream.set_write_buffer_limits(limit_later)  # the client has read before, and has earned more room
    await websocket.read()
    assert websocket.sent == [LIMIT + 500] and connection.writable
    stream.close()
    await asyncio.wait_for(writing, 5)


async def test_a_wire_holds_its_connection_back_while_more_than_its_limit_waits() -> None:
    websocket, connection = SlowWebSocket(), Writer()
    stream = WebSocketStream(cast(web.WebSocketResponse, websocket), None, LIMIT)
    stream.connection = cast(Connection, connection)
    writing = asyncio.create_task(stream.write_all())
    stream.write(bytes(10))
    await asyncio.sleep(0.01)
    for _ in range(3):
        stream.write(bytes(LIMIT))
    assert not connection.writable
    await websocket.read()
    assert websocket.sent == [10] and not connection.writable
    await websocket.read()
    assert websocket.sent == [10, 3 * LIMIT] and connection.writable
    stream.close()
    await asyncio.wait_for(writing, 5)
