"""Turns proton's events about deliveries into ours: messages from the peer, and outcomes of what we sent.

A run of plain deliveries is handled as a whole (`runs.py`). Others are handled one by one: batches, messages
in several frames, aborted or oversized messages, and outcomes other than `accepted`. Neighbours that belong
together are merged, so that the engine's user sees one event for many deliveries.

Invariants: no delivery is reported twice; the bytes held of unfinished messages are counted and bounded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from protocol import runs
from protocol.events import (
    DeliveriesUpdated,
    Event,
    MessagesReceived,
    MessageTooLarge,
    Outcome,
    TransactionalState,
    same_update,
)
from protocol.heavy_states import HeavyStates
from protocol.large_input import LargeInput
from protocol.links import Delivery, Link
from protocol.proton_values import ffi, lib, number_of, transaction_of, update_of

JOINED_BYTES_MAX = 8 * 1024
"""Pieces of an unfinished message are joined up to this size: a peer may send one byte in each frame."""

# Plain numbers, because comparing with an enum's members costs more than the calls around it.
_ACCEPTED, _TRANSACTIONAL = int(Outcome.ACCEPTED), int(Outcome.TRANSACTIONAL)
_NOT_TERMINAL = (int(Outcome.NONE), int(Outcome.RECEIVED))


class Deliveries:
    """The deliveries of one connection, in both directions."""

    def __init__(
        self,
        events: list[Event],
        refuse: Callable[[str, str], None],
        large_input: LargeInput,
        heavy_states: HeavyStates,
        partial_bytes_max: int,
    ) -> None:
        """`events` collects what is reported. `refuse` closes the connection with a condition and a
        description. `large_input` has the large payloads, `heavy_states` the large states."""
        self._events = events
        self._refuse = refuse
        self._large_input = large_input
        self._heavy_states = heavy_states
        self._partial_bytes_max = partial_bytes_max
        self.partial_bytes = 0
        """The bytes held of unfinished messages, over all links."""
        self._partial_transactions: dict[Link, TransactionalState] = {}
        """The transactional states from the first frames of unfinished messages."""

    def take_run(self, link: Link, run: Any) -> None:
        """Report the run of plain deliveries that was just taken."""
        settled, deliveries = run.settled, runs.deliveries()
        if not run.incoming:
            self.report_run(link, deliveries, None, settled)
            return
        payloads = runs.payloads()
        if self._large_input.has_payloads:
            payloads = self._large_input.resolved(payloads)
            if max(map(len, payloads)) > link.max_message_bytes:
                for place, payload in enumerate(payloads):
                    self._report(link, deliveries[place : place + 1], payload, settled, False, None)
                return
        self.report_run(link, deliveries, payloads, settled)

    def report_run(
        self, link: Link, deliveries: list[Delivery], payloads: list[bytes] | None, settled: bool
    ) -> None:
        """Report a run of plain deliveries, together with the one before it if both are alike. `payloads`:
        the messages; None for outcomes `accepted` of sent ones."""
        events = self._events
        last = events[-1] if events else None
        if payloads is None:
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
            and last.transaction is None
        ):
            last.payloads += payloads
            last.deliveries += deliveries
        else:
            events.append(MessagesReceived(link, deliveries, payloads, settled, False))

    # --- from the peer --------------------------------------------------------------------------------------

    def transfer(self, link: Link, delivery: Any, is_batch: bool) -> None:
        """Handle a transfer that is not plain: of a batch, in parts, aborted, too large, with a state, or on
        a link without a maximum size."""
        if not lib.pn_delivery_readable(delivery):
            return  # this is the rest of a message that was refused
        pending = lib.pn_delivery_pending(delivery)
        if pending == 1 and lib.pn_delivery_aborted(delivery):  # proton reports one byte that does not exist
            self._drop_aborted(link, delivery)
            return
        piece = self._read(link, pending)
        size = (link.partial_bytes if link.partial else 0) + len(piece)
        transaction = self._partial_transactions.get(link)
        if transaction is None and lib.pn_delivery_remote_state(delivery) == _TRANSACTIONAL:
            # Every frame of a delivery names its transaction (§4.4.2); proton reads that of the first one.
            transaction = transaction_of(delivery)
        if link.max_message_bytes and size > link.max_message_bytes:
            self._events.append(MessageTooLarge(link, self._drop_rest(link, delivery), size, transaction))
            return
        if lib.pn_delivery_partial(delivery):
            link.partial_is_batch |= is_batch
            if transaction is not None:
                self._partial_transactions[link] = transaction
            if link.partial and len(link.partial[-1]) + len(piece) <= JOINED_BYTES_MAX:
                link.partial[-1] += piece
            elif piece:
                link.partial.append(piece)
            self._count_partial(link, size)
        else:
            is_batch |= link.partial_is_batch
            payload = b"".join((*link.partial, piece)) if link.partial else piece
            self._take_message(link, delivery, payload, is_batch, transaction)

    def _read(self, link: Link, pending: int) -> bytes:
        """What the link's current delivery has beyond what was read before."""
        if not pending:
            return b""
        buffer = ffi.new("char[]", pending)
        count = lib.pn_link_recv(link.pn, buffer, pending)
        assert count == pending, "proton has what it says is pending"
        (piece,) = self._large_input.resolved((ffi.unpack(buffer, pending),))
        return piece

    def _drop_aborted(self, link: Link, delivery: Any) -> None:
        """Drop a message that its sender aborted (§2.7.5), and give its credit back, since no event reports
        it."""
        self.forget_partial(link)
        lib.pn_delivery_settle(delivery)
        lib.pn_link_flow(link.pn, 1)

    def _drop_rest(self, link: Link, delivery: Any) -> list[Delivery]:
        """Have proton discard what it has of a message and what is still to come; gives the delivery, unless
        it was sent settled."""
        self.forget_partial(link)
        settled = lib.pn_delivery_settled(delivery)
        lib.pn_link_advance(link.pn)
        if settled:
            lib.pn_delivery_settle(delivery)
        return [] if settled else [number_of(delivery)]

    def _take_message(
        self,
        link: Link,
        delivery: Any,
        payload: bytes,
        is_batch: bool,
        transaction: TransactionalState | None,
    ) -> None:
        """Take a whole message off its link and report it."""
        settled = lib.pn_delivery_settled(delivery)
        lib.pn_link_advance(link.pn)
        if link.partial_bytes:
            self.forget_partial(link)
        if settled:
            lib.pn_delivery_settle(delivery)
        self._report(link, [] if settled else [number_of(delivery)], payload, settled, is_batch, transaction)

    def _report(
        self,
        link: Link,
        own: list[Delivery],
        payload: bytes,
        settled: bool,
        is_batch: bool,
        transaction: TransactionalState | None,
    ) -> None:
        """Report a message that was taken off its link; `own` is its delivery, unless it was sent settled."""
        events = self._events
        if len(payload) > link.max_message_bytes > 0:  # judged by itself, because neighbours may be smaller
            events.append(MessageTooLarge(link, own, len(payload), transaction))
            return
        last = events[-1] if events else None
        if (
            type(last) is MessagesReceived
            and last.link is link
            and last.settled is settled
            and not (is_batch or last.batch)
            and last.transaction == transaction
        ):
            last.payloads.append(payload)
            last.deliveries += own
        else:
            events.append(MessagesReceived(link, own, [payload], settled, is_batch, transaction))

    def _count_partial(self, link: Link, size: int) -> None:
        """Count a link's unfinished message, and refuse it if all links together hold too much. A single
        message may be as large as its link allows."""
        size = max(size, 1)  # a first frame may be empty
        self.partial_bytes += size - link.partial_bytes
        link.partial_bytes = size
        if self.partial_bytes > self._partial_bytes_max and self.partial_bytes > size:
            self._refuse(
                "amqp:resource-limit-exceeded",
                f"Unfinished messages take {self.partial_bytes} bytes on this connection; the limit is "
                f"{self._partial_bytes_max}, unless there is only one such message.",
            )

    def forget_partial(self, link: Link) -> None:
        """Stop counting the link's unfinished message, if there is one."""
        self.partial_bytes -= link.partial_bytes
        link.partial_bytes = 0
        link.partial.clear()
        link.partial_is_batch = False
        self._partial_transactions.pop(link, None)

    # --- of what we sent ------------------------------------------------------------------------------------

    def disposition(self, link: Link, delivery: Any) -> None:
        """Handle an outcome that is not plain, usually one other than `accepted`."""
        if lib.pn_link_current(link.pn):
            # What we send is never current by now, so the peer has sent a transfer on a link on which we are
            # the sender. Proton accepts it, and would send our next message in its place.
            self._refuse(
                "amqp:not-allowed", f"transfer on link '{link.name}', on which the peer is the receiver"
            )
            return
        outcome, settled = lib.pn_delivery_remote_state(delivery), lib.pn_delivery_settled(delivery)
        state = self._heavy_states.find(outcome)
        if (outcome if state is None else state.outcome) in _NOT_TERMINAL and not settled:
            return
        if state is None:
            update = update_of(link, delivery, outcome, settled)
        else:
            update = state.update(link, number_of(delivery), settled)
        last = self._events[-1] if self._events else None
        if type(last) is DeliveriesUpdated and same_update(last, update):
            last.deliveries += update.deliveries
        else:
            self._events.append(update)
