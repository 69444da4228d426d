"""One connection: passes the engine's events to its links, and writes the engine's output once per turn.

Handles the SASL exchange, the open, the bounds on sessions and bytes under way, idle time-outs, and writing.
Links change the engine and call `flush_soon`; one write per turn of the event loop then carries everything
that has gathered. `attaching.py` finds what serves a new link, and `token_expiry.py` knows what the client
may do. A link knows its connection only as a `ConnectionView` (`connection_view.py`).

Knows the socket only as a `ByteStream`. Runs in the event loop and never blocks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any

import structlog

from broker.access.sas import Claim
from broker.base.errors import Reason, Refused
from broker.frontend.attaching import Attaching, Resolve, attach_to_entity
from broker.frontend.byte_stream import ByteStream, limit_output
from broker.frontend.connection_view import Waiting
from broker.frontend.crowds import may_have
from broker.frontend.departure import Departure, detach
from broker.frontend.hanging_up import HangUp
from broker.frontend.links.delayed_attach import DelayedAttach
from broker.frontend.links.outgoing import OutgoingLink
from broker.frontend.namespace_choice import NamespaceChoice, check_connections
from broker.frontend.pace import MESSAGE_COST
from broker.frontend.request_tasks import RequestTasks
from broker.frontend.room import make_room_to_open
from broker.frontend.services import Services
from broker.frontend.session_holders import SessionHolders
from broker.frontend.slow_readers import Allowance
from broker.frontend.strangers import network_of
from broker.frontend.token_expiry import Tokens
from broker.frontend.waiting_links import WaitingLinks
from broker.messaging.receive_cache import ReceiveCache
from broker.messaging.transactions import Transactions
from broker.namespace.namespaces import ServedNamespace
from broker.refusal_wording import error_of
from broker.throttle.memory_mark import UNSETTLED_ABOVE_MARK_MAX
from protocol.engine import PARTIAL_BYTES_MAX, Engine
from protocol.events import (
    ConnectionClosed,
    ConnectionOpened,
    CreditGranted,
    DeliveriesUpdated,
    ErrorCondition,
    Event,
    LinkAttached,
    LinkDetached,
    MessagesReceived,
    MessageTooLarge,
)
from protocol.frames import needs_padding
from protocol.links import UNSETTLED, Link
from protocol.parts import Parts
from protocol.sasl import SaslServer
from protocol.session_window import room_in_window
from protocol.unwritten import has_unwritten

log = structlog.get_logger("connection")

SERVER_PROPERTIES = {"product": "Partibus"}
OFFERED_CAPABILITIES = ("SHARED-SUBS",)
"""What is offered to clients that desire it. Without this, Qpid JMS shares no subscriptions."""
EVENTS_AT_ONCE, EVENTS_UNSEEN = 64, 2
"""About how many events to take from the engine in one turn, and how many to dispatch between two looks at
the clock. An attach costs 0.1 ms in each of the two steps, and credit on a queue with 16 partitions that
nobody has used costs 1 to 2 ms in the second."""
PARTS_BEGUN_AT_ONCE = 4
"""How many parts may begin before proton gets them. Until it has them, memory in use does not show them, and
hundreds of connections may have some."""
ENDED_AT_ONCE = 8
"""How many links to end in one turn. The partitions take ten times as long for it as the connection."""
FEW = 8
"""A client with at most this many messages under way counts as waiting for their outcome."""
REMOTE_IDLE_TIMEOUT_MS_MIN = 1_000
"""The shortest idle time-out that a client may announce (§2.4.5): the broker must send an empty frame twice
within it. The official clients announce 60 s."""


class Connection:
    """One client's connection. Owned by the event loop."""

    def __init__(
        self,
        stream: ByteStream,
        services: Services,
        peer: str,
        resolve: Resolve = attach_to_entity,
        host: str = "",
    ) -> None:
        """`resolve` finds what serves a link to an entity. `host` is the name that the client gave in its TLS
        handshake, or as the host of its WebSocket; "" if it gave none."""
        self.stream, self.services, self.peer = stream, services, peer
        self.network = network_of(stream.get_extra_info("peername"))
        settings = services.settings
        self.parts = Parts(lambda more, objects: may_have(services, self, more, objects), PARTS_BEGUN_AT_ONCE)
        self.engine = Engine(
            container_id=services.namespaces.first.namespace.name,
            max_frame_bytes=settings.frame_bytes_max,
            channel_max=settings.sessions_per_connection_max - 1,
            idle_timeout_ms=2 * settings.idle_timeout_ms,
            partial_bytes_max=min(PARTIAL_BYTES_MAX, settings.total_inflight_bytes_max // 4),
            parts=self.parts,
        )
        self.session_holders = SessionHolders()
        self.is_cut_off = False
        self.browse_page = asyncio.Semaphore(1)
        """Held while a page of messages is read for this client to look at."""
        self.cache = ReceiveCache(settings.receive_cache_messages, settings.receive_cache_bytes)
        self.container_id = ""
        self.writable = True
        """Whether the peer keeps up with its output: False from the stream's high-water mark to its low-water
        mark."""
        self._allowance = Allowance(settings.output_buffer_bytes_max)
        self.output_room = self._allowance.bytes
        """How many more bytes links may hand to the engine before the next write."""
        self.response_bytes = 0
        """Bytes of responses that wait for credit. Written by the response links."""
        self.transactions = Transactions(services.transactions, self)
        """Those that the client has declared on its links to coordinators."""
        self.tokens = Tokens(self)
        """What the client may do, and until when."""
        self._loop = asyncio.get_running_loop()
        self._choice = NamespaceChoice(services.namespaces)
        self._choice.name(host)
        self._sasl: SaslServer | None = SaslServer(self._log_in, serves=self._choice.name)
        self._attaching = Attaching(self, resolve)
        self._flush_is_due = False
        self._waiting_for_room = WaitingLinks(services.waiting_links, self._has_room, self.fail)
        self._holds: set[str] = set()
        self._inflight_bytes = self._partial_bytes = 0
        """Bytes of messages that wait for their outcome, and of unfinished messages."""
        self.cost_under_way = 0
        """Written only by `Pace`."""
        self.settling = 0
        """Messages whose settlement has no outcome yet, though the client waits for it. Written by the
        links."""
        self._closed = False
        self._is_over = False
        """Whether nothing that the client has sent can be answered any more. What is left of it is dropped: a
        client could otherwise open and lose connections faster than their links are made."""
        self._is_leaving = False
        """The broker stops: what the client sends is dropped as if it had never arrived."""
        self._client_has_closed = False
        self._is_served = False
        self._undone: list[Event] = []
        """Events left for a later turn because the time slice was used up."""
        self._written_in_all = self._written = self._written_in = 0
        """Bytes written in total, bytes of the last write, and the turn of that write
        (`OutputTotal.turn`)."""
        self._requests = RequestTasks(self)
        self._tick_timer: asyncio.TimerHandle | None = None
        self._hang_up = HangUp(self)
        self._departure = Departure(self.engine, services.departures, services.spawn)
        self._open_timer: asyncio.TimerHandle | None = self._loop.call_later(
            settings.connection_open_timeout_ms / 1000, self._open_timed_out
        )
        services.joined(self)

    # --- from the wire --------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Handle bytes from the client. An unexpected exception ends this connection, with a traceback in the
        log, and no other."""
        if self._is_over:
            self._hang_up.discard(len(data))
            return
        try:
            if self._sasl is not None:
                data = self._authenticate(data)
                if not data:
                    return
            self._take(data)
        except Exception:
            self.fail()

    def _take(self, data: bytes) -> None:
        """Process bytes of the AMQP layer; b"" continues with bytes that the engine has kept."""
        receive, is_late = self.engine.receive, self.services.turns.is_late
        events = receive(data, EVENTS_AT_ONCE, is_late) if self._is_served else self._received(data)
        if self.engine.partial_bytes != self._partial_bytes:
            self._count_partial()
        self._dispatch(events)
        # Nothing is written for messages before their outcome is known, except by a link that refuses them.
        if (
            self.cost_under_way
            and len(events) == 1
            and type(event := events[0]) is MessagesReceived
            and not (event.link.gone or self._waiting_for_room)
        ):
            return
        self.flush_soon()

    def _received(self, data: bytes) -> list[Event]:
        """All events of these bytes. Nobody calls again for what the engine keeps, so take it now."""
        events = self.engine.receive(data)
        while self.engine.has_more:
            events += self.engine.receive(b"")
        return events

    def fail(self) -> None:
        """End this connection, and no other, after an unexpected exception, with a traceback in the log."""
        log.exception("connection.failed", peer=self.peer, container=self.container_id)
        self._is_over = True
        self.stream.abort()

    def serve(self, data: bytes) -> bool:
        """Serve the client's next bytes when it is its turn (`turns.Client`)."""
        self._is_served = True
        if self._is_over:
            self._hang_up.discard(len(data))
        elif data and self._sasl is not None:
            self.data_received(data)
        else:
            try:
                if not data and self._undone:
                    undone, self._undone = self._undone, []
                    self._dispatch(undone)
                    self.flush_soon()
                else:
                    self._take(data)
            except Exception:
                self.fail()
        self._is_served = False
        return not self._is_over and bool(self._undone or self.engine.has_more)

    @property
    def is_late(self) -> bool:
        """Whether this client's time slice is used up; the rest can wait for another turn."""
        return self._is_served and self.services.turns.is_late()

    def may_be_served(self) -> bool:
        """False while it has more than its share of the work under way (`turns.Client`)."""
        return not self.cost_under_way or not self.services.pace.holds_back(self)

    def waits(self) -> bool:
        """Whether it waits for the outcome of a few messages, requests or settlements (`turns.Client`). A
        client with many under way works ahead and does not wait for each."""
        return 0 < self.cost_under_way <= FEW * MESSAGE_COST or 0 < self.settling <= FEW

    def eof_received(self) -> None:
        """The client has closed its end."""
        if self._closed:
            return
        self._client_has_closed = True
        try:
            self._dispatch(self.engine.receive_eof())
            self.flush_soon()
        except Exception:
            self.fail()

    def connection_lost(self) -> None:
        """The socket is gone."""
        self._let_go()
        self._hang_up.lost()
        self._departure.then(lambda: self.services.left(self))

    def _let_go(self) -> None:
        """Give back messages that the client has not seen, and forget the rest."""
        if self._closed:
            return
        self._closed = self._is_over = True
        self._choice.close()
        for timer in (self._tick_timer, self._open_timer):
            if timer is not None:
                timer.cancel()
        self.tokens.connection_lost()
        self._requests.cancel()
        self._departure.end_links()
        self._departure.free_engine()

    def pause_writing(self) -> None:
        """The client does not read fast enough."""
        self.writable = False

    def resume_writing(self) -> None:
        """The client has caught up."""
        self.writable = True
        self.flush_soon()

    # --- to the wire ----------------------------------------------------------------------------------------

    def flush_soon(self) -> None:
        """Write the engine's output at the end of this turn of the event loop."""
        if not self._flush_is_due and not self._closed:
            self._flush_is_due = True
            self._loop.call_soon(self._flush)

    def flush_if_done(self) -> None:
        """Write now if nothing more of this client is under way, because no other answer will follow;
        otherwise at the end of the turn.

        A client that sends one message at a time then gets its answer a whole turn earlier when the event
        loop is busy.
        """
        if self.cost_under_way:
            self.flush_soon()
        else:
            self._flush()

    def _flush(self) -> None:
        self._flush_is_due = False
        if not self._closed:
            try:
                self._write()
            except Exception:
                self.fail()

    def _write(self) -> None:
        engine, allowance, output = self.engine, self._allowance, self.services.output
        chunks = engine.output()
        if chunks:
            self.stream.writelines(chunks)  # one system call for all of them
            self._written, self._written_in = sum(map(len, chunks)), output.turn
            self._written_in_all += self._written
        if engine.has_events:
            self._dispatch(engine.take_events())
        if self._written_in_all >= allowance.grows_at and allowance.grows(
            self._written_in_all - self.stream.get_write_buffer_size()
        ):
            limit_output(self.stream, allowance.bytes)
        self.output_room = min(allowance.bytes, output.allowance)
        if self._waiting_for_room and self.writable:
            self._waiting_for_room.call_some()
        if engine.finished:
            if self._client_has_closed:
                self._is_over = True
                self._hang_up.close()
            elif not self._is_leaving:  # clients that are busy when the broker stops learn what was stored
                self._is_over = True
                self._hang_up.linger()
        elif self._tick_timer is None:
            self._tick()
        if engine.leftovers:
            self.flush_soon()

    def _tick(self) -> None:
        self._tick_timer = None
        if self._closed or self._sasl is not None:
            return
        try:
            now_ms = int(self._loop.time() * 1000)
            due_ms = self.engine.tick(now_ms)
            events = self.engine.take_events()
            if events:
                self._dispatch(events)
            self.flush_soon()
            if due_ms:
                self._tick_timer = self._loop.call_later(max(due_ms - now_ms, 1) / 1000, self._tick)
        except Exception:
            self.fail()

    def retire(self) -> None:
        """Nothing more is served; only the socket stays (`hanging_up.py`)."""
        if self._closed:
            return
        self._let_go()
        self.services.turned_away(self)
        self.services.inflight.forget(self)
        if self._holds and not self.stream.is_closing():
            self.stream.resume_reading()

    def sent(self, size: int) -> None:
        """A link has handed `size` bytes to the engine."""
        self.output_room -= size
        self.services.output.add(self, size)
        self.flush_soon()

    def room_for(self, link: Waiting) -> int:
        """Return how many more messages the link may hand to the engine; at 0, its `credit_granted` is called
        when it may hand over some.

        There is no room while this turn's bytes are unwritten, while the client does not read, or while it
        keeps the window of its AMQP session shut (§2.5.6), because messages it has given credit for would
        then wait in the engine. Nor is there room when too much output waits over all connections and this
        one has its share of it.
        """
        engine = self.engine
        room = room_in_window(link.link, engine.link_count) if self._has_room() else 0
        if room and engine.unsent_bytes(link.link) < self.allowance:
            return room
        self._waiting_for_room.add(link)
        return 0

    def may_answer_drain(self, link: Waiting) -> bool:
        """Whether a drain of the link may be answered: proton forgets an answer behind messages that wait."""
        if is_waiting := has_unwritten(link.link):
            self._waiting_for_room.add(link)
        return not is_waiting

    def _has_room(self) -> bool:
        """Return whether any link may hand messages to the engine."""
        output = self.services.output
        return (
            self.writable
            and not (self._is_leaving or self._departure.has_begun)
            and not (output.is_over and output.holds(self))
            and self.output_room > 0
        )

    def room_above_mark(self, link: Waiting, unsettled: int) -> int:
        """How many more deliveries the link may hold unsettled while the memory mark is exceeded.

        A link that has reached the maximum tries again at each write of its connection. Every settlement
        causes a write, and `Services` causes one when memory has recovered, or when other links have settled
        what held this one back.
        """
        room = self.services.memory.unsettled_room(unsettled)
        if room <= 0:
            self._waiting_for_room.add(link)
            self.services.hold(self, by_others=unsettled < UNSETTLED_ABOVE_MARK_MAX)
            return 0
        return room

    @property
    def allowance(self) -> int:
        """How many bytes may wait for this client: what its reading has earned, but at most its share of the
        total."""
        return min(self._allowance.bytes, self.services.output.allowance)

    def waiting_bytes(self) -> int:
        """Pending output in bytes: unread, waiting for credit, or held ready on the shelves."""
        return self.unread_bytes() + self.response_bytes + self.cache.bytes

    def unread_bytes(self) -> int:
        """Bytes that links have handed over and the client has not read.

        uvloop's transports try a write at once and count what the socket has not taken, but that of TLS does
        not count all that it has encrypted (`tls_stream.py`). So the last write counts as unread until the
        turn after it.
        """
        just_written = self._written if self.services.output.turn - self._written_in < 2 else 0
        in_engine = 0 if self._closed else self.engine.unsent_bytes_of_all()
        return just_written + self.stream.get_write_buffer_size() + in_engine

    # --- bounds ---------------------------------------------------------------------------------------------

    def took(self, size: int, messages: int) -> None:
        """Count messages of `size` bytes as waiting for their outcome."""
        self._inflight_bytes += size
        self.services.inflight.add(self, size)
        self.services.pace.add(self, size, messages)
        self.services.memory.under_way += messages
        if self._inflight_bytes + self._partial_bytes > self.services.settings.connection_inflight_bytes_max:
            self.hold_reading("connection")

    def took_changes(self, size: int) -> None:
        """Count properties of `size` bytes that a settlement changes as under way. They stay in memory if the
        settlement succeeds."""
        self.services.memory.expect(size)
        self.took(size, 0)

    def finished_with(self, size: int, messages: int) -> None:
        """Stop counting messages, or a settlement's changes, of `size` bytes: they have their outcome."""
        self._inflight_bytes -= size
        self.services.inflight.remove(size)
        self.services.pace.remove(self, size, messages)
        self.services.memory.under_way -= messages
        if "connection" in self._holds:
            taken = self._inflight_bytes + self._partial_bytes
            # Unfinished messages are released only by reading on, so they alone must not keep it paused.
            if not self._inflight_bytes or taken <= self.services.settings.connection_inflight_bytes_max // 2:
                self.release_reading("connection")

    def _count_partial(self) -> None:
        """Update the count of unfinished messages' bytes, which has changed in the engine."""
        self._partial_bytes = self.engine.partial_bytes
        self.services.inflight.set_partial(self, self._partial_bytes)

    def hold_reading(self, why: str) -> None:
        """Pause reading from the socket until `release_reading` is called for the same reason."""
        if not self._holds and not self._closed:
            self.stream.pause_reading()
        self._holds.add(why)

    def release_reading(self, why: str) -> None:
        """Drop one reason to pause; reading resumes when none is left."""
        if why in self._holds:
            self._holds.discard(why)
            if not self._holds and not self._closed:
                self.stream.resume_reading()

    # --- SASL, open, close ----------------------------------------------------------------------------------

    def _authenticate(self, data: bytes) -> bytes:
        """Feed the SASL layer (§5.3); returns bytes of the AMQP layer, none while the exchange goes on."""
        sasl = self._sasl
        assert sasl is not None
        step = sasl.receive(data)
        for output in step.outputs:
            # One by one: rhea stalls on an outcome that comes together with the open.
            self.stream.write(output)
        if step.failed:
            self.services.sparing.info(log, "connection.refused", peer=self.peer, reason=step.reason)
            self._is_over = True
            self._hang_up.linger()
            return b""
        if not step.done:
            return b""
        self._sasl = None
        if not self.tokens.has_logged_in:
            self.engine.restrict()
        return step.rest

    def _log_in(self, user: str, password: str) -> bool:
        """Check a SASL PLAIN login in the namespace that the client has named by now; in all if it has named
        none."""
        return self.tokens.log_in(user, password, self._choice.candidates())

    def _open_timed_out(self) -> None:
        self._open_timer = None
        self.services.sparing.info(log, "connection.timed_out", peer=self.peer)
        self.stream.abort()

    def _opened(self, event: ConnectionOpened) -> None:
        if self._open_timer is not None:
            self._open_timer.cancel()
            self._open_timer = None
        if self._tick_timer is not None:  # the client's own idle time-out is known only now (§2.4.5)
            self._tick_timer.cancel()
            self._tick_timer = None
        self.container_id = event.container_id
        self.engine.pads_frames = needs_padding(event.properties)
        self._choice.name(event.hostname)  # what cannot be is refused below
        self.engine.open(
            SERVER_PROPERTIES,
            [each for each in OFFERED_CAPABILITIES if each in event.desired_capabilities],
            self.served.namespace.name,
        )
        try:
            self._choice.open(event.hostname)
            self.tokens.opened()
            make_room_to_open(self.services, self, proven=bool(self.claims))
            check_connections(self.services.opened + 1, self.services.settings.connections_max)
            self._choice.check_quota()
        except Refused as why:
            self.turn_away(why)
        else:
            self.services.is_open(self, has_credential=bool(self.claims))
        self.tokens.watch_unclaimed()
        idle_timeout_ms = self.engine.remote_idle_timeout_ms
        if 0 < idle_timeout_ms < REMOTE_IDLE_TIMEOUT_MS_MIN:
            self.close(
                Refused(
                    Reason.NOT_ALLOWED,
                    (
                        f"The idle time-out of {idle_timeout_ms} ms is too short; the minimum is "
                        f"{REMOTE_IDLE_TIMEOUT_MS_MIN} ms."
                    ),
                )
            )

    def may_queue(self, size: int) -> bool:
        """Return whether a request of `size` bytes may wait for others (`request_tasks.py`)."""
        return self._requests.may_queue(size)

    def spawn(self, work: Coroutine[Any, Any, None], *, name: str, size: int, queued: bool = False) -> None:
        """Run a request of `size` bytes as a task of the connection (`request_tasks.py`)."""
        self._requests.run(work, name=name, size=size, queued=queued)

    def close(self, why: Refused) -> None:
        """Close the connection with an error."""
        if not self._closed:
            self.engine.close(error_of(why))
            self.flush_soon()

    def turn_away(self, why: Refused) -> None:
        """Close the connection, and count it as open no more, even if the client stays."""
        self.services.turned_away(self)
        self._choice.close()
        self.close(why)

    def cut_off(self) -> None:
        """Others need the place of this connection: end it at once."""
        self.is_cut_off = True
        self.stream.abort()

    def leave(self) -> None:
        """The broker is stopping: take and deliver nothing more, and answer what the client has sent."""
        self._is_leaving = True

    @property
    def owes_answers(self) -> bool:
        """Whether something that the client has sent is under way, or messages that were removed for it."""
        return not self._closed and (
            bool(self.cost_under_way or self.settling)
            or any(
                isinstance(link.context, OutgoingLink) and link.context.is_removing
                for link in self.engine.links()
            )
        )

    def shut_down(self) -> None:
        """Close the connection and tell the client that the broker is stopping (§2.7.9)."""
        if not self._closed:
            self.engine.close(
                ErrorCondition("amqp:connection:forced", "The broker is shutting down. Please connect again.")
            )
            self.flush_soon()

    # --- claims ---------------------------------------------------------------------------------------------

    @property
    def served(self) -> ServedNamespace:
        """The namespace to which the client has come. Fixed once the connection is open."""
        return self._choice.served

    @property
    def claims(self) -> Mapping[str, Claim]:
        """The client's claims, by the audience they were put for."""
        return self.tokens.claims

    def authorize(self, path: str, *rights: str) -> None:
        """Raise Refused(UNAUTHORIZED) unless an unexpired claim grants one of the rights."""
        self.tokens.authorize(path, *rights)

    def put_claim(self, audience: str, claim: Claim) -> None:
        """Store the claim of a token put for an audience. Raises Refused beyond the maximum."""
        self.tokens.put(audience, claim)
        self.services.has_claim(self)

    def clock_was_set(self) -> None:
        """The wall clock has stepped, and tokens expire by it."""
        self.tokens.clock_was_set()

    def rules_changed(self) -> None:
        """An entity's authorization rules have changed."""
        self.tokens.rules_changed()

    # --- events ---------------------------------------------------------------------------------------------

    def _dispatch(self, events: list[Event]) -> None:
        if self._undone:  # keep the events in order
            self._undone += events
            return
        if self._is_leaving:
            events = [event for event in events if isinstance(event, LinkDetached | ConnectionClosed)]
        ended = 0
        for number, event in enumerate(events):
            if (number % EVENTS_UNSEEN == EVENTS_UNSEEN - 1 and self.is_late) or (
                ended == ENDED_AT_ONCE and self._is_served
            ):
                self._undone = events[number:]
                return
            match event:
                case MessagesReceived(link=link, transaction=None) if (
                    link.context is not None and not link.gone
                ):
                    if link.context.received(event) is False:
                        self._undone = events[number:]
                        return
                case MessagesReceived(link=link) if link.context is not None and not link.gone:
                    link.context.received_in_transaction(event)
                case MessageTooLarge(link=link) if link.context is not None and not link.gone:
                    if event.transaction is not None:
                        text = f"A message of {event.size} bytes was too large."
                        why = Refused(Reason.MESSAGE_TOO_LARGE, text)
                        self.transactions.fail(event.transaction.txn_id, why)
                    link.context.refused(event)
                case DeliveriesUpdated(link=link) if link.context is not None and not link.gone:
                    link.context.updated(event)
                case CreditGranted(link=link) if link.context is not None and not link.gone:
                    link.context.credit_granted()
                case LinkAttached(link=link):
                    self._attaching.attach(link)
                case LinkDetached(link=link):
                    was_served = not link.gone
                    self.engine.release_link(link)
                    if was_served:
                        detach(link)
                        ended += 1
                case ConnectionOpened():
                    self._opened(event)
                case ConnectionClosed(error=error):
                    self._client_has_closed = True
                    if error is not None:
                        about = {"condition": error.condition, "description": error.description}
                        self.services.sparing.info(log, "connection.closed", peer=self.peer, **about)
                    self._departure.end_links()
                case _:  # on a refused or closed link, sent before the peer heard of it
                    pass

    def close_link(self, link: Link, why: Refused) -> None:
        """Close a link with an error; messages that its client has not seen go back."""
        if not link.gone:
            if isinstance(link.context, DelayedAttach):
                self.engine.refuse_link(link, error_of(why))
            else:
                self.engine.close_link(link, error_of(why))
            detach(link)
            if link.incoming and link.snd_settle_mode != UNSETTLED:
                self.transactions.fail_all(why)  # with messages sent settled that nobody will see
            self.flush_soon()
