"""How many messages to pass to proton, as far as the session's window is concerned (§2.5.6).

Proton keeps what the window holds back, and looks at all of that with each write: 5 to 14 µs for each
message. So a link passes on only a few more than the window takes, and keeps the rest until it opens.
"""

from __future__ import annotations

from protocol._runs import lib as native
from protocol.links import Link
from protocol.proton_values import lib

WAITING_MAX = 256
"""How many messages of a link may wait for the window: enough to hand over many at a time to a client whose
window takes few."""

_window, _queued, _drains = native.sessions_window, lib.pn_link_queued, lib.pn_link_get_drain


def room_in_window(link: Link) -> int:
    """How many more messages may be passed to `Engine.send` on a link: what the peer takes now, and some that
    wait. 0 while more than half as many wait as may.

    While the peer drains the link (§2.6.7), one message waits at most: proton forgets the answer to a drain
    that comes behind messages that wait. It is that one which shows whether there are any.
    """
    room = int(_window(link.session.pn)) - int(_queued(link.pn))
    if _drains(link.pn):
        return max(room + 1, 0)
    room += WAITING_MAX
    return room if room >= WAITING_MAX // 2 else 0
