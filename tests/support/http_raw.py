"""A raw client of the HTTP port, which sends what it likes and reads until the broker hangs up."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.support.http_stack import HttpStack
from tests.support.waiting import WAIT_S

HALF = b"GET /orders HTTP/1.1\r\nHost: localhost\r\nX-More: "
WHOLE = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"


@asynccontextmanager
async def client(
    stack: HttpStack, said: bytes = b"", *, tls: bool = False
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A client that has sent `said`."""
    context = ssl.create_default_context(cafile=str(stack.files.authority)) if tls else None
    reader, writer = await asyncio.open_connection(
        "localhost" if tls else "127.0.0.1", stack.port, ssl=context
    )
    try:
        writer.write(said)
        yield reader, writer
    finally:
        writer.transport.abort()


async def rest(reader: asyncio.StreamReader) -> bytes:
    """All bytes until the broker hangs up. Raises TimeoutError if it does not."""
    async with asyncio.timeout(WAIT_S):
        said = b""
        with contextlib.suppress(ConnectionError):
            while more := await reader.read(65_536):
                said += more
        return said


async def status_of(reader: asyncio.StreamReader) -> int:
    """Read one whole answer and return its status."""
    async with asyncio.timeout(WAIT_S):
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = int(head.lower().split("content-length: ")[1].split("\r\n")[0])
        await reader.readexactly(length)
        return int(head.split()[1])
