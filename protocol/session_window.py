"""How many messages to pass to proton, as far as the session's window is concerned (§2.5.6).

Proton keeps what the window holds back, and looks at all of that with each write: 5 to 14 µs for each
message. So whoever sends keeps the rest until the window opens.
"""

from __future__ import annotations

from protocol._runs import lib as native
from protocol.links import Link
from protocol.proton_values import lib

_window, _queued = native.sessions_window, lib.pn_link_queued


def room_in_window(link: Link) -> int:
    """How many more messages may be passed to `Engine.send`: as many as the peer takes now, and one more.

    The one that waits is how a link learns whether there is any: a peer that drains (§2.6.7) hears at once
    that there is none, although its window is shut. Large messages take more room than one.
    """
    return max(int(_window(link.session.pn)) + 1 - int(_queued(link.pn)), 0)
