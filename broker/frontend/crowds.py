"""Which clients give way while the broker is above its memory mark.

Refusing messages bounds the memory of messages. But each connection takes 24 to 75 KiB, and each session and
each link another 4 KiB, so a crowd of clients could take all memory there is. Above the mark, clients without
a credential give way, as they do when there is no room for connections (`room.py`), except for a few. While
the process is far above the mark, so are connections with many sessions and links, those with most of them
first, and no further connections are accepted. Meanwhile, a begin or attach ends a connection that would
then have many (`may_have`). Clients that use few links are not affected, so receivers go on and make room.
Runs in the event loop.
"""

from __future__ import annotations

import asyncio
import heapq

import structlog

from broker.frontend.services import Client, Services

log = structlog.get_logger("connection")

STRANGERS_MAX = 64
"""So many clients without a credential stay above the mark. The others make room for those that show one."""
CUT_OFF_AT_ONCE = 200
"""At most so many clients are cut off at a time, four times a second."""
PARTS_MAX = 32
"""Sessions and links that a connection may have while the process is crowded. Official clients use fewer than
ten for each queue that they work with."""
PARTS_AT_ONCE = 5_000
"""Connections with so many of them together, about 18 MiB, are cut off at a time: faster than clients can
begin others, and no faster, because ending them takes time, too."""


def make_room_in_memory(services: Services) -> None:
    """Cut off clients as far as memory requires it. Call this after each look at the memory in use."""
    memory = services.memory
    if not memory.limited:
        return
    now_s = asyncio.get_running_loop().time()
    for _ in range(min(len(services.strangers) - STRANGERS_MAX, CUT_OFF_AT_ONCE)):
        stranger = services.strangers.take_overdue(now_s)
        if stranger is None:
            break
        stranger.cut_off()
    if not memory.crowded:
        return
    parts = 0
    for connection in heapq.nlargest(CUT_OFF_AT_ONCE, services.connections, key=_parts):
        own = _parts(connection)
        if own <= PARTS_MAX or parts >= PARTS_AT_ONCE:
            break
        parts += own
        _cut_off(services, connection)


def may_have(services: Services, connection: Client, more: int, objects: int) -> bool:
    """Whether a client may have so many more parts (`protocol/parts.py`), which then count. `objects` of them
    are sessions and links. If both are negative, so many have gone.

    If not, its connection is cut off. After a close, JavaScript's client waits for ever for the answers to
    what it has begun, reports nothing, and its process ends with a TypeError within minutes.
    """
    few = connection.parts.count + more <= PARTS_MAX
    may = services.memory.admit_parts(more, objects, few=few)
    if not may:
        _cut_off(services, connection)
    return may


def _cut_off(services: Services, connection: Client) -> None:
    engine, parts = connection.engine, connection.parts.count
    counts = {"sessions": engine.session_count, "links": engine.link_count, "parts": parts}
    services.sparing.info(log, "connection.cut_off", peer=connection.peer, **counts)
    connection.cut_off()


def _parts(connection: Client) -> int:
    """What a connection gives back if it is cut off; nothing if it was already: its memory is freed by and
    by, and meanwhile others have to go, too."""
    if connection.is_cut_off:
        return 0
    engine = connection.engine
    return max(connection.parts.count, engine.session_count + engine.link_count)
