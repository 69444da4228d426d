"""One AMQP 1.0 connection, server side, sans-IO: bytes in → events; calls → bytes out.

Drives proton's C engine through its cffi surface (`proton_values.py` alone names `cproton_ffi`): a Python
wrapper object per delivery would cost more than everything else together. What is plain (whole messages,
their acceptance) goes through `runs.py`, many deliveries in one call; whatever is not is decided here, one
event at a time. python-qpid-proton is pinned, and `tests/unit/protocol/test_engine_surface.py` fails loudly
when an upgrade changes what is used.

What proton leaves to us: the SASL exchange (`protocol/sasl.py`, in front of the engine), and a transfer's
message-format, which it drops (§2.7.5): `protocol/frames.py` finds the frames of Service Bus batches, and
each is pushed on its own, so that the delivery which then appears is known to be one. And a client that
numbers its deliveries out of sequence, which proton refuses: `protocol/lenience.py` stands between the two.

Invariants: no event is lost or reordered; a delivery is settled at most once; nothing that belongs to a link
is touched after its `LinkDetached` was consumed (`release_link`). Knows no sockets, no tasks and no clock
(`tick` is given the time).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from protocol import codec, runs
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
    Outcome,
    TransactionalMessage,
    same_update,
)
from protocol.intake import Intake
from protocol.lenience import Lenience
from protocol.links import Delivery, Link, Session
from protocol.proton_values import (
    condition_of,
    echo_terminus,
    ffi,
    fields_of,
    free_if_settled,
    free_link,
    lib,
    link_of,
    map_of,
    put,
    set_condition,
    symbols_of,
    text_of,
    update_of,
    written_by,
)

PARTIAL_BYTES_MAX = 64 * 1024 * 1024
PUSH_BYTES_MAX = 32 * 1024
PUSH_BYTES_MIN = 256
PUSH_BYTES_FIRST = 4 * 1024
EVENTS_PER_PUSH = 32
"""After a push that made more events than this, the next push is half as large. An attach costs 0.1 ms, and
more with thousands of links."""
EVENTS_MAX = 400_000
"""What may gather in proton between two looks at its events, some 165 bytes each, which it keeps until the
connection is gone."""
FREED_AT_ONCE = 256
"""Links given back after one write: proton looks for each among all of its session, some 10 µs with thousands
of them."""
DISPOSITION_BYTES = 20
"""A disposition has at least so many, and may speak of every unsettled delivery of its session."""
LOCAL_OPEN_STATES = lib.PN_LOCAL_ACTIVE | lib.PN_LOCAL_CLOSED
NULL = ffi.NULL

# Bound once: an attribute of `lib` costs as much as the call behind it.
_collector_peek, _collector_pop, _event_type = lib.pn_collector_peek, lib.pn_collector_pop, lib.pn_event_type
_event_delivery, _delivery_link = lib.pn_event_delivery, lib.pn_delivery_link
_unsent = lib.pn_session_outgoing_bytes
# Plain numbers: comparing with an enum's members costs more than the calls around it.
_ACCEPTED, _REJECTED, _MODIFIED = int(Outcome.ACCEPTED), int(Outcome.REJECTED), int(Outcome.MODIFIED)
_TRANSACTIONAL = int(Outcome.TRANSACTIONAL)
_NOT_TERMINAL = (int(Outcome.NONE), int(Outcome.RECEIVED))


class Engine:
    """The AMQP layer of one connection, after SASL."""

    def __init__(
        self,
        *,
        container_id: str,
        max_frame_bytes: int,
        channel_max: int,
        idle_timeout_ms: int,
        partial_bytes_max: int = PARTIAL_BYTES_MAX,
    ) -> None:
        """`idle_timeout_ms` is how long the peer may be silent before it is given up; half of it is announced
        (§2.4.5).

        `partial_bytes_max` bounds what is held of messages whose last frame has not come, unless it is a
        single message.
        """
        self._connection = lib.pn_connection()
        self._transport = lib.pn_transport()
        self._collector = lib.pn_collector()
        lib.pn_transport_set_server(self._transport)
        lib.pn_connection_collect(self._connection, self._collector)
        lib.pn_connection_set_container(self._connection, container_id.encode())
        lib.pn_transport_set_max_frame(self._transport, max_frame_bytes)
        lib.pn_transport_set_channel_max(self._transport, channel_max)
        lib.pn_transport_set_idle_timeout(self._transport, idle_timeout_ms)
        lib.pn_transport_bind(self._transport, self._connection)
        self._lenience = Lenience(channel_max, max_frame_bytes)
        self._intake = Intake(self._lenience)
        self._push_max = PUSH_BYTES_FIRST
        self._partial_bytes_max = partial_bytes_max
        self._partial_bytes = 0
        self._links: dict[Any, Link] = {}
        self._leaving: dict[Link, None] = {}
        """Detached by the peer, and waiting for `release_link`."""
        self._sessions: dict[Any, Session] = {}
        self._written_off: list[tuple[Callable[[Any], None], Any]] = []
        """Links and sessions to be freed once their detach or end is written. Freeing settles what is
        unsettled, without an outcome: before the detach, some clients would take that for success."""
        self._untrimmed: list[Delivery] = []
        """Deliveries of which some are large and not written yet: proton would keep the room of each."""
        self._events: list[Event] = []
        self._open_reported = False
        self._tail_ended = False
        """The peer has hung up: nothing more of it is to be read."""
        self._closed_reported = False
        self._output_ended = False
        self._freed = False
        self._handlers: dict[int, Callable[[Any], None]] = {
            lib.PN_LINK_FLOW: self._on_flow,
            lib.PN_LINK_REMOTE_OPEN: self._on_attach,
            lib.PN_LINK_REMOTE_CLOSE: lambda event: self._on_detach(event, closed=True),
            lib.PN_LINK_REMOTE_DETACH: lambda event: self._on_detach(event, closed=False),
            lib.PN_SESSION_REMOTE_OPEN: lambda event: lib.pn_session_open(lib.pn_event_session(event)),
            lib.PN_SESSION_REMOTE_CLOSE: self._on_end,
            lib.PN_CONNECTION_REMOTE_OPEN: self._on_open,
            lib.PN_CONNECTION_REMOTE_CLOSE: self._on_close,
            lib.PN_TRANSPORT_ERROR: self._on_transport_error,
            lib.PN_TRANSPORT_TAIL_CLOSED: self._on_tail_closed,
            lib.PN_TRANSPORT_CLOSED: self._on_transport_closed,
        }

    # --- bytes ----------------------------------------------------------------------------------------------

    def receive(self, data: bytes, events_max: int = EVENTS_MAX) -> list[Event]:
        """Take what arrived from the peer; gives the events it makes, in order.

        With `events_max` it stops once there are about so many; `has_more` then says so, and the next call
        goes on.
        """
        pieces = self._intake.take(data)
        for index, (piece, is_batch) in enumerate(pieces):
            fed = self._feed(piece, is_batch, events_max)
            if fed < 0:
                break
            if fed < len(piece):
                self._intake.keep([(piece[fed:], is_batch), *pieces[index + 1 :]])
                break
        refused = self._intake.refusal
        if refused is not None and not self._closed_reported:
            self._break(refused.condition, refused.description)
        events, self._events = self._events, []
        return events

    @property
    def has_more(self) -> bool:
        """What arrived has not been taken as a whole: `receive` is to be called again."""
        return self._intake.has_more

    def restrict(self) -> None:
        """From here on, let the peer send no more than it needs to present credentials
        (`protocol/limits.py`)."""
        self._intake.restrict()

    def lift_restriction(self) -> None:
        """The peer has presented credentials: end the restriction."""
        self._intake.lift_restriction()

    def _feed(self, piece: bytes, is_batch: bool, events_max: int) -> int:
        """Push a piece; gives how many bytes of it were pushed, fewer than all once there are enough events;
        -1 if proton takes no more."""
        begin, size, events = 0, len(piece), self._events
        while begin < size:
            before = len(events)
            if before >= events_max:
                return begin
            end = size if size <= PUSH_BYTES_MIN else min(begin + self._push_bytes(), size)
            pushed = runs.push(self._transport, piece, begin, end)
            self._pump(is_batch and end == size)
            if pushed < end - begin:  # closed or broken, and proton has said so in an event
                return -1
            begin = end
            made = len(events) - before
            if made > EVENTS_PER_PUSH:
                self._push_max = max(self._push_max // 2, PUSH_BYTES_MIN)
            elif self._push_max < PUSH_BYTES_MAX and made <= EVENTS_PER_PUSH // 2:
                self._push_max *= 2
        return size

    def _push_bytes(self) -> int:
        """How much to push at once, so that no more than EVENTS_MAX events come of it."""
        unsettled: int = sum(map(lib.pn_link_unsettled, self._links))
        return max(min(self._push_max, EVENTS_MAX * DISPOSITION_BYTES // max(unsettled, 1)), PUSH_BYTES_MIN)

    def receive_eof(self) -> list[Event]:
        """The peer closed its end of the socket."""
        if not self._freed:
            self._tail_ended = True
            lib.pn_transport_close_tail(self._transport)
            self._pump(False)
        return self.take_events()

    def output(self) -> list[bytes]:
        """What is to be written to the peer now, in order; empty when there is nothing."""
        chunks, self._output_ended = written_by(self._transport)
        if self._untrimmed:
            self._untrimmed = runs.trim_all(self._untrimmed)
        if self._written_off:
            for give_back, ended in self._written_off[:FREED_AT_ONCE]:
                give_back(ended)
            del self._written_off[:FREED_AT_ONCE]
        if self._lenience.watches:
            return self._lenience.outgoing(chunks, all_is_served=not (self._intake.has_more or self._leaving))
        return chunks

    @property
    def has_leftovers(self) -> bool:
        """The next `output` still has memory to give back."""
        return bool(self._written_off)

    def take_events(self) -> list[Event]:
        """The events that have gathered (writing makes some, too: credit that was used up)."""
        self._pump(False)
        events, self._events = self._events, []
        return events

    def tick(self, now_ms: int) -> int:
        """Keep time (§2.4.5): may produce output or a `ConnectionClosed`. Gives when to tick next, 0 for
        never. Monotonic clock."""
        return int(lib.pn_transport_tick(self._transport, now_ms))

    @property
    def finished(self) -> bool:
        """All was written that ever will be (`output` has found so): the socket may be closed."""
        return self._freed or self._output_ended

    @property
    def partial_bytes(self) -> int:
        """Bytes of unfinished messages, whose last frame has not arrived."""
        return self._partial_bytes

    @property
    def remote_idle_timeout_ms(self) -> int:
        """The idle time-out that the peer announced in its open (§2.4.5), in ms; 0 for none."""
        return int(lib.pn_transport_get_remote_idle_timeout(self._transport))

    @property
    def remote_max_frame_bytes(self) -> int:
        """What the peer announced in its open."""
        return int(lib.pn_transport_get_remote_max_frame(self._transport))

    def free(self) -> None:
        """Give the memory back. No call may follow; every link is gone."""
        if self._freed:
            return
        self._freed = True
        for link in self.links():
            link.gone = True
        self._links.clear()
        self._leaving.clear()
        lib.pn_transport_unbind(self._transport)
        lib.pn_collector_release(self._collector)
        lib.pn_connection_release(self._connection)
        lib.pn_decref(self._connection)
        lib.pn_decref(self._transport)
        lib.pn_collector_free(self._collector)

    # --- connection -----------------------------------------------------------------------------------------

    def open(self, properties: dict[Any, Any] | None = None) -> None:
        """Answer the peer's open (§2.7.1)."""
        if (
            lib.pn_connection_state(self._connection) & LOCAL_OPEN_STATES
        ):  # something else in the same read has closed it already
            return
        if properties:
            put(lib.pn_connection_properties(self._connection), codec.encode(properties))
        lib.pn_connection_open(self._connection)
        if (
            lib.pn_connection_state(self._connection) & lib.PN_REMOTE_CLOSED
        ):  # open and close came in one read
            lib.pn_connection_close(self._connection)

    def close(self, error: ErrorCondition | None = None) -> None:
        """Close the connection, with an error or without (§2.7.9)."""
        if not lib.pn_connection_state(self._connection) & LOCAL_OPEN_STATES:
            lib.pn_connection_open(self._connection)
        if error is not None:
            set_condition(lib.pn_connection_condition(self._connection), error)
        lib.pn_connection_close(self._connection)

    # --- links ----------------------------------------------------------------------------------------------

    def links(self) -> list[Link]:
        """All links that are attached, and those whose `LinkDetached` was not consumed yet."""
        return [*self._links.values(), *self._leaving]

    @property
    def link_count(self) -> int:
        """How many links there are, including refused and closed ones whose end the peer has not
        confirmed."""
        return len(self._links) + len(self._leaving)

    def link_properties(self, link: Link) -> dict[str, Any]:
        """The peer's attach properties; keys as text."""
        return fields_of(lib.pn_link_remote_properties(link.pn))

    def source_filter(self, link: Link) -> dict[str, Any]:
        """The filter set of the peer's source (§3.5.8); keys as text. Raises DecodeError if it is not a
        filter set."""
        return map_of(lib.pn_terminus_filter(lib.pn_link_remote_source(link.pn)))

    def node_capabilities(self, link: Link) -> tuple[str, ...]:
        """What the peer wants of our end of the link: the capabilities of its source if it receives, else of
        its target (§3.5.3)."""
        terminus = lib.pn_link_remote_target(link.pn) if link.incoming else lib.pn_link_remote_source(link.pn)
        return symbols_of(lib.pn_terminus_capabilities(terminus))

    def source_is_dynamic(self, link: Link) -> bool:
        """The peer asks for a node to be made for it (§3.5.3)."""
        return bool(lib.pn_terminus_is_dynamic(lib.pn_link_remote_source(link.pn)))

    def target_is_dynamic(self, link: Link) -> bool:
        """As `source_is_dynamic`, for the target (§3.5.4)."""
        return bool(lib.pn_terminus_is_dynamic(lib.pn_link_remote_target(link.pn)))

    def accept_link(
        self,
        link: Link,
        *,
        max_message_bytes: int = 0,
        properties: dict[Any, Any] | None = None,
        source_filter: bytes = b"",
    ) -> None:
        """Answer the peer's attach with source, target and both settle modes as they were sent (AMQP contract
        0.4.5).

        `max_message_bytes` is announced, and held, on incoming links; `source_filter` (an encoded map)
        replaces the echo.
        """
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
            self.limit_messages(link, max_message_bytes)
        lib.pn_link_open(pn)

    def refuse_link(self, link: Link, error: ErrorCondition) -> None:
        """Answer with an attach without source and target, and at once a closing detach (§2.6.3; AMQP
        contract 0.4.6)."""
        lib.pn_terminus_set_type(lib.pn_link_source(link.pn), lib.PN_UNSPECIFIED)
        lib.pn_terminus_set_type(lib.pn_link_target(link.pn), lib.PN_UNSPECIFIED)
        lib.pn_link_set_snd_settle_mode(link.pn, link.snd_settle_mode)
        lib.pn_link_set_rcv_settle_mode(link.pn, link.rcv_settle_mode)
        lib.pn_link_open(link.pn)
        self.close_link(link, error)

    def close_link(self, link: Link, error: ErrorCondition) -> None:
        """Close an attached link with an error (§2.6.6); it is gone for us, whatever the peer still sends on
        it."""
        if link.gone:
            return
        set_condition(lib.pn_link_condition(link.pn), error)
        lib.pn_link_close(link.pn)
        self._forget_partial(link)
        link.gone = True
        self._written_off.append(
            (free_if_settled, link)
        )  # the peer may attach another link of this name before it answers

    def release_link(self, link: Link) -> None:
        """To be called with each `LinkDetached`, after what came before it: answers the detach and gives the
        link's memory back.

        What a client sends in one write with its detach is so served like everything else: messages sent
        settled, outcomes.
        """
        if link not in self._leaving:
            return
        del self._leaving[link]
        session = link.session
        session.leaving -= 1
        if session.ended:  # the end answers for its links
            link.gone = True
            if not session.leaving:
                self._free_session(session)
            return
        if not link.gone:
            link.gone = True
            if link.peer_closed:
                lib.pn_link_close(link.pn)
            else:
                lib.pn_link_detach(link.pn)
        self._written_off.append((free_link, link))

    # --- incoming links -------------------------------------------------------------------------------------

    def grant(self, link: Link, credit: int) -> None:
        """Let the peer send `credit` more messages (§2.6.7)."""
        lib.pn_link_flow(link.pn, credit)

    def limit_messages(self, link: Link, max_message_bytes: int) -> None:
        """Take messages of this size at most from now on. Only an attach tells the peer (§2.7.3)."""
        link.max_message_bytes = max_message_bytes
        lib.pn_link_set_max_message_size(link.pn, max_message_bytes)

    def accept(self, deliveries: Sequence[Delivery]) -> None:
        """Settle incoming deliveries as accepted (§3.4.2). Consecutive ones go out as one disposition."""
        runs.settle(deliveries, _ACCEPTED)

    def reject(self, deliveries: Sequence[Delivery], error: ErrorCondition | None) -> None:
        """Settle deliveries as rejected (§3.4.3), with all three fields of the error (AMQP contract 0.4.7),
        or bare."""
        for delivery in deliveries:
            if error is not None:
                set_condition(lib.pn_disposition_condition(lib.pn_delivery_local(delivery)), error)
        runs.settle(deliveries, _REJECTED)

    # --- outgoing links -------------------------------------------------------------------------------------

    def credit(self, link: Link) -> int:
        """How many messages the peer takes now, those handed to `send` deducted. Not below 0, whatever
        delivery-count it claims."""
        return max(int(lib.pn_link_credit(link.pn)), 0)

    def draining(self, link: Link) -> bool:
        """The peer wants what there is, and the rest of its credit back (§2.6.7)."""
        return bool(lib.pn_link_get_drain(link.pn))

    def unsent_bytes(self, link: Link) -> int:
        """What waits in the link's session for its window to open (§2.5.6), or to be written."""
        return int(_unsent(link.session.pn))

    def unsent_bytes_of_all(self) -> int:
        """The same of all sessions."""
        return sum(map(_unsent, self._sessions))

    def drained(self, link: Link) -> None:
        """There is nothing more now: give the credit back."""
        lib.pn_link_drained(link.pn)

    def send(
        self,
        link: Link,
        tags: Sequence[bytes],
        fronts: Sequence[bytes],
        settled: bool,
        rests: Sequence[bytes] = (),
        skipped: int = 0,
    ) -> list[Delivery]:
        """Send whole messages, within the credit. `tags` are delivery tags, all of one size up to 32 bytes,
        unique among unsettled ones.

        A message is what `fronts` has of it, and then the part of its one of `rests`, if there are any,
        behind `skipped` bytes.
        """
        if not tags:
            return []
        deliveries, any_large = runs.send(link.pn, tags, fronts, settled, rests, skipped)
        if any_large:
            self._untrimmed += deliveries
        return [] if settled else deliveries

    def settle(
        self,
        deliveries: Sequence[Delivery],
        outcome: int,
        *,
        failed: bool = False,
        undeliverable_here: bool = False,
    ) -> None:
        """Settle outgoing deliveries with an outcome: an answer to the peer's own (AMQP contract 0.4.10)."""
        if outcome == _MODIFIED:
            for delivery in deliveries:
                local = lib.pn_delivery_local(delivery)
                lib.pn_disposition_set_failed(local, failed)
                lib.pn_disposition_set_undeliverable(local, undeliverable_here)
        runs.settle(deliveries, int(outcome))

    # --- events ---------------------------------------------------------------------------------------------

    def _pump(self, is_batch: bool) -> None:
        collector, handlers, links = self._collector, self._handlers, self._links
        while True:
            if not is_batch and not self._partial_bytes:
                run = runs.take(collector)
                if run.count:
                    self._on_run(run)
                if run.last:
                    return
                if run.count:
                    continue
            event = _collector_peek(collector)
            if not event:
                return
            if delivery := _event_delivery(
                event
            ):  # null for all events but PN_DELIVERY, which is by far the most
                link = links.get(_delivery_link(delivery))
                if link is None:
                    pass
                elif not link.gone:
                    if link.incoming:
                        self._on_transfer(link, delivery, is_batch)
                    else:
                        self._on_disposition(link, delivery)
                elif link.incoming:  # we have closed it, and the peer sends on: proton would keep all of it
                    lib.pn_delivery_settle(delivery)
                runs.forget(delivery)
            elif handler := handlers.get(_event_type(event)):
                handler(event)
            _collector_pop(collector)

    def _on_run(self, run: Any) -> None:
        """Plain deliveries."""
        link = self._links.get(run.link)
        if link is None:  # outcomes that came after the link's detach
            return
        settled, deliveries = run.settled, runs.deliveries()
        events = self._events
        last = events[-1] if events else None
        if not run.incoming:
            if (
                type(last) is DeliveriesUpdated
                and last.link is link
                and last.outcome == _ACCEPTED
                and last.settled is settled
            ):
                last.deliveries += deliveries
            else:
                events.append(DeliveriesUpdated(link, deliveries, _ACCEPTED, settled))
        elif (
            type(last) is MessagesReceived
            and last.link is link
            and last.settled is settled
            and not last.batch
        ):
            last.payloads += runs.payloads()
            last.deliveries += deliveries
        else:
            events.append(MessagesReceived(link, deliveries, runs.payloads(), settled, False))

    def _break(self, condition: str, description: str) -> None:
        """The peer has broken the protocol in a way that proton does not see, or a bound: close the
        connection."""
        error = ErrorCondition(condition, description)
        self.close(error)
        self._report_closed(error)

    def _on_transfer(self, link: Link, delivery: Any, is_batch: bool) -> None:
        """A transfer that is not plain: of a batch, in parts, aborted, too large, with a state, on a link
        without a bound."""
        pn = link.pn
        if not lib.pn_delivery_readable(
            delivery
        ):  # the rest of one that was refused has bytes, too, and is none
            return
        size = lib.pn_delivery_pending(delivery)
        settled = lib.pn_delivery_settled(delivery)
        if size == 1 and lib.pn_delivery_aborted(delivery):  # proton shows it with one byte that there is not
            self._forget_partial(link)
            lib.pn_delivery_settle(delivery)
            lib.pn_link_flow(pn, 1)  # it has used up credit, and nobody else hears of it
            return
        too_large = link.max_message_bytes and size > link.max_message_bytes
        if too_large or lib.pn_delivery_remote_state(delivery) == _TRANSACTIONAL:
            # Settled now, even if more is to come: proton throws the rest of it away unseen (§2.7.5). Every
            # frame of a delivery names its transaction (§4.4.2); proton reads the first one's.
            self._forget_partial(link)
            lib.pn_link_advance(pn)
            if settled:
                lib.pn_delivery_settle(delivery)
            own = [] if settled else [delivery]
            self._events.append(
                MessageTooLarge(link, own, size) if too_large else TransactionalMessage(link, own)
            )
            return
        if lib.pn_delivery_partial(delivery):
            link.partial_is_batch |= is_batch
            self._count_partial(link, size)
            return
        payload = b""
        if size:
            buffer = ffi.new("char[]", size)
            count = lib.pn_link_recv(pn, buffer, size)
            assert count == size, "proton has what it says is pending"
            payload = ffi.unpack(buffer, size)
        lib.pn_link_advance(pn)
        if link.partial_bytes:
            is_batch |= link.partial_is_batch
            self._forget_partial(link)
        if settled:
            lib.pn_delivery_settle(delivery)
        events = self._events
        last = events[-1] if events else None
        if (
            type(last) is MessagesReceived
            and last.link is link
            and last.settled is settled
            and not (is_batch or last.batch)
        ):
            last.payloads.append(payload)
            if not settled:
                last.deliveries.append(delivery)
        else:
            events.append(MessagesReceived(link, [] if settled else [delivery], [payload], settled, is_batch))

    def _count_partial(self, link: Link, size: int) -> None:
        """Bound what all links together hold of messages that are not whole: nobody else sees it, or can hold
        it back."""
        size = max(size, 1)  # a first frame may be empty
        self._partial_bytes += size - link.partial_bytes
        link.partial_bytes = size
        if self._partial_bytes > self._partial_bytes_max and self._partial_bytes > size:
            self._break(
                "amqp:resource-limit-exceeded",
                f"Unfinished messages take {self._partial_bytes} bytes on this connection; "
                f"{self._partial_bytes_max} are the maximum, unless it is a single one.",
            )

    def _forget_partial(self, link: Link) -> None:
        self._partial_bytes -= link.partial_bytes
        link.partial_bytes = 0
        link.partial_is_batch = False

    def _on_disposition(self, link: Link, delivery: Any) -> None:
        """An outcome that is not plain: most of all, any other than `accepted`."""
        outcome, settled = lib.pn_delivery_remote_state(delivery), lib.pn_delivery_settled(delivery)
        events = self._events
        last = events[-1] if events else None
        if lib.pn_link_current(link.pn):
            # What we send is never current any more: this is a transfer on a link on which we are the sender.
            # Proton takes it, and would send our next message in its place.
            self._break(
                "amqp:not-allowed", f"transfer on link '{link.name}', on which the peer is the receiver"
            )
            return
        if outcome in _NOT_TERMINAL and not settled:
            return
        update = update_of(link, delivery, outcome, settled)
        if type(last) is DeliveriesUpdated and same_update(last, update):
            last.deliveries.append(Delivery(delivery))
        else:
            events.append(update)

    def _on_flow(self, event: Any) -> None:
        link = self._links.get(lib.pn_event_link(event))
        if link is None or link.gone or link.incoming:
            return
        events = self._events
        if not (events and type(events[-1]) is CreditGranted and events[-1].link is link):
            events.append(CreditGranted(link))

    def _on_attach(self, event: Any) -> None:
        pn = lib.pn_event_link(event)
        if pn in self._links:
            self._break(
                "amqp:session:handle-in-use", "a link of this name is attached in this session already"
            )
            return
        link = self._links[pn] = link_of(pn, self._session(lib.pn_link_session(pn)))
        self._events.append(LinkAttached(link))

    def _session(self, pn: Any) -> Session:
        session = self._sessions.get(pn)
        if session is None:
            session = self._sessions[pn] = Session(pn)
        return session

    def _on_detach(self, event: Any, *, closed: bool) -> None:
        pn = lib.pn_event_link(event)
        link = self._links.pop(pn, None)
        if link is None:
            return
        if link.gone:  # the peer's answer to our own detach
            self._forget_partial(link)
            free_link(link)
            return
        self._leave(link, closed, condition_of(lib.pn_link_remote_condition(pn)))

    def _leave(self, link: Link, closed: bool, error: ErrorCondition | None) -> None:
        self._forget_partial(link)
        link.peer_closed = closed
        link.session.leaving += 1
        self._leaving[link] = None
        self._events.append(LinkDetached(link, closed, error))

    def _on_end(self, event: Any) -> None:
        pn = lib.pn_event_session(event)
        error = condition_of(lib.pn_session_remote_condition(pn))
        session = self._session(pn)
        del self._sessions[pn]
        session.ended = True
        session.ended_links = [link for link in self._links.values() if link.session is session]
        for link in session.ended_links:
            del self._links[link.pn]
            if link.gone:
                self._forget_partial(link)
            else:
                self._leave(link, True, error)
        if not session.leaving:
            self._free_session(session)

    def _free_session(self, session: Session) -> None:
        lib.pn_session_close(session.pn)
        # A session with thousands of links takes long to be freed, so the links are, before it.
        self._written_off += [
            *((free_link, link) for link in session.ended_links),
            (lib.pn_session_free, session.pn),
        ]

    def _on_open(self, event: Any) -> None:
        connection = self._connection
        if self._open_reported:  # proton takes a second one
            self._break("amqp:not-allowed", "the connection is open already")
            return
        self._open_reported = True
        self._events.append(
            ConnectionOpened(
                text_of(lib.pn_connection_remote_container(connection)) or "",
                text_of(lib.pn_connection_remote_hostname(connection)) or "",
                fields_of(lib.pn_connection_remote_properties(connection)),
            )
        )

    def _on_close(self, event: Any) -> None:
        self._report_closed(condition_of(lib.pn_connection_remote_condition(self._connection)))
        lib.pn_connection_close(self._connection)

    def _on_transport_error(self, event: Any) -> None:
        # Proton reports a framing error when a peer hangs up without a close. There is nobody to tell.
        self._report_closed(
            None if self._tail_ended else condition_of(lib.pn_transport_condition(self._transport))
        )

    def _on_tail_closed(self, event: Any) -> None:
        # A close and what proton complains of were reported before; of a frame it cannot read it says
        # nothing.
        if not self._closed_reported and not self._tail_ended:
            self._break(
                "amqp:decode-error", "a frame that holds no performative, or one that cannot be decoded"
            )

    def _on_transport_closed(self, event: Any) -> None:
        self._report_closed(None)

    def _report_closed(self, error: ErrorCondition | None) -> None:
        if not self._closed_reported:
            self._closed_reported = True
            self._events.append(ConnectionClosed(error))


runs.bind(ffi, lib)
