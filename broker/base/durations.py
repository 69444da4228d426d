"""Durations as text: ISO 8601 / XML `duration`, to and from milliseconds (HTTP contract 3.1).

"Without limit" is None inside the broker and `P10675199DT2H48M5.4775807S`, .NET's longest time span, outside.
That value does not survive every client's arithmetic (Python sends `…5.477539S` back), so any duration of
10,675,199 days or more means the same.

Only days, hours, minutes and seconds are written: Java's parser knows neither years nor months.
"""

from __future__ import annotations

import datetime

from pydantic import TypeAdapter

UNLIMITED = "P10675199DT2H48M5.4775807S"
UNLIMITED_MS = 10_675_199 * 86_400_000
"""A duration of this length or more means "without limit"."""

_DURATION = TypeAdapter(datetime.timedelta)
_MILLISECOND = datetime.timedelta(milliseconds=1)


def parse_duration(text: str) -> int | None:
    """Parse a duration to milliseconds, rounded down; None for "without limit". Raises ValueError, which
    quotes the text.

    Years and months count as 365 and 30 days: the emulator's schema permits them.
    """
    try:
        if not text.strip().startswith("P"):  # pydantic reads clock times and negative durations too
            raise ValueError(text)
        milliseconds = _DURATION.validate_python(text.strip()) // _MILLISECOND
    except ValueError as error:
        raise ValueError(f"'{text}' is not an ISO 8601 duration such as PT1M or P1DT12H") from error
    return None if milliseconds >= UNLIMITED_MS else milliseconds


def format_duration(milliseconds: int | None) -> str:
    """Write a duration as briefly as possible. The fraction of a second has no trailing zeros."""
    if milliseconds is None or milliseconds >= UNLIMITED_MS:
        return UNLIMITED
    days, rest = divmod(milliseconds, 86_400_000)
    hours, rest = divmod(rest, 3_600_000)
    minutes, rest = divmod(rest, 60_000)
    seconds, fraction = divmod(rest, 1_000)
    second = f"{seconds}.{fraction:03d}".rstrip("0") if fraction else str(seconds)
    clock = "".join(
        f"{value}{unit}"
        for value, unit in ((hours, "H"), (minutes, "M"), (second, "S"))
        if value not in (0, "0")
    )
    if not days and not clock:
        return "PT0S"
    return "P" + (f"{days}D" if days else "") + (f"T{clock}" if clock else "")
