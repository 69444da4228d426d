"""How many messages to pass to proton, as far as the session's window is concerned (§2.5.6).

Proton keeps what the window holds back, and looks at all of that with each write on the connection: 5 to
14 µs for each message. So a link passes on only a few more than the window takes, and keeps the rest.
"""

from __future__ import annotations

from protocol._runs import lib as native
from protocol.links import Link
from protocol.proton_values import lib

WAITING_MAX = 256
"""How many messages may wait for windows. The links of a connection share them, and each has one at least:
enough to hand over many at a time to a client whose window takes few. More wait if a link took its share
while there were fewer links, or if links of one session are answered together: each counts on its window."""

_window, _queued, _drains = native.sessions_window, lib.pn_link_queued, lib.pn_link_get_drain


def room_in_window(link: Link, links: int) -> int:
    """How many more messages may be passed to `Engine.send` on a link: what the peer takes now, and some that
    wait. Once there was no room, there is none until half of the link's share is free. `links`: how many
    there are on the connection.

    While the peer drains the link (§2.6.7), its share is one message, which shows whether there are any: the
    answer waits behind it.
    """
    waiting_max = 1 if _drains(link.pn) else max(WAITING_MAX // max(links, 1), 1)
    room = int(_window(link.session.pn)) + waiting_max - int(_queued(link.pn))
    if room <= (waiting_max // 2 if link.held_back else 0):
        link.held_back = True
        return 0
    link.held_back = False
    return room
