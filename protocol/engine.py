"""One AMQP 1.0 connection, server side, sans-IO: bytes in → events; calls → bytes out.

Drives proton's C engine through its cffi surface, because one Python wrapper object per delivery would cost
more than everything else together. Plain deliveries (whole messages, their acceptance) go through `runs.py`,
many in one call. The rest is decided in Python, one event at a time: `deliveries.py` handles transfers and
dispositions, `link_table.py` links and sessions, and this file the connection itself. python-qpid-proton is
pinned, and `tests/unit/protocol/test_proton_values.py` fails when an upgrade changes what is used here.

Proton leaves three things to us:

- the SASL exchange, which `sasl.py` handles before the engine sees a byte;
- a transfer's message-format (§2.7.5), which proton drops. `frames.py` finds the frames of Service Bus
  batches, and each of them is pushed by itself, so that the resulting delivery is known to be a batch;
- clients that number their deliveries out of sequence, which proton refuses. `lenience.py` corrects them.

Invariants: no event is lost or reordered; a delivery is settled at most once; nothing that belongs to a link
is touched after its `LinkDetached` was consumed (`release_link`). Knows no sockets, no tasks and no clock
(`tick` is given the time).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from protocol import codec, exchange, runs
from protocol._spans import largest
from protocol.deliveries import Deliveries
from protocol.events import (
    ConnectionClosed,
    ConnectionOpened,
    CreditGranted,
    ErrorCondition,
    Event,
    Outcome,
)
from protocol.frames import pad_performatives
from protocol.freeing import free_all
from protocol.intake import Intake
from protocol.large_input import LargeInput
from protocol.large_output import PAYLOAD_BYTES_MIN, LargeOutput, Piece
from protocol.lenience import Lenience
from protocol.link_table import LinkTable, limit_messages
from protocol.links import Delivery, Link
from protocol.parts import Parts
from protocol.plain_reads import NEVER, IsLate, PlainReads
from protocol.proton_values import (
    condition_of,
    delivery_of,
    encoded_error,
    ffi,
    fields_of,
    lib,
    map_of,
    put,
    set_condition,
    set_state,
    symbols_of,
    text_of,
    written_by,
)
from protocol.push_size import EVENTS_MAX, PUSH_BYTES_MIN, PushSize
from protocol.transactional_state import declared, transactional_state

PARTIAL_BYTES_MAX = 64 * 1024 * 1024
PUMPED_AT_ONCE, PUMPED_ONE_BY_ONE, ALL = 8_192, 16, math.inf
"""How many of proton's events are read at once, and for how many one counts that is read by itself:
dispositions may be about 90,000 deliveries, which take 15 ms to read, or 200 ms one by one."""
LOCAL_OPEN_STATES = lib.PN_LOCAL_ACTIVE | lib.PN_LOCAL_CLOSED

# Bound once, because an attribute of `lib` costs as much as the call itself.
_collector_peek, _collector_pop, _event_type = lib.pn_collector_peek, lib.pn_collector_pop, lib.pn_event_type
_event_delivery, _delivery_link = lib.pn_event_delivery, lib.pn_delivery_link
# Plain numbers, because comparing with an enum's members costs more than the calls around it.
_ACCEPTED, _REJECTED, _MODIFIED = int(Outcome.ACCEPTED), int(Outcome.REJECTED), int(Outcome.MODIFIED)
_DECLARED, _TRANSACTIONAL = int(Outcome.DECLARED), int(Outcome.TRANSACTIONAL)


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
        parts: Parts | None = None,
    ) -> None:
        """The connection is closed when the peer has been silent for `idle_timeout_ms`; half of that is
        announced (§2.4.5).

        `partial_bytes_max` bounds the bytes held of messages whose last frame is missing. A single such
        message may be larger. `parts` decides on sessions and links.
        """
        self._connection = lib.pn_connection()
        self._transport = lib.pn_transport()
        self._collector = lib.pn_collector()
        self._proton = runs.address_of(self._transport), runs.address_of(self._collector)
        lib.pn_transport_set_server(self._transport)
        lib.pn_connection_collect(self._connection, self._collector)
        lib.pn_connection_set_container(self._connection, container_id.encode())
        lib.pn_transport_set_max_frame(self._transport, max_frame_bytes)
        lib.pn_transport_set_channel_max(self._transport, channel_max)
        lib.pn_transport_set_idle_timeout(self._transport, idle_timeout_ms)
        lib.pn_transport_bind(self._transport, self._connection)
        self._lenience = Lenience(channel_max, max_frame_bytes, parts)
        self._intake = Intake(self._lenience)
        self._large_input = LargeInput(max_frame_bytes)
        self.pads_frames = False
        """Whether the peer needs all fields of each performative (`frames.py`)."""
        self._push_size = PushSize()
        self._events: list[Event] = []  # the one list to which all parts of the engine report
        self._deliveries = Deliveries(
            self._events, self._break, self._large_input, self._intake.heavy_states, partial_bytes_max
        )
        self._links = LinkTable(self._events, self._break, self._deliveries.forget_partial, self._lenience)
        self._attached = self._links.attached  # bound here because each push uses it
        about = (self._attached, self._deliveries)
        self._plain_reads = PlainReads(self._proton, self._lenience, self._push_size, *about)
        self._large_output = LargeOutput(self._links.sessions)
        self._accepted: list[Delivery] = []
        """Incoming deliveries to settle as accepted before the next output, and before events are read,
        which may free their link."""
        self._untrimmed: list[Delivery] = []
        """Deliveries not written yet, some of them large. Proton would keep the memory of each."""
        self._freed = self._open_reported = self._closed_reported = False
        self._is_unread = False
        """Whether some of proton's events are still to be read. Until then, proton gets no more bytes."""
        self._is_plain = False
        """Whether the next frames may be plain (`plain_reads.py`): nobody else keeps any of what came."""
        self.has_more = False
        """Whether some of the received bytes are still to be taken: call `receive` again."""
        self.partial_bytes = 0
        """The bytes held of messages whose last frame is missing."""
        self.has_events = False
        """Whether the last `output` has caused events, because it used up credit."""
        self._tail_ended = False
        """The peer has closed its end, so nothing more will be read."""
        self.finished = False
        """Whether `output` has given the last bytes, so that the socket may be closed."""
        self.leftovers = self._links.unfreed
        """Links and sessions whose memory is freed with the next `output`."""
        self._handlers = self._handlers_by_type()

    def _handlers_by_type(self) -> dict[int, Callable[[Any], None]]:
        """The handler for each type of proton's events, except those about deliveries."""
        links = self._links
        return {
            lib.PN_LINK_FLOW: self._on_flow,
            lib.PN_LINK_REMOTE_OPEN: lambda event: links.attach(lib.pn_event_link(event)),
            lib.PN_LINK_REMOTE_CLOSE: lambda event: links.detach(lib.pn_event_link(event), closed=True),
            lib.PN_LINK_REMOTE_DETACH: lambda event: links.detach(lib.pn_event_link(event), closed=False),
            lib.PN_LINK_FINAL: lambda event: runs.drop_unwritten(lib.pn_event_link(event)),
            lib.PN_SESSION_REMOTE_OPEN: lambda event: links.begin(lib.pn_event_session(event)),
            lib.PN_SESSION_REMOTE_CLOSE: lambda event: links.end(lib.pn_event_session(event)),
            lib.PN_CONNECTION_REMOTE_OPEN: self._on_open,
            lib.PN_CONNECTION_REMOTE_CLOSE: self._on_close,
            lib.PN_TRANSPORT_ERROR: self._on_transport_error,
            lib.PN_TRANSPORT_TAIL_CLOSED: self._on_tail_closed,
            lib.PN_TRANSPORT_CLOSED: lambda event: self._report_closed(None),
        }

    # --- bytes ----------------------------------------------------------------------------------------------

    def receive(self, data: bytes, events_max: int = EVENTS_MAX, is_late: IsLate = NEVER) -> list[Event]:
        """Take bytes from the peer; gives the resulting events, in order.

        Stops after about `events_max` events, or when `is_late` after a push; frames that cause no events
        take time, too. Then `has_more` is true, and the next call continues.
        """
        at_once = PUMPED_AT_ONCE if events_max < EVENTS_MAX else ALL
        data, taken = self._plain_reads.joined(data), 0
        if self._is_plain and not (self._events or self._is_unread):
            taken, at_once = self._take_plain(data, events_max, at_once, is_late)
            data = data[taken:]
            if self._is_plain and self._plain_reads.keeps(data, taken > 0):
                return self._taken()
            if not data:
                self.has_more = self._is_unread
                return self._taken()
        has_begun = taken > 0
        if self._is_unread and at_once > 0:
            at_once = self._pump(False, at_once)
        pieces = self._intake.take(data, self._push_size.sent_in_all)
        for index, (piece, is_batch) in enumerate(pieces):
            if has_begun and is_late():
                self._intake.keep(list(pieces[index:]))
                break
            fed, at_once = self._feed(piece, is_batch, events_max, at_once, is_late)
            has_begun = True
            if fed < 0:
                break
            if fed < len(piece):
                self._intake.keep([(piece[fed:], is_batch), *pieces[index + 1 :]])
                break
        refused = self._intake.refusal
        if refused is not None and not (self._closed_reported or self._is_unread):
            self._break(refused.condition, refused.description)
        self.has_more = self._intake.has_more_after(self._is_unread)
        self.partial_bytes = self._deliveries.partial_bytes
        self._is_plain = (
            not (self.partial_bytes or self._closed_reported or self._tail_ended or self._is_unread)
            and self._large_input.is_between_frames
            and self._intake.is_between_frames
        )
        return self._taken()

    def _take_plain(self, data: bytes, events_max: int, at_once: float, is_late: IsLate) -> tuple[int, float]:
        """Take plain frames from the beginning. Gives their size in bytes, and what is left of `at_once`."""
        if self._accepted:
            self._settle_accepted()
        end, is_all = 0, False
        while self._is_plain and not is_all and end < len(data) and len(self._events) < events_max:
            end, is_all, at_once = self._plain_reads.take(data, end, at_once, is_late)
            if not is_all:
                at_once = self._pump(False, at_once)
                self._push_size.adapt(0, len(self._events))
                self._is_plain = not (self._closed_reported or self._is_unread)
        return end, at_once

    def _taken(self) -> list[Event]:
        """The events gathered so far."""
        taken = self._events[:]
        del self._events[:]
        return taken

    def restrict(self) -> None:
        """From now on, let the peer send only what it needs to present credentials
        (`protocol/limits.py`)."""
        self._is_plain = False
        self._intake.restrict()

    def lift_restriction(self) -> None:
        """End the restriction, because the peer has presented credentials."""
        self._intake.lift_restriction()

    def _feed(
        self, piece: bytes, is_batch: bool, events_max: int, at_once: float, is_late: IsLate
    ) -> tuple[int, float]:
        """Push a piece, and read about `at_once` of proton's events, until `is_late`. Gives how many of its
        bytes were pushed, -1 if proton takes no more, and what is left of `at_once`."""
        begin, size, events, large = 0, len(piece), self._events, self._large_input
        push_size = self._push_size
        while begin < size:
            before = len(events)
            if before >= events_max or at_once <= 0 or self._is_unread or (begin and is_late()):
                return begin, at_once
            most = size if size <= PUSH_BYTES_MIN else push_size.now(self._attached)
            buffer, start, stop, begin = large.next(piece, begin, most)
            pushed = runs.push(self._transport, buffer, start, stop)
            push_size.uncounted_bytes += stop - start
            at_once = self._pump(is_batch and begin == size, at_once)
            if pushed < stop - start:  # closed or broken, as an event has reported
                return -1, at_once
            push_size.adapt(stop - start, len(events) - before)
        return size, at_once

    def receive_eof(self) -> list[Event]:
        """The peer has closed its end of the socket. Gives the resulting events."""
        events: list[Event] = []
        if self._plain_reads.has_kept and not self._freed:
            self._is_plain = False  # proton is to see that the last frame is not whole
            events += self.receive(b"")
        while self._intake.has_more:
            events += self.receive(b"")
        if not self._freed:
            self._tail_ended, self._is_plain = True, False
            lib.pn_transport_close_tail(self._transport)
            self._pump(False)
        return events + self._taken()

    def output(self) -> Sequence[Piece]:
        """The bytes to write to the peer now, in order; empty if there are none."""
        chunks: Sequence[Piece] = self._written()
        if chunks and self.pads_frames:  # a frame may begin in one chunk and end in the next
            chunks = [pad_performatives(b"".join(chunks))]
        if self._large_output.bytes:
            if chunks:
                chunks = self._large_output.resolved(chunks)
            if self._links.has_dropped:
                self._large_output.forget(self._is_gone)
        self._links.has_dropped = False
        return chunks

    def _is_gone(self, link: Link) -> bool:
        """Whether proton has dropped the link and its deliveries, or those that were not written."""
        return link.emptied or (link.freed and self._attached.get(link.pn) is not link)

    def _written(self) -> list[bytes]:
        """What proton has written, with the peer's own delivery numbers."""
        accepted, self._accepted = self._accepted, []
        written, left, self.has_events = exchange.write(*self._proton, accepted)
        chunks, self.finished = [written] if written else [], left < 0
        if self._large_output.wrote_early:
            chunks = self._large_output.taken() + chunks
        if left > 0:  # a frame exceeds the buffer
            rest, self.finished = written_by(self._transport)
            chunks += rest
            self.has_events = True
        if self._untrimmed:
            self._untrimmed = runs.trim_all(self._untrimmed)
        if self._links.unfreed:
            self._links.free_some()
            self._pump(False, PUMPED_AT_ONCE)  # drops proton's events about them, before there are thousands
            self.has_events = bool(self._events) or self._is_unread
        if self._lenience.watches:
            all_is_served = not (self._intake.has_more or self._is_unread or self._links.leaving)
            return self._lenience.outgoing(chunks, all_is_served=all_is_served)
        return chunks

    def take_events(self) -> list[Event]:
        """The events gathered so far, or the first of very many. Writing also causes events, because it uses
        up credit."""
        self._pump(False, PUMPED_AT_ONCE)
        return self._taken()

    def tick(self, now_ms: int) -> int:
        """Advance the idle timers (§2.4.5) to a monotonic time, which may cause output or a
        `ConnectionClosed`. Gives the time of the next tick, 0 for never."""
        return int(lib.pn_transport_tick(self._transport, now_ms))

    @property
    def remote_idle_timeout_ms(self) -> int:
        """The idle time-out that the peer announced in its open (§2.4.5), in ms; 0 for none."""
        return int(lib.pn_transport_get_remote_idle_timeout(self._transport))

    @property
    def remote_max_frame_bytes(self) -> int:
        """The max-frame-size that the peer announced in its open (§2.7.1)."""
        return int(lib.pn_transport_get_remote_max_frame(self._transport))

    def free(self) -> None:
        """Free the connection. Every link is gone, and no call may follow."""
        for _ in self.free_in_steps():
            pass

    def free_in_steps(self) -> Iterator[None]:
        """Like `free`, in steps of a few milliseconds, however many links there are. They may be taken in any
        thread. No other call may follow; if the rest is not run, the memory stays in use."""
        if self._freed:
            return iter(())
        self._freed = self.finished = True
        self._accepted.clear()
        self._large_output.forget_all()
        self._is_plain = False
        return free_all(self._connection, self._transport, self._collector, self._links.drop_all())

    @property
    def held_most(self) -> int:
        """How many deliveries the peer has held unsettled at a time, at most: the last step of `free` takes
        more than half a microsecond for each."""
        return self._push_size.held_most

    @property
    def unsettled(self) -> int:
        """Unsettled deliveries on attached links: `free` takes almost a microsecond for each."""
        return 0 if self._freed else sum(map(lib.pn_link_unsettled, self._attached))

    # --- connection -----------------------------------------------------------------------------------------

    def open(
        self,
        properties: dict[Any, Any] | None = None,
        offered_capabilities: Sequence[str] = (),
        container_id: str | None = None,
    ) -> None:
        """Answer the peer's open (§2.7.1). `container_id` replaces the one that the engine was made with."""
        if lib.pn_connection_state(self._connection) & LOCAL_OPEN_STATES:
            return  # something else in the same read has already closed it
        if container_id is not None:
            lib.pn_connection_set_container(self._connection, container_id.encode())
        if properties:
            put(lib.pn_connection_properties(self._connection), codec.encode(properties))
        if offered_capabilities:
            symbols = codec.Array(codec.TypeCode.SYMBOL, list(map(codec.Symbol, offered_capabilities)))
            put(lib.pn_connection_offered_capabilities(self._connection), codec.encode(symbols))
        lib.pn_connection_open(self._connection)
        if lib.pn_connection_state(self._connection) & lib.PN_REMOTE_CLOSED:
            lib.pn_connection_close(self._connection)  # open and close came in one read

    def close(self, error: ErrorCondition | None = None) -> None:
        """Close the connection, with an error or without (§2.7.9)."""
        if not lib.pn_connection_state(self._connection) & LOCAL_OPEN_STATES:
            lib.pn_connection_open(self._connection)
        if error is not None:
            set_condition(lib.pn_connection_condition(self._connection), error)
        lib.pn_connection_close(self._connection)

    # --- links ----------------------------------------------------------------------------------------------

    def links(self) -> list[Link]:
        """Every link that is attached, or whose `LinkDetached` has not been consumed yet."""
        return self._links.all()

    @property
    def link_count(self) -> int:
        """The number of links, including refused and closed ones that the peer has not detached yet."""
        return len(self._links)

    @property
    def session_count(self) -> int:
        """The number of sessions that the peer has begun and not ended."""
        return self._links.begun

    def link_properties(self, link: Link) -> dict[str, Any]:
        """The properties of the peer's attach, with text keys."""
        return fields_of(lib.pn_link_remote_properties(link.pn))

    def source_filter(self, link: Link) -> dict[str, Any]:
        """The filter set of the peer's source (§3.5.8), with text keys. Raises DecodeError if it is not a
        filter set."""
        return map_of(lib.pn_terminus_filter(lib.pn_link_remote_source(link.pn)))

    def node_capabilities(self, link: Link) -> tuple[str, ...]:
        """The capabilities that the peer asks of our end of the link: those of its source if it receives
        (§3.5.3), else those of its target (§3.5.4) or of its coordinator (§4.5.1)."""
        terminus = lib.pn_link_remote_target(link.pn) if link.incoming else lib.pn_link_remote_source(link.pn)
        return symbols_of(lib.pn_terminus_capabilities(terminus))

    def source_is_dynamic(self, link: Link) -> bool:
        """Whether the peer asks the broker to create the source's node (§3.5.3)."""
        return bool(lib.pn_terminus_is_dynamic(lib.pn_link_remote_source(link.pn)))

    def target_is_dynamic(self, link: Link) -> bool:
        """Like `source_is_dynamic`, for the target (§3.5.4)."""
        return bool(lib.pn_terminus_is_dynamic(lib.pn_link_remote_target(link.pn)))

    def accept_link(
        self,
        link: Link,
        *,
        max_message_bytes: int = 0,
        properties: dict[Any, Any] | None = None,
        source_filter: bytes = b"",
    ) -> None:
        """Answer the peer's attach with its own source, target and settle modes (AMQP contract 0.4.5).

        `max_message_bytes` is announced and enforced on incoming links. `source_filter`, an encoded map,
        replaces the peer's filter.
        """
        self._links.accept(link, max_message_bytes, properties, source_filter)

    def refuse_link(self, link: Link, error: ErrorCondition) -> None:
        """Answer with an attach without source and target, and close the link at once (§2.6.3; AMQP contract
        0.4.6)."""
        self._links.refuse(link, error)

    def close_link(self, link: Link, error: ErrorCondition) -> None:
        """Close an attached link with an error (§2.6.6). It is gone at once, whatever the peer still sends on
        it."""
        self._links.close(link, error)
        self.partial_bytes = self._deliveries.partial_bytes

    def release_link(self, link: Link) -> None:
        """Answer a detach and free the link. Call this for each `LinkDetached`, after handling the events
        before it, so that whatever the peer sent together with its detach is served first."""
        self._links.release(link)

    # --- incoming links -------------------------------------------------------------------------------------

    def grant(self, link: Link, credit: int) -> None:
        """Let the peer send `credit` more messages (§2.6.7)."""
        lib.pn_link_flow(link.pn, credit)

    def limit_messages(self, link: Link, max_message_bytes: int) -> None:
        """Accept messages of at most this size from now on. The peer learns of it only if the attach has not
        been answered yet (§2.7.3)."""
        limit_messages(link, max_message_bytes)

    def accept(self, deliveries: Sequence[Delivery]) -> None:
        """Settle incoming deliveries as accepted (§3.4.2), with the next output. Consecutive ones go out as
        one disposition, in whatever order and by however many calls they were accepted."""
        self._accepted += deliveries

    def _settle_accepted(self) -> None:
        accepted, self._accepted = self._accepted, []
        runs.settle(accepted, _ACCEPTED)

    def reject(self, deliveries: Sequence[Delivery], error: ErrorCondition | None) -> None:
        """Settle deliveries as rejected (§3.4.3), with all three fields of the error (AMQP contract 0.4.7) or
        without one."""
        for delivery in deliveries:
            if error is not None:
                local = lib.pn_delivery_local(delivery_of(delivery))
                set_condition(lib.pn_disposition_condition(local), error)
        runs.settle(deliveries, _REJECTED)

    def declare(self, deliveries: Sequence[Delivery], txn_id: bytes) -> None:
        """Settle the delivery that holds a declare, giving the id of the new transaction (§4.5.5)."""
        for delivery in deliveries:
            set_state(delivery_of(delivery), declared(txn_id))
        runs.settle(deliveries, _DECLARED)

    # --- outgoing links -------------------------------------------------------------------------------------

    def credit(self, link: Link) -> int:
        """How many more messages the peer accepts, beyond those passed to `send`. Never negative, whatever
        delivery-count the peer claims."""
        return max(int(lib.pn_link_credit(link.pn)), 0)

    def draining(self, link: Link) -> bool:
        """Whether the peer wants the messages available now, and the rest of its credit back (§2.6.7)."""
        return bool(lib.pn_link_get_drain(link.pn))

    def unsent_bytes(self, link: Link) -> int:
        """The bytes in the link's session that wait to be written, or for its window to open (§2.5.6)."""
        return self._large_output.unsent_bytes(link.session)

    def unsent_bytes_of_all(self) -> int:
        """Like `unsent_bytes`, over all sessions."""
        return self._large_output.unsent_bytes_of_all()

    def drained(self, link: Link) -> None:
        """Give the rest of the credit back, because no more messages are available (§2.6.7)."""
        if lib.pn_link_credit(link.pn) > 0:  # proton would give back also what the peer has withdrawn
            lib.pn_link_drained(link.pn)
            self._large_output.wait()

    def send(
        self,
        link: Link,
        tags: Sequence[bytes],
        fronts: Sequence[bytes],
        settled: bool,
        rests: Sequence[bytes] = (),
        skipped: int = 0,
    ) -> list[Delivery]:
        """Send whole messages, within the credit. `tags` are delivery tags of at most 32 bytes, unique among
        unsettled deliveries.

        Each message consists of its entry in `fronts`, followed by its entry in `rests` (if there are any)
        without the first `skipped` bytes. Gives the deliveries; none if they are sent settled.
        """
        if not tags:
            return []
        if self._accepted:
            self._settle_accepted()  # a response does not overtake the outcome of its request
        tags, fronts, rests = list(tags), list(fronts), list(rests)
        if largest(rests) >= PAYLOAD_BYTES_MIN:
            output = self._large_output
            deliveries, any_large = output.send(self._transport, link, tags, fronts, settled, rests, skipped)
            if output.is_stuck:
                self._break("amqp:internal-error", "a message cannot be finished")
        else:
            deliveries, any_large = runs.send(link.pn, tags, fronts, settled, rests, skipped)
        self._push_size.sent(len(tags), len(deliveries))
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
        """Settle outgoing deliveries with an outcome, as the answer to the peer's own (AMQP contract
        0.4.10)."""
        if outcome == _MODIFIED:
            for delivery in deliveries:
                local = lib.pn_delivery_local(delivery_of(delivery))
                lib.pn_disposition_set_failed(local, failed)
                lib.pn_disposition_set_undeliverable(local, undeliverable_here)
        runs.settle(deliveries, int(outcome))

    # --- both directions ------------------------------------------------------------------------------------

    def settle_in_transaction(
        self,
        deliveries: Sequence[Delivery],
        txn_id: bytes,
        outcome: int,
        *,
        error: ErrorCondition | None = None,
        failed: bool = False,
        undeliverable_here: bool = False,
    ) -> None:
        """Settle deliveries with an outcome that takes effect with a transaction (§4.5.6), as the answer to a
        transfer or to the peer's own outcome (AMQP contract 8.2)."""
        state = transactional_state(
            txn_id,
            outcome,
            error=b"" if error is None else encoded_error(error),
            failed=failed,
            undeliverable_here=undeliverable_here,
        )
        for delivery in deliveries:
            set_state(delivery_of(delivery), state)
        runs.settle(deliveries, _TRANSACTIONAL)

    # --- events ---------------------------------------------------------------------------------------------

    def _pump(self, is_batch: bool, at_once: float = ALL) -> float:
        """Turn proton's gathered events into ours, about `at_once` of them; gives what is left of these.
        `is_batch`: they result from a Service Bus batch, and are few."""
        if self._accepted:
            self._settle_accepted()
        collector, handlers = self._collector, self._handlers
        links, deliveries = self._attached, self._deliveries
        self._is_unread, left = False, at_once
        while True:
            if left <= 0 and not is_batch:
                self._is_unread = bool(_collector_peek(collector))
                break
            if not is_batch and not deliveries.partial_bytes:
                run = runs.take(collector)
                if run.count and (link := links.get(run.link)) is not None:  # None: outcomes after a detach
                    deliveries.take_run(link, run)
                left -= run.count
                if run.last:
                    break
                if run.count:
                    continue
            event = _collector_peek(collector)
            if not event:
                break
            if delivery := _event_delivery(event):  # null for all events but PN_DELIVERY, the most frequent
                self._on_delivery(links.get(_delivery_link(delivery)), delivery, is_batch)
            elif handler := handlers.get(_event_type(event)):
                handler(event)
            _collector_pop(collector)
            left -= PUMPED_ONE_BY_ONE
        if not self._is_unread:
            self._large_input.clear()
        return left

    def _on_delivery(self, link: Link | None, delivery: Any, is_batch: bool) -> None:
        if link is None:
            pass
        elif not link.gone:
            if link.incoming:
                self._deliveries.transfer(link, delivery, is_batch)
            else:
                self._deliveries.disposition(link, delivery)
        elif link.incoming:  # we have closed it, and the peer still sends: proton would keep all of it
            lib.pn_delivery_settle(delivery)
        runs.forget(delivery)

    def _on_flow(self, event: Any) -> None:
        link = self._attached.get(lib.pn_event_link(event))
        if link is None or link.gone or link.incoming:
            return
        events = self._events
        if not (events and type(events[-1]) is CreditGranted and events[-1].link is link):
            events.append(CreditGranted(link))

    def _on_open(self, event: Any) -> None:
        connection = self._connection
        if self._open_reported:  # proton accepts a second open
            self._break("amqp:not-allowed", "the connection is open already")
            return
        self._open_reported = True
        self._events.append(
            ConnectionOpened(
                text_of(lib.pn_connection_remote_container(connection)) or "",
                text_of(lib.pn_connection_remote_hostname(connection)) or "",
                fields_of(lib.pn_connection_remote_properties(connection)),
                symbols_of(lib.pn_connection_remote_desired_capabilities(connection)),
            )
        )

    def _on_close(self, event: Any) -> None:
        self._report_closed(condition_of(lib.pn_connection_remote_condition(self._connection)))
        lib.pn_connection_close(self._connection)

    def _on_transport_error(self, event: Any) -> None:
        # Proton reports a framing error when a peer hangs up without a close. Nobody is left to be told.
        self._report_closed(
            None if self._tail_ended else condition_of(lib.pn_transport_condition(self._transport))
        )

    def _on_tail_closed(self, event: Any) -> None:
        # A close, or an error that proton finds, was reported before. Proton does not report a frame that it
        # cannot read.
        if not self._closed_reported and not self._tail_ended:
            self._break(
                "amqp:decode-error", "a frame that holds no performative, or one that cannot be decoded"
            )

    def _report_closed(self, error: ErrorCondition | None) -> None:
        if not self._closed_reported:
            self._closed_reported = True
            self._events.append(ConnectionClosed(error))

    def _break(self, condition: str, description: str) -> None:
        """Close the connection because the peer has exceeded a bound, or broken the protocol in a way that
        proton does not notice."""
        error = ErrorCondition(condition, description)
        self.close(error)
        self._report_closed(error)


runs.bind(ffi, lib)
