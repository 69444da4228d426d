"""What was passed to proton and is not written yet, because a session's window holds it back (§2.5.6), or the
next output has not been asked for.

Proton writes the messages of a link in their order, and counts those of which something is left. When it has
finished with a link, `runs.drop_unwritten` drops what was not taken back: messages that were sent settled,
and the rest of a message of which a part was written (the peer discards that part with the link).
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from protocol import runs
from protocol.links import Delivery, Link
from protocol.proton_values import lib


def has_unwritten(link: Link) -> bool:
    """Whether anything that was passed to `Engine.send` on the link is left. A drain is answered when nothing
    is (§2.6.7): proton forgets the answer if it is to write it while messages of the link wait."""
    return bool(lib.pn_link_queued(link.pn))


def take_back(link: Link, newest_first: Iterable[Delivery]) -> list[Delivery]:
    """Take back deliveries of a link that is ending, of which nothing was written; gives those, newest first.
    They are never written.

    `newest_first` are the link's unsettled deliveries.
    """
    queued = int(lib.pn_link_queued(link.pn))
    taken = runs.take_back([*islice(newest_first, queued)]) if queued else []
    link.emptied = len(taken) == queued
    return taken
