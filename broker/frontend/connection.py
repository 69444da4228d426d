"""One connection: events of the engine go to the link they belong to; what the links say goes out, once per
turn.

Answers for the SASL exchange, the open, the bounds on sessions and bytes under way, idle time-outs, and the
writing: links change the engine and call `flush_soon`, and one write per turn of the event loop carries
everything that came together. `attaching.py` finds what serves a new link, and `token_expiry.py` knows what
the client may do. A link knows its connection only as a `Host` (`host.py`).

Knows the socket only as a `Wire`. Runs in the event loop; nothing here waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any

import structlog

from broker.access.sas import Claim
from broker.base.errors import Reason, Refused
from broker.frontend.attaching import Attaching, Resolve, attach_to_entity
from broker.frontend.host import Waiting
from broker.frontend.links.delayed_attach import DelayedAttach
from broker.frontend.nodes.request_node import QUEUED_BYTES_FREE
from broker.frontend.services import Services
from broker.frontend.slow_readers import Room
from broker.frontend.token_expiry import Tokens
from broker.frontend.wire import Wire
from broker.messaging.receive_cache import ReceiveCache
from broker.throttle.memory_mark import UNSETTLED_ABOVE_MARK_MAX
from broker.wording import error_of
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
from protocol.frames import needs_padding, pad_performatives
from protocol.links import Link
from protocol.sasl import SaslServer

log = structlog.get_logger("connection")

SERVER_PROPERTIES = {"product": "Partibus"}
CLOSE_TIMEOUT_S = 5.0
"""How long a client may take to read our last words."""
EVENTS_AT_ONCE, EVENTS_UNSEEN = 64, 8
"""About how many events are taken from the engine in one turn, and how many are dispatched between two looks
at the clock. An attach costs 0.1 ms in either place."""
REMOTE_IDLE_TIMEOUT_MS_MIN = 1_000
"""The shortest idle time-out that a client may announce (§2.4.5): the broker must send an empty frame twice
within it. The official clients announce 60 s."""


class Connection:
    """One client's connection. Owned by the event loop."""

    def __init__(
        self, wire: Wire, services: Services, peer: str, resolve: Resolve = attach_to_entity
    ) -> None:
        """`resolve` finds what serves a link to an entity."""
        self.wire, self.services, self.peer = wire, services, peer
        settings = services.settings
        self.engine = Engine(
            container_id=services.namespace.name,
            max_frame_bytes=settings.frame_bytes_max,
            channel_max=settings.sessions_per_connection_max - 1,
            idle_timeout_ms=2 * settings.idle_timeout_ms,
            partial_bytes_max=min(PARTIAL_BYTES_MAX, settings.total_inflight_bytes_max // 4),
        )
        self.browse_page = asyncio.Semaphore(1)
        """Taken for each page of messages that is read for this client to look at."""
        self.cache = ReceiveCache(settings.receive_cache_messages, settings.receive_cache_bytes)
        self.container_id = ""
        self.writable = True
        """The peer reads what it is sent; False from the wire's high-water mark to its low-water mark."""
        self._room = Room(settings.output_buffer_bytes_max)
        self.output_room = self._room.bytes
        """How many bytes links may still hand to the engine before the next write."""
        self.response_bytes = 0
        """Responses that wait for credit; kept by the response links."""
        self.tokens = Tokens(self)
        """What the client may do, and until when."""
        self._loop = asyncio.get_running_loop()
        self._sasl: SaslServer | None = SaslServer(self.tokens.log_in)
        self._attaching = Attaching(self, resolve)
        self._pads_frames = False
        self._flush_is_due = False
        self._hungry: set[Waiting] = set()
        self._holds: set[str] = set()
        self._inflight_bytes = self._partial_bytes = 0
        """Bytes of messages that wait for their outcome, and of unfinished messages."""
        self._queued_bytes = 0
        """Bytes of requests that wait for their turn (`request_node.py`)."""
        self.cost_under_way = 0
        """Kept by `Pace`."""
        self._closed = self._failed = False
        self._is_served = False
        self._undone: list[Event] = []
        """Events left for a later turn, because the slice of time was used up."""
        self._written_in_all = self._written = self._written_in = 0
        """Bytes written since the beginning, bytes of the last write, and its turn (`OutputTotal.turn`)."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._tick_timer: asyncio.TimerHandle | None = None
        self._close_timer: asyncio.TimerHandle | None = None
        self._open_timer: asyncio.TimerHandle | None = self._loop.call_later(
            settings.connection_open_timeout_ms / 1000, self._open_timed_out
        )
        services.joined(self)

    # --- from the wire --------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Bytes of the client. What nobody foresaw ends this connection, loudly, and no other."""
        if self._closed or self._failed:
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
        """Take bytes of the AMQP layer; b"" goes on with bytes that the engine has kept."""
        events = self.engine.receive(data, EVENTS_AT_ONCE) if self._is_served else self.engine.receive(data)
        if self.engine.partial_bytes != self._partial_bytes:
            self._count_partial()
        self._dispatch(events)
        self.flush_soon()

    def fail(self) -> None:
        """End this connection after an unexpected exception, with a traceback in the log, and no other
        connection."""
        log.exception("connection.failed", peer=self.peer, container=self.container_id)
        self._failed = True
        self.wire.abort()

    def serve(self, data: bytes) -> bool:
        """The client's next bytes, when it is its turn (`turns.Client`)."""
        self._is_served = True
        if data:
            self.data_received(data)
        elif not (self._closed or self._failed):
            undone, self._undone = self._undone, []
            try:
                if undone:
                    self._dispatch(undone)
                    self.flush_soon()
                else:
                    self._take(b"")
            except Exception:
                self.fail()
        self._is_served = False
        return bool(self._undone or self.engine.has_more) and not (self._closed or self._failed)

    @property
    def is_late(self) -> bool:
        """The slice of time in which the client's bytes are served is used up: what is left can wait for
        another turn."""
        return self._is_served and self.services.turns.is_late

    def may_be_served(self) -> bool:
        """False while it has more than its share of the work under way (`turns.Client`)."""
        return not self.services.pace.sets_aside(self)

    def eof_received(self) -> None:
        """The client closed its end."""
        if self._closed:
            return
        try:
            self._dispatch(self.engine.receive_eof())
            self.flush_soon()
        except Exception:
            self.fail()

    def connection_lost(self) -> None:
        """The socket is gone: give back what the client held unseen, forget the rest."""
        if self._closed:
            return
        self._closed = True
        self.services.left(self)
        for timer in (self._tick_timer, self._open_timer, self._close_timer):
            if timer is not None:
                timer.cancel()
        self.tokens.connection_lost()
        for task in self._tasks:
            task.cancel()
        self._end_links()
        self.engine.free()

    def _end_links(self) -> None:
        """Nothing more goes over the links: what they hold unseen goes back now, not when the socket is gone
        at last."""
        for link in self.engine.links():
            if not link.gone:
                link.gone = True
                if link.context is not None:
                    link.context.detached()

    def pause_writing(self) -> None:
        """The client does not read fast enough."""
        self.writable = False

    def resume_writing(self) -> None:
        """It does again."""
        self.writable = True
        self.flush_soon()

    # --- to the wire ----------------------------------------------------------------------------------------

    def flush_soon(self) -> None:
        """Write what the engine has to say, at the end of this turn of the event loop."""
        if not self._flush_is_due and not self._closed:
            self._flush_is_due = True
            self._loop.call_soon(self._flush)

    def flush_if_done(self) -> None:
        """Write now if nothing more of this client is under way, because no other answer will follow; else at
        the end of the turn.

        A client that sends one message at a time then has its answer a whole turn of a busy event loop
        earlier.
        """
        if self.cost_under_way:
            self.flush_soon()
        else:
            self._flush()

    def _flush(self) -> None:
        self._flush_is_due = False
        if self._closed:
            return
        try:
            self._write()
        except Exception:
            self.fail()

    def _write(self) -> None:
        chunks = self.engine.output()
        if chunks:
            data = chunks[0] if len(chunks) == 1 else b"".join(chunks)
            self.wire.write(pad_performatives(data) if self._pads_frames else data)
            self._written, self._written_in = len(data), self.services.output.turn
            self._written_in_all += len(data)
            # Writing uses up credit, and proton says so.
            events = self.engine.take_events()
            if events:
                self._dispatch(events)
        if self._room.grows(self._written_in_all - self.wire.get_write_buffer_size()):
            self.wire.set_write_buffer_limits(self._room.bytes)
        self.output_room = self.room
        if self._hungry and self.writable:
            hungry, self._hungry = self._hungry, set()
            for link in hungry:
                link.credit_granted()
        if self.engine.finished:
            self._close_wire()
        elif self._tick_timer is None:
            self._tick()
        if self.engine.has_leftovers:
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

    def _close_wire(self) -> None:
        """Close the socket once it has taken what is written; a client that does not read does not keep
        it."""
        if self._close_timer is None:
            self.wire.close()
            self._close_timer = self._loop.call_later(CLOSE_TIMEOUT_S, self.wire.abort)

    def sent(self, size: int) -> None:
        """A link has handed so many bytes to the engine."""
        self.output_room -= size
        self.services.output.add(self, size)
        self.flush_soon()

    def has_room_for(self, link: Waiting) -> bool:
        """Whether the link may hand more messages to the engine; if not, its `credit_granted` is called when
        it may.

        No room is where this turn's bytes are not written yet, where the client does not read, and where it
        keeps the window of its AMQP session shut (§2.5.6): what it has given credit for would wait in the
        engine. And where too much waits in all connections together, and this one has its share of it.
        """
        output = self.services.output
        if (
            self.writable
            and not (output.is_over and output.holds(self))
            and self.output_room > 0
            and self.engine.unsent_bytes(link.link) < self.room
        ):
            return True
        self._hungry.add(link)
        return False

    def room_above_mark(self, link: Waiting, unsettled: int) -> int:
        """How many deliveries more the link may hold unsettled while the memory mark is exceeded.

        A link that has as many as it may looks again at each write of its connection, which every settlement
        causes, and `OutputTotal` causes one now and then until the memory has recovered.
        """
        room = UNSETTLED_ABOVE_MARK_MAX - unsettled
        if room <= 0:
            self._hungry.add(link)
            self.services.output.hold(self)
            return 0
        return room

    @property
    def room(self) -> int:
        """How many bytes may wait for this client: as much as its reading has earned, and at most its share
        of the total."""
        return min(self._room.bytes, self.services.output.room)

    def waiting_bytes(self) -> int:
        """Pending output in bytes: unread, waiting for credit, or held ready on the shelves."""
        return self.unread_bytes() + self.response_bytes + self.cache.bytes

    def unread_bytes(self) -> int:
        """Bytes that links have handed over and the client has not taken.

        uvloop's transports count a write only when they have tried it, at the end of a turn, so the last
        write counts as unread until then.
        """
        just_written = self._written if self.services.output.turn - self._written_in < 2 else 0
        in_engine = 0 if self._closed else self.engine.unsent_bytes_of_all()
        return just_written + self.wire.get_write_buffer_size() + in_engine

    # --- bounds ---------------------------------------------------------------------------------------------

    def took(self, size: int, messages: int) -> None:
        """Messages of `size` bytes wait for their outcome from now on."""
        self._inflight_bytes += size
        self.services.inflight.add(self, size)
        self.services.pace.add(self, size, messages)
        self.services.memory.under_way += messages
        if self._inflight_bytes + self._partial_bytes > self.services.settings.connection_inflight_bytes_max:
            self.hold_reading("connection")

    def took_changes(self, size: int) -> None:
        """Properties of `size` bytes that a settlement changes wait for it from now on, and stay in memory if
        it succeeds."""
        self.services.memory.expect(size)
        self.took(size, 0)

    def finished_with(self, size: int, messages: int) -> None:
        """Messages of `size` bytes have their outcome, or settlements."""
        self._inflight_bytes -= size
        self.services.inflight.remove(size)
        self.services.pace.remove(self, size, messages)
        self.services.memory.under_way -= messages
        if "connection" in self._holds:
            taken = self._inflight_bytes + self._partial_bytes
            # Unfinished messages are released only by reading on, so they never keep the connection from
            # reading.
            if not self._inflight_bytes or taken <= self.services.settings.connection_inflight_bytes_max // 2:
                self.release_reading("connection")

    def _count_partial(self) -> None:
        """The engine holds another number of bytes of unfinished messages."""
        self._partial_bytes = self.engine.partial_bytes
        self.services.inflight.set_partial(self, self._partial_bytes)

    def hold_reading(self, why: str) -> None:
        """Read no more from the socket until `release_reading` was called for the same reason."""
        if not self._holds and not self._closed:
            self.wire.pause_reading()
        self._holds.add(why)

    def release_reading(self, why: str) -> None:
        """The reason is gone."""
        if why in self._holds:
            self._holds.discard(why)
            if not self._holds and not self._closed:
                self.wire.resume_reading()

    # --- SASL, open, close ----------------------------------------------------------------------------------

    def _authenticate(self, data: bytes) -> bytes:
        """The SASL layer (§5.3); gives what belongs to the AMQP layer, empty while the exchange goes on."""
        sasl = self._sasl
        assert sasl is not None
        step = sasl.receive(data)
        for output in step.outputs:
            self.wire.write(output)  # one by one: rhea stalls on an outcome that comes together with the open
        if step.failed:
            self.services.sparing.info(log, "connection.refused", peer=self.peer, reason=step.reason)
            self._close_wire()
            return b""
        if not step.done:
            return b""
        self._sasl = None
        if not self.claims:
            self.engine.restrict()
        return step.rest

    def _open_timed_out(self) -> None:
        self._open_timer = None
        self.services.sparing.info(log, "connection.timed_out", peer=self.peer)
        self.wire.abort()

    def _opened(self, event: ConnectionOpened) -> None:
        if self._open_timer is not None:
            self._open_timer.cancel()
            self._open_timer = None
        if self._tick_timer is not None:  # the client's own idle time-out is known only now (§2.4.5)
            self._tick_timer.cancel()
            self._tick_timer = None
        self.container_id = event.container_id
        self._pads_frames = needs_padding(event.properties)
        self.tokens.watch_unclaimed()
        self.engine.open(SERVER_PROPERTIES)
        settings = self.services.settings
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
        if len(self.services.connections) > settings.connections_max:
            self.close(
                Refused(
                    Reason.QUOTA_EXCEEDED,
                    f"ConnectionsQuotaExceeded: there are {len(self.services.connections) - 1} "
                    "connections, the maximum is "
                    f"{settings.connections_max}.",
                )
            )

    def may_queue(self, size: int) -> bool:
        """Whether a request of `size` bytes may wait for its turn: each connection may keep some, and all of
        them together."""
        settings, queued = self.services.settings, self._queued_bytes + size
        return queued <= QUEUED_BYTES_FREE or (
            queued <= settings.connection_inflight_bytes_max
            and self.services.queued_bytes + size <= self.services.inflight.bytes_max // 4
        )

    def _queue(self, size: int) -> None:
        self._queued_bytes += size
        self.services.queued_bytes += size

    def spawn(self, work: Coroutine[Any, Any, None], *, name: str, size: int, queued: bool = False) -> None:
        """Run a request of so many bytes beside the connection; it is cancelled when the connection is lost.

        It counts as work under way. If it is `queued` it may be taken out of that while it waits for its
        client (`request_node.py`), so its bytes are counted once more, for `may_queue`.
        """
        task = self.services.spawn(work, name=name)
        self._tasks.add(task)
        self.took(size, 1)
        if queued:
            self._queue(size)

        def done(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            self.finished_with(size, 1)
            if queued:
                self._queue(-size)

        task.add_done_callback(done)

    def close(self, why: Refused) -> None:
        """Close the connection with an error."""
        self.engine.close(error_of(why))
        self.flush_soon()

    def shut_down(self) -> None:
        """The broker stops: say so and close (§2.7.9)."""
        if not self._closed:
            self.engine.close(
                ErrorCondition("amqp:connection:forced", "The broker is shutting down. Please connect again.")
            )
            self.flush_soon()

    # --- what clients may do --------------------------------------------------------------------------------

    @property
    def claims(self) -> Mapping[str, Claim]:
        """What the client may do, by the audience that it was put for."""
        return self.tokens.claims

    def authorize(self, path: str, *rights: str) -> None:
        """Raises Refused(UNAUTHORIZED) unless a claim that has not run out permits one of the rights."""
        self.tokens.authorize(path, *rights)

    def put_claim(self, audience: str, claim: Claim) -> None:
        """A token was put for an audience. Raises Refused beyond the maximum."""
        self.tokens.put(audience, claim)

    def clock_was_set(self) -> None:
        """The wall clock has stepped, and tokens expire by it."""
        self.tokens.clock_was_set()

    def rules_changed(self) -> None:
        """Authorization rules of an entity were changed or deleted."""
        self.tokens.rules_changed()

    # --- events ---------------------------------------------------------------------------------------------

    def _dispatch(self, events: list[Event]) -> None:
        if self._undone:  # in order
            self._undone += events
            return
        for number, event in enumerate(events):
            if number % EVENTS_UNSEEN == EVENTS_UNSEEN - 1 and self.is_late:
                self._undone = events[number:]
                return
            match event:
                case MessagesReceived(link=link, transaction=None) if (
                    link.context is not None and not link.gone
                ):
                    if link.context.received(event) is False:
                        self._undone = events[number:]
                        return
                case MessageTooLarge(link=link) | MessagesReceived(link=link) if (
                    link.context is not None and not link.gone
                ):
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
                    if was_served and link.context is not None:
                        link.context.detached()
                case ConnectionOpened():
                    self._opened(event)
                case ConnectionClosed(error=error):
                    if error is not None:
                        about = {"condition": error.condition, "description": error.description}
                        self.services.sparing.info(log, "connection.closed", peer=self.peer, **about)
                    self._end_links()
                case _:  # of a link that was refused or closed: the peer had not heard of it yet
                    pass

    def close_link(self, link: Link, why: Refused) -> None:
        """Close a link with an error; whatever it held unseen goes back."""
        if not link.gone:
            if isinstance(link.context, DelayedAttach):
                self.engine.refuse_link(link, error_of(why))
            else:
                self.engine.close_link(link, error_of(why))
            if link.context is not None:
                link.context.detached()
            self.flush_soon()
