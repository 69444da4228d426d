"""broker/base/limited_log.py: how many lines a flood of events leaves, and how long they are. Its use by
connections is tested in tests/unit/broker/frontend."""

from __future__ import annotations

import asyncio

import structlog
from structlog.testing import capture_logs

from broker.base.limited_log import LINES_MAX, TEXT_MAX, SparingLog

log = structlog.get_logger("test")


async def test_what_a_client_says_is_cut_off() -> None:
    sparing = SparingLog(lambda: 1.0)
    with capture_logs() as lines:
        sparing.info(log, "connection.closed", peer="127.0.0.1:1", description="x" * 10_000, status=3)
    [line] = lines
    assert (line["peer"], line["status"]) == ("127.0.0.1:1", 3)
    assert line["description"].startswith("x" * TEXT_MAX + "…") and len(line["description"]) < TEXT_MAX + 30


async def test_the_end_of_a_flood_tells_how_many_lines_it_left_out() -> None:
    now_s = 1.0
    sparing = SparingLog(lambda: now_s, look_s=0.01)
    with capture_logs() as lines:
        for _ in range(300):
            sparing.info(log, "connection.closed")
        await asyncio.sleep(0.05)
        assert len(lines) == LINES_MAX, "more may come within the second"
        now_s = 2.5
        async with asyncio.timeout(30):
            while len(lines) == LINES_MAX:  # noqa: ASYNC110 - a log line sets no event
                await asyncio.sleep(0.01)
        assert lines[LINES_MAX:] == [
            {"event": "connection.closed", "log_level": "info", "left_out": 300 - LINES_MAX}
        ]
        sparing.info(log, "connection.closed")
        assert "left_out" not in lines[-1]
