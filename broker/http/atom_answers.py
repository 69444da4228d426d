"""Answers that are ATOM documents: one entry, or a feed (HTTP contract 2.5)."""

from __future__ import annotations

from collections.abc import Iterable

from aiohttp import web

from broker.base.slices import Slices
from broker.http.answer_portions import answer_in_slices
from broker.http.atom import ENTRY_TYPE, FEED_TYPE, Entry, write_entry


def answer_entry(entry: Entry, status: int = 200) -> web.Response:
    """Answer with one entry."""
    return web.Response(status=status, body=write_entry(entry), headers={"Content-Type": ENTRY_TYPE})


async def answer_feed(request: web.Request, slices: Slices, pieces: Iterable[bytes]) -> web.StreamResponse:
    """Send a feed while it is being written; `pieces` are the parts of its text."""
    return await answer_in_slices(request, slices, pieces, FEED_TYPE)
