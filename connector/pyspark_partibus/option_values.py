"""The values of options that have a syntax of their own: where to begin and to end, times and durations.
Pure."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime
from typing import Any

from pyspark_partibus.offsets import FIRST, counter_of, partition_of

LATEST, EARLIEST, COMMITTED = "latest", "earliest", "committed"
JSON_LATEST, JSON_EARLIEST = -1, -2
"""What these numbers mean in offsets given as JSON, as with Kafka."""

WAIT_S_MAX = 366 * 24 * 3600.0
"""The longest wait that can be asked for: what an operating system may wait at once is about as long."""
TIME_MS_MAX = 253_402_300_799_999
"""The end of the year 9999."""

Start = str | dict[int, int]
"""`earliest`, `latest`, `committed`, or a counter for each partition (`JSON_LATEST` and `JSON_EARLIEST`
too)."""


def parse_start(text: str) -> Start:
    """`earliest`, `latest`, `committed`, or JSON such as `{"0": 12, "1": -1}`. Raises ValueError."""
    if text.lower() in (EARLIEST, LATEST, COMMITTED):
        return text.lower()
    try:
        value: Any = json.loads(text)
        entries = {int(partition): number for partition, number in value.items()}
    except (ValueError, AttributeError, RecursionError):
        raise ValueError("must be 'earliest', 'latest', 'committed' or a JSON object of partitions") from None
    return {partition: _position(partition, number) for partition, number in entries.items()}


def _position(partition: int, number: object) -> int:
    """A counter, or a whole sequence number of the partition."""
    if type(number) is not int or number < JSON_EARLIEST:
        raise ValueError(f"has {number!r} for partition {partition}; -1 is the latest, -2 the earliest")
    if number < 0:
        return number
    if partition_of(number) not in (0, partition):
        raise ValueError(
            f"has a sequence number of partition {partition_of(number)} for partition {partition}"
        )
    return max(FIRST, counter_of(number))


def parse_time(text: str) -> int:
    """Milliseconds since the epoch, or an ISO date and time, which is UTC unless it says otherwise. Raises
    ValueError."""
    try:
        if text.lstrip("-").isdecimal():
            moment_ms = int(text)
        else:
            moment = datetime.fromisoformat(text)
            if moment.tzinfo is None:
                moment = moment.replace(tzinfo=UTC)
            moment_ms = round(moment.timestamp() * 1000)
    except ValueError:
        raise ValueError(
            f"is '{text}', but must be milliseconds since 1970 or an ISO date and time"
        ) from None
    if abs(moment_ms) > TIME_MS_MAX:
        raise ValueError(f"is '{text}', which is beyond the year 9999")
    return moment_ms


_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def parse_duration(text: str) -> float:
    """Seconds of `500ms`, `30s`, `15m` or `1h`. Raises ValueError."""
    number = text.rstrip("msh ")
    unit = text[len(number) :].strip()
    try:
        if unit not in _UNITS or not 0 <= float(number) < math.inf:
            raise ValueError
        seconds = float(number) * _UNITS[unit]
    except ValueError:
        raise ValueError(f"is '{text}', but must be a duration such as 500ms, 30s, 15m or 1h") from None
    if seconds > WAIT_S_MAX:
        raise ValueError(f"is '{text}', which is longer than a year")
    return seconds
