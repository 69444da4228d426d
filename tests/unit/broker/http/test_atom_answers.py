"""Answers that are ATOM documents have the content types that clients look for (HTTP contract 2.11)."""

from __future__ import annotations

from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from broker.base.slices import Slices
from broker.http.atom import SERVICE_BUS, Entry, parse_entry, top
from broker.http.atom_answers import answer_entry, answer_feed


def test_an_entry_is_answered_with_its_status() -> None:
    description = top("QueueDescription", SERVICE_BUS)
    entry = Entry("http://localhost/q", "q", "namespace", 0, 0, description)
    for answer, status in ((answer_entry(entry), 200), (answer_entry(entry, 201), 201)):
        assert answer.status == status
        assert answer.headers["Content-Type"] == "application/atom+xml;type=entry;charset=utf-8"
        assert isinstance(answer.body, bytes) and parse_entry(answer.body).kind == "QueueDescription"


async def test_a_feed_is_answered_while_it_is_written() -> None:
    answer = await answer_feed(make_mocked_request("GET", "/"), Slices(0.0), [b"<feed>", b"</feed>"])
    assert isinstance(answer, web.Response) and answer.body == b"<feed></feed>"
    assert answer.headers["Content-Type"] == "application/atom+xml;type=feed;charset=utf-8"
