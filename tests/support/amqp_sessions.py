"""Attaches that accept message sessions, as raw frames."""

from __future__ import annotations

from typing import Any

from protocol.codec import Described, Symbol, UInt, ULong
from tests.support import raw_amqp as raw


def session_attach(handle: int, queue: str, session: str | None, *, within_ms: int = 1_000) -> list[Any]:
    """Fields of an attach that accepts a message session: this one, or the next that is free, within a time
    (AMQP contract 5.4)."""
    fields = raw.receiver_attach(handle, queue, f"session-{handle}")
    filters = {Symbol("com.microsoft:session-filter"): session}
    fields[5] = Described(ULong(raw.SOURCE), [queue, *[None] * 6, filters])
    properties = {Symbol("com.microsoft:timeout"): UInt(within_ms)}
    return [*fields, *[None] * (13 - len(fields)), properties]
