"""What is known of the deliveries of a session, made up for tests that have no session of proton's."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

from protocol._runs import ffi
from protocol.lenience import Lenience
from tests.support import plain_frames
from tests.support import raw_amqp as raw

_KEPT: WeakKeyDictionary[Any, list[Any]] = WeakKeyDictionary()
"""What a structure points to lives as long as it."""


def session_ids(sent: int | None, received: int | None = None, *, places: int = 16) -> Any:
    """A `session_ids_t *`. `sent` and `received` are the numbers of the next delivery in each direction, None
    if there is no session yet, or if the peer has not sent any; `places`: how many there are for unsettled
    ones."""
    found = ffi.new("session_ids_t *", {"next": received or 0, "known": received is not None})
    if sent is not None:
        found.deliveries, kept = _deliveries(sent, received or 0, places)
        _KEPT[found] = kept
    return found


def know_deliveries(lenience: Lenience, sent: int, channel: int = 0) -> None:
    """Let the session on a channel have so many deliveries that were sent."""
    lenience._table[channel].deliveries, kept = _deliveries(sent, 0, 16)
    _KEPT.setdefault(lenience._ids, []).extend(kept)


def begun(sent: int = 2**31 - 1) -> Lenience:
    """The corrections of a connection with a session on channel 0 that has so many deliveries."""
    lenience = Lenience(255, 1 << 16)
    lenience.wide.sent = sent
    lenience.incoming(raw.AMQP_HEADER + raw.frame(raw.BEGIN, raw.begin_fields()))
    know_deliveries(lenience, sent)
    return lenience


def taken(lenience: Lenience, data: bytes) -> bytes:
    """Everything that becomes of the data."""
    given = lenience.incoming(data)
    while lenience.has_more:
        given += lenience.incoming(b"")
    return given


def _deliveries(sent: int, received: int, places: int) -> tuple[Any, list[Any]]:
    unsettled = ffi.new("unsettled_t *", {"capacity": places})
    deliveries = ffi.new("session_deliveries_t *")
    deliveries.outgoing = {"next": sent, "unsettled": unsettled}
    deliveries.incoming = {"next": received, "unsettled": unsettled}
    return deliveries, [unsettled, deliveries]


def native_ids(reference: plain_frames.DeliveryIds) -> tuple[Any, Any]:
    """A `delivery_ids_t *` like its Python form, and its sessions."""
    table = ffi.new("session_ids_t[]", len(reference.sessions))
    kept = [table]
    for entry, session in zip(table, reference.sessions, strict=True):
        entry.next, entry.known, entry.divided = session.next, session.known, session.divided
        if session.sent is not None:
            entry.deliveries, more = _deliveries(session.sent, session.next, session.places)
            kept += more
    ids = ffi.new("delivery_ids_t *", {"count": len(table), "frame_max": reference.frame_max})
    ids.sessions, ids.work = table, reference.work
    _KEPT[ids] = kept
    return ids, table
