"""Sends long answers in portions.

A slice (`broker/slices.py`) of a list or of the metrics may have a megabyte. Joining it and handing it to the socket in one piece would
hold the event loop for milliseconds, and would take the same memory again.
"""

from __future__ import annotations

from collections.abc import Iterable

from aiohttp import web

PORTION_BYTES = 64 * 1024
"""Bytes handed to the socket at once, up to one piece more. aiohttp waits for a slow reader after the same number."""


async def send_portions(response: web.StreamResponse, pieces: Iterable[bytes]) -> None:
    """Send pieces of an answer, small ones together. Waits for a client that reads slowly."""
    gathered: list[bytes] = []
    size = 0
    for piece in pieces:
        gathered.append(piece)
        size += len(piece)
        if size >= PORTION_BYTES:
            await response.write(b"".join(gathered))
            gathered.clear()
            size = 0
    if size:
        await response.write(b"".join(gathered))
