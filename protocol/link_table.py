"""The links and sessions of one connection, from attach and begin to detach and end (AMQP 1.0 §2.5, §2.6).

A link that the peer has detached stays until its `LinkDetached` is consumed (`release`), so that whatever the
peer sent together with its detach is served first. A link that we have closed is gone at once, but it stays
in the table until the peer confirms, so that frames for it are recognised.

Memory is freed only after the detach or end has been written. Freeing a link settles its deliveries without
an outcome, and some clients take that for success if they see it before the detach.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from protocol import codec
from protocol.events import ErrorCondition, Event, LinkAttached, LinkDetached
from protocol.lenience import HANDLE_MAX_DEFAULT, Lenience
from protocol.limits import RESOURCE_LIMIT
from protocol.links import Link, Session
from protocol.proton_values import (
    condition_of,
    echo_terminus,
    free_if_settled,
    free_link,
    lib,
    link_of,
    put,
    set_condition,
)

FREED_AT_ONCE = 256
"""How many links are freed after one write. Proton searches all links of a session for each one, which takes
some 10 µs with thousands of them."""
SETTLED_AT_ONCE = 1_000
"""How many unsettled deliveries these links may have, unless a single one has more: settling one takes almost
a microsecond."""


class LinkTable:
    """The links and sessions of one connection."""

    def __init__(
        self,
        events: list[Event],
        refuse: Callable[[str, str], None],
        forget_partial: Callable[[Link], None],
        lenience: Lenience,
    ) -> None:
        """`events` collects what is reported. `refuse` closes the connection with a condition and a
        description. `forget_partial` is called for each link that can no longer complete a message.
        `lenience` has the handle-max of each session that begins, and learns of proton's session."""
        self._events = events
        self._lenience, self._parts = lenience, lenience.parts
        self._refuse = refuse
        self._forget_partial = forget_partial
        self.attached: dict[Any, Link] = {}
        """By proton's link object. Includes links that we have closed and the peer has not."""
        self.leaving: dict[Link, None] = {}
        """Links that the peer has detached and that wait for `release`."""
        self.sessions: dict[Any, Session] = {}
        """By proton's session object."""
        self.begun = 0
        """Sessions that the peer has begun and not ended."""
        self.unfreed: list[tuple[Callable[[Any], None], Any]] = []
        """Links and sessions to free after the next write, each with the function that frees it."""
        self._answering: list[Session] = []
        """The session of each link whose detach is answered with the next write."""
        self.has_dropped = False
        """Whether links or sessions were freed since the engine looked."""

    def __len__(self) -> int:
        return len(self.attached) + len(self.leaving)

    def all(self) -> list[Link]:
        """Every link that is attached, or whose `LinkDetached` has not been consumed yet."""
        return [*self.attached.values(), *self.leaving]

    # --- what the peer does ---------------------------------------------------------------------------------

    def attach(self, pn: Any) -> None:
        """Handle the peer's attach of a link (§2.7.3)."""
        parts = self._parts.attached()
        if pn in self.attached:
            self._refuse(
                "amqp:session:handle-in-use", "a link of this name is attached in this session already"
            )
            return
        session = self.sessions[lib.pn_link_session(pn)]
        session.links += 1
        if session.links > session.handle_max + 1:
            # Proton would find no handle for the answer, and then write nothing more.
            self._refuse(
                RESOURCE_LIMIT,
                f"The session's handle-max of {session.handle_max} permits {session.handle_max + 1} links at "
                "a time, counting those whose detach has not been answered yet.",
            )
            return
        link = self.attached[pn] = link_of(pn, session)
        link.parts = parts
        self._events.append(LinkAttached(link))

    def detach(self, pn: Any, *, closed: bool) -> None:
        """Handle the peer's detach or close of a link (§2.7.7)."""
        link = self.attached.pop(pn, None)
        if link is None:
            return
        if link.gone:  # the peer's answer to our own detach
            self._forget_partial(link)
            free_link(link)
            link.session.links -= 1
            self._parts.end(link.parts)
            self.has_dropped = True
            return
        self._leave(link, closed, condition_of(lib.pn_link_remote_condition(pn)))

    def begin(self, pn: Any) -> None:
        """Handle the peer's begin of a session (§2.7.2)."""
        self.begun += 1
        handles_max = self._lenience.handles_max
        # None is known if the stream is malformed, of which proton reads a little more.
        self.sessions[pn] = Session(pn, handles_max.popleft() if handles_max else HANDLE_MAX_DEFAULT)
        self._lenience.session_begins(pn)
        lib.pn_session_open(pn)

    def end(self, pn: Any) -> None:
        """Handle the peer's end of a session (§2.7.8), which also ends all its links."""
        self.begun -= 1
        self._parts.end(1)
        error = condition_of(lib.pn_session_remote_condition(pn))
        session = self.sessions.pop(pn)
        self._lenience.session_ends(pn)
        session.ended = True
        attached = [link for link in self.attached.values() if link.session is session]
        # Those that the peer has detached before, too: nobody else frees them.
        session.ended_links = [*(link for link in self.leaving if link.session is session), *attached]
        for link in attached:
            del self.attached[link.pn]
            if link.gone:
                self._forget_partial(link)
                self._parts.end(link.parts)
            else:
                self._leave(link, True, error)
        if not session.leaving:
            self._end_session(session)

    def _leave(self, link: Link, closed: bool, error: ErrorCondition | None) -> None:
        self._forget_partial(link)
        link.peer_closed = closed
        link.session.leaving += 1
        self.leaving[link] = None
        self._events.append(LinkDetached(link, closed, error))

    # --- what we do -----------------------------------------------------------------------------------------

    def accept(
        self,
        link: Link,
        max_message_bytes: int,
        properties: dict[Any, Any] | None,
        source_filter: bytes,
    ) -> None:
        """See `Engine.accept_link`."""
        pn = link.pn
        echo_terminus(lib.pn_link_source(pn), lib.pn_link_remote_source(pn))
        echo_terminus(lib.pn_link_target(pn), lib.pn_link_remote_target(pn))
        if source_filter:
            put(lib.pn_terminus_filter(lib.pn_link_source(pn)), source_filter)
        lib.pn_link_set_snd_settle_mode(pn, link.snd_settle_mode)
        lib.pn_link_set_rcv_settle_mode(pn, link.rcv_settle_mode)
        if properties:
            put(lib.pn_link_properties(pn), codec.encode(properties))
        if max_message_bytes:
            limit_messages(link, max_message_bytes)
        lib.pn_link_open(pn)

    def refuse(self, link: Link, error: ErrorCondition) -> None:
        """See `Engine.refuse_link`."""
        lib.pn_terminus_set_type(lib.pn_link_source(link.pn), lib.PN_UNSPECIFIED)
        lib.pn_terminus_set_type(lib.pn_link_target(link.pn), lib.PN_UNSPECIFIED)
        lib.pn_link_set_snd_settle_mode(link.pn, link.snd_settle_mode)
        lib.pn_link_set_rcv_settle_mode(link.pn, link.rcv_settle_mode)
        lib.pn_link_open(link.pn)
        self.close(link, error)

    def close(self, link: Link, error: ErrorCondition) -> None:
        """Close an attached link with an error (§2.6.6)."""
        if link.gone:
            return
        set_condition(lib.pn_link_condition(link.pn), error)
        lib.pn_link_close(link.pn)
        self._forget_partial(link)
        link.gone = True
        # The peer may attach another link with this name before it confirms.
        self.unfreed.append((free_if_settled, link))

    def release(self, link: Link) -> None:
        """Answer the peer's detach, or its end if this was the session's last link."""
        if link not in self.leaving:
            return
        del self.leaving[link]
        self._parts.end(link.parts)
        session = link.session
        session.leaving -= 1
        if session.ended:  # answering the end also answers for its links
            link.gone = True
            if not session.leaving:
                self._end_session(session)
            return
        if not link.gone:
            link.gone = True
            if link.peer_closed:
                lib.pn_link_close(link.pn)
            else:
                lib.pn_link_detach(link.pn)
        self._answering.append(session)
        self.unfreed.append((free_link, link))

    def _end_session(self, session: Session) -> None:
        """Answer the peer's end, and free the session's links before the session: freeing a session with
        thousands of links takes long."""
        lib.pn_session_close(session.pn)
        self.unfreed += [
            *((free_link, link) for link in session.ended_links),
            (lib.pn_session_free, session.pn),
        ]
        session.ended_links = ()  # they refer to the session, and would wait for the garbage collector

    # --- memory ---------------------------------------------------------------------------------------------

    def free_some(self) -> None:
        """Free some of the links and sessions whose detach or end has been written."""
        for session in self._answering:  # none of these links takes a handle any more
            session.links -= 1
        self._answering.clear()
        count = unsettled = 0
        for free, ended in self.unfreed[:FREED_AT_ONCE]:
            if isinstance(ended, Link) and not ended.freed:
                unsettled += int(lib.pn_link_unsettled(ended.pn))
                if count and unsettled > SETTLED_AT_ONCE:
                    break
            free(ended)
            count += 1
        del self.unfreed[:count]
        self.has_dropped = True

    def drop_all(self) -> list[Link]:
        """Mark every link as gone, because the connection is freed. Returns those to free first
        (`freeing.py`), in the order in which they were attached: if proton frees them with their session, it
        searches for each one."""
        links = self.all()
        for link in links:
            link.gone = True
            link.session.ended_links = ()
        links += [ended for _, ended in self.unfreed if isinstance(ended, Link)]
        self.unfreed.clear()
        self._answering.clear()
        self.attached.clear()
        self.leaving.clear()
        return links


def limit_messages(link: Link, max_message_bytes: int) -> None:
    """See `Engine.limit_messages`."""
    link.max_message_bytes = max_message_bytes
    lib.pn_link_set_max_message_size(link.pn, max_message_bytes)
