"""How much proton gets at once: as much as causes few events, whatever the peer holds unsettled."""

from __future__ import annotations

from protocol.push_size import (
    COUNTED_BYTES_PER_LINK,
    DISPOSITION_BYTES,
    EVENTS_MAX,
    EVENTS_PER_PUSH,
    PUSH_BYTES_FIRST,
    PUSH_BYTES_MAX,
    PUSH_BYTES_MIN,
    TRANSFER_BYTES,
    PushSize,
)
from tests.support.engine_frames import tags
from tests.support.engine_peer import EnginePeer


def test_pushes_grow_while_they_cause_few_events_and_shrink_when_they_cause_many() -> None:
    size = PushSize()
    assert size.now([]) == PUSH_BYTES_FIRST
    for _ in range(20):
        size.adapt(size.most, 1)
    assert size.now([]) == PUSH_BYTES_MAX
    size.adapt(PUSH_BYTES_MAX // 2 - 1, 1)
    size.adapt(PUSH_BYTES_MAX, EVENTS_PER_PUSH)
    assert size.now([]) == PUSH_BYTES_MAX
    for _ in range(20):
        size.adapt(1, EVENTS_PER_PUSH + 1)
    assert size.now([]) == PUSH_BYTES_MIN


def test_the_more_is_unsettled_the_less_is_pushed_at_once(peer: EnginePeer) -> None:
    link = peer.receiver(credit=5_000)
    size = PushSize()
    size.sent(EVENTS_MAX, EVENTS_MAX)
    assert not size.may_hold_dispositions(PUSH_BYTES_MIN + 1) and size.may_hold_dispositions(PUSH_BYTES_MIN)
    size.uncounted_bytes += COUNTED_BYTES_PER_LINK  # then they are counted
    peer.engine.send(link, tags(*range(2_500)), [b"x"] * 2_500, False)
    assert size.now([link.pn]) == EVENTS_MAX * DISPOSITION_BYTES // 2_500
    assert size.may_hold_dispositions(3_200) and not size.may_hold_dispositions(3_201)
    size.uncounted_bytes += TRANSFER_BYTES * 2_500  # each transfer may have been another delivery
    assert size.may_hold_dispositions(1_600) and not size.may_hold_dispositions(1_601)
