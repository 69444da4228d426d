"""broker/base/counted_log.py: how many lines there are, and what they count."""

from __future__ import annotations

from typing import Any

import structlog
from structlog.testing import capture_logs

from broker.base.counted_log import CountedLog
from tests.support.waiting import until

log = structlog.get_logger("test")


def line(messages: int, **values: object) -> dict[str, Any]:
    return {"event": "lost", "log_level": "warning", "messages": messages, **values}


async def test_the_first_line_of_a_kind_comes_at_once_and_the_rest_is_counted() -> None:
    counted = CountedLog(log, "lost")
    with capture_logs() as lines:
        for entity in ("a", "a", "b", "a"):
            counted.warning(5, entity=entity, reason="full")
        assert lines == [line(5, entity="a", reason="full"), line(5, entity="b", reason="full")]
        counted.close()
        assert lines[2:] == [line(10, entity="a", reason="full")]


async def test_what_was_counted_is_a_line_once_in_a_period() -> None:
    counted = CountedLog(log, "lost", period_s=0.01)
    with capture_logs() as lines:
        for messages in (1, 20, 300):
            counted.warning(messages)
        await until(lambda: len(lines) == 2)
        assert lines == [line(1), line(320)]
        await until(lambda: not counted._counted)
        counted.warning(4)
        assert lines[2:] == [line(4)], "a new beginning"
        counted.close()
        assert len(lines) == 3 and not counted._timers
