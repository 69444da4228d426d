"""Frees a connection's memory in steps of a few milliseconds, however many links it has."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from protocol.link_table import FREED_AT_ONCE
from protocol.links import Link
from protocol.proton_values import free_link, lib

EVENTS_DROPPED_AT_ONCE = 250
"""How many of proton's events are dropped in one step. It takes some 0.5 ms."""


def free_all(connection: Any, transport: Any, collector: Any, links: Sequence[Link]) -> Iterator[None]:
    """Free everything, beginning with these links."""
    for number, link in enumerate(links, 1):
        free_link(link)
        if number % FREED_AT_ONCE == 0:
            yield
    yield
    lib.pn_transport_unbind(transport)
    yield
    # Freed links wait here, each with several events, and go with the last of theirs.
    while lib.pn_collector_peek(collector):
        for _ in range(EVENTS_DROPPED_AT_ONCE):
            lib.pn_collector_pop(collector)
        yield
    lib.pn_collector_release(collector)
    lib.pn_connection_release(connection)
    lib.pn_decref(connection)
    lib.pn_decref(transport)
    lib.pn_collector_free(collector)
