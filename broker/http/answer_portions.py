"""Sends long answers in portions.

A slice (`broker/base/slices.py`) of a list or of the metrics may be a megabyte. Handing it to the socket in
one piece would hold the event loop for milliseconds and double the memory it needs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence

from aiohttp import web

from broker.base.slices import Slices

PORTION_BYTES = 64 * 1024
"""Pieces are joined until they reach this many bytes, then handed to the socket. aiohttp waits for a slow
reader after the same number of bytes."""

SHORT_BYTES = 256 * 1024
"""An answer of up to this size is sent in one piece, with its length. A page of a hundred queues, which is
what the official clients ask for, fits."""
TURN_BYTES = 128 * 1024
"""How much of a longer answer is sent in one turn of the event loop. It takes as long as a slice."""


async def answer_in_slices(
    request: web.Request, slices: Slices, pieces: Iterable[bytes], content_type: str
) -> web.StreamResponse:
    """Send an answer while it is being written, so that a long list is never in memory as a whole."""
    headers = {"Content-Type": content_type}
    begun: list[bytes] = []
    size = 0
    response: web.StreamResponse | None = None
    async for some in slices.of(pieces):
        if response is None:
            begun += some
            size += sum(map(len, some))
            if size <= SHORT_BYTES:
                continue
            some, begun = begun, []
            response = web.StreamResponse(headers=headers)
            await response.prepare(request)
            if request.method == "HEAD":
                break
        await send_portions(response, some)
    if response is None:
        return web.Response(body=b"".join(begun), headers=headers)
    await response.write_eof()
    return response


async def answer_whole(
    request: web.Request,
    pieces: Sequence[bytes],
    content_type: str,
    *,
    status: int = 200,
    others: Mapping[str, str] | None = None,
) -> web.StreamResponse:
    """Send an answer that is ready, in portions, with its length. `others` are more headers."""
    size = sum(map(len, pieces))
    headers = {"Content-Type": content_type, **(others or {})}
    if size <= SHORT_BYTES:
        return web.Response(status=status, body=b"".join(pieces), headers=headers)
    response = web.StreamResponse(status=status, headers=headers)
    response.content_length = size
    await response.prepare(request)
    if request.method != "HEAD":
        await send_portions(response, pieces)
    await response.write_eof()
    return response


async def send_portions(response: web.StreamResponse, pieces: Iterable[bytes]) -> None:
    """Send pieces of an answer, joining small ones. Waits for a client that reads slowly, and for a turn of
    the loop after every TURN_BYTES."""
    gathered: list[bytes] = []
    size = sent = 0
    for piece in pieces:
        gathered.append(piece)
        size += len(piece)
        if size >= PORTION_BYTES:
            await response.write(b"".join(gathered))
            sent += size
            if sent >= TURN_BYTES:  # if the client keeps up, writing has not waited
                await asyncio.sleep(0)
                sent = 0
            gathered.clear()
            size = 0
    if size:
        await response.write(b"".join(gathered))
