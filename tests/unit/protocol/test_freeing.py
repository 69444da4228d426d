"""A connection is freed in steps, each of which takes a few milliseconds at most."""

from __future__ import annotations

from protocol.freeing import EVENTS_DROPPED_AT_ONCE
from protocol.link_table import FREED_AT_ONCE
from tests.support import raw_amqp as raw
from tests.support.engine_peer import EnginePeer


def test_the_more_links_a_connection_has_the_more_steps_free_it(peer: EnginePeer) -> None:
    steps = []
    for links in (1, 3 * FREED_AT_ONCE):
        busy = EnginePeer().open()
        busy.say(*(raw.frame(raw.ATTACH, raw.sender_attach(handle, "queue")) for handle in range(links)))
        attached = busy.engine.links()
        steps.append(sum(1 for _ in busy.engine.free_in_steps()))
        assert len(attached) == links and all(link.freed for link in attached)
    few, many = steps
    assert many >= few + 3 + 3 * FREED_AT_ONCE // EVENTS_DROPPED_AT_ONCE
