"""The HTTP port with many queues: answers about all of them are right, and are made in slices."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from lxml import etree
from prometheus_client.parser import text_string_to_metric_families

from broker.base.slices import Slices
from broker.http.answer_portions import PORTION_BYTES
from broker.http.metrics import ENTITY_GAUGES
from tests.support.http_stack import HttpStack, http_stack
from tests.support.many_queues import write_queues
from tests.support.sas import sas_token
from tests.support.ticker import Ticker

QUEUES = 2_000


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_queues(tmp_path / "data", (f"queue-{number:05}" for number in range(QUEUES)))
    return tmp_path


@pytest.fixture
async def stack(folder: Path) -> AsyncIterator[HttpStack]:
    async with http_stack(folder) as running:
        yield running


async def _chunks(port: int, path: str, headers: str = "") -> list[bytes]:
    """The chunks of an answer, as the broker handed them to the socket."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n{headers}Connection: close\r\n\r\n".encode())
    assert b"chunked" in (await reader.readuntil(b"\r\n\r\n")).lower()
    chunks: list[bytes] = []
    while size := int(await reader.readline(), 16):
        chunks.append((await reader.readexactly(size + 2))[:-2])
    writer.close()
    return chunks


async def test_metrics_health_and_lists_of_many_queues_are_complete_and_leave_the_loop_to_others(
    stack: HttpStack,
) -> None:
    for meter in stack.metrics.entities.values():
        meter.incoming_messages += 7
        meter.send_seconds.observe(0.003)
    names = {queue.name for queue in stack.namespace.descriptions()}
    assert len(names) == QUEUES

    async with Ticker() as ticker:
        _, text, headers = await stack.ask("GET", "/metrics", token=None)
    assert headers["Content-Type"].startswith("text/plain")
    families = {family.name: family for family in text_string_to_metric_families(text)}
    for family in ("partibus_incoming_messages", *ENTITY_GAUGES):
        assert {sample.labels["entity"] for sample in families[family].samples} == names
    assert {sample.value for sample in families["partibus_incoming_messages"].samples} == {7}
    assert len({sample.labels["entity"] for sample in families["partibus_send_seconds"].samples}) == QUEUES
    assert len(re.findall(r"^# TYPE (\S+)", text, re.MULTILINE)) == len(
        set(re.findall(r"^# TYPE (\S+)", text, re.MULTILINE))
    )
    assert ticker.turns > 5

    async with Ticker() as ticker:
        _, text, _ = await stack.ask("GET", "/health", token=None)
    entities = json.loads(text)["entities"]
    expected = {"availability": "Available", "partitions": ["closed"] * 16, "size_bytes_max": 16 << 30}
    assert entities == dict.fromkeys(names, expected)
    assert ticker.turns > 3

    async with Ticker() as ticker:
        _, text, _ = await stack.ask("GET", "/$Resources/queues?$skip=1500&$top=1000")
    feed = etree.fromstring(text.encode())
    titles = [title.text for title in feed.findall("{*}entry/{*}title")]
    assert titles == sorted(names)[1500:] and len(feed.findall("{*}link")) == 1
    assert ticker.turns > 3

    for path, authorization, end in (
        ("/$Resources/queues?$top=1000", f"Authorization: {sas_token('http://localhost/')}\r\n", b"</feed>"),
        ("/metrics", "", b"\n"),
    ):
        chunks = await _chunks(stack.port, path, authorization)
        assert len(chunks) > 5 and b"".join(chunks).endswith(end)
        assert max(map(len, chunks)) <= 3 * PORTION_BYTES, "a portion, and the piece that fills it"

    _, text, headers = await stack.ask("GET", "/$Resources/queues")
    assert int(headers["Content-Length"]) == len(text), (
        "a page as the official clients ask for it comes in one piece"
    )
    for page in ("$top=100", "$top=1000"):
        assert (await stack.ask("HEAD", f"/$Resources/queues?{page}"))[:2] == (200, "")

    _, text, _ = await stack.ask("GET", "/?$top=1000")
    feed = etree.fromstring(text.encode())
    assert [title.text for title in feed.findall("{*}entry/{*}title")] == sorted(names)[:1000]


async def test_a_long_answer_is_made_in_steps_of_a_few_queues(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step takes one turn of the loop here, so the number of turns is the same on any machine. The
    amount of work in a slice of 1 ms is not."""
    monkeypatch.setattr("broker.http.server.Slices", lambda: Slices(0.0))
    async with http_stack(folder) as stack:
        turns = []
        for path in ("/metrics", "/health", "/$Resources/queues?$skip=1500&$top=1000"):
            async with Ticker() as ticker:
                await stack.ask("GET", path)
            turns.append(ticker.turns)
    metrics, health, entries = turns
    assert metrics >= QUEUES // 16 and health >= QUEUES // 16, "sixteen queues in each step"
    assert entries >= QUEUES - 1500, "one queue in each step"


async def test_a_scraper_that_leaves_halfway_and_one_that_asks_for_the_head_disturb_nobody(
    stack: HttpStack,
) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", stack.port)
    writer.write(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert (await reader.readline()).startswith(b"HTTP/1.1 200")
    writer.transport.abort()
    status, text, headers = await stack.ask("HEAD", "/metrics", token=None)
    assert (status, text) == (200, "") and headers["Content-Type"].startswith("text/plain")
    assert (await stack.ask("GET", "/metrics", token=None))[1].count("partibus_messages{") == QUEUES


async def test_a_scraper_of_http_1_0_gets_everything_and_then_the_end(stack: HttpStack) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", stack.port)
    writer.write(b"GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n")
    answer = (await reader.read()).decode()
    writer.close()
    assert answer.startswith("HTTP/1.0 200") and "Transfer-Encoding" not in answer
    assert answer.count("partibus_messages{") == QUEUES
